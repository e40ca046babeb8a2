"""The simulation itself: pure functions, arrays in and arrays out. No files, no host loop, no loaders."""
