"""Networks of the clients: one file each, found by name. A file with a function `network` is a network."""
