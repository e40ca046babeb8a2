"""Tests of rscfed_jax.core."""
