"""Figures of small and large federations."""

import os

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from rscfed_jax.report.plots import (
    Curve,
    add_legend,
    draw_confusion,
    draw_curves,
    draw_partition,
    draw_weights,
    plot_confusion,
    plot_curves,
    plot_heatmap,
    plot_partition,
    plot_pseudo_labels,
    plot_weights,
)


def test_curves_of_several_runs(tmp_path):
    names = ("rscfed", "cost$1_{$2")
    runs = {name: [{"round": r, "accuracy": r / 9, "auc": 0.5} for r in range(9)] for name in names}
    plot_curves(runs, tmp_path / "curves.png", title="Fashion-MNIST")
    plot_curves(runs, tmp_path / "curves.svg")
    assert "<svg" in (tmp_path / "curves.svg").read_text()
    assert (tmp_path / "curves.png").stat().st_size > 5_000


def test_curves_of_a_run_that_lacks_a_metric(tmp_path):
    records = [{"round": r, "accuracy": r / 9} for r in range(5)]
    plot_curves({"old": records, "new": [record | {"auc": None} for record in records]}, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 5_000


def judged(shares, accuracies, rounds=4):
    """Records of a run with pseudo-labels."""
    by_class = {"kept_share_by_class": shares, "kept_accuracy_by_class": accuracies}
    return [
        {"round": 0},
        *({"round": r, "kept_share": 0.5, "kept_accuracy": None, **by_class} for r in range(1, rounds)),
    ]


def test_pseudo_labels_of_runs_with_and_without_any(tmp_path):
    runs = {"$one_{": judged([0.25, None], [1.0, None]), "other": judged([0.75], [None]), "none": [{"round": 0}]}
    plot_pseudo_labels(runs, tmp_path / "p.svg", title="Two runs")
    text = (tmp_path / "p.svg").read_text()
    assert all(text.count(f"<!-- {said} -->") == 1 for said in ("25", "75", "Two runs"))
    assert "<!-- $one_{ -->" in text
    assert "<!-- none -->" not in text
    assert "<!-- nan" not in text
    with pytest.raises(ValueError, match="no run has pseudo-labels"):
        plot_pseudo_labels({"none": [{"round": 0}]}, tmp_path / "p.png")


def test_pseudo_labels_of_many_classes_and_before_the_first_round(tmp_path):
    rng = np.random.default_rng(0)
    plot_pseudo_labels({"many": judged(*rng.random((2, 100)).tolist())}, tmp_path / "p.png")
    plot_pseudo_labels({"started": [*judged([0.5], [0.5]), {"round": 9}]}, tmp_path / "q.png")
    assert (tmp_path / "p.png").stat().st_size > 5_000


def texts_in(figure):
    return [text.get_text() for text in figure.axes[0].texts]


def test_numbers_are_written_only_where_there_is_room():
    counts = np.full((20, 20), 1234)
    large, small = Figure(figsize=(11, 9)), Figure(figsize=(4, 4))
    for figure in (large, small):
        draw_confusion(figure.subplots(), counts)
    assert texts_in(large) == ["1234"] * 400
    assert texts_in(small) == []


def test_names_beside_an_axis_are_thinned_out_and_labeled_clients_marked():
    figure = Figure(figsize=(5, 4))
    draw_partition(figure.subplots(), np.ones((100, 4), int), np.arange(100) == 0)
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert names[0] == "0 (labeled)"
    assert 10 < len(names) < 40


def test_a_long_name_beside_an_axis_is_cut_where_one_sees_it(tmp_path):
    plot_confusion(np.ones((2, 2), int), tmp_path / "c.svg", class_names=["balanced_labels", "a" * 21])
    written = (tmp_path / "c.svg").read_text()
    assert "<!-- balanced_labels -->" in written
    assert f"<!-- {'a' * 20}... -->" in written


def test_a_name_is_never_read_as_a_formula(tmp_path):
    plot_confusion(np.ones((2, 2), int), tmp_path / "c.svg", class_names=["$x_1", "cost$1_{$2"])
    assert "<!-- $x_1 -->" in (tmp_path / "c.svg").read_text()


def test_a_heat_map_is_of_two_settings(tmp_path):
    summary = [{"beta": beta, "tau": tau, "accuracy": 0.5} for beta in (0.0, 1.0) for tau in (0.5, 1.0)]
    summary[1]["accuracy"] = None
    plot_heatmap(summary[:3], "beta", "tau", tmp_path / "h.svg")
    assert (tmp_path / "h.svg").read_text().count("<!-- diverged -->") == 1  # and not where the grid has no point
    with pytest.raises(ValueError, match="several points have the same beta and tau"):
        plot_heatmap([*summary, summary[0] | {"subsets": 5}], "beta", "tau", tmp_path / "h.svg")


@pytest.mark.parametrize(("clients", "classes"), [(3, 2), (100, 100)])
def test_partitions(tmp_path, clients, classes):
    counts = np.random.default_rng(0).integers(0, 50, (clients, classes))
    plot_partition(counts, np.arange(clients) == 0, tmp_path / "p.png")
    assert (tmp_path / "p.png").stat().st_size > 3_000


def test_the_row_of_a_server_that_holds_the_labels_is_named():
    figure, labeled = Figure(), np.array([False, False, True])
    first, second = figure.subplots(2)
    draw_partition(first, np.ones((3, 2), int), labeled, server=2)
    draw_weights(second, np.ones((2, 4)) / 2, range(4), [1, 2], labeled, server=2)
    assert [label.get_text() for label in first.get_yticklabels()] == ["0", "1", "server"]
    assert [label.get_text() for label in second.get_yticklabels()] == ["1", "server"]


def weight_pixels(tmp_path, weight):
    """The heat map of four clients over six rounds, client 2 with `weight` in the last."""
    records = [{"round": r, "client_weights": {"0": 0.5, "2": 0.25}} for r in range(7)]
    records[-1]["client_weights"]["2"] = weight
    plot_weights(records, [True, False, False, False], tmp_path / "w.png")
    return (tmp_path / "w.png").read_bytes()


def test_weights_show_what_each_client_weighed(tmp_path):
    assert weight_pixels(tmp_path, 0.25) == weight_pixels(tmp_path, 0.25)
    assert weight_pixels(tmp_path, 0.25) != weight_pixels(tmp_path, 0.1)


def test_weights_of_a_run_without_any(tmp_path):
    plot_weights([{"round": r, "client_weights": {}} for r in range(3)], [False] * 300, tmp_path / "w.png")
    assert (tmp_path / "w.png").stat().st_size > 3_000


@pytest.mark.parametrize(("classes", "names"), [(3, ("cat", "dog", "a longer name")), (4, ()), (100, ())])
def test_confusion_matrices(tmp_path, classes, names):
    counts = np.random.default_rng(0).integers(0, 50, (classes, classes))
    counts[0] = 0  # a class that the test set does not hold
    plot_confusion(counts, tmp_path / "c.svg", class_names=names)
    plot_confusion(counts, tmp_path / "c.png", class_names=names)
    assert (tmp_path / "c.png").stat().st_size > 3_000
    assert "<!-- nan" not in (tmp_path / "c.svg").read_text()


def test_a_picture_is_there_as_a_whole_or_not_at_all(tmp_path, monkeypatch):
    runs = {"a": [{"round": r, "accuracy": r / 9, "auc": 0.5} for r in range(3)]}
    plot_curves(runs, tmp_path / "curve.png")
    before = (tmp_path / "curve.png").read_bytes()

    def fail(number):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        plot_curves(runs, tmp_path / "curve.png", title="Another")
    assert [file.name for file in tmp_path.iterdir()] == ["curve.png"]
    assert (tmp_path / "curve.png").read_bytes() == before


@pytest.mark.parametrize(
    "names",
    [["rscfed", "sso", "fedavg"], ["FedAvg, the labeled client alone (lower bound)"] * 4],
    ids=["short", "long"],
)
def test_the_legend_fits_below_the_figure(names):
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    draw_curves(figure.subplots(), [Curve(name, [0, 1], [0.2, 0.3], [0, 0]) for name in names], metric="accuracy")
    add_legend(figure, most_columns=3)
    FigureCanvasAgg(figure)
    figure.draw_without_rendering()
    box = figure.legends[0].get_window_extent()
    assert 0 <= box.x0 < box.x1 <= figure.bbox.width
    assert box.height < (30 if len(names) == 3 else 80)  # in pixels: one line, or two
