"""Pictures are drawn for small and large federations."""

import numpy as np
import pytest

from rscfed_jax.report.plots import plot_curves, plot_partition


def test_curves_of_several_runs(tmp_path):
    runs = {name: [{"round": r, "accuracy": r / 9, "auc": 0.5} for r in range(9)] for name in ("rscfed", "fedavg")}
    plot_curves(runs, tmp_path / "curves.png", title="Fashion-MNIST")
    plot_curves(runs, tmp_path / "curves.svg")
    assert "<svg" in (tmp_path / "curves.svg").read_text()
    assert (tmp_path / "curves.png").stat().st_size > 5_000


@pytest.mark.parametrize(("clients", "classes"), [(3, 2), (100, 100)])
def test_partitions(tmp_path, clients, classes):
    counts = np.random.default_rng(0).integers(0, 50, (clients, classes))
    plot_partition(counts, np.arange(clients) == 0, tmp_path / "p.png")
    assert (tmp_path / "p.png").stat().st_size > 3_000
