"""Pictures: curves of runs, who holds what in a federation, what each client weighed, what was mistaken for what."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter


def plot_curves(runs: dict[str, list[dict[str, Any]]], path: str | Path, *, title: str = "") -> None:
    """Accuracy and AUC on the test set against the round, one line per run; the format follows the path's ending."""
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    for axes, name, label in zip(
        figure.subplots(1, 2), ("accuracy", "auc"), ("Test accuracy", "Test AUC"), strict=True
    ):
        for run, records in runs.items():
            points = [(record["round"], record[name]) for record in records]
            axes.plot(*zip(*points, strict=True), label=run, linewidth=1.6, marker="." if len(points) < 60 else "")
        axes.set(xlabel="Round", ylabel=label)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    lines = figure.axes[0].get_lines()
    columns = min(len(lines), 3)
    legend = figure.legend(handles=lines, loc="outside lower center", ncols=columns, frameon=False, fontsize=9)
    for text in legend.get_texts():
        text.set_parse_math(False)
    if title:
        figure.suptitle(title, parse_math=False)
    _save(figure, path)


def plot_partition(class_counts: np.ndarray, labeled: np.ndarray, path: str | Path) -> None:
    """[N, classes] samples of each class at each client, as a heat map with the labeled clients marked."""
    clients, classes = class_counts.shape
    figure = Figure(figsize=(1.8 + 0.42 * min(classes, 40), 1.6 + 0.32 * min(clients, 60)), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(class_counts, cmap="Blues", aspect="auto")
    _name_clients(axes, labeled)
    if classes <= 40:
        axes.set_xticks(range(classes))
    if clients * classes <= 400:
        _write_counts(axes, class_counts, class_counts / max(class_counts.max(), 1))
    axes.set(xlabel="Class", ylabel="Client")
    figure.colorbar(image, label="Samples")
    _save(figure, path)


def plot_heatmap(
    summary: Sequence[dict[str, Any]], x: str, y: str, path: str | Path, *, metric: str = "accuracy"
) -> None:
    """A metric of the cells of a grid over the values of two settings, which are what `rj.grid` calls its `summary`.

    Of a grid over more settings give the cells of one value of each other.
    """
    columns, rows = (list(dict.fromkeys(row[name] for row in summary)) for name in (x, y))
    values = np.full((len(rows), len(columns)), np.nan)
    seen = {(cell[x], cell[y]) for cell in summary}
    if len(seen) < len(summary):
        raise ValueError(f"several cells have the same {x} and {y}: give those of one value of each other setting")
    for cell in summary:
        values[rows.index(cell[y]), columns.index(cell[x])] = np.nan if cell[metric] is None else cell[metric]
    figure = Figure(figsize=(2.4 + 0.9 * len(columns), 1.8 + 0.5 * len(rows)), layout="constrained")
    axes = figure.subplots()
    axes.set_facecolor("0.85")
    image = axes.imshow(values, cmap="viridis", aspect="auto")
    middle = (np.nanmin(values) + np.nanmax(values)) / 2 if np.isfinite(values).any() else 0
    for (row, column), value in np.ndenumerate(values):
        empty = "diverged" if (columns[column], rows[row]) in seen else ""
        text = empty if np.isnan(value) else f"{value:.1%}"
        colour = "white" if value <= middle else "black"
        axes.text(column, row, text, ha="center", va="center", fontsize=9, color=colour)
    for names, place in ((columns, axes.set_xticks), (rows, axes.set_yticks)):
        place(range(len(names)), [f"{name:g}" if isinstance(name, float) else str(name) for name in names])
    axes.set(xlabel=x, ylabel=y)
    figure.colorbar(image, label=f"Test {metric}").ax.yaxis.set_major_formatter(PercentFormatter(1.0))
    _save(figure, path)


def plot_weights(records: list[dict[str, Any]], labeled: Sequence[bool] | np.ndarray, path: str | Path) -> None:
    """The mean weight of each client in the subsets that drew it, against the round; grey where none did.

    `records` are those of a run's metrics; `labeled` [N] marks the clients that hold labels. A weight belongs to the
    rounds since the evaluation before.
    """
    records = [record for record in records if record["round"] > 0]
    clients, rounds = len(labeled), len(records)
    weights = np.full((clients, rounds), np.nan)
    for column, record in enumerate(records):
        for client, weight in record["client_weights"].items():
            weights[int(client), column] = weight
    figure = Figure(figsize=(8, 1.6 + 0.26 * min(clients, 60)), layout="constrained")
    axes = figure.subplots()
    axes.set_facecolor("0.85")
    image = axes.imshow(weights, cmap="viridis", aspect="auto", interpolation="nearest", vmin=0)
    _name_clients(axes, labeled)
    shown = range(0, rounds, max(1, -(-rounds // 10)))
    axes.set_xticks(shown, [records[column]["round"] for column in shown])
    axes.set(xlabel="Round", ylabel="Client", title="Weight of a client in its subset (grey: not drawn)")
    figure.colorbar(image).ax.yaxis.set_major_formatter(PercentFormatter(1.0))
    _save(figure, path)


def plot_confusion(confusion: np.ndarray, path: str | Path, *, class_names: Sequence[str] = ()) -> None:
    """[classes, classes] counts, rows the true classes, coloured by the part of the row; numbers up to 20 classes."""
    confusion = np.asarray(confusion)
    classes = len(confusion)
    parts = confusion / np.maximum(confusion.sum(axis=1, keepdims=True), 1)
    side = 2.2 + 0.42 * min(classes, 20)
    figure = Figure(figsize=(side + 0.8, side), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(parts, cmap="Blues", vmin=0, vmax=1)
    if classes <= 20:
        names = list(class_names) or list(map(str, range(classes)))
        axes.set_xticks(
            range(classes), names, rotation=45 if class_names else 0, ha="right" if class_names else "center"
        )
        axes.set_yticks(range(classes), names)
        _write_counts(axes, confusion, parts)
    axes.set(xlabel="Predicted class", ylabel="True class")
    bar = figure.colorbar(image, label="Part of the true class", shrink=0.8)
    bar.ax.yaxis.set_major_formatter(PercentFormatter(1.0))
    _save(figure, path)


def _name_clients(axes: Axes, labeled: Sequence[bool] | np.ndarray) -> None:
    """Client ids along the y axis, the labeled ones marked, where there is room for them."""
    if len(labeled) <= 60:
        names = [f"{client} (labeled)" if is_labeled else str(client) for client, is_labeled in enumerate(labeled)]
        axes.set_yticks(range(len(labeled)), names)


def _write_counts(axes: Axes, counts: np.ndarray, darkness: np.ndarray) -> None:
    """Numbers into the fields of a heat map, white where the field is dark."""
    for (row, column), count in np.ndenumerate(counts):
        color = "white" if darkness[row, column] > 0.5 else "black"
        axes.text(column, row, str(count), ha="center", va="center", fontsize=7, color=color)


def _save(figure: Figure, path: str | Path) -> None:
    FigureCanvasAgg(figure)
    figure.savefig(path, dpi=150)
