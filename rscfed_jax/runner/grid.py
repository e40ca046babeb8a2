"""A grid of experiments: every combination of the values of some settings, with several seeds."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rscfed_jax.config import RECORD, SETTINGS, Config, Setting, SettingError, changed
from rscfed_jax.config.files import remove_parts, write_json, write_whole
from rscfed_jax.config.kinds import whole
from rscfed_jax.config.registry import METHODS, known_settings, metrics
from rscfed_jax.report.seeds import moments
from rscfed_jax.report.tables import as_csv, as_markdown, as_text, percent, seeds_as_text
from rscfed_jax.runner.processes import is_first
from rscfed_jax.runner.sweep import Cell, Program, cells_of, run_programs, settings_by_method
from rscfed_jax.storage.run_directory import RunDirectory, read_json

if TYPE_CHECKING:
    from rscfed_jax.runner.build import Objects

GRID_DEVICES = Setting("grid_devices", 1, whole(1), "devices that share the cells", "grid")
CELLS_AT_ONCE = Setting("cells_at_once", None, whole(1), "most cells of a program", "grid")
LOGGED = ("labeled_loss", "consistency_loss", "broken_clients", "dropped_clients", "attacker_weight")
SENT = ("models_down", "models_up", "bytes_down", "bytes_up", "seconds")


class Point(NamedTuple):
    """One combination of values, and a cell for each seed."""

    settings: dict[str, Any]
    cells: list[Cell]


@dataclasses.dataclass(frozen=True)
class GridResult:
    """What a grid found."""

    axes: dict[str, list[Any]]  # the settings that vary, with their values
    rows: list[dict[str, Any]]  # one for each point, seed and evaluated round
    summary: list[dict[str, Any]]  # one for each point: means over seeds of the final metrics, and their deviation
    compilations: int  # programs that were compiled for it


def parse_axes(texts: Sequence[str], given: dict[str, Any]) -> dict[str, list[Any]]:
    """The values of each setting that varies, from texts like `beta=0,100`; `given` are the settings given by hand."""
    parts: dict[str, list[str]] = {}
    for text in texts:
        name, _, values = text.partition("=")
        name = name.strip().removeprefix("--").replace("-", "_")
        if name in parts:
            raise SettingError("set", text, f"{name} appears twice; give all its values in one --set")
        parts[name] = [part.strip() for part in values.split(",")]
    known = known_settings(*parts.get("method", [str(given.get("method"))]))
    axes: dict[str, list[Any]] = {}
    for (name, words), text in zip(parts.items(), texts, strict=True):
        check_axis(name, words, given, text, known)
        axes[name] = [known[name].read(word) for word in words]
        check_axis(name, axes[name], given, text, known)
    return axes


def check_axis(
    name: str, values: Sequence[Any], given: dict[str, Any], text: object, known: dict[str, Setting]
) -> None:
    """Refuses a setting that cannot vary, and values that are none."""
    if name == "seed":
        raise SettingError("set", text, "to vary the seed, give --seeds N")
    if name not in known:
        names = ", ".join(name for name in known if name != "seed")
        raise SettingError("set", text, f"must be NAME=VALUE,VALUE,... with NAME one of {names}")
    if name in given:
        raise SettingError("set", text, f"--{name.replace('_', '-')} is also given; give only one")
    if not values or "" in values:
        raise SettingError("set", text, "must be NAME=VALUE,VALUE,... with at least one value, none of them empty")
    if len(set(values)) < len(values):
        raise SettingError("set", text, "holds a value twice")


def points_of(
    settings: dict[str, Any],
    axes: dict[str, list[Any]],
    *,
    seeds: int,
    out: str | Path | None,
    check: bool = True,
    objects: "Objects | None" = None,
) -> list[Point]:
    """Every combination of values, with a cell for each seed; settings are checked, nothing is written."""
    first = settings.get("seed", 0)
    for setting, given in (("method", objects and objects.method), ("model", objects and objects.network)):
        if given is not None and setting in axes:
            raise SettingError("set", setting, "cannot vary if it is given as an object")
    methods = axes.get("method", [settings.get("method", SETTINGS["method"].default)])
    if len(methods) > 1 and (others := [name for name in axes if name not in SETTINGS]):
        raise SettingError(
            "set", others[0], "belongs to one method; with several in --set method=..., run a separate grid for it"
        )
    stored = RECORD in settings
    if stored and settings.get("method") not in [METHODS.find(str(name)).name for name in methods]:
        settings = changed(settings, {"method": methods[0]})  # or its own settings would belong to no cell
    of_method = settings_by_method(
        {**settings, **{name: axes[name][0] for name in axes if name not in SETTINGS}}, methods
    )
    points = []
    for values in product(*axes.values()):
        varied = dict(zip(axes, values, strict=True))
        combined = changed(of_method(varied.get("method", methods[0])), varied)
        config = Config(**combined)
        _check_effects(axes, config, of_object=objects is not None and objects.method is not None)
        named = varied | {setting: getattr(config, setting) for setting in ("method", "model") if setting in varied}
        name = "_".join(f"{key}-{_as_name(value)}" for key, value in named.items()) or "cell"
        cells = cells_of(name, combined, seeds=range(first, first + seeds), out=out, check=check, objects=objects)
        points.append(Point(named, cells))
    names = [cell.name for point in points for cell in point.cells]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise SettingError("set", twice, "two cells would have this name; give values whose names differ")
    return points


def _check_effects(axes: Iterable[str], config: Config, *, of_object: bool) -> None:
    """Refuses to vary what changes nothing: its cells would be the same under different names."""
    for name in axes:
        reason = None
        if name in ("gamma", "min_client_size") and config.partition_file is not None:
            reason = "changes nothing with --partition-file, which decides who holds what"
        elif name in ("server_lr", "server_momentum") and config.server_optimizer == "none":
            reason = "changes nothing without --server-optimizer"
        elif name == "labeled_choice" and (config.labels_at == "server" or config.labeled_fraction is not None):
            reason = "changes nothing unless some clients hold all labels"
        elif of_object and (
            (name in ("subsets", "subset_size") and config.sampling != "subsets")
            or (name == "distance" and config.aggregator != "dma")
            or name == "strong"
            or not (name in SETTINGS or name.removeprefix(f"{config.method}_") in config.numbers)
        ):
            reason = "was decided when the method was made; give a method for each value, or name it by file"
        if reason is not None:
            raise SettingError("set", name, reason)


def _as_name(value: object) -> str:
    """A value as a part of a directory's name."""
    return "".join(sign if sign.isalnum() or sign in "+." else "-" for sign in as_text(value))


def run_points(
    points: Sequence[Point],
    programs: Sequence[Program],
    *,
    out: str | Path | None,
    progress: bool,
    stop: Callable[[], bool],
    grid_devices: int = 1,
) -> GridResult:
    """Runs the programs, which hold all unfinished cells, and collects what all points found."""
    ran = run_programs(programs, progress=progress, stop=stop, grid_devices=grid_devices)
    if not is_first():
        return GridResult({}, [], [], ran.compilations)
    rows, summary = [], []
    for point in points:
        outcomes = [ran.of(cell) for cell in point.cells]
        for cell, (records, _) in zip(point.cells, outcomes, strict=True):
            rows += [_row(point.settings, cell.config.seed, record) for record in records]
        summary.append(_summary(point.settings, [final for _, final in outcomes]))
    axes = {name: list(dict.fromkeys(point.settings[name] for point in points)) for name in points[0].settings}
    result = GridResult(axes, rows, summary, ran.compilations)
    if out is not None:
        write_result(result, Path(out), programs=len(programs))
    return result


def _row(settings: dict[str, Any], seed: int, record: dict[str, Any]) -> dict[str, Any]:
    logged = {name: record.get(name) for name in ("round", *metrics(), *LOGGED, *SENT)}
    return {**settings, "seed": seed, **logged}


def _summary(settings: dict[str, Any], summaries: Sequence[dict[str, Any] | None]) -> dict[str, Any]:
    """Means and deviations over the seeds that did not diverge; None where all did."""
    finished = [summary for summary in summaries if summary is not None]
    row: dict[str, Any] = {**settings, "seeds": len(summaries), "diverged": len(summaries) - len(finished)}
    for name in metrics():
        over_seeds = moments(summary["final"].get(name) for summary in finished)
        row[name], row[f"{name}_std"] = over_seeds or (None, None)
    row["best_accuracy_oracle"] = (moments(summary["best"]["accuracy"] for summary in finished) or (None,))[0]
    return row


def write_result(result: GridResult, out: Path, *, programs: int) -> None:
    """Writes the tables, and a heat map where two settings vary."""
    with RunDirectory(out).refusing():
        remove_parts(out)
        write_whole(out / "grid.csv", as_csv(result.rows))
        write_whole(out / "summary.csv", as_csv(result.summary))
        write_whole(out / "summary.md", as_markdown(summary_lines(result)))
        # If nothing was run, what the file says still holds, unless a kill came before it was written.
        if programs or _axes_in(out / "grid.json") != result.axes:
            facts = {"axes": result.axes, "programs": programs, "compilations": result.compilations}
            write_json(out / "grid.json", facts)
        if len(result.axes) == 2:
            from rscfed_jax.report.plots import plot_heatmap

            x, y = result.axes
            plot_heatmap(result.summary, x, y, out / "heatmap.png")


def _axes_in(file: Path) -> Any:
    """The axes of the grid that a file describes; None if it is missing or damaged."""
    try:
        return read_json(file, setting="out").get("axes")
    except SettingError:
        return None


def summary_lines(result: GridResult) -> list[list[str]]:
    """The summary as texts, in percent, under a line of names."""

    def text(row: dict[str, Any], name: str) -> str:
        over_seeds = None if row[name] is None else (row[name], row[f"{name}_std"])
        return percent(over_seeds, plus_minus="+-", missing="diverged" if row["diverged"] == row["seeds"] else "-")

    lines = [[*result.axes, "seeds", *metrics(), "best_oracle"]]
    for row in result.summary:
        best = row["best_accuracy_oracle"]
        values = [as_text(row[name]) for name in result.axes]
        seeds = seeds_as_text(row["seeds"], row["diverged"])
        lines.append(
            [*values, seeds, *(text(row, name) for name in metrics()), "" if best is None else percent((best, None))]
        )
    return lines
