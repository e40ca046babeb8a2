"""A grid of experiments: every combination of the values of some settings, with several seeds."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rscfed_jax.cells import Group, Job, groups_of, run_groups
from rscfed_jax.config import Config, SettingError, plain, read_setting
from rscfed_jax.processes import is_first
from rscfed_jax.report.text import as_csv, as_markdown, seeds_as_text, spread
from rscfed_jax.rundir import METRICS, RunDirectory, check_stored, write_json, write_whole

LOGGED = ("labeled_loss", "consistency_loss", "broken_clients", "dropped_clients", "attacker_weight")
SENT = ("models_down", "models_up", "bytes_down", "bytes_up", "seconds")


class Cell(NamedTuple):
    """One combination of values, and a job for each seed."""

    settings: dict[str, Any]
    jobs: list[Job]


@dataclasses.dataclass(frozen=True)
class GridResult:
    """What a grid found."""

    axes: dict[str, list[Any]]  # the settings that vary, with their values
    rows: list[dict[str, Any]]  # one for each cell, seed and evaluated round
    summary: list[dict[str, Any]]  # one for each cell: means over seeds of the final metrics, and their deviation
    compilations: int  # programs that were compiled for it


def parse_axes(texts: Sequence[str], given: dict[str, Any]) -> dict[str, list[Any]]:
    """The values of each setting that varies, from texts like `beta=0,100`; `given` are the settings given by hand."""
    axes: dict[str, list[Any]] = {}
    for text in texts:
        name, _, values = text.partition("=")
        name = name.strip().removeprefix("--").replace("-", "_")
        if name in axes:
            raise SettingError("set", text, f"{name} is there twice; give all its values at once")
        parts = [part.strip() for part in values.split(",")]
        check_axis(name, parts, given, text)
        is_switch = Config.__dataclass_fields__[name].type is bool
        axes[name] = [read_setting(name, part.lower() if is_switch else part) for part in parts]
        check_axis(name, axes[name], given, text)
    return axes


def check_axis(name: str, values: Sequence[Any], given: dict[str, Any], text: object) -> None:
    """Refuses a setting that cannot vary, and values that are none."""
    known = [field.name for field in dataclasses.fields(Config) if field.name != "seed"]
    if name == "seed":
        raise SettingError("set", text, "seeds vary by --seeds N")
    if name not in known:
        raise SettingError("set", text, f"must be NAME=VALUE,VALUE,... with NAME one of {', '.join(known)}")
    if name in given:
        raise SettingError("set", text, f"--{name.replace('_', '-')} is given as well; give one of them")
    if not values or "" in values:
        raise SettingError("set", text, "must be NAME=VALUE,VALUE,... with at least one value and no empty one")
    if len(set(values)) < len(values):
        raise SettingError("set", text, "holds a value twice")


def cells_of(
    settings: dict[str, Any], axes: dict[str, list[Any]], *, seeds: int, out: str | Path | None, check: bool = True
) -> list[Cell]:
    """Every combination of values, with a job for each seed; settings are checked, nothing is written.

    `check`: the directories are looked at as well, which is for the process that writes.
    """
    first = settings.get("seed", 0)
    cells = []
    for values in product(*axes.values()):
        varied = dict(zip(axes, values, strict=True))
        name = "_".join(f"{key}-{_as_name(value)}" for key, value in varied.items()) or "cell"
        jobs = []
        for seed in range(first, first + seeds):
            config = Config(**settings | varied | {"seed": seed})
            if config.init_from is not None:
                check_stored(config.init_from, setting="init_from")
            directory = None if out is None else RunDirectory(Path(out) / "cells" / f"{name}-seed{seed}")
            if directory is not None and check:
                directory.check(config, resume=True)
            jobs.append(Job(f"{name}, seed {seed}", config, directory))
        cells.append(Cell(varied, jobs))
    names = [job.name for cell in cells for job in cell.jobs]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise SettingError(
            "set", twice, "two cells would have this name; give them values that differ in their letters"
        )
    return cells


def _as_name(value: object) -> str:
    """A value as a part of a directory's name."""
    return "".join(sign if sign.isalnum() or sign in "+." else "-" for sign in _as_text(value))


def grid(
    config: Config,
    axes: Mapping[str, Iterable[Any]],
    *,
    seeds: int = 1,
    out: str | Path | None = None,
    progress: bool = False,
    stop: Callable[[], bool] = lambda: False,
    grid_devices: int = 1,
    cells_at_once: int | None = None,
) -> GridResult:
    """Runs `config` with every combination of the values in `axes` and the seeds from `config.seed` on.

    Experiments that share a program run as one. With `out`, each is a run directory of its own under `out/cells`, and
    what is finished there is not run again; tables are written beside them, and for two axes a heat map.
    """
    lists = {name: [plain(value) for value in values] for name, values in axes.items()}
    for name, values in lists.items():
        check_axis(name, values, {}, f"{name}={','.join(map(str, values))}")
    if seeds < 1:
        raise SettingError("seeds", seeds, "must be a whole number of at least 1")
    cells = cells_of(config.given(), lists, seeds=seeds, out=out)
    groups = groups_of([job for cell in cells for job in cell.jobs], most=cells_at_once)
    return run_cells(cells, groups, out=out, progress=progress, stop=stop, grid_devices=grid_devices)


def run_cells(
    cells: Sequence[Cell],
    groups: Sequence[Group],
    *,
    out: str | Path | None,
    progress: bool,
    stop: Callable[[], bool],
    grid_devices: int = 1,
) -> GridResult:
    """Runs what is not finished, which are the groups, and collects what all cells found."""
    ran = run_groups(groups, progress=progress, stop=stop, grid_devices=grid_devices)
    if not is_first():
        return GridResult({}, [], [], ran.compilations)

    def found(job: Job) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
        if job.directory is None:
            return ran.found[job.name]
        return job.directory.read_metrics(), None if job.directory.has_diverged else job.directory.read_summary()

    rows, summary = [], []
    for cell in cells:
        outcomes = [found(job) for job in cell.jobs]
        for job, (records, _) in zip(cell.jobs, outcomes, strict=True):
            rows += [_row(cell.settings, job.config.seed, record) for record in records]
        summary.append(_summary(cell.settings, [final for _, final in outcomes]))
    axes = {name: list(dict.fromkeys(cell.settings[name] for cell in cells)) for name in cells[0].settings}
    result = GridResult(axes, rows, summary, ran.compilations)
    if out is not None:
        write_result(result, Path(out), groups=len(groups))
    return result


def _row(settings: dict[str, Any], seed: int, record: dict[str, Any]) -> dict[str, Any]:
    logged = {name: record.get(name) for name in ("round", *METRICS, *LOGGED, *SENT)}
    return {**settings, "seed": seed, **logged}


def _summary(settings: dict[str, Any], summaries: Sequence[dict[str, Any] | None]) -> dict[str, Any]:
    """Means and deviations over the seeds that did not diverge; None where all did."""
    there = [summary for summary in summaries if summary is not None]
    row: dict[str, Any] = {**settings, "seeds": len(summaries), "diverged": len(summaries) - len(there)}
    for name in METRICS:
        finals = [summary["final"][name] for summary in there]
        row[name] = float(np.mean(finals)) if finals else None
        row[f"{name}_std"] = spread(finals)
    row["best_accuracy_oracle"] = float(np.mean([s["best"]["accuracy"] for s in there])) if there else None
    return row


def write_result(result: GridResult, out: Path, *, groups: int) -> None:
    """Writes the tables, and a heat map where two settings vary."""
    with RunDirectory(out).refusing():
        write_whole(out / "grid.csv", as_csv(result.rows))
        write_whole(out / "summary.csv", as_csv(result.summary))
        write_whole(out / "summary.md", as_markdown(summary_lines(result)))
        if groups:  # else nothing was run, and what the file says still holds
            facts = {"axes": result.axes, "groups": groups, "compilations": result.compilations}
            write_json(out / "grid.json", facts)
        if len(result.axes) == 2:
            from rscfed_jax.report.plots import plot_heatmap

            x, y = result.axes
            plot_heatmap(result.summary, x, y, out / "heatmap.png")


def summary_lines(result: GridResult) -> list[list[str]]:
    """The summary as texts, in percent, under a line of names."""

    def text(row: dict[str, Any], name: str) -> str:
        if row[name] is None:
            return "diverged"
        deviation = f" +- {100 * row[f'{name}_std']:.2f}" if row["seeds"] - row["diverged"] > 1 else ""
        return f"{100 * row[name]:.2f}{deviation}"

    lines = [[*result.axes, "seeds", *METRICS, "best_oracle"]]
    for row in result.summary:
        best = row["best_accuracy_oracle"]
        values = [_as_text(row[name]) for name in result.axes]
        seeds = seeds_as_text(row["seeds"], row["diverged"])
        metrics = [text(row, name) for name in METRICS]
        lines.append([*values, seeds, *metrics, "" if best is None else f"{100 * best:.2f}"])
    return lines


def _as_text(value: object) -> str:
    """A value as a reader writes it: 10000 instead of 10000.0, but with all its digits."""
    short = f"{value:g}" if isinstance(value, float) else str(value)
    return short if not isinstance(value, float) or float(short) == value else repr(value)
