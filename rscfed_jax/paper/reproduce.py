"""Runs the cells of a table and puts our numbers beside the paper's. JAX is imported when the first cell runs."""

import csv
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rscfed_jax.config import Config, SettingError
from rscfed_jax.data.dataset import Dataset
from rscfed_jax.data.federation import Federation, build_federation
from rscfed_jax.data.sources import dataset_of
from rscfed_jax.paper.tables import TABLES, Cell, cells_of
from rscfed_jax.rundir import RunDirectory

METRICS = ("accuracy", "auc", "precision", "recall")
SECONDS_PER_STEP = 0.007  # of a client, simple CNN and batch 64 on two CPU cores: benchmarks/round_time.py
OF_DATA = ("dataset", "data_dir", "download", "split", "image_size", "resize", "seed")


class Job(NamedTuple):
    """One cell with one seed."""

    cell: Cell
    config: Config
    directory: RunDirectory

    @property
    def finished(self) -> bool:
        """Whether its run has all its rounds."""
        return self.directory.summary.exists() and self.directory.read_summary()["rounds"] >= self.config.rounds


class Row(NamedTuple):
    """What the table says of a cell."""

    cell: Cell
    mean: dict[str, float]  # over seeds, of the mean of the last five evaluations
    std: dict[str, float]  # over seeds; zero for one seed
    best: float  # mean over seeds of the best accuracy on the test set: an oracle
    models_up: float  # models sent to the server in a round


def plan(table: str, settings: dict[str, Any], *, seeds: int, out: str | Path) -> list[Job]:
    """Every run of a table, its settings checked; nothing runs and nothing is written."""
    dataset = settings.get("dataset", Config.__dataclass_fields__["dataset"].default)
    jobs = []
    for cell in cells_of(table, dataset):
        for seed in range(seeds):
            try:
                config = Config(**settings | cell.settings, seed=seed)
            except SettingError as error:
                raise SettingError("TABLE", table, f"{cell.name} does not fit: {error}") from None
            directory = RunDirectory(Path(out) / "cells" / f"{cell.name}-seed{seed}")
            directory.check(config, resume=True)
            jobs.append(Job(cell, config, directory))
    return jobs


def federations(jobs: list[Job]) -> Iterator[Federation]:
    """The federation of each job; data sets are loaded once for each seed."""
    loaded: dict[tuple, Dataset] = {}
    for job in jobs:
        key = tuple(getattr(job.config, name) for name in OF_DATA)
        if key not in loaded:
            loaded.clear()  # jobs of one seed need not be neighbours, but two large data sets may not fit
            loaded[key] = dataset_of(job.config)
        yield build_federation(job.config, dataset=loaded[key])


def estimated_seconds(config: Config, federation: Federation) -> float:
    """A guess at the time of a run from its client steps; only the simple CNN on two CPU cores was measured."""
    steps = -(-federation.sizes // config.batch_size)
    if config.method in ("rscfed", "sso"):
        per_round = steps.mean() * config.subsets * config.subset_size
    else:
        per_round = steps[federation.labeled].sum() if config.method == "fedavg" else steps.sum()
    warmup = config.warmup_rounds * steps[federation.labeled].sum()
    return float((config.rounds * per_round + warmup) * config.local_epochs * SECONDS_PER_STEP)


def run(jobs: list[Job], *, progress: bool, say: Callable[[str], None], stop: Callable[[], bool]) -> None:
    """Runs what is not finished yet, continuing what was interrupted; `stop()` ends it between rounds."""
    from rscfed_jax.experiment import Stopped, train

    waiting = [job for job in jobs if not job.finished]
    for number, (job, federation) in enumerate(zip(waiting, federations(waiting), strict=True), 1):
        if stop():
            raise Stopped(f"stopped before cell {number} of {len(waiting)} to run")
        say(f"cell {number} of {len(waiting)} to run: {job.cell.name}, seed {job.config.seed}")
        train(job.config, out=job.directory.path, resume=True, progress=progress, federation=federation, stop=stop)


def rows_of(jobs: list[Job]) -> list[Row]:
    """A row for each cell, from the finished runs of its seeds."""
    rows = []
    for cell in dict.fromkeys(job.cell.name for job in jobs):
        mine = [job for job in jobs if job.cell.name == cell]
        summaries = [job.directory.read_summary() for job in mine]
        finals = {name: [summary["final"][name] for summary in summaries] for name in METRICS}
        rows.append(
            Row(
                mine[0].cell,
                mean={name: float(np.mean(values)) for name, values in finals.items()},
                std={name: _spread(values) for name, values in finals.items()},
                best=float(np.mean([summary["best"]["accuracy"] for summary in summaries])),
                models_up=float(np.mean([summary["models_up"] / summary["rounds"] for summary in summaries])),
            )
        )
    return rows


def _spread(values: list[float]) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


HEADER = (
    *("cell", "accuracy", "paper", "difference", "auc", "paper", "difference", "precision", "recall"),
    *("best_oracle", "models_up_per_round"),
)


def cells_as_text(rows: list[Row], *, seeds: int) -> list[list[str]]:
    """The table as texts, in percent: a line for each cell under `HEADER`."""

    def ours(row: Row, metric: str) -> str:
        spread = f" +- {100 * row.std[metric]:.2f}" if seeds > 1 else ""
        return f"{100 * row.mean[metric]:.2f}{spread}"

    def beside(row: Row, metric: str) -> list[str]:
        if metric not in row.cell.paper:
            return ["", ""]
        paper = row.cell.paper[metric]
        return [f"{100 * paper:.2f}", f"{100 * (row.mean[metric] - paper):+.2f}"]

    return [
        [
            row.cell.name,
            *(ours(row, "accuracy"), *beside(row, "accuracy")),
            *(ours(row, "auc"), *beside(row, "auc")),
            *(ours(row, "precision"), ours(row, "recall")),
            *(f"{100 * row.best:.2f}", f"{row.models_up:.1f}"),
        ]
        for row in rows
    ]


def as_console(lines: list[list[str]]) -> str:
    """Columns under their names, ASCII only."""
    table = [list(HEADER), *lines]
    widths = [max(len(line[column]) for line in table) for column in range(len(HEADER))]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *(text.rjust(w) for text, w in zip(line[1:], widths[1:], strict=True))])
        for line in table
    )


def as_markdown(lines: list[list[str]]) -> str:
    """The same for a Markdown file."""
    ruler = ["---", *["---:"] * (len(HEADER) - 1)]
    return "\n".join("| " + " | ".join(line) + " |" for line in [list(HEADER), ruler, *lines]) + "\n"


def as_csv(rows: list[Row]) -> str:
    """The same with full numbers, as fractions."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    columns = [f"{metric}{kind}" for metric in METRICS for kind in ("", "_std", "_paper")]
    writer.writerow(["cell", *columns, "best_accuracy_oracle", "models_up_per_round"])
    for row in rows:
        values = [v for m in METRICS for v in (row.mean[m], row.std[m], row.cell.paper.get(m, ""))]
        writer.writerow([row.cell.name, *values, row.best, row.models_up])
    return file.getvalue()


def write_report(table: str, jobs: list[Job], *, seeds: int, out: str | Path) -> str:
    """Writes table.md, table.csv and curves.png, and returns the table for the console."""
    from rscfed_jax.report.plots import plot_curves

    rows, config = rows_of(jobs), jobs[0].config
    lines = cells_as_text(rows, seeds=seeds)
    kept = f", {config.train_fraction:.0%} of every client's samples" if config.train_fraction < 1 else ""
    facts = (
        f"{config.dataset}, preset {config.preset}, {config.rounds} rounds{kept}, "
        f"{seeds} seed{'s' if seeds > 1 else ''}; in percent. Ours is the mean of the last five evaluations"
        f"{', over seeds with standard deviation' if seeds > 1 else ''}; best_oracle is the best round, chosen on the "
        f"test set. The paper has 1000 rounds on all samples."
    )
    title = TABLES[table].title
    curves = {row.cell.name: _mean_curve(jobs, row.cell) for row in rows}
    out = Path(out)
    with RunDirectory(out).refusing():
        (out / "table.md").write_text(f"# {title}\n\n{facts}\n\n{as_markdown(lines)}")
        (out / "table.csv").write_text(as_csv(rows))
        plot_curves(curves, out / "curves.png")
    return f"{title}\n{facts}\n{as_console(lines)}"


def _mean_curve(jobs: list[Job], cell: Cell) -> list[dict[str, Any]]:
    """The evaluated rounds of a cell, its metrics as means over seeds."""
    runs = [job.directory.read_metrics() for job in jobs if job.cell.name == cell.name]
    return [
        {"round": records[0]["round"], **{m: float(np.mean([record[m] for record in records])) for m in METRICS}}
        for records in zip(*runs, strict=True)
    ]
