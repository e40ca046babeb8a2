"""The page as a parser sees it: its numbers, its figures, and that nothing in it reaches out or gets in."""

import json
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pytest

from rscfed_jax.config import registry
from rscfed_jax.config.registry import metrics
from rscfed_jax.report.collect import collect
from rscfed_jax.report.page import as_html
from rscfed_jax.report.seeds import CURVES, build_report, in_a_sentence
from tests.report.runs import write_run


class Page(HTMLParser):
    """The tables, texts, figures and the data of a page."""

    def __init__(self, text):
        super().__init__()
        self.tables, self.figures, self.links, self.tags, self.folded = {}, [], [], [], []
        self.data = self.texts = ""
        self._in_data = False
        self._cell = None
        self.feed(text)
        self.close()
        self.data = json.loads(self.data)

    def handle_starttag(self, tag, attributes):
        """Begins a cell, or takes note of what the tag is."""
        attributes = dict(attributes)
        self.tags.append(tag)
        self.links += [value for name, value in attributes.items() if name in ("src", "href", "action")]
        if "data-figure" in attributes:
            self.figures.append(attributes["data-figure"])
        if tag == "table":
            self._rows = self.tables[attributes["id"]] = []
        if tag == "tr":
            self._rows.append([])
        if tag in ("td", "th"):
            self._cell = {"text": "", "label": attributes.get("data-label"), "value": attributes.get("data-value")}
            self._cell |= {"sort": attributes.get("aria-sort"), "first": attributes.get("data-first"), "best": False}
            self._rows[-1].append(self._cell)
        if tag == "strong" and self._cell is not None:
            self._cell["best"] = True
        if tag == "details":
            self.folded.append("open" not in attributes)
        self._in_data = attributes.get("id") == "data"

    def handle_endtag(self, tag):
        """Ends a cell."""
        self._in_data = False
        if tag in ("td", "th"):
            self._cell = None

    def handle_data(self, text):
        """Adds to the cell, or to the data of the script."""
        if self._in_data:
            self.data += text
        elif self._cell is not None:
            self._cell["text"] += text
        self.texts += text

    def lines(self, table):
        """The lines below the head, by the names of the columns."""
        names = [cell["text"] for cell in self.tables[table][0]]
        return [dict(zip(names, line, strict=True)) for line in self.tables[table][1:]]

    def best(self, table):
        """The runs whose number is in bold, by column."""
        lines = self.lines(table)
        return {
            name: [line["Run"]["text"] for line in lines if line[name]["best"]]
            for name in lines[0]
            if any(line[name]["best"] for line in lines)
        }


def page_of(path):
    return Page(as_html(build_report(collect([path]))))


ALL = ["accuracy", "auc", "communication", "partition", "weights", "client_accuracy", "confusion"]
JUDGED = ["kept_share", "kept_accuracy", "kept_share_by_class", "kept_accuracy_by_class"]


def test_the_numbers_are_those_of_the_summary(tmp_path):
    for name, seed in (("rscfed-seed0", 0), ("rscfed-seed1", 1)):
        write_run(tmp_path / name, seed=seed, behind=0.1)
    write_run(tmp_path / "fedavg", method="fedavg")
    page = page_of(tmp_path)
    summaries = {path.parent.name: json.loads(path.read_text()) for path in tmp_path.glob("*/summary.json")}
    assert len(page.lines("runs")) == 3
    for line in page.lines("runs"):
        summary = summaries[line["Directory"]["text"].rpartition("/")[2]]
        shown = [("Final", "final", metric) for metric in metrics()] + [("Best", "best", metric) for metric in CURVES]
        for start, part, metric in shown:
            cell = line[f"{start} {in_a_sentence(metrics()[metric])}"]
            assert float(cell["value"]) == summary[part][metric]
            assert cell["text"] == f"{100 * summary[part][metric]:.2f}"
        assert int(line["Best round"]["text"]) == summary["best"]["round"]
    alone, together = page.lines("final")
    assert float(alone["Accuracy"]["value"]) == summaries["fedavg"]["final"]["accuracy"]
    assert alone["Accuracy"]["label"] == "Accuracy"
    assert " ± " in together["Accuracy"]["text"]
    assert together["Seeds"]["text"] == "0, 1"
    mean = sum(summaries[f"rscfed-seed{seed}"]["final"]["recall"] for seed in (0, 1)) / 2
    assert float(together["Recall"]["value"]) == pytest.approx(mean)
    assert {line["Run"]["text"]: line["method"]["text"] for line in page.lines("differing")} == {
        "fedavg": "fedavg",
        "rscfed": "rscfed",
    }


def test_rows_are_in_the_order_of_accuracy(tmp_path):
    for name, behind in (("b", 0.0), ("c", 0.1), ("a", 0.05)):
        write_run(tmp_path / name, tau=0.5 + behind, behind=behind)
    page = page_of(tmp_path)
    for table in ("final", "best"):
        assert [line["Run"]["text"] for line in page.lines(table)] == ["b", "a", "c"]
        accuracies = [float(line["Accuracy"]["value"]) for line in page.lines(table)]
        assert accuracies == sorted(accuracies, reverse=True)
        assert {head["text"]: head["sort"] for head in page.tables[table][0] if head["sort"]} == {
            "Accuracy": "descending"
        }
    assert [line["Run"]["text"] for line in page.lines("differing")] == ["b", "a", "c"]
    assert [line["name"] for line in page.data["lines"]] == ["b", "a", "c"]


def test_columns_begin_with_their_better_end(tmp_path):
    write_run(tmp_path / "run")
    heads = page_of(tmp_path).tables["final"][0]
    assert [head["text"] for head in heads if head["first"] == "ascending"] == [
        "Run",
        "Calibration error",
        "Sent up, MB",
        "Sent down, MB",
    ]


def test_the_best_are_bold_the_lowest_calibration_error_too(tmp_path):
    write_run(tmp_path / "ahead", tau=0.5)
    write_run(tmp_path / "after", tau=0.9, behind=0.1)  # every metric is lower
    page = page_of(tmp_path)
    best = page.best("final")
    assert list(best) == list(metrics().values())
    assert best.pop("Calibration error") == ["after"]
    assert list(best.values()) == [["ahead"]] * (len(metrics()) - 1)
    assert page.best("best") == {"Accuracy": ["ahead"], "AUC": ["ahead"]}
    assert "The best number of each metric is in bold." in page.texts
    write_run(tmp_path / "going", tau=0.7, finished=False, stop=2)
    assert "in bold; unfinished runs do not count." in page_of(tmp_path).texts


def test_one_line_is_not_the_best_of_anything(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path / f"rscfed-seed{seed}", seed=seed)
    page = page_of(tmp_path)
    assert page.best("final") == page.best("best") == {}
    assert "in bold" not in page.texts.partition("Two runs compared")[0]


def test_what_was_sent_has_a_column(tmp_path):
    write_run(tmp_path / "short", rounds=5)
    write_run(tmp_path / "long", rounds=20)
    write_run(tmp_path / "going", rounds=20, tau=0.9, finished=False, stop=10)
    silent = write_run(tmp_path / "silent", tau=0.7)
    kept = [json.loads(line) for line in (silent / "metrics.jsonl").read_text().splitlines()]
    kept = [{name: record[name] for name in record if "bytes" not in name and "models" not in name} for record in kept]
    (silent / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in kept))
    page = page_of(tmp_path)
    shown = {line["Run"]["text"]: line for line in page.lines("final")}
    assert {name: (line["Sent up, MB"]["text"], line["Sent down, MB"]["text"]) for name, line in shown.items()} == {
        "short": ("11.00", "7.50"),
        "long": ("44.00", "30.00"),
        "going, unfinished": ("22.00", "15.00"),
        "silent": ("–", "–"),
    }
    assert float(shown["long"]["Sent up, MB"]["value"]) == 44_000_000
    models = {line["Directory"]["text"].rpartition("/")[2]: line["Models down"]["text"] for line in page.lines("runs")}
    assert models == {"short": "20", "long": "80", "going": "40", "silent": "–"}
    assert "Sent up, MB" not in page_of(silent).lines("final")[0]
    assert "Models up" not in page_of(silent).lines("runs")[0]


def test_seeds_have_a_band_around_their_mean(tmp_path):
    for seed in (0, 1, 2):
        write_run(tmp_path / f"rscfed-seed{seed}", seed=seed)
    write_run(tmp_path / "alone", method="fedavg")
    lines = {line["name"]: line for line in page_of(tmp_path).data["lines"]}
    for number in range(7):
        records = [
            json.loads((tmp_path / f"rscfed-seed{seed}" / "metrics.jsonl").read_text().splitlines()[number])
            for seed in (0, 1, 2)
        ]
        values = [record["accuracy"] for record in records]
        assert lines["rscfed"]["accuracy"][number] == pytest.approx([np.mean(values), np.std(values, ddof=1)], abs=1e-6)
        assert len(lines["alone"]["accuracy"][number]) == 1


def test_many_settings_are_folded_and_few_are_not(tmp_path):
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", tau=0.9)
    page = page_of(tmp_path)
    assert page.folded == [False, True, True]  # settings that differ, all runs, settings in common
    assert "Settings that differ (1)" in page.texts
    write_run(tmp_path / "c", tau=0.8, beta=3.0, lambda_u=0.5, momentum=0.1, batch_size=7)
    page = page_of(tmp_path)
    assert page.folded == [True, True, True]
    assert len(page.lines("differing")) == 3


def test_long_values_are_folded_but_whole(tmp_path):
    path = f"npz:{'folder/' * 10}x.npz"
    write_run(tmp_path / "run", dataset=path)
    page = page_of(tmp_path)
    assert page.folded == [True, True, True]  # all runs, settings in common, the value
    (value,) = (line["Value"] for line in page.lines("common") if line["Setting"]["text"] == "dataset")
    assert value["text"].endswith(path)
    assert len(value["text"]) < len(path) + 40


def test_many_notes_are_folded(tmp_path):
    for number in range(8):
        write_run(tmp_path / f"cell{number}", tau=0.1 + 0.1 * number, finished=False, stop=2)
    page = page_of(tmp_path)
    assert page.folded[0]
    assert "5 more" in page.texts  # four of the unfinished, and the one on confusion matrices
    assert all(f"cell{number} is not finished" in page.texts for number in range(8))


def test_many_lines_are_on_the_page(tmp_path):
    for number in range(35):
        write_run(tmp_path / f"cell{number}", tau=0.01 + 0.02 * number, old=number % 7 == 0, rounds=3)
    page = page_of(tmp_path)
    assert len(page.lines("final")) == len(page.data["lines"]) == len(page.data["comparison"]["items"]) == 35
    assert "At first the 10 most accurate of 35 lines are shown." in page.texts


def test_the_figures_have_their_data(tmp_path):
    path = write_run(tmp_path / "run")
    page = page_of(path)
    records = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    partition = json.loads((path / "partition.json").read_text())
    assert page.figures == ALL
    (line,), (run,) = page.data["lines"], page.data["runs"]
    assert line["round"] == [record["round"] for record in records]
    assert [point[0] for point in line["accuracy"]] == [round(record["accuracy"], 6) for record in records]
    assert line["bytes_up"] == [record["bytes_up"] for record in records]
    assert run["partition"] == partition
    assert run["confusion"]["names"] == partition["class_names"]
    weights = run["weights"]
    assert weights["clients"] == list(range(5))
    for record in records[1:]:
        column = weights["rounds"].index(record["round"])
        shown = {str(c): row[column] for c, row in zip(weights["clients"], weights["rows"], strict=True)}
        assert {c: w for c, w in shown.items() if w is not None} == pytest.approx(record["client_weights"], rel=1e-3)


def test_pseudo_labels_have_a_section_where_some_run_has_them(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path / f"fedirm-seed{seed}", seed=seed, method="fedirm", pseudo_labels=True)
    write_run(tmp_path / "rscfed")
    write_run(tmp_path / "old", method="fedavg", old=True)
    page = page_of(tmp_path)
    assert page.figures == [*ALL[:3], "recall_difference", *JUDGED, *ALL[3:]]
    records = [
        [json.loads(line) for line in (tmp_path / f"fedirm-seed{seed}" / "metrics.jsonl").read_text().splitlines()]
        for seed in (0, 1)
    ]
    (row,) = page.lines("pseudo")
    assert (row["Run"]["text"], row["Seeds"]["text"]) == ("fedirm", "0, 1")
    last_five = [record["kept_share"] for of_run in records for record in of_run[-5:]]
    assert float(row["Share of samples kept"]["value"]) == pytest.approx(np.mean(last_five))
    line, *others = page.data["lines"]
    assert not any("kept_share" in other for other in others)
    assert line["kept_accuracy"][0] is None  # round 0
    for number in range(1, 7):  # mean and deviation over seeds: the band
        values = [of_run[number]["kept_accuracy"] for of_run in records]
        assert line["kept_accuracy"][number] == pytest.approx([np.mean(values), np.std(values, ddof=1)], abs=1e-6)
    by_class = page.data["by_class"]
    assert by_class["lines"] == [0]
    assert by_class["class_names"] == [f"kind {label}" for label in range(4)]
    means = np.mean([of_run[-1]["kept_accuracy_by_class"][:3] for of_run in records], axis=0)
    assert by_class["kept_accuracy"] == [[*map(pytest.approx, means.round(4)), None]]


def test_without_pseudo_labels_there_is_no_section(tmp_path):
    write_run(tmp_path / "run")
    page = page_of(tmp_path)
    assert page.figures == ALL
    assert "pseudo" not in page.tables
    assert page.data["by_class"] is None


def test_lines_with_different_classes_share_a_heat_map(tmp_path):
    write_run(tmp_path / "a", method="fedirm", pseudo_labels=True, classes=3)
    write_run(tmp_path / "b", method="fedirm", pseudo_labels=True, classes=5)
    by_class = page_of(tmp_path).data["by_class"]
    assert [len(row) for row in by_class["kept_share"]] == [5, 5]
    assert by_class["kept_share"][0][3:] == [None, None]
    assert len(by_class["class_names"]) == 5


def test_the_accuracy_of_clients_is_shown_over_rounds(tmp_path):
    path = write_run(tmp_path / "run")
    shown = page_of(path).data["runs"][0]["client_accuracy"]
    records = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    assert shown["rounds"] == [record["round"] for record in records]
    columns = np.array(shown["rows"]).T
    np.testing.assert_allclose(columns, [record["client_accuracy"] for record in records], atol=1e-4)
    write_run(tmp_path / "large", clients=300)
    assert page_of(tmp_path / "large").data["runs"][0]["client_accuracy"] is None


def test_the_page_needs_no_network(tmp_path):
    write_run(tmp_path / "run")
    text = as_html(build_report(collect([tmp_path])))
    assert Page(text).links == ["data:,"]
    assert "default-src 'none'" in text
    assert "@import" not in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "").replace("http-equiv", "")


def test_what_a_run_did_not_record_is_left_out_and_said(tmp_path):
    write_run(tmp_path / "old", old=True)
    page = page_of(tmp_path)
    assert page.figures == ALL[:3]
    assert "partition.json is missing" in page.texts
    assert "select" not in page.tags
    assert page.lines("final")[0]["Macro F1"]["text"] == "–"
    assert page.lines("final")[0]["Recall"]["text"] != "–"


def test_every_declared_metric_has_a_column(tmp_path, monkeypatch):
    metrics = {"accuracy": "Accuracy", "auc": "AUC", "kappa": "Kappa"}
    literals = {"METRICS": metrics, "LOWER_IS_BETTER": ()}
    monkeypatch.setattr(registry, "_literals_of_metrics", lambda: literals)
    write_run(tmp_path / "run")
    page = page_of(tmp_path)
    assert list(page.lines("final")[0]) == ["Run", "Seeds", "Accuracy", "AUC", "Kappa", "Sent up, MB", "Sent down, MB"]
    assert list(page.lines("best")[0]) == ["Run", "Seeds", "Accuracy", "AUC", "Round"]
    assert page.lines("runs")[0]["Final kappa"]["value"] is not None


def test_runs_without_auc_and_bytes(tmp_path):
    path = write_run(tmp_path / "run", finished=False, stop=1)
    (path / "metrics.jsonl").write_text('{"round": 0, "accuracy": 0.5}\n{"round": 5, "accuracy": 0.75}\n')
    page = page_of(path)
    assert page.figures == ["accuracy", "partition"]
    assert "No AUC for" in page.texts
    assert page.lines("final")[0]["AUC"]["text"] == "–"
    assert page.lines("runs")[0]["Round"]["text"] == "5, unfinished"


def test_names_cannot_become_markup(tmp_path):
    nasty = "</script><img src=x onerror=alert(1)>&\"'"
    write_run(tmp_path / "a<b>&c", class_names=[nasty, *"123"], dataset=f"npz:{nasty}")
    page = page_of(tmp_path)
    assert "img" not in page.tags
    assert "b" not in page.tags
    assert page.data["runs"][0]["partition"]["class_names"][0] == nasty
    assert page.data["lines"][0]["name"] == "a<b>&c"
    assert nasty in page.texts


def test_a_large_federation_is_cut_and_that_is_said(tmp_path):
    write_run(tmp_path / "run", clients=300)
    page = page_of(tmp_path)
    assert len(page.data["runs"][0]["partition"]["class_counts"]) == 200
    assert "Only the first 200 clients are shown." in page.texts


def test_a_report_does_not_start_jax():
    code = "import sys, rscfed_jax.report.write; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
