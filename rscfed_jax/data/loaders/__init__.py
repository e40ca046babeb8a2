"""Data sets, one file each: `load(config)` returns the data set, and literals in capitals declare it.

A file may declare `HELP`, a few words; `USAGE`, as in "npz:PATH" or "synthetic[:...]", if its name takes an argument;
`SEEDED = False` if its samples do not depend on the seed; and `DEFAULTS` and `PRESETS` of settings.
"""
