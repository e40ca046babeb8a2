"""Tests of rscfed_jax.models."""
