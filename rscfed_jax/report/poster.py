"""The report as one picture: the curves of all lines, their pseudo-labels, and what is inside the first run."""

import io
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rscfed_jax.report.page_data import page_data
from rscfed_jax.report.plain import title_of
from rscfed_jax.report.plots import (
    Curve,
    add_legend,
    draw_by_class,
    draw_confusion,
    draw_curves,
    draw_partition,
    draw_weights,
    save,
)
from rscfed_jax.report.seeds import Report
from rscfed_jax.storage.records import PSEUDO_LABELS

COLUMNS = 3


def as_png(report: Report) -> bytes:
    """The bytes of the picture; figures that were not recorded are left out."""
    data = page_data(report)
    inside = list(_inside(data["runs"][0]))
    panels = [*_curves(data["lines"]), *_pseudo_labels(data), *inside]
    rows = -(-len(panels) // COLUMNS)
    figure = Figure(figsize=(5 * COLUMNS, 4.4 * rows), layout="constrained")
    for number, draw in enumerate(panels):
        draw(figure.add_subplot(rows, COLUMNS, number + 1))
    add_legend(figure, most_columns=4)
    below = f"; below: {report.runs[0].path}" if inside and len(report.runs) > 1 else ""
    figure.suptitle(f"{title_of(report)}{below}", parse_math=False)
    file = io.BytesIO()
    save(figure, file, dpi=100)
    return file.getvalue()


def _curve(line: dict[str, Any], x: str, metric: str) -> Curve:
    points = [
        (at / 1e6 if x == "bytes_up" else at, *value, *[0] * (2 - len(value)))
        for at, value in zip(line[x], line.get(metric, [None] * len(line[x])), strict=True)
        if at is not None and value is not None
    ]
    return Curve(line["name"], *np.array(points or [(np.nan, np.nan, 0)]).T)


def _curves(lines: list[dict[str, Any]]) -> Iterator[Callable[[Axes], None]]:
    yield partial(draw_curves, curves=[_curve(line, "round", "accuracy") for line in lines], metric="accuracy")
    yield partial(draw_curves, curves=[_curve(line, "round", "auc") for line in lines], metric="auc")
    sent = [_curve(line, "bytes_up", "accuracy") for line in lines]
    yield partial(draw_curves, curves=sent, metric="accuracy", xlabel="Sent up by all clients, MB")


def _pseudo_labels(data: dict[str, Any]) -> Iterator[Callable[[Axes], None]]:
    """A row of three: every line has its place in the first two, so that it has its colour."""
    lines, by_class = data["lines"], data["by_class"]
    if by_class is None:
        return
    for metric in PSEUDO_LABELS:
        yield partial(draw_curves, curves=[_curve(line, "round", metric) for line in lines], metric=metric)
    names = [lines[number]["name"] for number in by_class["lines"]]
    rows = np.array(by_class["kept_accuracy"], float)  # None becomes NaN
    yield partial(draw_by_class, rows=rows, names=names, metric="kept_accuracy")


def _inside(run: dict[str, Any]) -> Iterator[Callable[[Axes], None]]:
    partition, weights, confusion = (run[name] for name in ("partition", "weights", "confusion"))
    labeled = np.array(partition["labels"]) > 0 if partition else np.zeros(0, bool)
    if partition:
        counts = np.array(partition["class_counts"])
        yield partial(draw_partition, class_counts=counts, labeled=labeled, server=partition["server"])
    if weights:
        rows = np.array(weights["rows"], float)  # None becomes NaN
        at, server = weights["rounds"], weights["server"]
        yield partial(draw_weights, weights=rows, rounds=at, clients=weights["clients"], labeled=labeled, server=server)
    if confusion:
        yield partial(draw_confusion, confusion=np.array(confusion["matrix"]), class_names=confusion["names"])
