"""The host's side of a run: compile, run chunks of rounds, evaluate, log, checkpoint, tell the user."""

import platform
import time
from dataclasses import dataclass
from importlib import metadata
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
from rscfed_jax.data.sources import load_dataset
from rscfed_jax.data.table import pack_pixels, test_to_device
from rscfed_jax.metrics import Metrics, evaluate
from rscfed_jax.progress import RunProgress
from rscfed_jax.report.plots import plot_curves
from rscfed_jax.rounds import Algorithm, RoundReport, State, place_state, run_rounds
from rscfed_jax.rundir import RunDirectory, check_stored, read_json, write_json
from rscfed_jax.simulation import Simulation, build_simulation, make_network
from rscfed_jax.stored_model import load_model
from rscfed_jax.types import Model

LAST_EVALUATIONS = 5  # the final metrics are the mean of so many
ROUNDS_PER_CALL = 10  # the progress moves at least this often


@dataclass(frozen=True)
class Result:
    """What a run found."""

    config: Config
    metrics: list[dict[str, Any]]  # one record per evaluated round, as in metrics.jsonl
    summary: dict[str, Any]  # as in summary.json
    model: Model  # the trained global model: flax variables
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


def train(
    config: Config,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool = False,
    federation: Federation | None = None,
) -> Result:
    """Runs a config from its first round, or from where the run in `out` stopped.

    Without `out` nothing is written. `federation` is the config's data, if it is loaded already.
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
        return _run(config, simulation, None, None, progress=progress)
    directory.open(config)
    with Checkpoints(directory.checkpoints) as checkpoints:
        return _run(config, simulation, directory, checkpoints, progress=progress)


def evaluate_run(path: str | Path, config: Config) -> tuple[Metrics, int | None]:
    """Metrics on the test set of `config`, and the model's round, if it is known.

    The path is a run directory, whose newest model is taken, one of its checkpoints, or a model file.
    """
    dataset = load_dataset(config.dataset, data_dir=config.data_dir, seed=config.seed)
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
) -> Result:
    state, data, hyper = simulation.state, simulation.data, simulation.hyper
    network = simulation.algorithm.local.network
    records: list[dict[str, Any]] = []
    resumed = checkpoints is not None and checkpoints.latest() is not None
    if resumed:
        state = checkpoints.restore(state, clients=config.clients)
        records = [record for record in directory.read_metrics() if record["round"] <= int(state.round)]
    if directory is not None:
        directory.rewrite_metrics(records)
    start = saved = int(state.round)
    capacity = min(config.eval_every, ROUNDS_PER_CALL)
    model_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(state.model))
    compile_seconds = 0.0
    training_seconds = records[-1]["seconds"] if records else 0.0
    missing = sorted(set(range(network.classes)) - set(np.unique(simulation.test.labels).tolist()))

    def compiled(algorithm: Algorithm) -> Any:
        nonlocal compile_seconds
        began = time.perf_counter()
        program = run_rounds.lower(algorithm, state, data, hyper, jnp.int32(0), capacity=capacity).compile()
        compile_seconds += time.perf_counter() - began
        return program

    def run(program: Any, state: State, rounds: int) -> tuple[State, RoundReport]:
        nonlocal training_seconds
        began = time.perf_counter()
        state, reports = jax.block_until_ready(program(state, data, hyper, jnp.int32(rounds)))
        training_seconds += time.perf_counter() - began
        return state, jax.tree.map(lambda leaf: np.asarray(leaf)[:rounds], reports)

    def evaluated(state: State, reports: list[RoundReport]) -> dict[str, Any]:
        metrics, _ = evaluate(network, state.model, simulation.test)
        record = {"round": int(state.round), **{name: float(value) for name, value in metrics._asdict().items()}}
        record |= _losses(reports)
        sent = {"down": int(state.models_down), "up": int(state.models_up)}
        record |= {f"models_{way}": count for way, count in sent.items()}
        record |= {f"bytes_{way}": count * model_bytes for way, count in sent.items()}
        return record | {"seconds": round(training_seconds, 3)}

    def log(record: dict[str, Any]) -> None:
        records.append(record)
        if directory is not None:
            directory.append_metrics(record)

    with RunProgress(config.rounds, start=start, visible=progress) as shown:
        if resumed:
            shown.say(f"resumed at round {start}" if start < config.rounds else f"the run is finished: {start} rounds")
        if not resumed and config.warmup_rounds:
            shown.say(f"warm-up: {config.warmup_rounds} rounds on the labeled clients alone")
            state = _warm_up(config, compiled(simulation.warmup), run, state, capacity)
        if missing:
            shown.say(f"the test set holds no sample of class {', '.join(map(str, missing))}: AUC leaves them out")
        seconds_before = training_seconds
        if not records:
            log(evaluated(state, []))
        if start < config.rounds:
            shown.say("compiling the round")
            program = compiled(simulation.algorithm)
        reports: list[RoundReport] = []
        while (now := int(state.round)) < config.rounds:
            next_evaluation = min((now // config.eval_every + 1) * config.eval_every, config.rounds)
            state, report = run(program, state, min(next_evaluation - now, capacity))
            reports.append(report)
            now = int(state.round)
            if now == next_evaluation:
                log(evaluated(state, reports))
                reports = []
                if checkpoints is not None and (now - saved >= config.checkpoint_every or now == config.rounds):
                    checkpoints.save(state, clients=config.clients)
                    saved = now
            pace = (training_seconds - seconds_before) / (now - start)
            shown.update(now, accuracy=records[-1]["accuracy"], seconds_per_round=pace)

    if start == config.rounds and directory.summary.exists():
        summary = read_json(directory.summary, setting="out")
    else:
        seconds_per_round = (training_seconds - seconds_before) / max(config.rounds - start, 1)
        summary = _summary(records, seconds_per_round, compile_seconds, simulation.algorithm.axis.devices)
        summary["classes_without_test_samples"] = missing
        if directory is not None:
            write_json(directory.summary, summary)
            plot_curves({config.method: records}, directory.curve)
    _, confusion = evaluate(network, state.model, simulation.test)
    # The state that the simulation began with has given its memory to the rounds.
    simulation = simulation._replace(state=state)
    return Result(config, records, summary, state.model, np.asarray(confusion), simulation)


def _warm_up(config: Config, program: Any, run: Any, state: State, capacity: int) -> State:
    """Rounds on the labeled clients alone, from which the run then starts as if it were round 0."""
    # Rounds are numbered apart, so that the run itself does not draw the same batches again.
    state = state._replace(round=state.round - config.warmup_rounds)
    while (left := -int(state.round)) > 0:
        state, _ = run(program, state, min(left, capacity))
    return state._replace(initial_model=jax.tree.map(jnp.copy, state.model))


def _losses(reports: list[RoundReport]) -> dict[str, Any]:
    """Mean losses over the rounds since the last evaluation, and the broken clients among them."""

    def mean(name: str) -> float | None:
        # A round in which no client has such a loss reports NaN.
        values = [value for report in reports for value in getattr(report, name) if np.isfinite(value)]
        return float(np.mean(values)) if values else None

    return {
        "labeled_loss": mean("labeled_loss"),
        "consistency_loss": mean("consistency_loss"),
        "broken_clients": int(sum(report.broken.sum() for report in reports)),
    }


def _summary(
    records: list[dict[str, Any]], seconds_per_round: float, compile_seconds: float, devices: int
) -> dict[str, Any]:
    trained = [record for record in records if record["round"] > 0]
    last = trained[-LAST_EVALUATIONS:]
    best = max(trained, key=lambda record: record["accuracy"])
    device = jax.devices()[0]
    return {
        "final": {name: float(np.mean([record[name] for record in last])) for name in Metrics._fields},
        "best": {name: best[name] for name in ("round", *Metrics._fields)},
        "rounds": records[-1]["round"],
        "seconds_per_round": seconds_per_round,
        "compile_seconds": compile_seconds,
        **{name: records[-1][name] for name in ("models_down", "models_up", "bytes_down", "bytes_up")},
        "device": f"{devices} x {device.device_kind} ({device.platform})",
        "versions": {name: metadata.version(name) for name in ("rscfed-jax", "jax", "jaxlib", "flax", "optax", "numpy")}
        | {"python": platform.python_version()},
    }
