"""How the client axis is executed: `vmap` inside a chunk, `lax.map` over chunks, `shard_map` over devices.

The only module that knows of devices.
"""

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rscfed_jax.config import SettingError
from rscfed_jax.types import Array

AXIS = "clients"
LARGEST_AUTO_CHUNK = 64
NOBODY = np.int32(2**31 - 1)  # the client id of a slot that pads the work

Out = TypeVar("Out")


def use_all_cores() -> int:
    """Makes each CPU core a device of its own and returns how many there are; call it before JAX is used.

    One client per core is faster than several cores per client. Where JAX is running already, or XLA_FLAGS force a
    number of devices, it stays as it is.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    forced = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    # A RuntimeError says that JAX is running already.
    with contextlib.suppress(RuntimeError):
        if not forced:
            jax.config.update("jax_num_cpu_devices", cores)
    return jax.device_count()


@dataclass(frozen=True)
class ClientAxis:
    """Static: how many clients run at once by `vmap` on a device (0: all of them), and over which devices."""

    chunk: int = 1
    mesh: Mesh | None = None

    @classmethod
    def create(cls, chunk: int | str, devices: int | str) -> "ClientAxis":
        """Chooses what was measured fastest where a setting is `auto`: on CPU, one client at a time on every core."""
        there = jax.devices()
        if devices != "auto" and devices > len(there):
            raise SettingError("devices", devices, f"must be from 1 to {len(there)}, the devices that JAX sees here")
        used = there if devices == "auto" else there[:devices]
        if chunk == "auto":
            chunk = 1 if used[0].platform == "cpu" else LARGEST_AUTO_CHUNK
        return cls(chunk, Mesh(np.array(used), (AXIS,)) if len(used) > 1 else None)

    @property
    def devices(self) -> int:
        """Number of devices that share the clients."""
        return 1 if self.mesh is None else self.mesh.size

    def replicate(self, tree: Out) -> Out:
        """Puts a pytree on every device."""
        return tree if self.mesh is None else jax.device_put(tree, NamedSharding(self.mesh, PartitionSpec()))

    def map(self, function: Callable[..., Out], work: Array, slots: tuple[Array, ...], shared: tuple) -> Out:
        """[n, ...] results of `function(*slot, *shared)` for n slots, which run in any order.

        `slots` are arrays [n] of client ids and the like; `work` [n] says how much each slot has to do: slots that run
        at once have alike work, and devices get equal parts of it. A slot of padding holds `NOBODY`, which must be no
        work at all.
        """
        count = len(work)
        per_device = -(-count // self.devices)
        chunk = min(self.chunk or per_device, per_device)
        if chunk == 1 and self.devices == 1:
            return jax.lax.map(lambda slot: function(*slot, *shared), slots)
        order, position = _balanced_order(work, chunk, self.devices)
        slots = tuple(slot.at[order].get(mode="fill", fill_value=NOBODY).reshape(-1, chunk) for slot in slots)

        def run(slots: tuple, shared: tuple) -> Out:
            if chunk == 1:
                out = jax.lax.map(lambda slot: function(*slot, *shared), tuple(slot[:, 0] for slot in slots))
                return jax.tree.map(lambda leaf: leaf[:, None], out)
            return jax.lax.map(lambda slot: jax.vmap(lambda *s: function(*s, *shared))(*slot), slots)

        if self.mesh is not None:
            split, everywhere = PartitionSpec(AXIS), PartitionSpec()
            run = jax.shard_map(run, mesh=self.mesh, in_specs=(split, everywhere), out_specs=split, check_vma=False)
        out = run(slots, shared)
        if self.mesh is not None:
            # Sums over clients are then made on one device, in one order, whatever the number of devices.
            out = jax.lax.with_sharding_constraint(out, NamedSharding(self.mesh, everywhere))
        return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[position], out)


ONE_AT_A_TIME = ClientAxis()


def _balanced_order(work: Array, chunk: int, devices: int) -> tuple[Array, Array]:
    """Which slot runs where, and where each slot's result is found.

    Slots sorted by falling work make chunks of alike slots; chunks are dealt to devices forth and back.
    """
    count = len(work)
    chunks = -(-count // (chunk * devices)) * devices
    dealt = np.arange(chunks).reshape(-1, devices)
    dealt[1::2] = dealt[1::2, ::-1]
    place = (dealt.T.reshape(-1, 1) * chunk + np.arange(chunk)).ravel()  # rank that runs at each place
    by_work = jnp.argsort(-work)
    order = by_work.at[place].get(mode="fill", fill_value=NOBODY)
    rank = jnp.argsort(by_work)
    return order, jnp.asarray(np.argsort(place))[rank]
