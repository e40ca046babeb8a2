"""Tests of rscfed_jax.config."""
