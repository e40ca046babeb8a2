"""The host's loop over the rounds of experiments that run together: evaluate, log, checkpoint, tell the user."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rscfed_jax.checkpoint import Checkpoints, decode, put_rows, read_together, take_rows, touched
from rscfed_jax.clients import GRID
from rscfed_jax.config import Config
from rscfed_jax.data.augment import normalise, unpack_pixels
from rscfed_jax.data.federation import Federation
from rscfed_jax.data.resize import resize
from rscfed_jax.data.table import pack_pixels
from rscfed_jax.history import DivergedError, History, Record, check_finite, summarise
from rscfed_jax.local.training import ClientState
from rscfed_jax.methods.base import Method
from rscfed_jax.metrics import Metrics, batch_of, evaluate_cells
from rscfed_jax.processes import any_of_them, from_the_first
from rscfed_jax.progress import RunProgress
from rscfed_jax.report.plots import plot_curves
from rscfed_jax.rounds import Algorithm, RoundReport, compile_cells
from rscfed_jax.rundir import RunDirectory, write_json
from rscfed_jax.simulation import Simulation, build_cells, cell_of, start_from
from rscfed_jax.types import Array, Model

ROUNDS_PER_CALL = 10  # the progress moves at least this often
FEWEST_ROWS = 64  # of clients that are fetched for a checkpoint at once


@dataclass(frozen=True)
class Result:
    """What a run found."""

    config: Config
    metrics: list[dict[str, Any]]  # one record per evaluated round, as in metrics.jsonl
    summary: dict[str, Any]  # as in summary.json
    model: Model  # the trained global model: flax variables
    best_model: Model  # the one with the best test accuracy of the evaluated rounds
    confusion: np.ndarray  # [classes, classes] of the last round on the test set; rows are the true classes
    cells: Simulation  # of all experiments that ran together
    number: int  # of this one among them

    @cached_property
    def simulation(self) -> Simulation:
        """The experiment with its state after the last round, to go on from."""
        return cell_of(self.cells, self.number)

    def predict(self, images: np.ndarray) -> np.ndarray:
        """[B, classes] probabilities for [B, H, W, 1 or 3] uint8 images of any size."""
        if images.dtype != np.uint8 or images.ndim != 4:
            raise ValueError(f"images must be uint8 of shape B,H,W,C, not {images.dtype} of shape {images.shape}")
        network, data = self.cells.algorithm.local.network, self.cells.data
        side, parts = self.config.image_size, []
        batch = batch_of(side, side)
        for start in range(0, len(images), batch):
            words = jnp.asarray(pack_pixels(resize(images[start : start + batch], side)))
            pixels = normalise(unpack_pixels(words.transpose(1, 2, 0)), data.mean, data.std, network.dtype)
            logits = network.apply(self.model, pixels, train=False)
            parts.append(np.asarray(jax.nn.softmax(logits.astype(jnp.float32))))
        return np.concatenate(parts) if parts else np.zeros((0, network.classes), np.float32)


class Stopped(Exception):  # noqa: N818 - as StopIteration, no error
    """The run was asked to stop and has done so; the message says what was saved."""


@dataclass
class Experiment:
    """One of the experiments that run together: what it is, where its files go, and what it has found so far."""

    config: Config
    federation: Federation
    directory: RunDirectory | None = None  # nothing is written without one
    name: str = "the run"
    of_many: bool = False  # others go on when this one diverges
    on_record: Callable[[Record], None] = lambda record: None
    checkpoints: Checkpoints | None = None
    history: History = None  # type: ignore[assignment]  # it has one from its first moment in a group on
    diverged: DivergedError | None = None

    @property
    def active(self) -> bool:
        """Whether its model is still one."""
        return self.diverged is None


def run_together(
    experiments: Sequence[Experiment],
    *,
    shown: RunProgress,
    resume: bool,
    stop: Callable[[], bool],
    method: Method | None = None,
    grid_devices: int = 1,
) -> tuple[list[Result | None], int]:
    """Runs experiments that share a program as its cells; the results, None for a diverged one, and compilations."""
    simulation = build_cells(
        [experiment.config for experiment in experiments],
        [experiment.federation for experiment in experiments],
        method=method,
        grid_devices=grid_devices,
    )
    if experiments[0].config.init_from is not None:
        # Before the directories are taken: a model that does not fit leaves nothing behind.
        simulation = start_from(simulation, experiments[0].config.init_from)
    with ExitStack() as held:
        for experiment in experiments:
            if (directory := experiment.directory) is not None:
                partition = experiment.federation.to_json()
                held.enter_context(directory.open(experiment.config, partition, resume=resume))
                experiment.checkpoints = held.enter_context(Checkpoints(directory.checkpoints))
        group = Group(experiments, simulation, shown, stop)
        return group.run(), group.compilations


class Group:
    """The host's loop over chunks of rounds of experiments that run as one program."""

    def __init__(
        self,
        experiments: Sequence[Experiment],
        simulation: Simulation,
        shown: RunProgress,
        stop: Callable[[], bool],
    ):
        self.experiments, self.simulation, self.shown, self.stop = experiments, simulation, shown, stop
        # The first speaks for all in what they must have in common: rounds, evaluations, checkpoints, warm-up.
        self.config = experiments[0].config
        self.axis, self.network = simulation.algorithm.axis, simulation.algorithm.local.network
        self.state = simulation.state
        self.capacity = min(self.config.eval_every, ROUNDS_PER_CALL)
        self.seconds = self.compile_seconds = 0.0  # of the rounds of this process, and before them
        self.compilations = 0
        self.round = 0

    def run(self) -> list[Result | None]:
        """From the start or the newest checkpoint to the last round."""
        config, shown = self.config, self.shown
        resumed = self._restore()
        start = saved = self.round
        finished = start == config.rounds
        if finished:
            shown.say(f"{self.experiments[0].name} is finished: {start} rounds", always=True)
        elif resumed:
            shown.say(f"resumed at round {start}")
        labels = self.experiments[0].federation.dataset.test_labels
        missing = sorted(set(range(self.network.classes)) - set(labels.tolist()))
        if missing:
            shown.say(f"the test set holds no sample of class {', '.join(map(str, missing))}: AUC leaves them out")
        if not resumed:
            self._start()
        if not finished:
            shown.say("compiling the round")
            program = self._compiled(self.simulation.algorithm)
        while self.round < config.rounds and any(experiment.active for experiment in self.experiments):
            now = self.round
            next_evaluation = (now // config.eval_every + 1) * config.eval_every
            until = min(next_evaluation, saved + config.checkpoint_every, now + self.capacity, config.rounds)
            self._advance(program, until - now)
            if until == next_evaluation:
                self._log()
            stopping = any_of_them(self.stop()) and until < config.rounds
            if stopping or until in (saved + config.checkpoint_every, config.rounds):
                self._save()
                saved = until
            if stopping:
                self._wait()
                any_of_them(False)  # the others wait until the first has written
                raise Stopped(f"stopped after round {until}")
            shown.update(until, accuracy=self._best_accuracy(), seconds_per_round=self.seconds / (until - start))
        if any(each.active and each.history.records[-1]["round"] < config.rounds for each in self.experiments):
            # Not in the checkpoint: a run that goes on from here would not evaluate at this round.
            self._log()
        self._wait()
        pace = self.seconds / max(self.round - start, 1)
        return self._results(finished=finished, missing=missing, seconds_per_round=pace)

    def _start(self) -> None:
        """The model to begin with, after the warm-up, and evaluated as round 0."""
        config = self.config
        best = self.axis.to_host(self.state.model)
        for number, experiment in enumerate(self.experiments):
            own = jax.tree.map(lambda leaf, number=number: leaf[number], best)
            experiment.history = History(best_model=own, clients=config.clients)
        if config.warmup_rounds:
            self.shown.say(f"warm-up: {config.warmup_rounds} rounds on the labeled clients alone")
            self._warm_up()
        for experiment in self.experiments:
            if experiment.directory is not None:
                experiment.directory.rewrite_metrics([])
        self._log()
        if config.warmup_rounds:
            self._save()

    def _warm_up(self) -> None:
        """Rounds on the labeled clients alone, from which the run then starts as if it were round 0."""
        program = self._compiled(self.simulation.warmup)
        # Rounds are numbered apart, so that the run itself does not draw the same batches again.
        self.round = -self.config.warmup_rounds
        self.state = self.state._replace(round=self.state.round + self.round)
        while self.round < 0:
            if any_of_them(self.stop()):
                raise Stopped("stopped in the warm-up, of which nothing is saved")
            self._advance(program, min(-self.round, self.capacity))
        self.state = self.state._replace(initial_model=jax.tree.map(jnp.copy, self.state.model))

    def _compiled(self, algorithm: Algorithm) -> Any:
        began = time.perf_counter()
        data, hyper = self.simulation.data, self.simulation.hyper
        program, new = compile_cells(algorithm, self.state, data, hyper, capacity=self.capacity)
        self.compile_seconds += time.perf_counter() - began
        self.compilations += new
        return program

    def _advance(self, program: Any, rounds: int) -> None:
        """Runs so many rounds and takes in their reports; a diverged experiment is left out from here on."""
        began = time.perf_counter()
        data, hyper = self.simulation.data, self.simulation.hyper
        self.state, reports = jax.block_until_ready(program(self.state, data, hyper, np.int32(rounds)))
        seconds = time.perf_counter() - began
        first = self.round + 1
        self.round += rounds
        if first > 0:
            self.seconds += seconds
        reports = self.axis.to_host(reports)
        for number, experiment in self._active():
            experiment.history.seconds += seconds / len(self.experiments)
            own = RoundReport(*(leaf[:rounds, number] for leaf in reports))
            try:
                if first > 0:
                    experiment.history.add_rounds(own, first=first)
                else:
                    check_finite(own, first=first)
            except DivergedError as error:
                experiment.diverged = error
                if experiment.of_many:
                    self._put_aside(experiment, error)

    def _put_aside(self, experiment: Experiment, error: DivergedError) -> None:
        """Says that one of many has diverged, here and in its directory, so that it is not run again."""
        self.shown.say(f"{experiment.name}: {error}; the others go on", always=True)
        if experiment.directory is not None:
            with experiment.directory.refusing():
                write_json(experiment.directory.diverged, {"round": self.round, "why": str(error)})

    def _active(self) -> Iterator[tuple[int, Experiment]]:
        """The experiments whose model is still one, with their place in the state."""
        return ((number, each) for number, each in enumerate(self.experiments) if each.active)

    def _log(self) -> None:
        """Evaluates all models on the test set."""
        metrics, _ = self.axis.to_host(self._evaluate())
        models = self.axis.to_host(self.state.model)
        sent = self.axis.to_host({"down": self.state.models_down, "up": self.state.models_up})
        for number, experiment in self._active():
            model = jax.tree.map(lambda leaf, number=number: leaf[number], models)
            model_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(model))
            counts = {f"models_{way}": int(count[number]) for way, count in sent.items()}
            counts |= {f"bytes_{way}": int(count[number]) * model_bytes for way, count in sent.items()}
            own = Metrics(*(value[number] for value in metrics))
            record = experiment.history.add_evaluation(self.round, own, counts, model)
            if experiment.directory is not None:
                experiment.directory.append_metrics(record)
            experiment.on_record(record)

    def _evaluate(self) -> tuple[Metrics, Array]:
        return evaluate_cells(self.network, self.state.model, self.simulation.test, axis=self.axis)

    def _best_accuracy(self) -> float:
        return max((each.history.records[-1]["accuracy"] for _, each in self._active()), default=float("nan"))

    def _save(self) -> None:
        """Starts to write the state of each experiment into its own directory."""
        # As host arrays: the next rounds may reuse the state's memory at once.
        host = self.axis.to_host(self.state._replace(key=jax.random.key_data(self.state.key), clients=None))
        begun = self._begun_clients()
        for number, experiment in self._active():
            rows, clients = self._clients_of(number, begun)
            if experiment.checkpoints is not None:
                own = jax.tree.map(lambda leaf, number=number: leaf[number], host)
                experiment.checkpoints.save(own._replace(clients=clients), rows, experiment.history, experiment.config)

    def _begun_clients(self) -> np.ndarray:
        """[G, rows] which clients have a state to save."""
        if self.state.clients is None:
            return np.zeros((len(self.state.round), 0), bool)
        return self.axis.to_host(touched(self.state.clients))

    def _clients_of(self, cell: int, begun: np.ndarray) -> tuple[np.ndarray, ClientState | None]:
        """The clients of a cell that have a state to save, and those states, on the host."""
        rows = np.flatnonzero(begun[cell]).astype(np.int32)
        # As many as a power of two, or all: there are few such programs to compile.
        size = min(begun.shape[1], max(FEWEST_ROWS, 1 << len(rows).bit_length()))
        padded = np.resize(np.append(rows, np.int32(0)), size)
        states = self.axis.to_host(take_rows(self.state.clients, cell, padded))
        return rows, jax.tree.map(lambda leaf: leaf[: len(rows)], states)

    def _wait(self) -> None:
        for experiment in self.experiments:
            if experiment.checkpoints is not None:
                experiment.checkpoints.wait()

    def _restore(self) -> bool:
        """Goes back to the newest checkpoint that all experiments have; whether there was one."""
        writers = [each.checkpoints for each in self.experiments if each.checkpoints is not None]
        found = read_together(writers, lambda text: self.shown.say(text, always=True)) if writers else None
        numbered = {f"{n}.{name}": leaf for n, arrays in enumerate(found or []) for name, leaf in arrays.items()}
        together = from_the_first(numbered or None)
        if together is None:
            return False
        plain = self.state._replace(key=jax.random.key_data(self.state.key))
        like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), plain)
        states, clients = [], self.state.clients
        for number, experiment in enumerate(self.experiments):
            prefix = f"{number}."
            own = {name.removeprefix(prefix): leaf for name, leaf in together.items() if name.startswith(prefix)}
            out = None if experiment.directory is None else experiment.directory.path
            stored = decode(own, like, clients=self.config.clients, out=out)
            clients = put_rows(clients, number, stored.rows, stored.state.clients, axis=self.axis)
            states.append(stored.state._replace(clients=None))
            experiment.history = stored.history
            if experiment.directory is not None:
                experiment.directory.rewrite_metrics(experiment.history.records)
            if experiment.checkpoints is not None:
                experiment.checkpoints.forget_after(int(stored.state.round))
        states += states[-1:] * (len(self.state.round) - len(states))
        placed = self.axis.place(jax.tree.map(lambda *leaves: np.stack(leaves), *states), GRID)
        self.state = placed._replace(key=jax.random.wrap_key_data(placed.key), clients=clients)
        self.round = int(states[0].round)
        self.shown.begin_at(self.round)
        return True

    def _results(self, *, finished: bool, missing: list[int], seconds_per_round: float) -> list[Result | None]:
        """Writes the summaries."""
        confusions: Any = self.axis.to_host(self._evaluate()[1])
        simulation = self.simulation._replace(state=self.state)
        results: list[Result | None] = [None] * len(self.experiments)
        for number, experiment in self._active():
            config, history, directory = experiment.config, experiment.history, experiment.directory
            summary = summarise(
                history,
                confusion=confusions[number],
                seconds_per_round=seconds_per_round / len(self.experiments),
                compile_seconds=self.compile_seconds,
                devices=self.axis.devices,
                missing=missing,
            )
            if directory is not None and finished and directory.summary.exists():
                summary = directory.read_summary()
            elif directory is not None:
                with directory.refusing():
                    directory.diverged.unlink(missing_ok=True)
                    write_json(directory.summary, summary)
                    plot_curves({config.method: history.records}, directory.curve)
            model = jax.tree.map(lambda leaf, number=number: leaf[number], self.state.model)
            results[number] = Result(
                config, history.records, summary, model, history.best_model, confusions[number], simulation, number
            )
        return results
