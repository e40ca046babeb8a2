"""Checkpoints of a run with Orbax: the whole state, what the host knows, the global model and the best one.

A checkpoint is a directory that appears only when it is complete. Every array and every number in it is covered by a
checksum: the format below notices a lost file, but not a changed byte.
"""

import json
import logging
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import tensorstore

from rscfed_jax.config import SettingError
from rscfed_jax.history import History
from rscfed_jax.rounds import State
from rscfed_jax.types import Model

KEPT = 3
ARRAYS = ("state", "model", "best")
LONGEST_REASON = 160  # characters of a library's message that one line can bear

Warn = Callable[[str], None]


class NewestAndBest:
    """Orbax's question, which checkpoints to keep: the newest few, and the one with the best accuracy."""

    def __init__(self):
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
        options = ocp.CheckpointManagerOptions(
            preservation_policy=self._keep, cleanup_tmp_directories=not read_only, read_only=read_only
        )
        with self._refusing():
            self._manager = ocp.CheckpointManager(self.directory, options=options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        try:
            with self._refusing():
                self._manager.close()
        except SettingError:
            if kind is None:  # else the first error is the one to tell
                raise

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        """Says in one line what Orbax and the layers below it raise when they cannot write."""
        try:
            yield
        except Exception as error:
            reason = " ".join(str(error).split())[:LONGEST_REASON]
            raise SettingError("out", self.directory.parent, f"checkpoint cannot be written: {reason}") from None

    def save(self, state: State, history: History, *, clients: int) -> None:
        """Starts to write a state of so many clients under its round; an error of the last writing comes up here."""
        # As host arrays: the next rounds may reuse the state's memory at once.
        plain = jax.device_get(state._replace(key=jax.random.key_data(state.key)))
        # How many rows pad the clients depends on the number of devices; the next run may have another.
        plain = plain._replace(clients=jax.tree.map(lambda leaf: leaf[:clients], plain.clients))
        arrays = {"state": _flat(plain), "model": plain.model, "best": history.best_model}
        log = {"history": history.to_json(), "checksums": {name: _checksum(tree) for name, tree in arrays.items()}}
        log["checksums"]["history"] = _text_checksum(log["history"])
        items = {name: ocp.args.StandardSave(tree) for name, tree in arrays.items()}
        self._keep.accuracy = {record["round"]: record["accuracy"] for record in history.trained}
        with self._refusing():
            if not self.directory.is_dir():
                raise FileNotFoundError(f"{self.directory} has vanished")
            self._manager.save(int(state.round), args=ocp.args.Composite(**items, log=ocp.args.JsonSave(log)))

    def wait(self) -> None:
        """Returns when everything is written; an error in that comes up here."""
        with self._refusing():
            self._manager.wait_until_finished()
            self._manager.check_for_errors()

    def restore(self, like: State, *, clients: int, warn: Warn) -> tuple[State, History] | None:
        """The newest valid state of so many clients, with the padding and the devices of `like`.

        Damaged checkpoints are named by `warn` and put aside, so that the run can write those rounds again.
        """
        found = self._newest_valid(("state", "best"), warn, put_aside=True)
        if found is None:
            return None
        _, items = found
        plain = like._replace(key=jax.random.key_data(like.key))
        shapes = jax.eval_shape(
            lambda tree: tree._replace(clients=jax.tree.map(lambda leaf: leaf[:clients], tree.clients)), plain
        )
        saved = items["state"]
        if {name: (leaf.shape, leaf.dtype) for name, leaf in saved.items()} != {
            name: (leaf.shape, leaf.dtype) for name, leaf in _flat(shapes).items()
        }:
            raise SettingError(
                "resume", self.directory.parent, "its state has other parameters than these data ask for"
            )
        state = jax.tree.unflatten(jax.tree.structure(shapes), [saved[name] for name in _flat(shapes)])
        state = state._replace(clients=jax.tree.map(_with_rows_of, state.clients, plain.clients))
        state = jax.tree.map(lambda new, old: jax.device_put(new, old.sharding), state, plain)
        history = History.from_json(items["log"]["history"], best_model=items["best"])
        return state._replace(key=jax.random.wrap_key_data(state.key)), history

    def restore_model(self, like: Model, *, warn: Warn) -> tuple[Model, int] | None:
        """The newest valid global model and its round; a ValueError if its parameters are not those of `like`."""
        found = self._newest_valid(("model",), warn, put_aside=False)
        if found is None:
            return None
        round_, items = found
        if jax.tree.map(jnp.shape, items["model"]) != jax.tree.map(jnp.shape, like):
            raise ValueError("the model has other parameters")
        return jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), items["model"], like), round_

    def _newest_valid(self, names: Sequence[str], warn: Warn, *, put_aside: bool) -> tuple[int, dict[str, Any]] | None:
        """Round and items of the newest checkpoint that can be read and has the right checksums."""
        for round_ in sorted(self._manager.all_steps(), reverse=True):
            try:
                return round_, self._read(round_, names)
            except Exception as error:  # each layer below has errors of its own
                reason = " ".join(str(error).split())[:LONGEST_REASON]
                warn(f"checkpoint {self.directory / str(round_)} is damaged and left out: {reason}")
            if put_aside:
                aside = self.directory.with_name("damaged")
                aside.mkdir(exist_ok=True)
                (self.directory / str(round_)).rename(aside / f"{round_}-{len(list(aside.iterdir()))}")
                self._manager.reload()
        return None

    def _read(self, round_: int, names: Sequence[str]) -> dict[str, Any]:
        """Items of one checkpoint; any error says that it is damaged."""
        for name in names:
            _read_through(self.directory / str(round_) / name)
        wanted = {name: ocp.args.StandardRestore() for name in names}
        with _quiet():
            items = self._manager.restore(round_, args=ocp.args.Composite(**wanted, log=ocp.args.JsonRestore()))
        checksums = items["log"]["checksums"]
        found = {name: _checksum(items[name]) for name in names}
        found["history"] = _text_checksum(items["log"]["history"])
        wrong = [name for name, value in found.items() if checksums.get(name) != value]
        if wrong:
            raise ValueError(f"wrong checksum of {', '.join(wrong)}")
        return {name: items[name] for name in (*names, "log")}


def _read_through(item: Path) -> None:
    """Reads every stored value once: Orbax would meet a lost or cut file in many threads, each with a traceback."""
    base = {"driver": "file", "path": f"{item}/"}
    store = tensorstore.KvStore.open({"driver": "ocdbt", "base": base}).result()
    keys = store.list().result()
    if not keys:
        raise FileNotFoundError(f"{item} holds nothing")
    for key in keys:
        store.read(key).result()


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps libraries from logging what is about to be said in one line."""
    loggers = [logging.getLogger(name) for name in ("absl", "asyncio")]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, disabled in zip(loggers, before, strict=True):
            logger.disabled = disabled


def _flat(tree: Any) -> dict[str, Any]:
    """The leaves by their place in the tree, as in `clients.teacher.params.l3.bias`."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def _checksum(tree: Any) -> int:
    """Of all names, types, shapes and bytes of a pytree of arrays."""
    total = 0
    for name, leaf in sorted(_flat(tree).items()):
        array = np.ascontiguousarray(leaf)
        total = zlib.crc32(f"{name} {array.dtype} {np.shape(leaf)}".encode(), total)
        total = zlib.crc32(array.reshape(-1).view(np.uint8), total)
    return total


def _text_checksum(content: Any) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def _with_rows_of(leaf: np.ndarray, like: jax.Array) -> np.ndarray:
    return np.pad(leaf, [(0, like.shape[0] - leaf.shape[0])] + [(0, 0)] * (leaf.ndim - 1))
