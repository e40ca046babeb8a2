"""Small operations on whole models and states."""

from typing import TypeVar

import jax
import jax.numpy as jnp

from rscfed_jax.core.types import Array, Model

Tree = TypeVar("Tree")


def choose(condition: Array, yes: Tree, no: Tree) -> Tree:
    """One tree or the other, as a whole."""
    return jax.tree.map(lambda y, n: jnp.where(condition, y, n), yes, no)


def all_finite(model: Model) -> Array:
    """Whether every number of a model is finite."""
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(model)]))


def added(total: dict[str, Array], more: dict[str, Array]) -> dict[str, Array]:
    """The sums by name; what `more` does not name stays, and it may name nothing else."""
    if unknown := more.keys() - total.keys():
        raise ValueError(f"the news {', '.join(sorted(unknown))} are not declared by the method")
    return {name: value + more[name].astype(value.dtype) if name in more else value for name, value in total.items()}
