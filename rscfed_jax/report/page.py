"""The report as one HTML page that needs no network: tables from here, figures drawn by the script it carries."""

import json
from collections.abc import Collection, Iterator
from html import escape
from importlib import resources
from string import Template
from typing import Any

from rscfed_jax import __version__
from rscfed_jax.config.registry import lower_is_better, metrics
from rscfed_jax.report.best import best_lines
from rscfed_jax.report.collect import Run
from rscfed_jax.report.comparison import SENT, most_sent
from rscfed_jax.report.html_table import Entry, html_table
from rscfed_jax.report.page_data import MOST_CLIENTS, page_data
from rscfed_jax.report.plain import EXPLAINED, JUDGED, best_columns, final_columns, round_as_text, title_of
from rscfed_jax.report.seeds import CURVES, Line, Moments, Report, in_a_sentence
from rscfed_jax.report.tables import MISSING, Unit, as_text, percent, unit_of
from rscfed_jax.storage.records import BY_CLASS, PSEUDO_LABELS

SCRIPTS = ("axes.js", "lines.js", "cells.js", "sort.js", "compare.js", "page.js")
HOLDS = (("full", "labels for all samples"), ("part", "labels for some"), ("none", "no labels"))
MOST_NOTES = 4  # before the others are folded
MOST_SETTINGS = 5  # that differ, before they are folded,
MOST_ROWS = 12  # or of lines that they are listed for
MOST_LINES = 10  # that are drawn at first, one for each colour; as in page.js
MOST_CLASSES = 24  # whose differences are drawn; as in compare.js


def as_html(report: Report) -> str:
    """The whole page."""
    data = page_data(report)
    sections = (
        *(_head(report), _metrics(report), _settings(report)),
        *(_curves(report, data), _comparison(report, data), _pseudo_labels(report), _one_run(report, data)),
        *(_runs(report), _common(report)),
    )
    body = [line for section in sections for line in section]
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
        yield '<div class="notes">' + _list(report.notes[:MOST_NOTES])
        if more := report.notes[MOST_NOTES:]:
            yield f"<details><summary>{len(more)} more</summary>{_list(more)}</details>"
        yield "</div>"
    yield (
        "<noscript><p>Figures, comparison and sorting need JavaScript, which is turned off in this browser. The tables "
        "are complete, and <code>rscfed-jax report --format png</code> draws the figures as a picture.</p></noscript>"
    )


def _list(notes: list[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(note)}</li>" for note in notes) + "</ul>"


def _metrics(report: Report) -> Iterator[str]:
    of_final = best_lines(report, lambda line: line.final, metrics())
    of_best = best_lines(report, lambda line: line.best, CURVES)
    text = EXPLAINED
    if any(of_final.values()):
        text += " The best number of each metric is in bold"
        text += "; unfinished runs do not count." if len({line.finished for line in report.lines}) > 1 else "."
    if sent := _sent_columns(report):
        text += (
            " Sent up and down: all bytes between clients and server up to the last evaluation, including the warm-up."
        )
    yield f'<h2>Metrics</h2>\n<p class="faint">{text}</p>'
    titles = metrics()
    heads = [_who(number, line) for number, line in enumerate(report.lines)]
    columns = ["Run", "Seeds", *titles.values(), *sent]
    rows = [
        [*heads[number], *_final(line.final, _names_with(number, of_final)), *_sent(line.sent, sent)]
        for number, line in enumerate(report.lines)
    ]
    low = [*(titles[name] for name in lower_is_better() if name in titles), *sent]
    yield "<h3>Final</h3>" + html_table("final", columns, rows, sorted_by=titles["accuracy"], lowest_first=low)
    columns = ["Run", "Seeds", *(titles[name] for name in CURVES), "Round"]
    rows = [
        [*heads[number], *_best(line.best, _names_with(number, of_best))]
        for number, line in sorted(enumerate(report.lines), key=lambda pair: -(_first(pair[1].best["accuracy"]) or 0))
    ]
    yield "<h3>Best</h3>" + html_table("best", columns, rows, sorted_by=titles["accuracy"])


def _names_with(number: int, numbers: dict[str, set[int]]) -> set[str]:
    return {name for name, among in numbers.items() if number in among}


def _sent_columns(report: Report) -> dict[str, tuple[str, Unit]]:
    """Titles of the columns of bytes, each with its key and its unit; none if no line has recorded any."""
    most = most_sent(report)
    unit = unit_of(most)
    return {f"{title}, {unit.name}": (name, unit) for name, title in SENT.items()} if most else {}


def _sent(values: dict[str, float | None], columns: dict[str, tuple[str, Unit]]) -> list[Entry]:
    def entry(value: float | None, unit: Unit) -> Entry:
        return Entry(MISSING) if value is None else Entry(f"{value / unit.size:.{unit.digits}f}", value)

    return [entry(values.get(name), unit) for name, unit in columns.values()]


def _who(number: int, line: Line) -> list[Entry]:
    return [Entry(line.name, line=number), Entry(", ".join(str(run.seed) for run in line.runs))]


def _final(values: dict[str, Moments | None], best: Collection[str] = ()) -> list[Entry]:
    return [Entry(percent(values[name]), _first(values[name]), is_best=name in best) for name in metrics()]


def _best(values: dict[str, Moments | None], best: Collection[str] = ()) -> list[Entry]:
    shown = [Entry(percent(values[name]), _first(values[name]), is_best=name in best) for name in CURVES]
    return [*shown, Entry(round_as_text(values["round"]), _first(values["round"]))]


def _first(moments: Moments | None) -> float | None:
    return moments and moments[0]


def _settings(report: Report) -> Iterator[str]:
    if not report.differing:
        return
    count = len(report.differing)
    opened = " open" if count <= MOST_SETTINGS and len(report.lines) <= MOST_ROWS else ""
    yield f'<details class="section"{opened}><summary><h2>Settings that differ ({count})</h2></summary>'
    rows = [
        [Entry(line.name, line=number), *(_value(line.settings.get(name)) for name in report.differing)]
        for number, line in enumerate(report.lines)
    ]
    yield html_table("differing", ["Run", *report.differing], rows) + "</details>"


def _value(value: Any) -> Entry:
    return Entry(as_text(value), is_text=True)


def _curves(report: Report, data: dict[str, Any]) -> Iterator[str]:
    def is_known(name: str) -> bool:
        return any(value is not None for line in data["lines"] for value in line[name])

    yield '<section class="drawn"><h2>Curves</h2>'
    text = "On the test set. The buttons show and hide lines; point at a figure to read its values."
    if any(len(line.runs) > 1 for line in report.lines):
        text += " Lines are means over seeds, bands one standard deviation."
    if len(report.lines) > MOST_LINES:
        text += f" At first the {MOST_LINES} most accurate of {len(report.lines)} lines are shown."
    yield f'<p class="faint">{text}</p>'
    yield '<div id="legend" role="group" aria-label="Lines"></div>\n<div class="figures curves">'
    yield _figure("accuracy", "Accuracy", "")
    if is_known("auc"):
        yield _figure("auc", "AUC", "Macro-averaged, one class against the rest.")
    if is_known("bytes_up"):
        caption = "Everything that clients have sent to the server so far, including the warm-up."
        yield _figure("communication", "Communication against accuracy", caption)
    yield "</div></section>"


def _comparison(report: Report, data: dict[str, Any]) -> Iterator[str]:
    compared = data["comparison"]
    if compared is None:
        return
    names = [item["name"] for item in compared["items"]]
    yield '<section class="drawn" id="compare"><h2>Two runs compared</h2>'
    text = "A minus B. Metrics are final, in percent, and differences in percentage points. The better one is in bold."
    if any(len(item["seeds"]) > 1 for item in compared["items"]):
        text += " If both have the same seeds, ± is the standard deviation of the difference over seeds."
    yield f'<p class="faint">{text}</p>\n<div class="pair">'
    for number, (letter, name) in enumerate((("A", "first"), ("B", "second"))):
        options = _options(names, compared["lines"], chosen=number)
        yield f'<label class="choose">{letter}: <select id="{name}">{options}</select></label>'
    yield '</div>\n<div class="figures"><figure><h3>Metrics</h3><div id="difference"></div></figure>'
    caption = "Of each true class on the test set, after the last round."
    if any(len(item["recall"]) > MOST_CLASSES for item in compared["items"]):
        caption += f" Of many classes, the {MOST_CLASSES} with the largest differences."
    yield _figure("recall_difference", "Recall by class", caption)
    yield '</div>\n<div id="other_settings"></div></section>'


def _options(names: list[str], lines: int, chosen: int) -> str:
    """The options of a choice, of which the first `lines` are lines of the report and the others single seeds."""
    options = [
        f'<option value="{number}"{" selected" if number == chosen else ""}>{escape(name)}</option>'
        for number, name in enumerate(names)
    ]
    if not 0 < lines < len(names):
        return "".join(options)
    groups = (("Lines of the report", options[:lines]), ("Single seeds", options[lines:]))
    return "".join(f'<optgroup label="{label}">{"".join(group)}</optgroup>' for label, group in groups)


def _pseudo_labels(report: Report) -> Iterator[str]:
    rows = [
        [*_who(number, line), *(Entry(percent(value), _first(value)) for value in line.pseudo_labels.values())]
        for number, line in enumerate(report.lines)
        if line.has_pseudo_labels
    ]
    if not rows:
        return
    yield f'<h2>Pseudo-labels</h2>\n<p class="faint">{JUDGED} Numbers are means of the last five evaluations.</p>'
    yield html_table("pseudo", ["Run", "Seeds", *PSEUDO_LABELS.values()], rows)
    yield '<div class="figures curves drawn">'
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
    options = _options(report.run_names, 0, chosen=0)
    yield '<section class="drawn" id="inside"><h2>Inside a run</h2>'
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
        caption = "On the test set: the recall of each class, weighted by its share in the client's samples."
        yield _figure("client_accuracy", "Accuracy on each client's own classes", caption)
    if is_known("confusion"):
        yield _figure("confusion", "Confusion matrix", "On the test set, after the last round.")
    yield "</div></section>"


def _figure(name: str, heading: str, caption: str) -> str:
    return (
        f'<figure><h3>{heading}</h3><div class="canvas" data-figure="{name}"></div>'
        f'<p class="faint lacking" hidden>Not recorded.</p><figcaption>{caption}</figcaption></figure>'
    )


def _runs(report: Report) -> Iterator[str]:
    sent = _sent_columns(report)
    models = ["Models up", "Models down"] if sent else []
    own = ["Seconds per round", "Device"]
    columns = ["Directory", "Seed", "Round", *final_columns(), *best_columns(), *models, *sent, *own]
    low = [f"Final {in_a_sentence(metrics()[name])}" for name in lower_is_better() if name in metrics()]
    yield f"<details><summary>All runs ({len(report.runs)})</summary>"
    rows = [_run_row(run, sent) for run in report.runs]
    yield html_table("runs", columns, rows, lowest_first=[*low, *models, *sent, own[0]]) + "</details>"


def _common(report: Report) -> Iterator[str]:
    yield "<details><summary>Settings in common</summary>"
    common = [[Entry(name), _value(value)] for name, value in report.common.items()]
    yield html_table("common", ["Setting", "Value"], common, sortable=False) + "</details>"


def _run_row(run: Run, sent: dict[str, tuple[str, Unit]]) -> list[Entry]:
    def alone(values: dict[str, float | None]) -> dict[str, Moments | None]:
        return {name: None if value is None else (value, None) for name, value in values.items()}

    def count(value: float | None) -> Entry:
        return Entry(MISSING) if value is None else Entry(f"{value:.0f}", value)

    seconds = run.summary.get("seconds_per_round") if run.finished else None
    last = run.records[-1]
    state = "" if run.finished else ", diverged" if run.diverged else ", unfinished"
    return [
        *(Entry(str(run.path)), Entry(str(run.seed)), Entry(f"{run.last_round}{state}")),
        *(*_final(alone(run.final)), *_best(alone(run.best))),
        *(count(last.get(name)) for name in (("models_up", "models_down") if sent else ())),
        *_sent(last, sent),
        Entry(f"{seconds:.2f}", seconds) if isinstance(seconds, int | float) else Entry(MISSING),
        Entry(str(run.summary.get("device", MISSING)), is_text=True),
    ]
