"""Tests of rscfed_jax.report."""
