"""Tests of rscfed_jax.local."""
