"""How the client axis is executed: `vmap` inside a chunk, `lax.map` over chunks, `shard_map` over devices.

The only module that knows of devices. Client states are spread over them; a slot of work runs on the device that has
time for it, so a state travels there and back.
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
# Devices wait for each other after a wave of slots. A long wave evens out their work, a short one takes less memory.
LONGEST_WAVE = 16
WAVE_BYTES = 256 * 2**20
# On CPU, XLA ends the process when a device waits 40 s for another: less than a large client may take.
PATIENCE = " ".join(
    f"--xla_cpu_collective_{what}_seconds={seconds}"
    for what, seconds in (("call_warn_stuck_timeout", 3600), ("call_terminate_timeout", 10**6), ("timeout", 10**6))
)

Out = TypeVar("Out")
States = TypeVar("States")


def use_all_cores() -> int:
    """Makes each CPU core a device of its own and returns how many there are; call it before JAX is used.

    One client per core is faster than several cores per client. Where JAX is running already, or XLA_FLAGS force a
    number of devices, it stays as it is.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    flags = os.environ.get("XLA_FLAGS", "")
    if "xla_cpu_collective" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {PATIENCE}".strip()
    # A RuntimeError says that JAX is running already.
    with contextlib.suppress(RuntimeError):
        if "xla_force_host_platform_device_count" not in flags:
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

    def rows(self, count: int) -> int:
        """The smallest number of rows, not below `count`, of which each device holds as many."""
        return -(-count // self.devices) * self.devices

    def replicate(self, tree: Out) -> Out:
        """Puts a pytree on every device."""
        return self._place(tree, PartitionSpec())

    def spread(self, tree: Out) -> Out:
        """Cuts the leading axis [rows] of a pytree's leaves into equal parts, one for each device."""
        return self._place(tree, PartitionSpec(AXIS))

    def _place(self, tree: Out, spec: PartitionSpec) -> Out:
        if self.mesh is None:
            return tree
        traced = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree))
        put = jax.lax.with_sharding_constraint if traced else jax.device_put
        return put(tree, NamedSharding(self.mesh, spec))

    def run(
        self,
        function: Callable[..., tuple[Out, States]],
        work: Array,
        ids: Array,
        slots: tuple[Array, ...],
        states: States,
        shared: tuple,
        *,
        distinct: bool,
    ) -> tuple[Out, States]:
        """Runs `function(id, *slot, state, *shared) -> (result, state)` for n slots, in any order.

        `ids` [n] are the slots' clients, `slots` more arrays [n], and `states` [rows, ...] those of all clients.
        Returns the results [n, ...] and all states, the new ones in their place. A client with several slots enters
        each with the state it has now and leaves with that of its last slot; `distinct` promises that there is no such
        client, which saves a copy of the states.

        `work` [n] says how much each slot has to do: slots that run at once have alike work, and devices get equal
        parts of it. A slot of padding has the id `NOBODY`, which must be no work at all.
        """
        number = jax.tree.leaves(states)[0].shape[0]
        slots = (ids, *slots)
        one_state = jax.tree.map(lambda leaf: leaf[0], states)
        like = jax.eval_shape(function, *(slot[0] for slot in slots), one_state, *shared)
        order = self._order(work, size=sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(like)))
        homes = ids if distinct else _last_slots(ids, number)
        results = jax.tree.map(lambda leaf: jnp.zeros((self.rows(len(ids)), *leaf.shape), leaf.dtype), like[0])

        def on_device(results: Out, states: States, order: Array, homes: Array, slots: tuple, shared: tuple) -> tuple:
            def wave(carry: tuple[Out, States], order: Array) -> tuple[tuple[Out, States], None]:
                results, new_states = carry
                fetched = self._fetch(new_states if distinct else states, _take(slots[0], order))
                job = (*(_take(slot, order[self._me()]) for slot in slots), fetched)
                result, state = _run_chunks(lambda slot: function(*slot, *shared), job)
                return (self._store(results, order, result), self._store(new_states, _take(homes, order), state)), None

            if len(order) == 1:
                return wave((results, states), order[0])[0]
            return jax.lax.scan(wave, (results, states), order)[0]

        if self.mesh is not None:
            split, everywhere = PartitionSpec(AXIS), PartitionSpec()
            specs = (split, split, everywhere, everywhere, everywhere, everywhere)
            on_device = jax.shard_map(
                on_device, mesh=self.mesh, in_specs=specs, out_specs=(split, split), check_vma=False
            )
        results, states = on_device(results, states, order, homes, slots, shared)
        return jax.tree.map(lambda leaf: leaf[: len(ids)], results), states

    def _order(self, work: Array, *, size: int) -> Array:
        """[waves, devices, chunks, chunk] which slot runs when and where; each brings `size` bytes to every device.

        Slots sorted by falling work make chunks of alike slots; chunks are dealt to devices forth and back.
        """
        per_device = -(-len(work) // self.devices)
        chunk = min(self.chunk or per_device, per_device)
        chunks = -(-per_device // chunk)
        longest = max(1, min(LONGEST_WAVE, WAVE_BYTES // (size * self.devices)) // chunk)
        waves = -(-chunks // longest)
        in_wave = -(-chunks // waves)
        dealt = np.arange(waves * in_wave * self.devices).reshape(-1, self.devices)
        dealt[1::2] = dealt[1::2, ::-1]
        rank = dealt.reshape(waves, in_wave, self.devices, 1).swapaxes(1, 2) * chunk + np.arange(chunk)
        return _take(jnp.argsort(-work), rank)

    def _me(self) -> Array | int:
        """The number of the device that runs this."""
        return 0 if self.mesh is None else jax.lax.axis_index(AXIS)

    def _fetch(self, tree: States, ids: Array) -> States:
        """The rows `ids` [devices, ...], each on the device that asks for it; a row that nobody has is zero."""
        local = self._local_rows(tree, ids)
        found = jax.tree.map(lambda leaf: leaf.at[local].get(mode="fill", fill_value=0), tree)
        if self.mesh is None:
            return jax.tree.map(lambda leaf: leaf[0], found)
        return _at_once(lambda leaf: jax.lax.psum_scatter(leaf, AXIS), found, leading=ids.ndim)

    def _store(self, tree: Out, ids: Array, values: Out) -> Out:
        """The tree with its rows `ids` [devices, ...] replaced by the devices' own `values`."""
        local = self._local_rows(tree, ids)
        if self.mesh is None:
            values = jax.tree.map(lambda leaf: leaf[None], values)
        else:
            values = _at_once(lambda leaf: jax.lax.all_gather(leaf, AXIS), values, leading=ids.ndim - 1)
        return jax.tree.map(lambda leaf, value: leaf.at[local].set(value, mode="drop"), tree, values)

    def _local_rows(self, tree: Out, ids: Array) -> Array:
        """Where this device holds the rows `ids`; out of range where it does not."""
        number = jax.tree.leaves(tree)[0].shape[0]
        first = self._me() * number
        return jnp.where((ids >= first) & (ids < first + number), ids - first, number)


ONE_AT_A_TIME = ClientAxis()


def _run_chunks(function: Callable[[tuple], Out], slots: tuple) -> Out:
    """[chunks, chunk, ...] results of slots [chunks, chunk, ...]: chunks one after the other, each at once."""
    if jax.tree.leaves(slots)[0].shape[1] > 1:
        return jax.lax.map(jax.vmap(function), slots)
    # A `vmap` over one client would still turn its convolutions into batched ones.
    out = jax.lax.map(function, jax.tree.map(lambda leaf: leaf[:, 0], slots))
    return jax.tree.map(lambda leaf: leaf[:, None], out)


def _at_once(collective: Callable[[Array], Array], tree: Out, *, leading: int) -> Out:
    """A collective over `leading` axes of a pytree, as one array of each type: devices meet once, not for each leaf."""
    leaves, structure = jax.tree.flatten(tree)
    out = [None] * len(leaves)
    for dtype in dict.fromkeys(leaf.dtype for leaf in leaves):
        places = [i for i, leaf in enumerate(leaves) if leaf.dtype == dtype]
        flat = [leaves[i].reshape(*leaves[i].shape[:leading], -1) for i in places]
        together = collective(jnp.concatenate(flat, axis=-1))
        parts = jnp.split(together, np.cumsum([part.shape[-1] for part in flat])[:-1], axis=-1)
        for i, part in zip(places, parts, strict=True):
            out[i] = part.reshape(*part.shape[:-1], *leaves[i].shape[leading:])
    return jax.tree.unflatten(structure, out)


def _take(values: Array, places: Array) -> Array:
    """`values` at `places`; NOBODY where there is none."""
    return jnp.asarray(values).at[places].get(mode="fill", fill_value=NOBODY)


def _last_slots(ids: Array, number: int) -> Array:
    """[n] the ids, with NOBODY in all but the last slot of each of the `number` clients.

    A scatter with duplicate indices has no defined order.
    """
    slots = jnp.arange(len(ids))
    last = jnp.full(number, -1).at[ids].max(slots, mode="drop")
    return jnp.where(last.at[ids].get(mode="fill", fill_value=-1) == slots, ids, NOBODY)
