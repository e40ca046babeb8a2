"""Tests of the tables of the paper."""
