"""The report as one picture: the curves of all runs, and what is inside the first of them."""

import io

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from rscfed_jax.report.groups import Report
from rscfed_jax.report.page_data import page_data
from rscfed_jax.report.tables import title

MOST_NAMES = 40  # of classes or clients that stand beside an axis


def as_png(report: Report) -> bytes:
    """The bytes of the picture; figures that no run tells of are left out."""
    data = page_data(report)
    first = data["runs"][0]
    panels = [
        lambda axes: _draw_lines(axes, data["groups"], x="round", y="accuracy"),
        lambda axes: _draw_lines(axes, data["groups"], x="round", y="auc"),
        lambda axes: _draw_lines(axes, data["groups"], x="bytes_up", y="accuracy"),
    ]
    if first["partition"]:
        panels.append(lambda axes: _draw_partition(axes, first["partition"]))
    if first["weights"]:
        panels.append(lambda axes: _draw_weights(axes, first["weights"]))
    if first["confusion"]:
        panels.append(lambda axes: _draw_confusion(axes, first["confusion"]))
    figure = Figure(figsize=(15, 4.4 * -(-len(panels) // 3)), layout="constrained")
    for number, draw in enumerate(panels):
        draw(figure.add_subplot(-(-len(panels) // 3), 3, number + 1))
    lines, names = figure.axes[0].get_legend_handles_labels()
    legend = figure.legend(lines, names, loc="outside lower center", ncols=min(len(names), 4), frameon=False)
    for text in legend.get_texts():
        text.set_parse_math(False)
    inside = f"; below: {report.runs[0].path}" if len(panels) > 3 and len(report.runs) > 1 else ""
    figure.suptitle(f"{title(report)}{inside}", parse_math=False)
    file = io.BytesIO()
    FigureCanvasAgg(figure)
    figure.savefig(file, dpi=100, format="png")
    return file.getvalue()


def _draw_lines(axes: Axes, groups: list[dict], *, x: str, y: str) -> None:
    for group in groups:
        told = [
            (at / 1e6 if x == "bytes_up" else at, 100 * value[0], 100 * (value[1] if len(value) > 1 else 0))
            for at, value in zip(group[x], group[y], strict=True)
            if at is not None and value is not None
        ]
        across, mean, deviation = np.array(told or [(np.nan, np.nan, 0)]).T
        # A name that begins with an underscore would be left out of the legend.
        (line,) = axes.plot(across, mean, marker="." if len(told) < 40 else "", label=group["name"].lstrip("_"))
        if deviation.any():
            axes.fill_between(across, mean - deviation, mean + deviation, alpha=0.16, color=line.get_color(), lw=0)
    xlabel = "Round" if x == "round" else "Sent up by all clients, MB"
    axes.set(xlabel=xlabel, ylabel=f"Test {'accuracy' if y == 'accuracy' else 'AUC'}, %")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_cells(axes: Axes, cells: np.ndarray, *, label: str) -> None:
    axes.set_facecolor("#e8e8e8")  # where there is nothing
    image = axes.imshow(np.ma.masked_invalid(cells), cmap="Blues", aspect="auto", vmin=0, interpolation="nearest")
    axes.figure.colorbar(image, ax=axes, label=label)


def _draw_partition(axes: Axes, partition: dict) -> None:
    _draw_cells(axes, np.array(partition["class_counts"], float), label="Samples")
    if len(partition["labels"]) <= MOST_NAMES:
        names = [f"{client} (labels)" if labels else str(client) for client, labels in enumerate(partition["labels"])]
        axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set(xlabel="Class", ylabel="Client", title="Classes at each client")


def _draw_weights(axes: Axes, weights: dict) -> None:
    rows = np.array([[np.nan if value is None else value for value in row] for row in weights["rows"]])
    _draw_cells(axes, rows, label="Weight (grey: not drawn)")
    every = -(-len(weights["rounds"]) // 10)
    axes.set_xticks(range(0, len(weights["rounds"]), every), weights["rounds"][::every])
    step = -(-len(weights["clients"]) // MOST_NAMES)
    axes.set_yticks(range(0, len(weights["clients"]), step), weights["clients"][::step], fontsize=8)
    axes.set(xlabel="Round", ylabel="Client", title="Weight of each client")


def _draw_confusion(axes: Axes, confusion: dict) -> None:
    matrix = np.array(confusion["matrix"], float)
    with np.errstate(invalid="ignore"):
        _draw_cells(axes, 100 * matrix / matrix.sum(axis=1, keepdims=True), label="% of the true class")
    if len(matrix) <= MOST_NAMES:
        axes.set_yticks(range(len(matrix)), [name[:14] for name in confusion["names"]], fontsize=8, parse_math=False)
    axes.set(xlabel="Predicted class", ylabel="True class", title="Confusion")
