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
from rscfed_jax.config import Config, SettingError
from rscfed_jax.data.augment import normalise, unpack_pixels
from rscfed_jax.data.federation import Federation, build_federation
from rscfed_jax.data.resize import resize
from rscfed_jax.data.table import pack_pixels, to_device
from rscfed_jax.metrics import Metrics, evaluate
from rscfed_jax.progress import RunProgress
from rscfed_jax.report.plots import plot_curves
from rscfed_jax.rounds import Algorithm, RoundReport, State, run_rounds
from rscfed_jax.rundir import RunDirectory, load_config, write_json
from rscfed_jax.simulation import Simulation, build_simulation, make_network
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
        network, data = self.simulation.algorithm.local.network, self.simulation.data
        words = jnp.asarray(pack_pixels(resize(images, self.config.image_size)))
        pixels = normalise(unpack_pixels(words.transpose(1, 2, 0)), data.mean, data.std, network.dtype)
        return np.asarray(jax.nn.softmax(network.apply(self.model, pixels, train=False)))


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
        simulation = simulation._replace(state=_start_from(config.init_from, simulation.state))
    if directory is None:
        return _run(config, simulation, None, None, progress=progress)
    directory.open(config)
    with Checkpoints(directory.checkpoints) as checkpoints:
        return _run(config, simulation, directory, checkpoints, progress=progress)


def evaluate_run(path: str | Path) -> tuple[Metrics, int]:
    """Metrics on the test set of the newest model in a run directory, and its round."""
    config = load_config(path, setting="path")
    federation = build_federation(config)
    network = make_network(config, federation.dataset.classes)
    images = jnp.zeros((3, config.image_size, config.image_size, 1))
    like = jax.eval_shape(lambda: dict(network.init(jax.random.key(0), images, train=False)))
    with Checkpoints(RunDirectory(path).checkpoints) as checkpoints:
        round_ = checkpoints.latest()
        if round_ is None:
            raise SettingError("path", path, "holds no checkpoint yet")
        model = checkpoints.restore_model(like)
    _, test = to_device(federation, image_size=config.image_size)
    return evaluate(network, model, test)[0], round_


def _start_from(path: str, state: State) -> State:
    """The state with the global model of another run."""
    load_config(path, setting="init_from")
    with Checkpoints(RunDirectory(path).checkpoints) as checkpoints:
        if checkpoints.latest() is None:
            raise SettingError("init_from", path, "holds no checkpoint yet")
        try:
            model = checkpoints.restore_model(state.model)
        except ValueError:
            raise SettingError("init_from", path, "its model has other parameters than this one") from None
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
        state = checkpoints.restore(state)
        records = [record for record in directory.read_metrics() if record["round"] <= int(state.round)]
    if directory is not None:
        directory.rewrite_metrics(records)
    start = saved = int(state.round)
    capacity = min(config.eval_every, ROUNDS_PER_CALL)
    model_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(state.model))
    compile_seconds = training_seconds = 0.0
    classes = simulation.algorithm.local.network.classes
    missing = sorted(set(range(classes)) - set(np.unique(simulation.test.labels).tolist()))

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
        warmup_seconds = training_seconds
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
                    checkpoints.save(state)
                    saved = now
            pace = (training_seconds - warmup_seconds) / (now - start)
            shown.update(now, accuracy=records[-1]["accuracy"], seconds_per_round=pace)

    seconds_per_round = (training_seconds - warmup_seconds) / max(config.rounds - start, 1)
    summary = _summary(records, seconds_per_round, compile_seconds, simulation.algorithm.axis.devices)
    summary["classes_without_test_samples"] = missing
    if directory is not None and not (resumed and start == config.rounds and directory.summary.exists()):
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
    rounds = sum(len(report.broken) for report in reports)
    if not rounds:
        return {"labeled_loss": None, "consistency_loss": None, "broken_clients": 0}
    labeled = np.concatenate([report.labeled_loss for report in reports])
    return {
        # A round whose subsets hold no labeled client has no labeled loss.
        "labeled_loss": float(labeled[labeled > 0].mean()) if (labeled > 0).any() else None,
        "consistency_loss": float(np.concatenate([report.consistency_loss for report in reports]).mean()),
        "broken_clients": int(sum(report.broken.sum() for report in reports)),
    }


def _summary(
    records: list[dict[str, Any]], seconds_per_round: float, compile_seconds: float, devices: int
) -> dict[str, Any]:
    last = records[-LAST_EVALUATIONS:]
    best = max(records, key=lambda record: record["accuracy"])
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
