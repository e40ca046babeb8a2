"""How the client axis is executed: `vmap` inside a chunk, `lax.map` over chunks, `shard_map` over devices.

No other module of `core` knows of devices. Client states are spread over them; a slot of work runs on the device that
has time for it, so a state travels there and back.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rscfed_jax.config import SettingError
from rscfed_jax.core.exchange import fetch, store, this_device
from rscfed_jax.core.schedule import NOBODY, last_slots, order_of, take
from rscfed_jax.core.types import OF_A_CELL, Array, FederatedData, Slot

GRID, CLIENTS = "grid", "clients"  # axes of the mesh
LARGEST_AUTO_CHUNK = 64
# Each device holds, for each other, a client's state as it is fetched and its model and state as they are stored.
EXCHANGED_MODELS = 5  # with teacher and momentum
EXCHANGED_BYTES = 4 * 2**30  # what CPU devices may take for it together
# What each platform's compiler is told. A version that does not know an option does without.
OPTIONS: dict[str, dict[str, Any]] = {
    # With a client on every core no operations run side by side, so their order may spare the cache.
    "cpu": {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"},
    # Sums in the same order every time: a resumed run is identical only so.
    "gpu": {"xla_gpu_exclude_nondeterministic_ops": True},
    # This fusion overflows the compiler's stack for a chunk of clients (libtpu 0.0.42, v5e).
    "tpu": {"xla_tpu_dot_dot_fusion": False},
}
# On a GPU the host waits after every step to learn whether there is another one, unless the loop itself is in a graph.
GRAPHS = {
    "xla_gpu_enable_command_buffer": "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,CONVOLUTION,DYNAMIC_SLICE_FUSION,"
    "CONDITIONAL,WHILE"
}

Out = TypeVar("Out")
States = TypeVar("States")


@dataclass(frozen=True)
class ClientAxis:
    """Static: how many clients run at once by `vmap` on a device (0: all of them), and over which devices.

    The mesh has two axes: cells of a grid are spread over the first, the clients of each over the second.
    """

    chunk: int = 1
    mesh: Mesh | None = None
    graphs: bool = False  # a GPU keeps the loops of a round in one CUDA graph

    @classmethod
    def create(
        cls,
        chunk: int | str,
        devices: int | str,
        grid_devices: int = 1,
        *,
        model_bytes: int = 0,
        graphs: bool = False,
    ) -> "ClientAxis":
        """Chooses what was measured fastest where a setting is `auto`: on CPU, one client at a time on every core.

        Cores share one memory, which devices fill with what they exchange: of large models fewer cores are taken.
        """
        there = jax.devices()
        number = len(there) if isinstance(devices, str) else devices
        if isinstance(devices, str) and there[0].platform == "cpu" and jax.process_count() == 1:
            most = math.isqrt(EXCHANGED_BYTES // (EXCHANGED_MODELS * max(model_bytes, 1)))
            if most < number and number % grid_devices == 0:
                number = max(most // grid_devices, 1) * grid_devices
        if number > len(there):
            raise SettingError(
                "devices", devices, f"must be from 1 to {len(there)}, the number of devices that JAX sees"
            )
        used = there[:number]
        if len({device.process_index for device in used}) < jax.process_count():
            raise SettingError("devices", devices, f"must be auto or {len(there)}: every process needs its own device")
        if len(used) % grid_devices:
            raise SettingError("grid_devices", grid_devices, f"must divide the number of devices, {len(used)}")
        if isinstance(chunk, str):
            chunk = 1 if used[0].platform == "cpu" else LARGEST_AUTO_CHUNK
        if graphs and used[0].platform != "gpu":
            raise SettingError("gpu_graphs", True, f"needs a GPU; JAX sees {used[0].platform} here")
        mesh = Mesh(np.array(used).reshape(grid_devices, -1), (GRID, CLIENTS)) if len(used) > 1 else None
        return cls(chunk, mesh, graphs)

    @property
    def device(self) -> jax.Device:
        """One of the devices, which are all of a kind."""
        return jax.local_devices()[0] if self.mesh is None else self.mesh.local_devices[0]

    @property
    def devices(self) -> int:
        """Number of devices."""
        return 1 if self.mesh is None else self.mesh.size

    @property
    def grid_devices(self) -> int:
        """Number of devices, or groups of them, that share the cells of a grid."""
        return 1 if self.mesh is None else self.mesh.shape[GRID]

    @property
    def client_devices(self) -> int:
        """Number of devices that share the clients of a cell."""
        return self.devices // self.grid_devices

    @property
    def cell_axis(self) -> str | None:
        """What `vmap` over cells is told: the axis of the mesh that they are spread over."""
        return None if self.mesh is None else GRID

    def rows(self, count: int) -> int:
        """The smallest number of rows, not below `count`, of which each device holds as many."""
        return -(-count // self.client_devices) * self.client_devices

    def place(self, tree: Out, *axes: str) -> Out:
        """Spreads the leading axes of a pytree's leaves over those of the mesh; what has none is on every device."""
        if self.mesh is None:
            return jax.tree.map(lambda leaf: leaf if isinstance(leaf, jax.Array) else jnp.asarray(leaf), tree)
        sharding = NamedSharding(self.mesh, PartitionSpec(*axes))
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree)):
            return jax.lax.with_sharding_constraint(tree, sharding)
        return jax.tree.map(partial(_put, sharding=sharding), tree)

    def to_host(self, tree: Out) -> Out:
        """A pytree as NumPy arrays, wherever its parts are; with several processes, all of them must ask for it."""
        return jax.tree.map(self._leaf_to_host, tree)

    def _leaf_to_host(self, leaf: Array) -> np.ndarray:
        if isinstance(leaf, jax.Array) and not (leaf.is_fully_addressable or leaf.is_fully_replicated):
            leaf = self.place(leaf)
        return np.asarray(leaf)

    def compile(self, lowered: jax.stages.Lowered, *, platform: str | None = None) -> jax.stages.Compiled:
        """The program for these devices, or for those of another platform that it was lowered for."""
        platform = platform or self.device.platform
        if platform == "cpu" and self.mesh is None:
            return lowered.compile()
        options = OPTIONS.get(platform, {}) | (GRAPHS if self.graphs else {})
        while True:
            try:
                return lowered.compile(compiler_options=options)
            except jax.errors.JaxRuntimeError as error:
                unknown = [name for name in options if "No such compile option" in str(error) and name in str(error)]
                if not unknown:
                    raise
                options = {name: value for name, value in options.items() if name not in unknown}

    def map(self, function: Callable[..., Out], items: Any, *shared: Any) -> Out:
        """[n, ...] results of `function(item, *shared)`, one item after the other, a part of them on each device."""
        count = jax.tree.leaves(items)[0].shape[0]
        if self.mesh is None:
            return jax.lax.map(lambda item: function(item, *shared), items)
        rows = jnp.minimum(jnp.arange(-(-count // self.devices) * self.devices), count - 1)

        def on_device(items: Any, shared: tuple) -> Out:
            return jax.lax.map(lambda item: function(item, *shared), items)

        split, everywhere = PartitionSpec((GRID, CLIENTS)), PartitionSpec()
        spread = jax.shard_map(
            on_device, mesh=self.mesh, in_specs=(split, everywhere), out_specs=split, check_vma=False
        )
        out = self.place(spread(jax.tree.map(lambda leaf: leaf[rows], items), shared))
        return jax.tree.map(lambda leaf: leaf[:count], out)

    def run(
        self,
        function: Callable[..., tuple[Out, States]],
        work: Array,
        slots: Slot,
        states: States,
        shared: tuple,
    ) -> tuple[Out, States]:
        """Runs `function(slot, state, *shared) -> (result, state)` for n slots, in any order.

        `slots` are arrays [n], and `states` [rows, ...] those of all rows. Returns the results [n, ...] and all
        states, the new ones in their place. A client with several slots enters each with the state it has now and
        leaves with that of its last slot that has work.

        `work` [n] says how much each slot has to do: slots that run at once have alike work, and devices get equal
        parts of it. The slots of one client must have the same work, or none. A slot of padding has the row
        `NOBODY`, which must be no work at all.

        Under `vmap` the slots of all cells become one list of work, so that no device waits at the end of a cell.
        """

        @jax.custom_batching.custom_vmap
        def run(each: tuple, shared: tuple) -> tuple[Out, States]:
            # One cell alone runs on all devices of the grid's axis alike.
            same = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (self.grid_devices, *leaf.shape)), each)
            out = self._run_cells(function, same, shared, jax.tree.map(lambda _: False, shared))
            return jax.tree.map(lambda leaf: leaf[0], out)

        @run.def_vmap
        def run_cells(cells: int, batched: tuple, each: tuple, shared: tuple) -> tuple[tuple[Out, States], Any]:
            def with_cells(leaf: Array, has: bool) -> Array:
                return leaf if has else jnp.broadcast_to(leaf, (cells, *leaf.shape))

            out = self._run_cells(function, jax.tree.map(with_cells, each, batched[0]), shared, batched[1])
            return out, jax.tree.map(lambda _: True, out)

        return run((work, slots, states), shared)

    def _run_cells(
        self, function: Callable[..., tuple[Out, States]], each: tuple, shared: tuple, has_cells: Any
    ) -> tuple[Out, States]:
        """As `run`, with a leading axis of cells everywhere, and in `shared` where `has_cells` says so.

        `each` are the work, the slots and the states.
        """
        work, slots, states = each
        over = None if self.mesh is None else CLIENTS
        rows = slots.row
        cells, number = rows.shape
        leaves = jax.tree.leaves(states)
        working = jnp.where(work > 0, rows, NOBODY)
        homes = jax.vmap(partial(last_slots, number=leaves[0].shape[1]))(working) if leaves else rows

        def of_cell(shared: tuple, cell: Array | int) -> tuple:
            return jax.tree.map(lambda leaf, has: leaf[cell] if has else leaf, shared, has_cells)

        def first_slot(slots: Slot, states: States, shared: tuple) -> tuple[Out, States]:
            return function(*jax.tree.map(lambda leaf: leaf[0, 0], (slots, states)), *of_cell(shared, 0))

        like = jax.eval_shape(self._on_every_device(first_slot), slots, states, shared)
        size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(like))
        results = jax.tree.map(lambda leaf: jnp.zeros((cells, self.rows(number), *leaf.shape), leaf.dtype), like[0])

        def on_device(results: Out, states: States, flat: tuple, shared: tuple) -> tuple[Out, States]:
            here = flat[0].shape[0]  # cells of this device
            work, homes, slots = jax.tree.map(lambda leaf: leaf.reshape(-1), flat)

            def job(item: tuple[Array, Slot, States]) -> tuple[Out, States]:
                cell, slot, state = item
                return function(slot, state, *of_cell(shared, cell if here > 1 else 0))

            def wave(carry: tuple[Out, States], order: Array) -> tuple[tuple[Out, States], None]:
                results, states = carry
                cell, mine = order // number, order[this_device(over)]
                # A client's last slot is never in a wave before its others, so they all find the state of before.
                fetched = fetch(states, cell, take(slots.row, order), over=over)
                jobs = (mine // number, Slot(*(take(part, mine) for part in slots)), fetched)
                result, state = _run_chunks(job, jobs)
                results = store(results, cell, order % number, result, over=over)
                return (results, store(states, cell, take(homes, order), state, over=over)), None

            order = order_of(work, devices=self.client_devices, chunk=self.chunk, size=size)
            if len(order) == 1:
                return wave((results, states), order[0])[0]
            return jax.lax.scan(wave, (results, states), order)[0]

        flat = (work, homes, slots)
        if self.mesh is not None:
            split, cell_by_cell = PartitionSpec(GRID, CLIENTS), PartitionSpec(GRID)
            of_shared = jax.tree.map(lambda has: cell_by_cell if has else PartitionSpec(), has_cells)
            on_device = jax.shard_map(
                on_device,
                mesh=self.mesh,
                in_specs=(split, split, cell_by_cell, of_shared),
                out_specs=(split, split),
                check_vma=False,
            )
        results, states = on_device(results, states, flat, shared)
        return jax.tree.map(lambda leaf: leaf[:, :number], results), states

    def _on_every_device(self, function: Callable[..., Out]) -> Callable[..., Out]:
        """The function as a device runs it: traced so for its shapes, it is not traced again for the devices' work."""
        if self.mesh is None:
            return function
        everywhere = PartitionSpec()
        return jax.shard_map(function, mesh=self.mesh, in_specs=everywhere, out_specs=everywhere, check_vma=False)


ONE_AT_A_TIME = ClientAxis()


def place_data(axis: ClientAxis, data: FederatedData) -> FederatedData:
    """The data of G cells on the devices: what cells share is on each, what is a cell's own where that cell is."""
    parts: Any = zip(data, OF_A_CELL, strict=True)
    return FederatedData(*(axis.place(leaf, *(() if part is None else (GRID,))) for leaf, part in parts))


def _run_chunks(function: Callable[[tuple], Out], slots: tuple) -> Out:
    """[chunks, chunk, ...] results of slots [chunks, chunk, ...]: chunks one after the other, each at once."""
    if jax.tree.leaves(slots)[0].shape[1] > 1:
        return jax.lax.map(jax.vmap(function), slots)
    # A `vmap` over one client would still turn its convolutions into batched ones.
    out = jax.lax.map(function, jax.tree.map(lambda leaf: leaf[:, 0], slots))
    return jax.tree.map(lambda leaf: leaf[:, None], out)


def _put(leaf: Array | np.ndarray, *, sharding: NamedSharding) -> Array:
    """An array on the devices of all processes: it is there already, or each of them holds the same whole array."""
    if sharding.is_fully_addressable:
        return jax.device_put(leaf, sharding)
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        return jax.jit(lambda whole: whole, out_shardings=sharding)(leaf)
    host = np.asarray(leaf)
    return jax.make_array_from_callback(host.shape, sharding, lambda part: host[part])
