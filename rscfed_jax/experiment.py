"""One experiment: train it, or test what it has trained."""

from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp

from rscfed_jax.config import Config
from rscfed_jax.data.federation import Federation, build_federation
from rscfed_jax.data.sources import dataset_of
from rscfed_jax.data.table import test_to_host
from rscfed_jax.group import Experiment, Result, run_together
from rscfed_jax.history import Record
from rscfed_jax.methods.base import Method
from rscfed_jax.metrics import Metrics, evaluate
from rscfed_jax.processes import is_first
from rscfed_jax.progress import RunProgress
from rscfed_jax.rundir import RunDirectory
from rscfed_jax.simulation import make_network, model_like
from rscfed_jax.stored_model import load_model


def train(
    config: Config,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool = False,
    federation: Federation | None = None,
    stop: Callable[[], bool] = lambda: False,
    method: Method | None = None,
    on_record: Callable[[Record], None] = lambda record: None,
) -> Result:
    """Runs a config from its first round, or from where the run in `out` stopped.

    Without `out` nothing is written. `federation` is the config's data, if it is loaded already. `method` is one of
    your own, to be used instead of the one that the config names. `on_record` is called with the record of each
    evaluated round, as metrics.jsonl has it. When `stop` returns true, the run finishes the rounds under way, saves its
    state and raises `Stopped`. A global model that is no longer finite raises `DivergedError`; the checkpoint before it
    stays.
    """
    directory = RunDirectory(out) if out is not None and is_first() else None
    if directory is not None:
        directory.check(config, resume=resume)
    experiment = Experiment(config, federation or build_federation(config), directory, on_record=on_record)
    with RunProgress(config.rounds, visible=progress and is_first()) as shown:
        [result], _ = run_together([experiment], shown=shown, resume=resume, stop=stop, method=method)
    if experiment.diverged is not None:
        raise experiment.diverged
    assert result is not None  # only a run that diverged has none
    return result


def evaluate_run(path: str | Path, config: Config) -> tuple[Metrics, int | None]:
    """Metrics on the test set of `config`, and the model's round, if it is known.

    The path is a run directory, whose newest model is taken, one of its checkpoints, or a model file.
    """
    dataset = dataset_of(config)
    network, like = make_network(config, dataset.classes), model_like(config, dataset.classes)
    model, round_ = load_model(path, like, setting="PATH")
    return evaluate(network, model, jax.tree.map(jnp.asarray, test_to_host(dataset, image_size=config.image_size)))[
        0
    ], round_
