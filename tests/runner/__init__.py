"""Tests of rscfed_jax.runner."""
