"""The command line."""

from rscfed_jax.cli.parser import main

__all__ = ["main"]
