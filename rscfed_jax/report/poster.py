"""The report as one picture: the curves of all lines, and what is inside the first run."""

import io
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rscfed_jax.report.page_data import page_data
from rscfed_jax.report.plain import title_of
from rscfed_jax.report.plots import Curve, add_legend, draw_confusion, draw_curves, draw_partition, draw_weights, save
from rscfed_jax.report.seeds import Report

COLUMNS = 3


def as_png(report: Report) -> bytes:
    """The bytes of the picture; figures that were not recorded are left out."""
    data = page_data(report)
    panels = [*_curves(data["lines"]), *_inside(data["runs"][0])]
    rows = -(-len(panels) // COLUMNS)
    figure = Figure(figsize=(5 * COLUMNS, 4.4 * rows), layout="constrained")
    for number, draw in enumerate(panels):
        draw(figure.add_subplot(rows, COLUMNS, number + 1))
    add_legend(figure, most_columns=4)
    inside = f"; below: {report.runs[0].path}" if len(panels) > COLUMNS and len(report.runs) > 1 else ""
    figure.suptitle(f"{title_of(report)}{inside}", parse_math=False)
    file = io.BytesIO()
    save(figure, file, dpi=100)
    return file.getvalue()


def _curves(lines: list[dict[str, Any]]) -> Iterator[Callable[[Axes], None]]:
    def curve(line: dict[str, Any], x: str, metric: str) -> Curve:
        points = [
            (at / 1e6 if x == "bytes_up" else at, *value, *[0] * (2 - len(value)))
            for at, value in zip(line[x], line[metric], strict=True)
            if at is not None and value is not None
        ]
        return Curve(line["name"], *np.array(points or [(np.nan, np.nan, 0)]).T)

    yield partial(draw_curves, curves=[curve(line, "round", "accuracy") for line in lines], metric="accuracy")
    yield partial(draw_curves, curves=[curve(line, "round", "auc") for line in lines], metric="auc")
    sent = [curve(line, "bytes_up", "accuracy") for line in lines]
    yield partial(draw_curves, curves=sent, metric="accuracy", xlabel="Sent up by all clients, MB")


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
