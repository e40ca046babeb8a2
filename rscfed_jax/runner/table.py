"""Runs the rows of a paper's table and puts our numbers beside the published ones."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rscfed_jax.config import SETTINGS, SettingError
from rscfed_jax.config.files import remove_parts, write_whole
from rscfed_jax.config.registry import METHODS, metrics
from rscfed_jax.paper.tables import Row, decided_by, find, rows_of
from rscfed_jax.report.seeds import Moments, moments
from rscfed_jax.report.tables import as_console, as_csv, as_markdown, percent, seeds_as_text
from rscfed_jax.runner.sweep import Cell, cells_of, settings_by_method
from rscfed_jax.storage.run_directory import RunDirectory

if TYPE_CHECKING:
    from rscfed_jax.runner.build import Objects

DATASET = SETTINGS["dataset"].default
COMPARED = ("accuracy", "auc")  # beside which the paper's numbers stand
BESIDE = ("precision", "recall")


class TableRow(NamedTuple):
    """A row of a table, and a cell for each seed."""

    row: Row
    cells: list[Cell]


class RowResult(NamedTuple):
    """What the table says of a row."""

    row: Row
    metrics: dict[str, Moments | None]  # over seeds, of the mean of the last five evaluations
    best: float | None  # mean over seeds of the best accuracy on the test set: an oracle
    models_up: float | None  # models sent to the server in a round
    seeds: int
    diverged: int  # of the seeds, left out of all of the above


def plan(
    table: str,
    settings: dict[str, Any],
    *,
    seeds: int,
    out: str | Path,
    check: bool = True,
    objects: "Objects | None" = None,
) -> list[TableRow]:
    """Every run of a table, its settings checked; nothing runs and nothing is written.

    A method that is given, by name, by path or as an object, joins the table: it gets a row for each row of the method
    that the table ends with, which is the paper's own.
    """
    guest = settings.get("method")
    of_paper = rows_of(table, settings.get("dataset", DATASET), settings)
    check_settings(table, settings, of_paper)
    settings = {name: value for name, value in settings.items() if name != "method"}
    defaults = defaults_of(table, settings)
    rows = [(row, objects and objects._replace(method=None)) for row in of_paper]
    if guest is not None and objects is not None and objects.method is not None:
        raise SettingError("method", guest, "is also given as an object; give only one")
    if objects is not None and objects.method is not None:
        rows += [(row, objects) for row in _guest_rows(of_paper, objects.method.name, None)]
    elif guest is not None:
        rows += [(row, objects) for row in _guest_rows(of_paper, METHODS.find(guest).name, guest)]
    of_method = settings_by_method(settings, [row.settings["method"] for row, _ in rows])
    planned = []
    for row, row_objects in rows:
        try:
            common = defaults | row.defaults | of_method(row.settings["method"]) | row.settings
            cells = cells_of(row.name, common, seeds=range(seeds), out=out, check=check, objects=row_objects)
        except SettingError as error:
            raise SettingError("TABLE", table, f"{row.name} does not fit: {error}") from None
        planned.append(TableRow(row, cells))
    return planned


def _guest_rows(rows: Sequence[Row], name: str, method: str | None) -> list[Row]:
    """The rows of the table's last method, once more with another one; None: a method that is given as an object.

    Rows that change the method's own settings are left out: they are variants of it.
    """
    if any(row.settings["method"] == name for row in rows):
        raise SettingError("method", name, "is already in the table")
    last = rows[-1].settings["method"]
    return [
        Row(
            row.name.replace(last, name) if last in row.name else f"{name}_{row.name}",
            row.settings if method is None else row.settings | {"method": method},
            {},
        )
        for row in rows
        if row.settings["method"] == last and not any(name.startswith(f"{last}_") for name in row.settings)
    ]


def defaults_of(table: str, settings: dict[str, Any]) -> dict[str, Any]:
    """What the rows of a table have in common unless the user's settings say otherwise."""
    return find(table).defaults({"dataset": DATASET} | settings)


def check_settings(table: str, settings: dict[str, Any], rows: Sequence[Row]) -> None:
    """Refuses settings that the rows decide."""
    decided = decided_by(table, rows)
    for name, value in settings.items():
        if name in decided and name != "method":
            raise SettingError(name, value, "is decided by the table's rows")


def results_of(rows: Sequence[TableRow]) -> list[RowResult]:
    """What each row found, from the runs of its seeds."""
    results = []
    for row, cells in rows:
        directories = [cell.directory for cell in cells if cell.directory is not None]  # a table is always written
        finished = [directory for directory in directories if not directory.has_diverged]
        summaries = [directory.read_summary() for directory in finished]
        first = [directory.read_metrics()[0] for directory in finished]  # tells what the warm-up has sent
        sent = [(b["models_up"] - a["models_up"]) / b["rounds"] for a, b in zip(first, summaries, strict=True)]
        results.append(
            RowResult(
                row,
                metrics={name: moments(summary["final"].get(name) for summary in summaries) for name in metrics()},
                best=(moments(summary["best"]["accuracy"] for summary in summaries) or (None,))[0],
                models_up=(moments(sent) or (None,))[0],
                seeds=len(cells),
                diverged=len(cells) - len(finished),
            )
        )
    return results


def as_lines(results: Sequence[RowResult]) -> list[list[str]]:
    """The table as texts, in percent, under a line of names."""
    compared = [part for name in COMPARED for part in (name, "paper", "difference")]
    lines = [["row", "seeds", *compared, *BESIDE, "best_oracle", "models_up_per_round"]]
    for result in results:

        def beside(name: str, result: RowResult = result) -> list[str]:
            ours, paper = result.metrics[name], result.row.paper.get(name)
            text = percent(ours, plus_minus="+-", missing="diverged")
            if ours is None or paper is None:
                return [text, "", ""]
            return [text, percent((paper, None)), f"{100 * (ours[0] - paper):+.2f}"]

        lines.append(
            [
                result.row.name,
                seeds_as_text(result.seeds, result.diverged),
                *(part for name in COMPARED for part in beside(name)),
                *(percent(result.metrics[name], plus_minus="+-", missing="diverged") for name in BESIDE),
                "" if result.best is None else percent((result.best, None)),
                "" if result.models_up is None else f"{result.models_up:.1f}",
            ]
        )
    return lines


def as_full_rows(results: Sequence[RowResult]) -> list[dict[str, Any]]:
    """The same with full numbers, as fractions."""
    rows = []
    for result in results:
        row: dict[str, Any] = {"row": result.row.name, "seeds": result.seeds, "diverged": result.diverged}
        for name in metrics():
            row[name], row[f"{name}_std"] = result.metrics[name] or (None, None)
            row[f"{name}_paper"] = result.row.paper.get(name)
        rows.append(row | {"best_accuracy_oracle": result.best, "models_up_per_round": result.models_up})
    return rows


def write_table(table: str, rows: Sequence[TableRow], *, seeds: int, out: str | Path) -> str:
    """Writes table.md, table.csv and curves.png, and returns the table for the console."""
    from rscfed_jax.report.plots import plot_curves

    results, config, published = results_of(rows), rows[-1].cells[0].config, find(table)
    lines = as_lines(results)
    kept = f", {config.train_fraction:.0%} of every client's samples" if config.train_fraction < 1 else ""
    notes = [note for dataset, note in published.notes.items() if dataset == config.dataset]
    measured = f"{config.validation:.0%} of the training samples" if config.validation else "the test set"
    network = f", {config.model}" if "model" in published.defaults({"dataset": config.dataset}) else ""
    column = "".join(f", --{name.replace('_', '-')} {getattr(config, name)}" for name in published.columns)
    facts = (
        f"{config.dataset}, preset {config.preset}{network}{column}, {config.rounds} rounds{kept}, "
        f"{seeds} seed{'s' if seeds > 1 else ''}; in percent, on {measured}. Ours is the mean of the last five "
        f"evaluations{', over seeds with standard deviation' if seeds > 1 else ''}; best_oracle is the best round, "
        f"chosen on the same samples. {' '.join([published.protocol, *notes])}"
    )
    title, out = published.title, Path(out)
    with RunDirectory(out).refusing():
        remove_parts(out)
        write_whole(out / "table.md", f"# {title}\n\n{facts}\n\n{as_markdown(lines)}")
        write_whole(out / "table.csv", as_csv(as_full_rows(results)))
        plot_curves({row.name: _mean_curve(cells) for row, cells in rows}, out / "curves.png")
    return f"{title}\n{facts}\n{as_console(lines)}"


def _mean_curve(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """The evaluated rounds of a row, its metrics as means over seeds that did not diverge, if there are any."""
    directories = [cell.directory for cell in cells if cell.directory is not None]
    finished = [directory for directory in directories if not directory.has_diverged]
    runs = [directory.read_metrics() for directory in finished or directories]
    return [
        {
            "round": records[0]["round"],
            **{name: (moments(record.get(name) for record in records) or (None,))[0] for name in metrics()},
        }
        for records in zip(*runs, strict=False)  # runs that diverged have different lengths
    ]
