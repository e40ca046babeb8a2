"""Checkpoints of a run with Orbax: the state with config and history, the global model, and the best one.

A checkpoint is a directory that appears only when it is complete, with a folder for each of the three.
"""

import errno
import json
import logging
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from rscfed_jax.arrays import Arrays, RestoreArrays, SaveArrays
from rscfed_jax.clients import CLIENTS, GRID, ClientAxis
from rscfed_jax.config import Config, SettingError
from rscfed_jax.history import History
from rscfed_jax.rounds import State
from rscfed_jax.types import Model

KEPT = 3
UNFINISHED = ".orbax-checkpoint-tmp"  # what Orbax removes when it starts
ROWS = "rows"  # the array that tells which clients are there: not those that were never selected
OF_THE_MACHINE = (errno.EIO, errno.ESTALE, errno.EACCES, errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # not of the file
LOG = "log"  # the array, among those of the state, that holds config and history as JSON text

Warn = Callable[[str], None]


class NewestAndBest:
    """Answers Orbax, which checkpoints to keep: the newest few, and the one with the best accuracy."""

    def __init__(self) -> None:
        self.accuracy: dict[int, float] = {}  # of every evaluated round

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> Sequence[bool]:
        """One answer for each checkpoint, from the oldest to the newest."""
        del context
        rounds = [checkpoint.step for checkpoint in checkpoints]
        best = max((r for r in rounds if r in self.accuracy), key=lambda r: self.accuracy[r], default=None)
        return [round_ in rounds[-KEPT:] or round_ == best for round_ in rounds]


class Checkpoints:
    """The newest few states of a run and the best, in a directory of their own. Writing goes on beside the rounds."""

    def __init__(self, directory: str | Path, *, read_only: bool = False):
        self.directory = Path(directory).absolute()
        self._keep = NewestAndBest()
        self._quiet = ExitStack()
        with _quiet(), self._refusing():
            options = ocp.CheckpointManagerOptions(
                preservation_policy=self._keep,
                cleanup_tmp_directories=not read_only,
                read_only=read_only,
                create=False,  # Orbax asks for it with options for processes
                multiprocessing_options=_this_process_alone(),
            )
            if not read_only:
                self.directory.mkdir(parents=True, exist_ok=True)
            self._manager = ocp.CheckpointManager(self.directory, options=options)

    def __enter__(self) -> Self:
        self._quiet.enter_context(_quiet())
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        try:
            with self._quiet, self._refusing():
                self._manager.close()
        except SettingError:
            if kind is None:  # else the first error is the one to tell
                raise

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        """Says in one line what Orbax raises when it cannot write."""
        try:
            yield
        except Exception as error:
            raise SettingError("out", self.directory.parent, f"checkpoint cannot be written: {error}") from None

    def save(self, state: State, rows: np.ndarray, history: History, config: Config) -> None:
        """Starts to write a host state, its key as numbers and of its clients those in `rows`, under its round.

        An error of the last writing comes up here.
        """
        text = json.dumps({"config": config.to_dict(), "history": history.to_json()})
        more = {LOG: np.frombuffer(text.encode(), np.uint8), ROWS: rows}
        items = {"state": _flat(state) | more, "model": _flat(state.model)}
        items["best"] = _flat(history.best_model)
        self._keep.accuracy = {record["round"]: record["accuracy"] for record in history.trained}
        with self._refusing():
            if not self.directory.is_dir():
                raise FileNotFoundError(f"{self.directory} has vanished")
            # Where Orbax cannot make its directory, its threads wait for that for minutes.
            with tempfile.TemporaryDirectory(dir=self.directory, suffix=UNFINISHED):
                pass
            arguments = {name: SaveArrays(arrays) for name, arrays in items.items()}
            self._manager.save(int(state.round), args=ocp.args.Composite(**arguments))

    def wait(self) -> None:
        """Returns when everything is written; an error in that comes up here."""
        with self._refusing():
            self._manager.wait_until_finished()
            self._manager.check_for_errors()

    def rounds(self) -> set[int]:
        """The rounds of which there is a checkpoint."""
        return set(self._manager.all_steps())

    def read(self, round_: int, warn: Warn) -> Arrays | None:
        """The arrays of one checkpoint: state, log and best model.

        A damaged one is named by `warn` and put aside, so that the run can write that round again.
        """
        found = self._newest_valid(("state", "best"), warn, put_aside=True, only=round_)
        if found is None:
            return None
        return {f"{name}.{key}": leaf for name, arrays in found[1].items() for key, leaf in arrays.items()}

    def forget_after(self, round_: int) -> None:
        """Removes newer checkpoints: the run will write those rounds again."""
        for newer in self.rounds():
            if newer > round_:
                self._manager.delete(newer)

    def restore_model(self, round_: int | None = None, *, warn: Warn) -> tuple[Model, int] | None:
        """The newest valid global model, or that of one round, and its round."""
        found = self._newest_valid(("model",), warn, put_aside=False, only=round_)
        return None if found is None else (_nested(found[1]["model"]), found[0])

    def _newest_valid(
        self, names: Sequence[str], warn: Warn, *, put_aside: bool, only: int | None = None
    ) -> tuple[int, dict[str, Any]] | None:
        """Round and items of the newest checkpoint, or of that of one round, that can be read as it was written."""
        wanted = {name: RestoreArrays() for name in names}
        for round_ in sorted(self._manager.all_steps(), reverse=True) if only is None else [only]:
            place = self.directory / str(round_)
            try:
                items = self._manager.restore(round_, args=ocp.args.Composite(**wanted))
                return round_, {name: items[name] for name in names}
            except Exception as error:  # what a damaged file raises depends on where it is damaged
                if isinstance(error, MemoryError) or getattr(error, "errno", None) in OF_THE_MACHINE:
                    raise SettingError("out", place, f"cannot be read now: {error or 'not enough memory'}") from None
                warn(f"checkpoint {place} is damaged and left out: {' '.join(str(error).split())}")
            if put_aside:
                aside = self.directory.with_name("damaged")
                aside.mkdir(exist_ok=True)
                place.rename(aside / f"{round_}-{len(list(aside.iterdir()))}")
                self._manager.reload()
        return None


def _this_process_alone() -> ocp.options.MultiprocessingOptions:
    """Of several processes the first alone writes, and each reads by itself; none must wait for the others."""
    me = jax.process_index()
    return ocp.options.MultiprocessingOptions(
        primary_host=me, active_processes={me}, barrier_sync_key_prefix=f"process{me}"
    )


def read_together(runs: Sequence[Checkpoints], warn: Warn) -> list[Arrays] | None:
    """The newest checkpoint that all runs of a group have, valid in each; None where none of them has any."""
    while common := set.intersection(*(run.rounds() for run in runs)):
        newest = max(common)
        read = [run.read(newest, warn) for run in runs]
        there = [arrays for arrays in read if arrays is not None]
        if len(there) == len(read):
            return there
    for run in runs:
        if run.rounds():
            reason = "its group has no valid checkpoint in common; the same command, given again, runs them apart"
            raise SettingError("out", run.directory.parent, reason)
    return None


class Stored(NamedTuple):
    """What a checkpoint holds of one experiment."""

    state: State  # of the host, the key as numbers; of the clients only those in `rows`
    rows: np.ndarray
    history: History


def decode(arrays: Arrays, like: State, *, clients: int, out: Path | None) -> Stored:
    """What `Checkpoints.save` was given, for a state of the form of `like`."""
    parts: dict[str, Arrays] = {"state": {}, "best": {}}
    for name, leaf in arrays.items():
        part, _, key = name.partition(".")
        parts[part][key] = leaf
    try:
        content = json.loads(parts["state"].pop(LOG).tobytes())["history"]
        rows = parts["state"].pop(ROWS)
        if len(rows) and not 0 <= rows.min() <= rows.max() < clients:
            raise ValueError("other clients")
        some = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((len(rows), *leaf.shape[1:]), leaf.dtype), like.clients)
        state = _unflat(parts["state"], like._replace(clients=some))
        history = History.from_json(content, best_model=_unflat(parts["best"], like.model), clients=clients)
    except (ValueError, KeyError):
        reason = "its state has another form than these data and settings ask for"
        raise SettingError("resume", out, reason) from None
    return Stored(state, rows, history)


@jax.jit
def touched(clients: Any) -> jax.Array:
    """[G, rows] which clients' states are no longer the zeros that they begin with."""
    parts = [jnp.any(leaf.reshape(*leaf.shape[:2], -1) != 0, axis=2) for leaf in jax.tree.leaves(clients)]
    return jnp.any(jnp.stack(parts), axis=0)


@jax.jit
def take_rows(clients: Any, cell: int, rows: np.ndarray) -> Any:
    """The states of some clients of a cell."""
    return jax.tree.map(lambda leaf: leaf[cell, rows], clients)


@partial(jax.jit, static_argnames="axis", donate_argnames="clients")
def put_rows(clients: Any, cell: int, rows: np.ndarray, states: Any, *, axis: ClientAxis) -> Any:
    """The states of all clients [G, rows, ...] with those of some clients of a cell in their place."""
    filled = jax.tree.map(lambda leaf, some: leaf.at[cell, rows].set(some), clients, states)
    return axis.place(filled, GRID, CLIENTS)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps Orbax from logging, with a traceback from each thread, what it raises as well."""
    logger = logging.getLogger("absl")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def _flat(tree: Any) -> Arrays:
    """The leaves by their place in the tree, as in `clients.teacher.params.l3.bias`."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def _unflat(arrays: Arrays, like: Any) -> Any:
    """The tree that `_flat` took apart; a ValueError if it was not of the form of `like`."""
    wanted = {name: (leaf.shape, leaf.dtype) for name, leaf in _flat(like).items()}
    if {name: (leaf.shape, leaf.dtype) for name, leaf in arrays.items()} != wanted:
        raise ValueError("the arrays have other names, shapes or types")
    return jax.tree.unflatten(jax.tree.structure(like), [arrays[name] for name in wanted])


def _nested(arrays: Arrays) -> Model:
    """Nested dictionaries of the leaves that `_flat` named after their place in such."""
    tree: Model = {}
    for name, leaf in arrays.items():
        *path, last = name.split(".")
        branch = tree
        for part in path:
            branch = branch.setdefault(part, {})
        branch[last] = leaf
    return tree
