"""Pictures: curves of runs, and who holds what in a federation."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
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
    figure.legend(handles=lines, loc="outside lower center", ncols=min(len(lines), 3), frameon=False, fontsize=9)
    if title:
        figure.suptitle(title)
    _save(figure, path)


def plot_partition(class_counts: np.ndarray, labeled: np.ndarray, path: str | Path) -> None:
    """[N, classes] samples of each class at each client, as a heat map with the labeled clients marked."""
    clients, classes = class_counts.shape
    figure = Figure(figsize=(1.8 + 0.42 * min(classes, 40), 1.6 + 0.32 * min(clients, 60)), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(class_counts, cmap="Blues", aspect="auto")
    if clients <= 60:
        names = [f"{client} (labeled)" if is_labeled else str(client) for client, is_labeled in enumerate(labeled)]
        axes.set_yticks(range(clients), names)
    if classes <= 40:
        axes.set_xticks(range(classes))
    if clients * classes <= 400:
        for (client, label), count in np.ndenumerate(class_counts):
            dark = count > class_counts.max() / 2
            axes.text(label, client, count, ha="center", va="center", fontsize=7, color="white" if dark else "black")
    axes.set(xlabel="Class", ylabel="Client")
    figure.colorbar(image, label="Samples")
    _save(figure, path)


def plot_heatmap(
    summary: Sequence[dict[str, Any]], x: str, y: str, path: str | Path, *, metric: str = "accuracy"
) -> None:
    """A metric of the cells of a grid over the values of two settings, which are what `rj.grid` calls its `summary`."""
    columns, rows = (list(dict.fromkeys(row[name] for row in summary)) for name in (x, y))
    values = np.full((len(rows), len(columns)), np.nan)
    for cell in summary:
        values[rows.index(cell[y]), columns.index(cell[x])] = np.nan if cell[metric] is None else cell[metric]
    figure = Figure(figsize=(2.4 + 0.9 * len(columns), 1.8 + 0.5 * len(rows)), layout="constrained")
    axes = figure.subplots()
    axes.set_facecolor("0.85")
    image = axes.imshow(values, cmap="viridis", aspect="auto")
    middle = (np.nanmin(values) + np.nanmax(values)) / 2 if np.isfinite(values).any() else 0
    for (row, column), value in np.ndenumerate(values):
        text = "diverged" if np.isnan(value) else f"{value:.1%}"
        colour = "white" if value <= middle else "black"
        axes.text(column, row, text, ha="center", va="center", fontsize=9, color=colour)
    for names, place in ((columns, axes.set_xticks), (rows, axes.set_yticks)):
        place(range(len(names)), [f"{name:g}" if isinstance(name, float) else str(name) for name in names])
    axes.set(xlabel=x, ylabel=y)
    figure.colorbar(image, label=f"Test {metric}").ax.yaxis.set_major_formatter(PercentFormatter(1.0))
    _save(figure, path)


def _save(figure: Figure, path: str | Path) -> None:
    FigureCanvasAgg(figure)
    figure.savefig(path, dpi=150)
