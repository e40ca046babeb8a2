"""The host's side of a run: compile, run chunks of rounds, evaluate, log, checkpoint, tell the user."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rscfed_jax.checkpoint import Checkpoints
from rscfed_jax.config import Config
from rscfed_jax.data.augment import normalise, unpack_pixels
from rscfed_jax.data.federation import Federation, build_federation
from rscfed_jax.data.resize import resize
from rscfed_jax.data.sources import dataset_of
from rscfed_jax.data.table import pack_pixels, test_to_device
from rscfed_jax.history import History, check_finite, summarise
from rscfed_jax.metrics import Metrics, evaluate
from rscfed_jax.progress import RunProgress
from rscfed_jax.report.plots import plot_curves
from rscfed_jax.rounds import Algorithm, RoundReport, State, place_state, run_rounds
from rscfed_jax.rundir import RunDirectory, check_stored, write_json
from rscfed_jax.simulation import Simulation, build_simulation, make_network
from rscfed_jax.stored_model import load_model
from rscfed_jax.types import Model

ROUNDS_PER_CALL = 10  # the progress moves at least this often


@dataclass(frozen=True)
class Result:
    """What a run found."""

    config: Config
    metrics: list[dict[str, Any]]  # one record per evaluated round, as in metrics.jsonl
    summary: dict[str, Any]  # as in summary.json
    model: Model  # the trained global model: flax variables
    best_model: Model  # the one with the best test accuracy of the evaluated rounds
    confusion: np.ndarray  # [classes, classes] of the last round on the test set; rows are the true classes
    simulation: Simulation  # with the state after the last round, to go on from

    def predict(self, images: np.ndarray) -> np.ndarray:
        """[B, classes] probabilities for [B, H, W, 1 or 3] uint8 images of any size."""
        if images.dtype != np.uint8 or images.ndim != 4:
            raise ValueError(f"images must be uint8 of shape B,H,W,C, not {images.dtype} of shape {images.shape}")
        network, data = self.simulation.algorithm.local.network, self.simulation.data
        words = jnp.asarray(pack_pixels(resize(images, self.config.image_size)))
        pixels = normalise(unpack_pixels(words.transpose(1, 2, 0)), data.mean, data.std, network.dtype)
        logits = network.apply(self.model, pixels, train=False)
        return np.asarray(jax.nn.softmax(logits.astype(jnp.float32)))


class Stopped(Exception):  # noqa: N818 - as StopIteration, no error
    """The run was asked to stop and has done so; the message says what was saved."""


def train(
    config: Config,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool = False,
    federation: Federation | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Result:
    """Runs a config from its first round, or from where the run in `out` stopped.

    Without `out` nothing is written. `federation` is the config's data, if it is loaded already. When `stop` returns
    true, the run finishes the rounds under way, saves its state and raises `Stopped`. A global model that is no longer
    finite raises `DivergedError`; the checkpoint before it stays.
    """
    directory = None if out is None else RunDirectory(out)
    if directory is not None:
        directory.check(config, resume=resume)
    federation = federation or build_federation(config)
    simulation = build_simulation(config, federation)
    if config.init_from is not None:
        state = _start_from(config.init_from, simulation.state)
        simulation = simulation._replace(state=place_state(simulation.algorithm.axis, state))
    if directory is None:
        return _run(config, simulation, None, None, progress=progress, stop=stop)
    with directory.open(config, resume=resume), Checkpoints(directory.checkpoints) as checkpoints:
        return _run(config, simulation, directory, checkpoints, progress=progress, stop=stop)


def evaluate_run(path: str | Path, config: Config) -> tuple[Metrics, int | None]:
    """Metrics on the test set of `config`, and the model's round, if it is known.

    The path is a run directory, whose newest model is taken, one of its checkpoints, or a model file.
    """
    dataset = dataset_of(config)
    network = make_network(config, dataset.classes)
    images = jnp.zeros((3, config.image_size, config.image_size, 1))
    like = jax.eval_shape(lambda: dict(network.init(jax.random.key(0), images, train=False)))
    model, round_ = load_model(path, like, setting="PATH")
    return evaluate(network, model, test_to_device(dataset, image_size=config.image_size))[0], round_


def _start_from(path: str, state: State) -> State:
    """The state with the global model of another run, or of a file."""
    check_stored(path, setting="init_from")
    model, _ = load_model(path, state.model, setting="init_from")
    return state._replace(model=model, initial_model=jax.tree.map(jnp.copy, model))


def _run(
    config: Config,
    simulation: Simulation,
    directory: RunDirectory | None,
    checkpoints: Checkpoints | None,
    *,
    progress: bool,
    stop: Callable[[], bool],
) -> Result:
    state, data, hyper = simulation.state, simulation.data, simulation.hyper
    network = simulation.algorithm.local.network
    capacity = min(config.eval_every, ROUNDS_PER_CALL)
    model_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(state.model))
    missing = sorted(set(range(network.classes)) - set(np.unique(simulation.test.labels).tolist()))
    history = History(best_model=jax.device_get(state.model))
    compile_seconds = 0.0

    def compiled(algorithm: Algorithm) -> Any:
        nonlocal compile_seconds
        began = time.perf_counter()
        program = run_rounds.lower(algorithm, state, data, hyper, jnp.int32(0), capacity=capacity).compile()
        compile_seconds += time.perf_counter() - began
        return program

    def run(program: Any, state: State, rounds: int) -> tuple[State, RoundReport]:
        began = time.perf_counter()
        state, reports = jax.block_until_ready(program(state, data, hyper, jnp.int32(rounds)))
        history.seconds += time.perf_counter() - began
        return state, jax.tree.map(lambda leaf: np.asarray(leaf)[:rounds], reports)

    def log(state: State) -> None:
        metrics, _ = evaluate(network, state.model, simulation.test)
        sent = {"down": int(state.models_down), "up": int(state.models_up)}
        counts = {f"models_{way}": count for way, count in sent.items()}
        counts |= {f"bytes_{way}": count * model_bytes for way, count in sent.items()}
        record = history.add_evaluation(int(state.round), metrics, counts, state.model)
        if directory is not None:
            directory.append_metrics(record)

    def save(state: State) -> None:
        if checkpoints is not None:
            checkpoints.save(state, history, config)

    with RunProgress(config.rounds, visible=progress) as shown:
        found = None
        if checkpoints is not None:
            found = checkpoints.restore(state, clients=config.clients, warn=lambda text: shown.say(text, always=True))
        if found is not None:
            state, history = found
            shown.begin_at(int(state.round))
        if directory is not None:
            directory.rewrite_metrics(history.records)
        start = saved = int(state.round)
        finished = start == config.rounds
        if finished:
            shown.say(f"the run is finished: {start} rounds", always=True)
        elif found is not None:
            shown.say(f"resumed at round {start}")
        if missing:
            shown.say(f"the test set holds no sample of class {', '.join(map(str, missing))}: AUC leaves them out")
        if found is None and config.warmup_rounds:
            shown.say(f"warm-up: {config.warmup_rounds} rounds on the labeled clients alone")
            state = _warm_up(config, compiled(simulation.warmup), run, state, capacity, stop)
        seconds_before = history.seconds
        if not history.records:
            log(state)
            if config.warmup_rounds:
                save(state)
        if not finished:
            shown.say("compiling the round")
            program = compiled(simulation.algorithm)
        while (now := int(state.round)) < config.rounds:
            next_evaluation = (now // config.eval_every + 1) * config.eval_every
            until = min(next_evaluation, saved + config.checkpoint_every, now + capacity, config.rounds)
            state, reports = run(program, state, until - now)
            history.add_rounds(reports, first=now + 1)
            if until == next_evaluation:
                log(state)
            stopping = stop() and until < config.rounds
            if stopping or until in (saved + config.checkpoint_every, config.rounds):
                save(state)
                saved = until
            if stopping:
                if checkpoints is not None:
                    checkpoints.wait()
                raise Stopped(f"stopped after round {until}")
            pace = (history.seconds - seconds_before) / (until - start)
            shown.update(until, accuracy=history.records[-1]["accuracy"], seconds_per_round=pace)
    if history.records[-1]["round"] < config.rounds:
        # Not in the checkpoint: a run that goes on from here would not evaluate at this round.
        log(state)
    if checkpoints is not None:
        checkpoints.wait()

    if finished and directory.summary.exists():
        summary = directory.read_summary()
    else:
        summary = summarise(
            history,
            seconds_per_round=(history.seconds - seconds_before) / max(config.rounds - start, 1),
            compile_seconds=compile_seconds,
            devices=simulation.algorithm.axis.devices,
            missing=missing,
        )
        if directory is not None:
            with directory.refusing():
                write_json(directory.summary, summary)
                plot_curves({config.method: history.records}, directory.curve)
    _, confusion = evaluate(network, state.model, simulation.test)
    # The state that the simulation began with has given its memory to the rounds.
    simulation = simulation._replace(state=state)
    return Result(config, history.records, summary, state.model, history.best_model, np.asarray(confusion), simulation)


def _warm_up(config: Config, program: Any, run: Any, state: State, capacity: int, stop: Callable[[], bool]) -> State:
    """Rounds on the labeled clients alone, from which the run then starts as if it were round 0."""
    # Rounds are numbered apart, so that the run itself does not draw the same batches again.
    state = state._replace(round=state.round - config.warmup_rounds)
    while (left := -int(state.round)) > 0:
        if stop():
            raise Stopped("stopped in the warm-up, of which nothing is saved")
        state, reports = run(program, state, min(left, capacity))
        check_finite(reports, first=1 - left)
    return state._replace(initial_model=jax.tree.map(jnp.copy, state.model))
