"""The report as one HTML page that needs no network: tables from here, figures drawn by the script it carries."""

import json
from collections.abc import Iterator
from html import escape
from importlib import resources
from string import Template
from typing import Any

from rscfed_jax import __version__
from rscfed_jax.report.collect import METRICS, Run
from rscfed_jax.report.groups import Moments, Report
from rscfed_jax.report.html_table import Cell, html_table
from rscfed_jax.report.page_data import MOST_CLIENTS, page_data
from rscfed_jax.report.tables import BEST, EXPLAINED, FINAL, TITLES, percent, rounds, setting, title

SCRIPTS = ("axes.js", "lines.js", "cells.js", "page.js")
HOLDS = (("full", "labels for all samples"), ("part", "labels for some"), ("none", "no labels"))


def as_html(report: Report) -> str:
    """The whole page."""
    data = page_data(report)
    sections = (_head(report), _metrics(report), _settings(report), _curves(report, data), _one_run(report, data))
    body = [line for section in (*sections, _details(report)) for line in section]
    return Template(_static("page.html")).substitute(
        version=escape(__version__),
        title=escape(title(report)),
        style=_static("page.css"),
        body="\n".join(body),
        # A text that closes the script element would end it wherever it stands.
        data=json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c"),
        script="\n".join(map(_static, SCRIPTS)),
    )


def _static(name: str) -> str:
    return (resources.files(__package__) / "static" / name).read_text(encoding="utf-8")


def _head(report: Report) -> Iterator[str]:
    yield f"<h1>{escape(title(report))}</h1>"
    yield f'<p class="faint">Made by rscfed-jax {escape(__version__)}.</p>'
    if report.notes:
        yield '<ul class="notes">' + "".join(f"<li>{escape(note)}</li>" for note in report.notes) + "</ul>"
    yield "<noscript><p>The figures are drawn by a script in this page, which this browser does not run.</p></noscript>"


def _metrics(report: Report) -> Iterator[str]:
    yield f'<h2>Metrics</h2>\n<p class="faint">{EXPLAINED}</p>'
    lines = [
        (Cell(group.name, line=number), Cell(", ".join(str(run.seed) for run in group.runs)), group)
        for number, group in enumerate(report.groups)
    ]
    columns = ["Run", "Seeds", *(TITLES[name] for name in METRICS)]
    yield "<h3>Final</h3>" + html_table("final", columns, [[n, seeds, *_final(g.final)] for n, seeds, g in lines])
    columns.append("Round")
    yield "<h3>Best</h3>" + html_table("best", columns, [[n, seeds, *_best(g.best)] for n, seeds, g in lines])


def _final(metrics: dict[str, Moments | None]) -> list[Cell]:
    return [Cell(percent(metrics[name]), _first(metrics[name])) for name in METRICS]


def _best(metrics: dict[str, Moments | None]) -> list[Cell]:
    return [*_final(metrics), Cell(rounds(metrics["round"]), _first(metrics["round"]))]


def _first(moments: Moments | None) -> float | None:
    return moments and moments[0]


def _settings(report: Report) -> Iterator[str]:
    if not report.differing:
        return
    yield "<h2>Settings that differ</h2>"
    lines = []
    for number, group in enumerate(report.groups):
        values = [_value(group.settings.get(name)) for name in report.differing]
        lines.append([Cell(group.name, line=number), *values])
    yield html_table("differing", ["Run", *report.differing], lines)


def _value(value: Any) -> Cell:
    return Cell(setting(value), is_text=True)


def _curves(report: Report, data: dict[str, Any]) -> Iterator[str]:
    def told(name: str) -> bool:
        return any(value is not None for group in data["groups"] for value in group[name])

    yield "<h2>Curves</h2>"
    text = "Test set. The buttons switch lines on and off; point at a figure to read its values."
    if any(len(group.runs) > 1 for group in report.groups):
        text += " A line is the mean over seeds, its band one standard deviation."
    yield f'<p class="faint">{text}</p>'
    yield '<div id="legend" role="group" aria-label="Lines"></div>\n<div class="figures curves">'
    yield _figure("accuracy", "Accuracy", "")
    if told("auc"):
        yield _figure("auc", "AUC", "Macro-averaged, one class against the rest.")
    if told("bytes_up"):
        caption = "What all clients have sent to the server so far, warm-up included."
        yield _figure("communication", "Communication against accuracy", caption)
    yield "</div>"


def _one_run(report: Report, data: dict[str, Any]) -> Iterator[str]:
    def told(name: str) -> bool:
        return any(run[name] for run in data["runs"])

    if not any(map(told, ("partition", "weights", "confusion"))):
        return
    names = [f"{group.name}, seed {run.seed}" for group in report.groups for run in group.runs]
    options = "".join(f'<option value="{number}">{escape(name)}</option>' for number, name in enumerate(names))
    yield "<h2>Inside a run</h2>"
    yield f'<label class="choose">Run: <select id="run">{options}</select></label>\n<div class="figures">'
    if told("partition"):
        key = "".join(f'<br><span class="key" style="background: var(--{kind})"></span> {text}' for kind, text in HOLDS)
        caption = f"Samples of each class at each client, all on one scale. {key}"
        if any(run.partition and len(run.partition.labels) > MOST_CLIENTS for run in report.runs):
            caption += f"<br>Only the first {MOST_CLIENTS} clients are shown."
        yield _figure("partition", "Classes at each client", caption)
    if told("weights"):
        caption = (
            "Mean weight of a client in the averages of the subsets that drew it since the last evaluation "
            "(of RSCFed: the distance-reweighted ones). A dash: it was not drawn."
        )
        yield _figure("weights", "Weight of each client over rounds", caption)
    if told("confusion"):
        yield _figure("confusion", "Confusion matrix", "Samples of the test set after the last round.")
    yield "</div>"


def _figure(name: str, heading: str, caption: str) -> str:
    return (
        f'<figure><h3>{heading}</h3><div class="canvas" data-figure="{name}"></div>'
        f'<p class="faint lacking" hidden>This run does not tell.</p><figcaption>{caption}</figcaption></figure>'
    )


def _details(report: Report) -> Iterator[str]:
    columns = ["Directory", "Seed", "Round", *FINAL, *BEST, "Seconds per round", "Device"]
    yield f"<details><summary>The runs one by one ({len(report.runs)})</summary>"
    yield html_table("runs", columns, map(_run_line, report.runs)) + "</details>"
    yield "<details><summary>Settings in common</summary>"
    common = [[Cell(name), _value(value)] for name, value in report.common.items()]
    yield html_table("common", ["Setting", "Value"], common) + "</details>"


def _run_line(run: Run) -> list[Cell]:
    def alone(metrics: dict[str, float | None]) -> dict[str, Moments | None]:
        return {name: None if value is None else (value, None) for name, value in metrics.items()}

    seconds = run.summary.get("seconds_per_round") if run.finished else None
    state = "" if run.finished else ", diverged" if run.diverged else ", unfinished"
    round_ = Cell(f"{run.last_round}{state}")
    return [
        *(Cell(str(run.path)), Cell(str(run.seed)), round_, *_final(alone(run.final)), *_best(alone(run.best))),
        Cell(f"{seconds:.2f}" if isinstance(seconds, int | float) else "–"),
        Cell(str(run.summary.get("device", "–")), is_text=True),
    ]
