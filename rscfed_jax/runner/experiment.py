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
from rscfed_jax.runner.history import DivergedError, History, Record
from rscfed_jax.runner.processes import from_the_first
from rscfed_jax.runner.snapshot import ITEMS, Snapshot, put_all, take_all, take_clients, with_numbers
from rscfed_jax.storage.checkpoint import Checkpoints, newest_common
from rscfed_jax.storage.run_directory import RunDirectory


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
    def class_counts(self) -> np.ndarray:
        """[N, classes] samples of each class that each client holds, hidden labels included."""
        return self.federation.class_counts[: self.config.clients]


def save_all(experiments: Sequence[Experiment], axis: ClientAxis, state: State, round_: int) -> None:
    """Starts to write the state of each experiment, a cell of `state`, into its own directory."""
    host, begun = take_all(axis, state)
    for cell, experiment in enumerate(experiments):
        if not experiment.active:
            continue
        rows, clients = take_clients(axis, state.clients, cell, begun)  # all processes must ask
        if experiment.checkpoints is not None:
            own = jax.tree.map(lambda leaf, cell=cell: leaf[cell], host)
            history = experiment.history
            items = Snapshot(own._replace(clients=clients), rows, history).to_arrays(experiment.config)
            accuracy = {record["round"]: record["accuracy"] for record in history.trained}
            experiment.checkpoints.save(round_, items, accuracy=accuracy)


def restore_all(
    experiments: Sequence[Experiment], axis: ClientAxis, fresh: State, warn: Callable[[str], None]
) -> tuple[State, int] | None:
    """State and round of the newest checkpoint that all experiments have, None where there is none.

    `fresh` is their state before the first round, whose memory is reused. Histories, metrics files and checkpoints go
    back to that round, too. With several processes the first reads for all.
    """
    writers = [each.checkpoints for each in experiments if each.checkpoints is not None]
    found = newest_common(writers, ITEMS, warn)
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
    return put_all(axis, fresh, snapshots), int(snapshots[0].state.round)


def _below(arrays: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """The arrays whose names begin with the prefix, without it."""
    return {name.removeprefix(prefix): leaf for name, leaf in arrays.items() if name.startswith(prefix)}
