"""Tests mirror the package, file by file."""
