"""Runs the cells of a table and puts our numbers beside the paper's. JAX is imported when the first cell runs."""

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rscfed_jax import cells
from rscfed_jax.config import Config, SettingError
from rscfed_jax.paper.tables import DECIDED, TABLES, Cell, cells_of
from rscfed_jax.report.text import as_console, as_markdown, seeds_as_text, spread
from rscfed_jax.rundir import METRICS, RunDirectory, check_stored

PAPER_ROUNDS = 1000


class Job(NamedTuple):
    """One cell with one seed."""

    cell: Cell
    job: cells.Job

    @property
    def config(self) -> Config:
        """Its settings."""
        return self.job.config

    @property
    def directory(self) -> RunDirectory:
        """Where its files go."""
        assert self.job.directory is not None  # a table is always written
        return self.job.directory


class Row(NamedTuple):
    """What the table says of a cell."""

    cell: Cell
    mean: dict[str, float]  # over seeds, of the mean of the last five evaluations
    std: dict[str, float]  # over seeds; zero for one seed
    best: float  # mean over seeds of the best accuracy on the test set: an oracle
    models_up: float  # models sent to the server in a round
    seeds: int
    diverged: int  # of the seeds, left out of all of the above


def plan(table: str, settings: dict[str, Any], *, seeds: int, out: str | Path, check: bool = True) -> list[Job]:
    """Every run of a table, its settings checked; nothing runs and nothing is written."""
    dataset = settings.get("dataset", Config.__dataclass_fields__["dataset"].default)
    jobs = []
    for cell in cells_of(table, dataset):
        for seed in range(seeds):
            try:
                config = Config(**{"rounds": PAPER_ROUNDS} | settings | cell.settings, seed=seed)
            except SettingError as error:
                raise SettingError("TABLE", table, f"{cell.name} does not fit: {error}") from None
            directory = RunDirectory(Path(out) / "cells" / f"{cell.name}-seed{seed}")
            if config.init_from is not None:
                check_stored(config.init_from, setting="init_from")
            if check:
                directory.check(config, resume=True)
            jobs.append(Job(cell, cells.Job(f"{cell.name}, seed {seed}", config, directory)))
    return jobs


def run(jobs: list[Job], *, progress: bool, stop: Callable[[], bool] = lambda: False) -> None:
    """Runs what is not finished yet, continuing what was interrupted; `stop()` ends it between rounds."""
    cells.run_groups(cells.groups_of([job.job for job in jobs]), progress=progress, stop=stop)


def rows_of(jobs: list[Job]) -> list[Row]:
    """A row for each cell, from the runs of its seeds; not a number where all of them diverged."""

    def mean(values: list[float]) -> float:
        return float(np.mean(values)) if values else float("nan")

    rows = []
    for name in dict.fromkeys(job.cell.name for job in jobs):
        mine = [job for job in jobs if job.cell.name == name]
        there = [job.directory for job in mine if not job.directory.has_diverged]
        summaries = [directory.read_summary() for directory in there]
        first = [directory.read_metrics()[0] for directory in there]  # tells what the warm-up has sent
        finals = {name: [summary["final"][name] for summary in summaries] for name in METRICS}
        rows.append(
            Row(
                mine[0].cell,
                mean={name: mean(values) for name, values in finals.items()},
                std={name: spread(values) for name, values in finals.items()},
                best=mean([summary["best"]["accuracy"] for summary in summaries]),
                models_up=mean(
                    [(b["models_up"] - a["models_up"]) / b["rounds"] for a, b in zip(first, summaries, strict=True)]
                ),
                seeds=len(mine),
                diverged=len(mine) - len(there),
            )
        )
    return rows


HEADER = (
    *("cell", "seeds", "accuracy", "paper", "difference", "auc", "paper", "difference", "precision", "recall"),
    *("best_oracle", "models_up_per_round"),
)


def cells_as_text(rows: list[Row]) -> list[list[str]]:
    """The table as texts, in percent: a line for each cell under `HEADER`."""

    def ours(row: Row, metric: str) -> str:
        if np.isnan(row.mean[metric]):
            return "diverged"
        spread = f" +- {100 * row.std[metric]:.2f}" if row.seeds - row.diverged > 1 else ""
        return f"{100 * row.mean[metric]:.2f}{spread}"

    def beside(row: Row, metric: str) -> list[str]:
        if metric not in row.cell.paper or np.isnan(row.mean[metric]):
            return ["", ""]
        paper = row.cell.paper[metric]
        return [f"{100 * paper:.2f}", f"{100 * (row.mean[metric] - paper):+.2f}"]

    return [
        [
            row.cell.name,
            seeds_as_text(row.seeds, row.diverged),
            *(ours(row, "accuracy"), *beside(row, "accuracy")),
            *(ours(row, "auc"), *beside(row, "auc")),
            *(ours(row, "precision"), ours(row, "recall")),
            *(("", "") if np.isnan(row.best) else (f"{100 * row.best:.2f}", f"{row.models_up:.1f}")),
        ]
        for row in rows
    ]


def as_csv(rows: list[Row]) -> str:
    """The same with full numbers, as fractions."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    columns = [f"{metric}{kind}" for metric in METRICS for kind in ("", "_std", "_paper")]
    writer.writerow(["cell", "seeds", "diverged", *columns, "best_accuracy_oracle", "models_up_per_round"])
    for row in rows:
        values = [v for m in METRICS for v in (row.mean[m], row.std[m], row.cell.paper.get(m, ""))]
        writer.writerow([row.cell.name, row.seeds, row.diverged, *values, row.best, row.models_up])
    return file.getvalue()


def reproduce(
    table: str, settings: dict[str, Any], *, seeds: int = 1, out: str | Path, progress: bool = False
) -> list[Row]:
    """Runs a table of the paper and returns its rows; `settings` are those of `Config` that its cells do not decide.

    Without `rounds` they are the paper's 1000.
    Cells that `out` already holds are not run again. Also writes table.md, table.csv and curves.png into it.
    """
    for name in DECIDED:
        if name in settings:
            raise SettingError(name, settings[name], "is decided by the table's cells")
    if seeds < 1:
        raise SettingError("seeds", seeds, "must be a whole number of at least 1")
    jobs = plan(table, settings, seeds=seeds, out=out)
    run(jobs, progress=progress)
    write_report(table, jobs, seeds=seeds, out=out)
    return rows_of(jobs)


def write_report(table: str, jobs: list[Job], *, seeds: int, out: str | Path) -> str:
    """Writes table.md, table.csv and curves.png, and returns the table for the console."""
    from rscfed_jax.report.plots import plot_curves

    rows, config = rows_of(jobs), jobs[0].config
    lines = cells_as_text(rows)
    kept = f", {config.train_fraction:.0%} of every client's samples" if config.train_fraction < 1 else ""
    measured = f"{config.validation:.0%} of the training samples" if config.validation else "the test set"
    facts = (
        f"{config.dataset}, preset {config.preset}, {config.rounds} rounds{kept}, "
        f"{seeds} seed{'s' if seeds > 1 else ''}; in percent, on {measured}. Ours is the mean of the last five "
        f"evaluations{', over seeds with standard deviation' if seeds > 1 else ''}; best_oracle is the best round, "
        f"chosen on the same samples. The paper has {PAPER_ROUNDS} rounds on all samples and measures on the test set."
    )
    title = TABLES[table].title
    curves = {row.cell.name: _mean_curve(jobs, row.cell) for row in rows}
    out = Path(out)
    with RunDirectory(out).refusing():
        (out / "table.md").write_text(f"# {title}\n\n{facts}\n\n{as_markdown([list(HEADER), *lines])}")
        (out / "table.csv").write_text(as_csv(rows))
        plot_curves(curves, out / "curves.png")
    return f"{title}\n{facts}\n{as_console([list(HEADER), *lines])}"


def _mean_curve(jobs: list[Job], cell: Cell) -> list[dict[str, Any]]:
    """The evaluated rounds of a cell, its metrics as means over seeds that did not diverge, if there are any."""
    mine = [job.directory for job in jobs if job.cell.name == cell.name]
    runs = [run.read_metrics() for run in mine if not run.has_diverged] or [run.read_metrics() for run in mine]
    return [
        {"round": records[0]["round"], **{m: float(np.mean([record[m] for record in records])) for m in METRICS}}
        for records in zip(*runs, strict=False)  # runs that diverged have different lengths
    ]
