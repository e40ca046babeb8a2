"""Figures: curves of runs and their pseudo-labels, who holds what, the weight of each client, confused classes.

Each figure is drawn by one `draw_` function on given axes; the `plot_` functions write it to a file of its own, and
poster.py puts several into one picture.
"""

import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from rscfed_jax.config.files import write_whole
from rscfed_jax.config.registry import metrics
from rscfed_jax.report.fields import draw_fields, name_columns, name_rows, write_fields
from rscfed_jax.report.seeds import CURVES, in_a_sentence
from rscfed_jax.report.tables import as_text
from rscfed_jax.storage.records import BY_CLASS, PSEUDO_LABELS

COLOURS = 10  # of lines, after which they come again
LINE_STYLES = ("-", "--", ":")
LETTER, SAMPLE = 5.4, 45.0  # about how wide a letter of a legend is, and a line's sample with its margins, in points

Flags = Sequence[bool] | np.ndarray


class Curve(NamedTuple):
    """A line of a figure; NaN where nothing was recorded."""

    name: str
    x: Sequence[float]
    mean: Sequence[float]  # fractions
    deviation: Sequence[float]  # the half width of its band; zero for none


def plot_curves(runs: dict[str, list[dict[str, Any]]], path: str | Path, *, title: str = "") -> None:
    """Accuracy and AUC on the test set against the round, one line per run; the format follows the path's ending."""
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    for axes, metric in zip(figure.subplots(1, 2), CURVES, strict=True):
        draw_curves(axes, [_curve(name, records, metric) for name, records in runs.items()], metric=metric)
    add_legend(figure, most_columns=3)
    if title:
        figure.suptitle(title, parse_math=False)
    save(figure, path)


def plot_pseudo_labels(runs: dict[str, list[dict[str, Any]]], path: str | Path, *, title: str = "") -> None:
    """Share of samples kept and accuracy of kept labels, against the round and by class at the last evaluation.

    One line and one row per run; runs of methods without pseudo-labels are left out.
    """
    runs = {name: records for name, records in runs.items() if any(BY_CLASS.keys() & record for record in records)}
    if not runs:
        raise ValueError("no run has pseudo-labels")
    figure = Figure(figsize=(9, 4.8 + 0.32 * min(len(runs), 40)), layout="constrained")
    axes = figure.subplots(2, 2, height_ratios=(3.2, 0.6 + 0.32 * len(runs)))
    for (above, below), metric in zip(axes.T, PSEUDO_LABELS, strict=True):
        draw_curves(above, [_curve(name, records, metric) for name, records in runs.items()], metric=metric)
        rows = [_without_none(records[-1].get(BY_CLASS[metric], [])) for records in runs.values()]
        draw_by_class(below, rows, list(runs), metric=metric)
    if len(runs) > 1:
        add_legend(figure, most_columns=3)
    if title:
        figure.suptitle(title, parse_math=False)
    save(figure, path)


def draw_by_class(axes: Axes, rows: Iterable[Sequence[float]], names: Sequence[str], *, metric: str) -> None:
    """[runs, classes] fractions as a heat map; grey where a class had no such sample. Rows may differ in length."""
    rows = list(rows)
    values = np.full((len(rows), max(1, *map(len, rows))), np.nan)
    for place, row in enumerate(rows):
        values[place, : len(row)] = row
    draw_fields(axes, values, label="", cmap="viridis", most=1, as_percent=True)
    texts = np.array([["" if np.isnan(value) else f"{100 * value:.0f}" for value in row] for row in values], object)
    write_fields(axes, texts, dark=values <= 0.5)
    name_rows(axes, names)
    name_columns(axes, [str(label) for label in range(values.shape[1])])
    axes.set(xlabel="True class", title=f"{PSEUDO_LABELS[metric]}, last evaluation")
    axes.title.set_fontsize(10)


def _curve(name: str, records: list[dict[str, Any]], metric: str) -> Curve:
    values = _without_none([record.get(metric) for record in records])
    return Curve(name, [record["round"] for record in records], values, [0.0] * len(values))


def _without_none(values: Sequence[float | None]) -> list[float]:
    return [np.nan if value is None else value for value in values]


def draw_curves(axes: Axes, curves: Iterable[Curve], *, metric: str, xlabel: str = "Round") -> None:
    """A line for each curve, with a band of its deviation."""
    for number, curve in enumerate(curves):
        x, mean, deviation = (np.asarray(values, float) for values in curve[1:])
        marker = "." if len(x) < 60 else ""
        # A name that begins with an underscore would be left out of the legend.
        style = LINE_STYLES[number // COLOURS % len(LINE_STYLES)]
        (line,) = axes.plot(x, mean, style, label=curve.name.lstrip("_"), linewidth=1.6, marker=marker)
        if deviation.any():
            axes.fill_between(x, mean - deviation, mean + deviation, alpha=0.16, color=line.get_color(), lw=0)
    axes.set(xlabel=xlabel, ylabel=PSEUDO_LABELS.get(metric) or _test(metric))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def add_legend(figure: Figure, *, most_columns: int) -> None:
    """The names of the first axes' lines, below the figure, in as many columns as it has room for."""
    lines = figure.axes[0].get_lines()
    longest = max((len(str(line.get_label())) for line in lines), default=0)
    room = int(72 * figure.get_figwidth() / (LETTER * longest + SAMPLE))
    columns = max(1, min(len(lines), most_columns, room))
    legend = figure.legend(handles=lines, loc="outside lower center", ncols=columns, frameon=False, fontsize=9)
    for text in legend.get_texts():
        text.set_parse_math(False)


def plot_partition(
    class_counts: np.ndarray, labeled: np.ndarray, path: str | Path, *, server: int | None = None
) -> None:
    """[N, classes] samples of each class at each client, as a heat map with the labeled ones and the server marked."""
    clients, classes = class_counts.shape
    figure = Figure(figsize=(1.8 + 0.42 * min(classes, 40), 1.6 + 0.32 * min(clients, 60)), layout="constrained")
    draw_partition(figure.subplots(), class_counts, labeled, server=server)
    save(figure, path)


def draw_partition(axes: Axes, class_counts: np.ndarray, labeled: Flags, *, server: int | None = None) -> None:
    """[N, classes] counts as a heat map; `labeled` [N] marks the clients that hold labels, `server` names its row."""
    draw_fields(axes, class_counts, label="Samples")
    write_fields(axes, class_counts, dark=class_counts > class_counts.max() / 2)
    name_rows(axes, _client_names(range(len(labeled)), labeled, server))
    name_columns(axes, [str(label) for label in range(class_counts.shape[1])])
    axes.set(xlabel="Class", ylabel="Client", title="Classes at each client")


def plot_weights(records: list[dict[str, Any]], labeled: Flags, path: str | Path, *, server: int | None = None) -> None:
    """The mean weight of each client in the subsets that drew it, against the round; grey where none did.

    `records` are those of a run's metrics; `labeled` [N] marks the clients that hold labels, `server` names its row. A
    weight belongs to the rounds since the evaluation before.
    """
    records = [record for record in records if record["round"] > 0]
    clients = len(labeled)
    weights = np.full((clients, len(records)), np.nan)
    for column, record in enumerate(records):
        for client, weight in record["client_weights"].items():
            weights[int(client), column] = weight
    figure = Figure(figsize=(8, 1.6 + 0.26 * min(clients, 60)), layout="constrained")
    rounds = [record["round"] for record in records]
    draw_weights(figure.subplots(), weights, rounds, range(clients), labeled, server=server)
    save(figure, path)


def draw_weights(
    axes: Axes,
    weights: np.ndarray,
    rounds: Sequence[int],
    clients: Sequence[int],
    labeled: Flags,
    *,
    server: int | None = None,
) -> None:
    """[clients, rounds] weights as a heat map, NaN where a client was not drawn; `labeled` [N] is by client id."""
    draw_fields(axes, weights, label="Weight (grey: not drawn)", cmap="viridis", as_percent=True)
    name_rows(axes, _client_names(clients, labeled, server))
    name_columns(axes, [str(round_) for round_ in rounds])
    axes.set(xlabel="Round", ylabel="Client", title="Weight of each client in its subset")


def plot_confusion(confusion: np.ndarray, path: str | Path, *, class_names: Sequence[str] = ()) -> None:
    """[classes, classes] counts, rows the true classes, coloured by the part of the row; numbers up to 20 classes."""
    confusion = np.asarray(confusion)
    side = 2.2 + 0.42 * min(len(confusion), 20)
    figure = Figure(figsize=(side + 0.8, side), layout="constrained")
    draw_confusion(figure.subplots(), confusion, class_names)
    save(figure, path)


def draw_confusion(axes: Axes, confusion: np.ndarray, class_names: Sequence[str] = ()) -> None:
    """[classes, classes] counts as a heat map of parts of a row, the true class; grey for a class without samples."""
    of_class = confusion.sum(axis=1, keepdims=True)
    parts = np.where(of_class > 0, confusion / np.maximum(of_class, 1), np.nan)
    draw_fields(axes, parts, label="Part of the true class", most=1, aspect="equal", as_percent=True)
    write_fields(axes, confusion, dark=parts > 0.5)
    names = list(class_names) or [str(label) for label in range(len(confusion))]
    name_rows(axes, names)
    name_columns(axes, names, slanted=names != [str(label) for label in range(len(names))])
    axes.set(xlabel="Predicted class", ylabel="True class", title="Confusion matrix")


def plot_heatmap(
    summary: Sequence[dict[str, Any]], x: str, y: str, path: str | Path, *, metric: str = "accuracy"
) -> None:
    """A metric of the points of a grid over the values of two settings; `summary` is that of `rj.grid`'s result.

    Of a grid over more settings give the points of one value of each other.
    """
    columns, rows = (list(dict.fromkeys(point[name] for point in summary)) for name in (x, y))
    seen = {(point[x], point[y]) for point in summary}
    if len(seen) < len(summary):
        raise ValueError(f"several points have the same {x} and {y}: give those of one value of each other setting")
    values = np.full((len(rows), len(columns)), np.nan)
    texts = np.full(values.shape, "", object)  # stays empty where the grid has no point
    for point in summary:
        place = rows.index(point[y]), columns.index(point[x])
        values[place] = np.nan if point[metric] is None else point[metric]
        texts[place] = "diverged" if np.isnan(values[place]) else f"{values[place]:.1%}"
    figure = Figure(figsize=(2.4 + 0.9 * len(columns), 1.8 + 0.5 * len(rows)), layout="constrained")
    axes = figure.subplots()
    draw_fields(axes, values, label=_test(metric), cmap="viridis", least=None, as_percent=True)
    middle = (np.nanmin(values) + np.nanmax(values)) / 2 if np.isfinite(values).any() else 0
    write_fields(axes, texts, dark=values <= middle, size=9)
    axes.set_xticks(range(len(columns)), list(map(as_text, columns)), parse_math=False)
    axes.set_yticks(range(len(rows)), list(map(as_text, rows)), parse_math=False)
    axes.set(xlabel=x, ylabel=y)
    save(figure, path)


def save(figure: Figure, file: str | Path | IO[bytes], *, dpi: int = 150) -> None:
    """Writes a figure without a window system; a file object gets a PNG, a path the whole picture or nothing."""
    FigureCanvasAgg(figure)
    if not isinstance(file, str | Path):
        figure.savefig(file, dpi=dpi)
        return
    path = Path(file) if Path(file).suffix else Path(f"{file}.png")
    content = io.BytesIO()
    figure.savefig(content, dpi=dpi, format=path.suffix[1:])
    write_whole(path, content.getvalue())


def _test(metric: str) -> str:
    return f"Test {in_a_sentence(metrics().get(metric, metric))}"


def _client_names(clients: Sequence[int], labeled: Flags, server: int | None) -> list[str]:
    names = {client: f"{client} (labeled)" for client in np.flatnonzero(labeled).tolist()} | {server: "server"}
    return [names.get(client, str(client)) for client in clients]
