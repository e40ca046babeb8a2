"""Which form of the convolutions is fastest on this device: timed once, then remembered."""

import contextlib
import hashlib
import json
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rscfed_jax.config import Config
from rscfed_jax.config.files import cache_folder, write_json
from rscfed_jax.data.federation import Federation
from rscfed_jax.runner.build import Objects
from rscfed_jax.runner.step_cost import Parts, local_step, repeated

FORMS = ("plain", "matmul")
STEPS, REPEATS = 20, 3
MOST_CLIENTS = 16  # that are trained at once in a race


class Race(NamedTuple):
    """What each form takes."""

    seconds: dict[str, float]  # of a step of all clients, by form; one that cannot be compiled is absent

    @property
    def fastest(self) -> str:
        """The form that won."""
        return min(self.seconds, key=lambda form: self.seconds[form])


def key_of(config: Config, *, clients: int, device: jax.Device) -> dict[str, Any]:
    """What a result holds for: the device, the versions and the shapes."""
    names = ("model", "model_hash", "stem", "image_size", "batch_size", "method", "method_hash", "dtype", "precision")
    return {
        "device": device.device_kind,
        "runtime": device.client.platform_version,
        "jax": jax.__version__,
        "clients": clients,
        **{name: getattr(config, name) for name in names},
    }


def remembered(key: dict[str, Any]) -> str | None:
    """The form that won an earlier race."""
    try:
        stored = json.loads(_file(key).read_text())
    except (OSError, ValueError, RecursionError):
        return None
    form = stored.get("conv") if isinstance(stored, dict) and stored.get("key") == key else None
    return form if form in FORMS else None


def remember(key: dict[str, Any], race: Race) -> None:
    """Keeps the result where other runs find it; a cache that cannot be written is no harm."""
    with contextlib.suppress(OSError):
        file = _file(key)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, {"conv": race.fastest, "seconds": race.seconds, "key": key})


def _file(key: dict[str, Any]) -> Any:
    name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]
    return cache_folder("forms") / f"{name}.json"


def race(
    config: Config,
    federation: Federation,
    *,
    clients: int,
    objects: Objects,
    forms: Sequence[str] = FORMS,
    clock: Callable[[], float] = time.perf_counter,
) -> Race:
    """Times a local step of `clients` clients at once, alternating the forms, and takes the median of each."""
    parts = Parts.of(config, federation, objects)
    programs: dict[str, Callable[[], Any]] = {}
    for form in forms:
        step, one = local_step(config, federation.dataset.classes, parts, objects, conv=form)
        arguments = jax.tree.map(partial(repeated, times=clients), one)
        # A form that this device cannot compile, or has no memory for, has lost.
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            compiled = jax.jit(partial(_steps, step)).lower(arguments, jnp.int32(STEPS)).compile()
            programs[form] = partial(compiled, arguments, jnp.int32(STEPS))
            jax.block_until_ready(programs[form]())
    seconds: dict[str, list[float]] = {form: [] for form in programs}
    for _ in range(REPEATS):
        for form, program in programs.items():
            began = clock()
            jax.block_until_ready(program())
            seconds[form].append((clock() - began) / STEPS)
    return Race({form: statistics.median(times) for form, times in seconds.items()})


def _steps(step: Callable[..., Any], arguments: tuple, number: jax.Array) -> Any:
    """`number` steps of clients stacked in a leading axis, always on the same batches."""
    model, client, batch = arguments

    def body(_: jax.Array, carry: tuple) -> tuple:
        model, client, _ = jax.vmap(step)(*carry, batch)
        return model, client

    return jax.lax.fori_loop(0, number, body, (model, client))
