"""Federated methods: one file each, found by its name. A file with a function `method` is a method."""
