"""Tests of rscfed_jax.cli."""
