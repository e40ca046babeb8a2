"""Builds the network of a config: runs the file that it names, and tries the network on images of the right size."""

import re
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from rscfed_jax.config import Config, SettingError
from rscfed_jax.config.registry import NETWORKS
from rscfed_jax.core.types import Model


def network_of(config: Config, classes: int) -> nn.Module:
    """The network of a config that names one by name or file."""
    file = config.model_file
    if file is None:
        raise SettingError("model", config.model, "is not built in: give the file it came from, or network= in Python")
    network = file.call(NETWORKS, config, classes)
    if not isinstance(network, nn.Module):
        raise SettingError("model", file.path, f"its function `network` returns {type(network).__name__}, not a module")
    return network


def name_of(network: nn.Module) -> str:
    """What a network that was given as an object is called: its class and its fields."""
    names = (name for name in type(network).__dataclass_fields__ if name not in ("parent", "name"))
    said = ", ".join(f"{name}={_as_text(getattr(network, name))}" for name in names)
    return f"{type(network).__name__}({said})"


def _as_text(value: Any) -> str:
    """A field's value without its address, which differs from process to process."""
    return re.sub(r" at 0x[0-9a-f]+", "", getattr(value, "__name__", str(value)))


def model_like(network: nn.Module, config: Config, classes: int) -> Model:
    """Shapes and types of a model; refuses a network that does not turn the config's images into logits."""
    side = config.image_size

    def refuse(reason: str) -> SettingError:
        return SettingError("model", config.model, " ".join(reason.split()))

    if missing := [name for name in ("classes", "dtype") if not hasattr(network, name)]:
        raise refuse(f"must have the field {missing[0]}")

    def run(images: Any) -> tuple[Model, Any, Any]:
        model = dict(network.init(jax.random.key(0), images, train=False))
        stats = [name for name in model if name != "params"]
        trained, _ = network.apply(model, images, train=True, valid=jnp.ones(2, bool), mutable=stats)
        return model, network.apply(model, images, train=False), trained

    try:
        model, *both = jax.eval_shape(run, jax.ShapeDtypeStruct((3, side, side, 2), network.dtype))
    except Exception as error:
        reason = f"does not take images of 3 x {side} x {side}: {type(error).__name__}: {error}"
        raise refuse(reason[:300]) from error
    for logits in both:
        if (shape := getattr(logits, "shape", None)) != (2, classes):
            raise refuse(f"must give logits [2, {classes}] for 2 images, not {shape or type(logits).__name__}")
    return model


def feature_size(network: nn.Module, config: Config) -> int | None:
    """How many features the network gives beside its logits; None if it gives none."""
    images = jax.ShapeDtypeStruct((3, config.image_size, config.image_size, 2), network.dtype)
    run = partial(network.init_with_output, train=False, mutable=True)
    _, variables = jax.eval_shape(run, jax.random.key(0), images)
    features = variables.get("intermediates", {}).get("features")
    if features is None:
        return None
    shape: tuple[int, ...] = features[-1].shape
    if len(shape) != 2 or shape[0] != 2:
        raise SettingError("model", config.model, f"must give features [2, F] for 2 images, not {shape}")
    return shape[1]
