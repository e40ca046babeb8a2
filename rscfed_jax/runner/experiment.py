"""One of the experiments that run together, and how all of them are saved and restored."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import jax
import numpy as np

from rscfed_jax.config import Config
from rscfed_jax.core.client_axis import ClientAxis
from rscfed_jax.core.types import State
from rscfed_jax.data.federation import Federation
from rscfed_jax.runner.client_accuracy import Mixtures
from rscfed_jax.runner.client_states import ClientStates
from rscfed_jax.runner.history import DivergedError, History, Record
from rscfed_jax.runner.processes import from_the_first
from rscfed_jax.runner.snapshot import ITEMS, ROWS, Snapshot, flat, put_all, take_all, take_clients, with_numbers
from rscfed_jax.storage.checkpoint import Arrays, Checkpoints, Warn, newest_common
from rscfed_jax.storage.client_file import NO_CLIENTS, FileRecords
from rscfed_jax.storage.run_directory import RunDirectory

CLIENTS_ITEM = "clients"  # of a checkpoint whose clients' states are in a file: where they are in it


@dataclass
class Experiment:
    """What it is, where its files go, and what it has found so far."""

    config: Config
    federation: Federation
    directory: RunDirectory | None = None  # nothing is written without one
    name: str = "the run"
    of_many: bool = False  # others continue when this one diverges
    on_record: Callable[[Record], None] = lambda record: None
    checkpoints: Checkpoints | None = None
    history: History = None  # type: ignore[assignment]  # set before the first round
    diverged: DivergedError | None = None

    @property
    def active(self) -> bool:
        """Whether its model is still finite."""
        return self.diverged is None

    @cached_property
    def mixtures(self) -> Mixtures:
        """The class mixtures of the clients."""
        return Mixtures.of(self.federation, self.config.clients)


def save_all(
    experiments: Sequence[Experiment], axis: ClientAxis, state: State, round_: int, kept: ClientStates | None = None
) -> None:
    """Starts to write the state of each experiment, a cell of `state`, into its own directory.

    The clients' states are those of `state`, or `kept` by the host.
    """
    host, begun = take_all(axis, state)
    for cell, experiment in enumerate(experiments):
        if not experiment.active:
            continue
        index = None
        if kept is None:
            rows, clients = take_clients(axis, state.clients, cell, begun)  # all processes must ask
        elif experiment.checkpoints is not None:
            experiment.checkpoints.wait()
            kept.wait()
            index = kept.records.freeze(round_, experiment.checkpoints.rounds())
            rows, clients = kept.all() if index is None else kept.nobody()
        if experiment.checkpoints is not None:
            own = jax.tree.map(lambda leaf, cell=cell: leaf[cell], host)
            history = experiment.history
            items = Snapshot(own._replace(clients=clients), rows, history).to_arrays(experiment.config)
            accuracy = {record["round"]: record["accuracy"] for record in history.trained}
            sync = kept.records.sync if kept is not None else _nothing
            items |= {} if index is None else {CLIENTS_ITEM: index}
            experiment.checkpoints.save(round_, items, accuracy=accuracy, sync=sync)


def _nothing() -> None:
    """No other files belong to a checkpoint."""


def restore_all(
    experiments: Sequence[Experiment],
    axis: ClientAxis,
    fresh: State,
    warn: Warn,
    kept: ClientStates | None = None,
) -> tuple[State, int] | None:
    """State and round of the newest checkpoint that all experiments have, None where there is none.

    `fresh` is their state before the first round, whose memory is reused. Histories, metrics files and checkpoints go
    back to that round, too. With several processes the first reads for all. Clients whose states the host keeps are
    put into `kept`.
    """
    writers = [each.checkpoints for each in experiments if each.checkpoints is not None]
    found = newest_common(writers, ITEMS, warn, also=[CLIENTS_ITEM])
    for items, experiment in zip(found[1] if found else [], experiments, strict=False):
        _find_clients(items, experiment, fresh, kept, warn)
    named = {
        f"{cell}.{item}.{name}": leaf
        for cell, items in enumerate(found[1] if found else [])
        for item, arrays in items.items()
        for name, leaf in arrays.items()
    }
    together = from_the_first(named or None)
    if together is None:
        return None
    like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), with_numbers(fresh))
    snapshots = []
    for cell, experiment in enumerate(experiments):
        items = {item: _below(together, f"{cell}.{item}.") for item in ITEMS}
        out = None if experiment.directory is None else experiment.directory.path
        snapshot = Snapshot.from_arrays(items, like, clients=experiment.config.holders, out=out)
        snapshots.append(snapshot)
        experiment.history = snapshot.history
        if experiment.directory is not None:
            experiment.directory.rewrite_metrics(experiment.history.records)
        if experiment.checkpoints is not None:
            experiment.checkpoints.forget_after(int(snapshot.state.round))
        if kept is not None:
            kept.put(snapshot.rows, snapshot.state.clients)
            snapshots[-1] = snapshot.without_clients()
    return put_all(axis, fresh, snapshots), int(snapshots[0].state.round)


def _find_clients(
    items: dict[str, Arrays], experiment: Experiment, fresh: State, kept: ClientStates | None, warn: Warn
) -> None:
    """Finds the clients of a checkpoint whose states are in a file: `kept` there, or read into the checkpoint's items.

    The run may go on with its population in another place. A file that goes on keeps the states of all checkpoints.
    """
    index = items.pop(CLIENTS_ITEM, None)
    assert experiment.directory is not None
    assert experiment.checkpoints is not None
    if kept is not None and isinstance(kept.records, FileRecords):
        kept.records.load(NO_CLIENTS if index is None else index, experiment.checkpoints.item(CLIENTS_ITEM, warn))
        return
    if index is None:
        return
    there = ClientStates.of(fresh.clients, experiment.directory.clients)
    there.records.load(index, {})
    rows, states = there.all()
    there.close()
    items["state"] |= {ROWS: rows} | {f"clients.{name}": leaf for name, leaf in flat(states).items()}


def _below(arrays: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """The arrays whose names begin with the prefix, without it."""
    return {name.removeprefix(prefix): leaf for name, leaf in arrays.items() if name.startswith(prefix)}
