"""Data sets, one file each: `load(config)` returns the data set, and literals in capitals declare it.

A file may declare `HELP`, a few words; `USAGE`, as in "npz:PATH" or "synthetic[:...]", if its name takes an argument;
`SEEDED = False` if its samples do not depend on the seed; and `DEFAULTS` and `PRESETS` of settings. If its files may
say which client holds each sample, it declares `NAMES_CLIENTS = True` and has a function `count_clients(dataset,
data_dir)`, which returns the number of clients, or None.
"""
