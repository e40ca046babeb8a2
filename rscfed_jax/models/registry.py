"""From a config to its network: the file that it names is run, and the network is tried on images of the right size."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from rscfed_jax.config import Config, SettingError
from rscfed_jax.core.types import Model


def network_of(config: Config, classes: int) -> nn.Module:
    """The network of a config that names one by name or file."""
    file = config.model_file
    if file is None:
        raise SettingError("model", config.model, "is not built in: give the file it came from, or network= in Python")
    try:
        network = file.load().network(config, classes)
    except SettingError:
        raise
    except Exception as error:
        if file.hash is None:
            raise
        raise SettingError("model", file.path, f"fails with {type(error).__name__}: {error}") from error
    if not isinstance(network, nn.Module):
        raise SettingError("model", file.path, f"its function `network` returns {type(network).__name__}, not a module")
    return network


def name_of(network: nn.Module) -> str:
    """What a network that was given as an object is called: its class and its fields."""
    fields = {
        name: getattr(network, name) for name in type(network).__dataclass_fields__ if name not in ("parent", "name")
    }
    said = ", ".join(f"{name}={getattr(value, '__name__', value)}" for name, value in fields.items())
    return f"{type(network).__name__}({said})"


def model_like(network: nn.Module, config: Config, classes: int) -> Model:
    """Shapes and types of a model; refuses a network that does not turn the config's images into logits."""
    side = config.image_size
    images = jax.ShapeDtypeStruct((3, side, side, 2), jnp.float32)

    def run(images: Any) -> tuple[Model, Any]:
        model = dict(network.init(jax.random.key(0), images, train=False))
        return model, network.apply(model, images, train=False)

    try:
        model, logits = jax.eval_shape(run, images)
    except Exception as error:
        reason = f"does not take images of 3 x {side} x {side}: {type(error).__name__}: {str(error).splitlines()[0]}"
        raise SettingError("model", config.model, reason) from error
    if logits.shape != (2, classes):
        raise SettingError("model", config.model, f"must give logits [2, {classes}] for 2 images, not {logits.shape}")
    return model
