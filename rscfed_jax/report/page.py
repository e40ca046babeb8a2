"""The report as one HTML page that needs no network: tables from here, figures drawn by the script it carries."""

import json
from collections.abc import Iterator
from html import escape
from importlib import resources
from string import Template
from typing import Any

from rscfed_jax import __version__
from rscfed_jax.config.registry import metrics
from rscfed_jax.report.collect import Run
from rscfed_jax.report.html_table import Entry, html_table
from rscfed_jax.report.page_data import MOST_CLIENTS, page_data
from rscfed_jax.report.plain import EXPLAINED, JUDGED, best_columns, final_columns, round_as_text, title_of
from rscfed_jax.report.seeds import CURVES, Line, Moments, Report
from rscfed_jax.report.tables import MISSING, as_text, percent
from rscfed_jax.storage.records import BY_CLASS, PSEUDO_LABELS

SCRIPTS = ("axes.js", "lines.js", "cells.js", "page.js")
HOLDS = (("full", "labels for all samples"), ("part", "labels for some"), ("none", "no labels"))


def as_html(report: Report) -> str:
    """The whole page."""
    data = page_data(report)
    about_all = (_head(report), _metrics(report), _settings(report), _curves(report, data), _pseudo_labels(report))
    body = [line for section in (*about_all, _one_run(report, data), _details(report)) for line in section]
    return Template(_static("page.html")).substitute(
        version=escape(__version__),
        title=escape(title_of(report)),
        style=_static("page.css"),
        body="\n".join(body),
        # A text that closes the script element would end it wherever it stands.
        data=json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c"),
        script="\n".join(map(_static, SCRIPTS)),
    )


def _static(name: str) -> str:
    return (resources.files(__package__) / "static" / name).read_text(encoding="utf-8")


def _head(report: Report) -> Iterator[str]:
    yield f"<h1>{escape(title_of(report))}</h1>"
    yield f'<p class="faint">Made by rscfed-jax {escape(__version__)}.</p>'
    if report.notes:
        yield '<ul class="notes">' + "".join(f"<li>{escape(note)}</li>" for note in report.notes) + "</ul>"
    yield "<noscript><p>The figures need JavaScript, which is turned off in this browser.</p></noscript>"


def _metrics(report: Report) -> Iterator[str]:
    yield f'<h2>Metrics</h2>\n<p class="faint">{EXPLAINED}</p>'
    titles = metrics()
    heads = [_who(number, line) for number, line in enumerate(report.lines)]
    columns = ["Run", "Seeds", *titles.values()]
    rows = [[*head, *_final(line.final)] for head, line in zip(heads, report.lines, strict=True)]
    yield "<h3>Final</h3>" + html_table("final", columns, rows)
    columns = ["Run", "Seeds", *(titles[name] for name in CURVES), "Round"]
    rows = [[*head, *_best(line.best)] for head, line in zip(heads, report.lines, strict=True)]
    yield "<h3>Best</h3>" + html_table("best", columns, rows)


def _who(number: int, line: Line) -> list[Entry]:
    return [Entry(line.name, line=number), Entry(", ".join(str(run.seed) for run in line.runs))]


def _final(values: dict[str, Moments | None]) -> list[Entry]:
    return [Entry(percent(values[name]), _first(values[name])) for name in metrics()]


def _best(values: dict[str, Moments | None]) -> list[Entry]:
    shown = [Entry(percent(values[name]), _first(values[name])) for name in CURVES]
    return [*shown, Entry(round_as_text(values["round"]), _first(values["round"]))]


def _first(moments: Moments | None) -> float | None:
    return moments and moments[0]


def _settings(report: Report) -> Iterator[str]:
    if not report.differing:
        return
    yield "<h2>Settings that differ</h2>"
    rows = [
        [Entry(line.name, line=number), *(_value(line.settings.get(name)) for name in report.differing)]
        for number, line in enumerate(report.lines)
    ]
    yield html_table("differing", ["Run", *report.differing], rows)


def _value(value: Any) -> Entry:
    return Entry(as_text(value), is_text=True)


def _curves(report: Report, data: dict[str, Any]) -> Iterator[str]:
    def is_known(name: str) -> bool:
        return any(value is not None for line in data["lines"] for value in line[name])

    yield "<h2>Curves</h2>"
    text = "On the test set. The buttons show and hide lines; point at a figure to read its values."
    if any(len(line.runs) > 1 for line in report.lines):
        text += " Lines are means over seeds, bands one standard deviation."
    yield f'<p class="faint">{text}</p>'
    yield '<div id="legend" role="group" aria-label="Lines"></div>\n<div class="figures curves">'
    yield _figure("accuracy", "Accuracy", "")
    if is_known("auc"):
        yield _figure("auc", "AUC", "Macro-averaged, one class against the rest.")
    if is_known("bytes_up"):
        caption = "Everything that clients have sent to the server so far, including the warm-up."
        yield _figure("communication", "Communication against accuracy", caption)
    yield "</div>"


def _pseudo_labels(report: Report) -> Iterator[str]:
    rows = [
        [*_who(number, line), *(Entry(percent(value), _first(value)) for value in line.pseudo_labels.values())]
        for number, line in enumerate(report.lines)
        if line.has_pseudo_labels
    ]
    if not rows:
        return
    yield f'<h2>Pseudo-labels</h2>\n<p class="faint">{JUDGED} Numbers are means of the last five evaluations.</p>'
    yield html_table("pseudo", ["Run", "Seeds", *PSEUDO_LABELS.values()], rows) + '\n<div class="figures curves">'
    for name, title in PSEUDO_LABELS.items():
        yield _figure(name, title, "In the rounds since the previous evaluation.")
    for (name, title), done in zip(PSEUDO_LABELS.items(), ("seen", "kept"), strict=True):
        caption = f"In the rounds before the last evaluation. A dash means that no sample of the class was {done}."
        yield _figure(BY_CLASS[name], f"{title}, by true class", caption)
    yield "</div>"


def _one_run(report: Report, data: dict[str, Any]) -> Iterator[str]:
    def is_known(name: str) -> bool:
        return any(run[name] for run in data["runs"])

    if not any(map(is_known, ("partition", "weights", "client_accuracy", "confusion"))):
        return
    names = [f"{line.name}, seed {run.seed}" for line in report.lines for run in line.runs]
    options = "".join(f'<option value="{number}">{escape(name)}</option>' for number, name in enumerate(names))
    yield "<h2>Inside a run</h2>"
    yield f'<label class="choose">Run: <select id="run">{options}</select></label>\n<div class="figures">'
    if is_known("partition"):
        key = "".join(f'<br><span class="key" style="background: var(--{kind})"></span> {text}' for kind, text in HOLDS)
        caption = f"Samples of each class at each client, all on the same scale. {key}"
        if any(run.partition and len(run.partition.labels) > MOST_CLIENTS for run in report.runs):
            caption += f"<br>Only the first {MOST_CLIENTS} clients are shown."
        yield _figure("partition", "Classes at each client", caption)
    if is_known("weights"):
        caption = (
            "Mean weight of a client in its subsets since the previous evaluation (for RSCFed after distance "
            "reweighting). A dash means that the client was not drawn."
        )
        yield _figure("weights", "Weight of each client over rounds", caption)
    if is_known("client_accuracy"):
        caption = "On the test set: the recall of each class, weighed by its share in the client's samples."
        yield _figure("client_accuracy", "Accuracy on each client's own classes", caption)
    if is_known("confusion"):
        yield _figure("confusion", "Confusion matrix", "On the test set, after the last round.")
    yield "</div>"


def _figure(name: str, heading: str, caption: str) -> str:
    return (
        f'<figure><h3>{heading}</h3><div class="canvas" data-figure="{name}"></div>'
        f'<p class="faint lacking" hidden>Not recorded.</p><figcaption>{caption}</figcaption></figure>'
    )


def _details(report: Report) -> Iterator[str]:
    columns = ["Directory", "Seed", "Round", *final_columns(), *best_columns(), "Seconds per round", "Device"]
    yield f"<details><summary>All runs ({len(report.runs)})</summary>"
    yield html_table("runs", columns, map(_run_row, report.runs)) + "</details>"
    yield "<details><summary>Settings in common</summary>"
    common = [[Entry(name), _value(value)] for name, value in report.common.items()]
    yield html_table("common", ["Setting", "Value"], common) + "</details>"


def _run_row(run: Run) -> list[Entry]:
    def alone(values: dict[str, float | None]) -> dict[str, Moments | None]:
        return {name: None if value is None else (value, None) for name, value in values.items()}

    seconds = run.summary.get("seconds_per_round") if run.finished else None
    state = "" if run.finished else ", diverged" if run.diverged else ", unfinished"
    return [
        *(Entry(str(run.path)), Entry(str(run.seed)), Entry(f"{run.last_round}{state}")),
        *(*_final(alone(run.final)), *_best(alone(run.best))),
        Entry(f"{seconds:.2f}" if isinstance(seconds, int | float) else MISSING),
        Entry(str(run.summary.get("device", MISSING)), is_text=True),
    ]
