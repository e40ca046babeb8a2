"""Tests of rscfed_jax.data."""
