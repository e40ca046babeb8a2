"""The Python functions: train an experiment, a grid of them or a table of the paper, and test the trained models."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from rscfed_jax.config import Config, SettingError, plain
from rscfed_jax.config.config_file import SEEDS
from rscfed_jax.config.registry import known_settings
from rscfed_jax.core.method import Method
from rscfed_jax.core.metrics import Metrics, evaluate
from rscfed_jax.core.types import Model, TestData
from rscfed_jax.data.dataset import Dataset, normalisation
from rscfed_jax.data.federation import Federation, build_federation
from rscfed_jax.data.load import dataset_of
from rscfed_jax.data.table import test_table
from rscfed_jax.models.registry import model_like
from rscfed_jax.runner import table as tables
from rscfed_jax.runner.build import Objects
from rscfed_jax.runner.classifier import Classifier
from rscfed_jax.runner.experiment import Experiment
from rscfed_jax.runner.grid import CELLS_AT_ONCE, GRID_DEVICES, GridResult, check_axis, points_of, run_points
from rscfed_jax.runner.history import Record
from rscfed_jax.runner.processes import is_first
from rscfed_jax.runner.progress import RunProgress
from rscfed_jax.runner.result import Result
from rscfed_jax.runner.stored_model import load_model
from rscfed_jax.runner.sweep import programs_of, run_programs
from rscfed_jax.runner.together import run_together
from rscfed_jax.storage.model_file import is_model_file
from rscfed_jax.storage.run_directory import RunDirectory, check_same_data, load_config


def never() -> bool:
    """Lets a run come to its end."""
    return False


def train(
    config: Config,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool = False,
    federation: Federation | None = None,
    stop: Callable[[], bool] = never,
    method: Method | None = None,
    network: nn.Module | None = None,
    on_record: Callable[[Record], None] = lambda record: None,
) -> Result:
    """Runs a config from its first round, or from where the run in `out` stopped.

    Without `out` nothing is written. `federation` is the config's data, if it is already loaded. `method` and `network`
    replace the ones that the config names; to resume such a run, give them again. `on_record` is called with the record
    of each evaluated round, as in metrics.jsonl. When `stop` returns true, the run finishes the current rounds, saves
    its state and raises `Stopped`. If the global model is no longer finite, it raises `DivergedError` and keeps the
    last checkpoint before that.
    """
    objects = Objects(method, network)
    config = objects.named_in(config)
    directory = RunDirectory(out) if out is not None and is_first() else None
    if directory is not None:
        directory.check(config, resume=resume)
    experiment = Experiment(config, federation or build_federation(config), directory, on_record=on_record)
    with RunProgress(config.rounds, visible=progress and is_first()) as shown:
        [result], _ = run_together([experiment], shown=shown, resume=resume, stop=stop, objects=objects)
    if experiment.diverged is not None:
        raise experiment.diverged
    assert result is not None  # only a run that diverged has none
    return result


def grid(
    config: Config,
    axes: Mapping[str, Iterable[Any]],
    *,
    seeds: int = 1,
    out: str | Path | None = None,
    progress: bool = False,
    stop: Callable[[], bool] = never,
    method: Method | None = None,
    network: nn.Module | None = None,
    grid_devices: int = 1,
    cells_at_once: int | None = None,
) -> GridResult:
    """Runs `config` with every combination of the values in `axes` and the seeds from `config.seed` on.

    Experiments that share a program run as one. With `out`, each is a run directory of its own under `out/cells`, and
    finished ones are skipped; tables are written beside them, and for two axes a heat map.
    """
    lists = {name: [plain(value) for value in values] for name, values in axes.items()}
    known = known_settings(*lists.get("method", []), str(config.settings().get("method")))
    for name, values in lists.items():
        check_axis(name, values, {}, f"{name}={','.join(map(str, values))}", known)
    SEEDS.checked(seeds)
    GRID_DEVICES.checked(grid_devices)
    if cells_at_once is not None:
        CELLS_AT_ONCE.checked(cells_at_once)
    points = points_of(config.settings(), lists, seeds=seeds, out=out, objects=_given(method, network))
    programs = programs_of([cell for point in points for cell in point.cells], most=cells_at_once)
    return run_points(points, programs, out=out, progress=progress, stop=stop, grid_devices=grid_devices)


def reproduce(
    table: str,
    settings: dict[str, Any],
    *,
    seeds: int = 1,
    out: str | Path,
    progress: bool = False,
    stop: Callable[[], bool] = never,
    method: Method | None = None,
    network: nn.Module | None = None,
) -> list[tables.RowResult]:
    """Runs a published table and returns its rows; `settings` are those of `Config` that its rows do not decide.

    Rounds, network and other defaults are those of the table's paper. A `method`, here or in `settings`, joins the
    table. Finished cells in `out` are skipped. Also writes table.md, table.csv and curves.png into it.
    """
    settings = {name: plain(value) for name, value in settings.items()}
    SEEDS.checked(seeds)
    rows = tables.plan(table, settings, seeds=seeds, out=out, objects=_given(method, network))
    run_programs(programs_of([cell for row in rows for cell in row.cells]), progress=progress, stop=stop)
    tables.write_table(table, rows, seeds=seeds, out=out)
    return tables.results_of(rows)


def evaluate_run(path: str | Path, config: Config, *, network: nn.Module | None = None) -> tuple[Metrics, int | None]:
    """Metrics on the test set of `config`, and the model's round, if it is known.

    The path is a run directory, whose newest model is taken, one of its checkpoints, or a model file. A run whose
    network was given as an object needs the `network` again.
    """
    dataset = dataset_of(config)
    used, model, round_ = _stored(path, config, dataset, network)
    test = TestData(**test_table(dataset, image_size=config.image_size))
    return evaluate(used, model, jax.tree.map(jnp.asarray, test))[0], round_


def load_classifier(path: str | Path, config: Config | None = None, *, network: nn.Module | None = None) -> Classifier:
    """The global model of a run, to classify images with: `rj.load_classifier("runs/mine").predict(images)`.

    The path is a run directory, whose newest model is taken, one of its checkpoints, or a model file, which needs the
    `config` that it was trained with, as does a run on data of your own. A run whose network was given as an object
    needs the `network` again.
    """
    if config is None:
        if is_model_file(path):
            raise SettingError("PATH", path, "is a model file, which needs the config that it was trained with")
        config = load_config(path, setting="PATH")
        dataset = dataset_of(config)
        names, counts = dataset.names, dataset.test_counts.tolist()
        check_same_data(path, config.dataset, class_names=names, test_counts=counts)
    else:
        dataset = dataset_of(config)
    used, model, _ = _stored(path, config, dataset, network)
    return Classifier(used, model, config.image_size, *map(jnp.asarray, normalisation(dataset)))


def _stored(
    path: str | Path, config: Config, dataset: Dataset, network: nn.Module | None
) -> tuple[nn.Module, Model, int | None]:
    """The network of a stored model, the model, and its round, if it is known."""
    used = Objects(network=network).network_of(config, dataset.classes)
    model, round_ = load_model(path, model_like(used, config, dataset.classes), setting="PATH")
    return used, model, round_


def _given(method: Method | None, network: nn.Module | None) -> Objects | None:
    return None if method is None and network is None else Objects(method, network)
