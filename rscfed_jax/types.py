"""Names for the pytrees that travel between modules."""

from typing import Any

from jax import Array

Model = dict[str, Any]  # flax variables: "params" and, where a network has them, "batch_stats"

__all__ = ["Array", "Model"]
