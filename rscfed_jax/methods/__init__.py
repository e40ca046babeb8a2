"""Federated methods by name. Each says who takes part in a round and how the models of a subset are averaged."""

from collections.abc import Callable

from rscfed_jax.config import Config
from rscfed_jax.methods.base import Method
from rscfed_jax.methods.fed_consist import fed_consist
from rscfed_jax.methods.fedavg import fedavg
from rscfed_jax.methods.fedirm import fedirm
from rscfed_jax.methods.rscfed import rscfed
from rscfed_jax.methods.sso import sso

METHODS: dict[str, Callable[[Config], Method]] = {
    "rscfed": rscfed,
    "sso": sso,
    "fed_consist": fed_consist,
    "fedirm": fedirm,
    "fedavg": fedavg,
}

__all__ = ["METHODS", "Method"]
