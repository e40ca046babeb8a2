"""Tests of rscfed_jax.data.loaders."""
