"""Federated methods: one file each, found by name. A file with a function `method` is a method."""
