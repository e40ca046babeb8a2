"""The report as one picture."""

import pytest

from rscfed_jax.report.collect import collect
from rscfed_jax.report.poster import as_png
from rscfed_jax.report.seeds import build_report
from tests.report.runs import write_run


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("finished", [False, True])
def test_the_picture_of_small_and_large_runs(tmp_path, old, finished):
    write_run(tmp_path / "fedirm", method="fedirm", pseudo_labels=finished)
    write_run(tmp_path / "_run$1_{$2", old=old, finished=finished, classes=60, clients=50)
    for seed in (0, 1):
        write_run(tmp_path / f"rscfed-seed{seed}", seed=seed)
    content = as_png(build_report(collect([tmp_path])))
    assert content.startswith(b"\x89PNG")
    assert len(content) > 20_000
