"""What the commands write and print."""

import json
import subprocess
import sys

import numpy as np
import pytest

from rscfed_jax.cli import commands
from rscfed_jax.config import SETTINGS, Config
from rscfed_jax.config.registry import metrics
from rscfed_jax.storage.tensorboard import EventLog
from tests.helpers import SMALL, flags_of, records_of, run, saved_rounds
from tests.report.runs import write_run

TINY = flags_of(SMALL)
NETWORK = ["--model", SMALL["model"]]
WARM = [*TINY, "--rounds=3", "--eval-every=4", "--warmup-rounds=1", "--checkpoint-every=2"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A new working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run directory, and what its command printed."""
    here = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here)
        assert run("train", *WARM, "--out", "run", "--tensorboard") == 0
    return here / "run"


def evaluated(capsys, *arguments):
    """What `evaluate` prints in its last line."""
    capsys.readouterr()
    assert run("evaluate", *arguments) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_train_writes_the_contract(trained):
    settings = json.loads((trained / "config.json").read_text())
    assert set(settings) == {*SETTINGS, "method_hash", "model_hash", "given"}
    assert set(settings["given"]) == {*SMALL, "warmup_rounds", "checkpoint_every"}
    assert (settings["rounds"], settings["repeat"], settings["beta"]) == (3, "retrain", 10_000.0)
    assert (settings["method_hash"], settings["model"], len(settings["model_hash"])) == (None, "tiny_network", 16)
    records = records_of(trained)
    assert [record["round"] for record in records] == [0, 3]
    assert all(0 <= records[-1][name] <= 1 for name in metrics())
    assert {"labeled_loss", "consistency_loss", "models_up", "bytes_down"} <= set(records[-1])
    assert [record["models_up"] for record in records] == [1, 1 + 3 * 15]
    assert records[-1]["models_down"] <= records[-1]["models_up"]
    assert set(records[-1]["client_weights"]) <= set(map(str, range(10)))
    summary = json.loads((trained / "summary.json").read_text())
    assert summary["final"] == {name: records[-1][name] for name in metrics()}
    assert summary["best"] == {"round": 3, **summary["final"]}
    assert {"seconds_per_round", "compile_seconds", "device", "versions"} <= set(summary)
    assert np.sum(summary["confusion"]) == 40
    partition = json.loads((trained / "partition.json").read_text())
    assert sum(map(sum, partition["class_counts"])) == 120
    assert [labels > 0 for labels in partition["labels"]].count(True) == 1
    assert (trained / "curve.png").stat().st_size > 5_000
    assert saved_rounds(trained) == [0, 2, 3]
    assert len(list((trained / "tensorboard").iterdir())) == 1


def test_train_prints_a_table_and_the_place_of_its_files(here, capsys, trained):
    assert run("train", *WARM, "--out", trained, "--resume") == 0  # finished: it only tells
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0].split() == ["in", "percent", *metrics()]
    assert lines[1].startswith("mean of last 5 evaluations")
    assert lines[2].startswith("best, round 3 (oracle)")
    assert lines[-2:] == [f"curve: {trained}/curve.png", f"run:   {trained}"]
    assert "the run is finished" in err


@pytest.mark.parametrize("log", commands.LOGS, ids=lambda log: log.name)
def test_a_log_without_its_package_is_refused_before_jax_starts(here, monkeypatch, capsys, log):
    monkeypatch.setitem(sys.modules, log.package, None)
    monkeypatch.setattr(commands, "start_jax", lambda *_: pytest.fail("JAX was started"))
    assert run("train", *TINY, "--out", "run", f"--{log.name}") == 2
    needed = f"--{log.name} run: needs the package {log.package}: pip install {log.package}"
    assert capsys.readouterr().err == f"rscfed-jax train: error: {needed}\n"
    assert list(here.iterdir()) == []


def test_a_log_that_cannot_be_reached_is_refused_before_jax_starts(here, monkeypatch, capsys):
    monkeypatch.setattr(commands, "start_jax", lambda *_: pytest.fail("JAX was started"))
    monkeypatch.setattr(EventLog, "reach", lambda _: 1 / 0)
    assert run("train", *TINY, "--out", "run", "--tensorboard") == 2
    assert capsys.readouterr().err == "rscfed-jax train: error: --tensorboard run: division by zero\n"
    assert list(here.iterdir()) == []


def test_a_log_that_fails_does_not_end_the_run(here, monkeypatch, capsys):
    writer = pytest.importorskip("tensorboardX.event_file_writer").EventsWriter
    write = writer.write_event

    def fails_later(self, event):
        if event.step > 0:
            raise OSError(28, "No space left on device")
        return write(self, event)

    with monkeypatch.context() as patch:
        patch.setattr(writer, "write_event", fails_later)
        assert run("train", *WARM, "--out", "run", "--quiet", "--tensorboard") == 0
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("rscfed-jax: warning: --tensorboard: [Errno 28] No space left on device; the run")
    assert [record["round"] for record in records_of("run")] == [0, 3]
    assert run("train", *WARM, "--out", "run", "--quiet", "--tensorboard", "--resume") == 0
    first, second = sorted((here / "run" / "tensorboard").iterdir())
    assert second.stat().st_size > first.stat().st_size


def test_a_run_has_a_default_place(here):
    assert run("train", *TINY, "--quiet", "--seed", "4", "--checkpoint-every", "9") == 0
    assert (here / "runs" / "synthetic-rscfed-seed4" / "summary.json").exists()


def test_evaluate_agrees_with_the_last_record(capsys, trained):
    found = evaluated(capsys, trained, *NETWORK)
    assert found == pytest.approx({"round": 3} | {name: records_of(trained)[-1][name] for name in metrics()})
    assert evaluated(capsys, trained / "checkpoints" / "3", *NETWORK) == found
    assert evaluated(capsys, trained / "checkpoints" / "2", *NETWORK)["round"] == 2


def test_evaluate_takes_a_run_of_a_method_that_refuses_a_setting(tmp_path, capsys):
    assert run("train", *TINY, "--method", "cbafed", "--rounds", "1", "--out", tmp_path / "run", "--quiet") == 0
    assert evaluated(capsys, tmp_path / "run", *NETWORK)["round"] == 1


def test_evaluate_takes_other_image_sizes_than_the_run_had_crops_for(tmp_path, capsys):
    settings = [*TINY, "--model", "resnet8", "--rounds", "1", "--out", tmp_path / "run", "--quiet"]
    assert run("train", *settings) == 0
    assert evaluated(capsys, tmp_path / "run", "--image-size", "32")["round"] == 1


def test_evaluate_refuses_a_run_of_data_that_its_settings_do_not_name(tmp_path, capsys, trained):
    out = tmp_path / "run"
    out.mkdir()
    stored = json.loads((trained / "config.json").read_text()) | {"model": "simple-cnn", "model_hash": None}
    (out / "config.json").write_text(json.dumps(stored))
    (out / "checkpoints").symlink_to(trained / "checkpoints")
    partition = json.loads((trained / "partition.json").read_text())
    (out / "partition.json").write_text(json.dumps(partition | {"test_counts": [20, 20, 0]}))
    for flags in ([], ["--download"]):
        assert run("evaluate", out, *flags) == 2
        assert f"PATH {out}: the run has different test samples than synthetic:" in capsys.readouterr().err
    assert evaluated(capsys, out, TINY[0], *NETWORK)["round"] == 3  # told by hand


def test_a_model_travels_from_a_run_to_a_file_and_into_the_next_run(here, capsys, trained):
    assert run("export", trained, "model.safetensors") == 0
    assert "model of round 3: model.safetensors" in capsys.readouterr().out
    of_run = evaluated(capsys, trained, *NETWORK)
    assert evaluated(capsys, "model.safetensors", *TINY[:2], *NETWORK) == of_run | {"round": None}
    assert run("train", *TINY, "--init-from", "model.safetensors", "--out", "next", "--quiet") == 0
    assert records_of("next")[0]["accuracy"] == pytest.approx(of_run["accuracy"])
    assert run("export", trained / "checkpoints" / "2", "model.safetensors", "--force") == 0
    earlier = evaluated(capsys, trained / "checkpoints" / "2", *NETWORK)
    assert evaluated(capsys, "model.safetensors", *TINY[:2], *NETWORK) == earlier | {"round": None}


def test_a_model_that_does_not_fit_is_refused_and_nothing_is_overwritten_unasked(here, capsys, trained):
    assert run("export", trained, "model.safetensors") == 0
    before = (here / "model.safetensors").read_bytes()
    capsys.readouterr()
    for arguments, said in [
        (["export", trained, "model.safetensors"], "FILE model.safetensors: already exists; add --force"),
        (["export", trained / "checkpoints" / "7", "new.safetensors"], "checkpoints/7: is not a run directory"),
        (["evaluate", "model.safetensors", TINY[0]], "PATH model.safetensors: lacks the tensor features.conv1"),
        (["evaluate", trained, "--model", "simple-cnn"], f"PATH {trained}: its model has different parameters"),
        (["evaluate", trained], "--model tiny_network: is not built in: give the file it came from"),
    ]:
        assert run(*arguments) == 2
        [line] = capsys.readouterr().err.splitlines()
        assert said in line
    assert (here / "model.safetensors").read_bytes() == before


def test_data_prints_what_was_found_and_draws_and_exports_the_partition(here, capsys):
    files = ("--figure", "partition.png", "--export", "partition.npz")
    assert run("data", "fashion", "--clients", "3", *files) == 0
    out = capsys.readouterr().out
    assert "fashion: embedded in the package\n12000 training and 2000 test images, 28x28x1" in out
    assert "mean of the training images: 0.2865 0.2865 0.2865; these are in use" in out
    assert "     9    1200     200  ankle boot" in out
    assert (here / "partition.png").stat().st_size > 10_000
    again = ["--clients", "3", "--partition-file", "partition.npz", "--labeled-choice", "random"]
    assert run("data", "fashion", *again) == 0

    def counts(text):
        return [line.split()[2:] for line in text[text.index("client labels") :].splitlines()[1:4]]

    assert counts(capsys.readouterr().out) == counts(out)


def test_many_classes_are_not_all_shown(capsys):
    assert run("data", "synthetic:train=300,test=60,classes=30") == 0
    assert "(classes 20 to 29 not shown)" in capsys.readouterr().out


@pytest.fixture
def cells(here):
    """A working directory with runs of two methods, one of them with two seeds."""
    for seed in (0, 1):
        write_run(here / "cells" / f"rscfed-seed{seed}", seed=seed)
    write_run(here / "cells" / "fedavg", method="fedavg")
    return here / "cells"


def test_report_writes_a_page_and_says_where(cells, capsys):
    assert run("report", "cells") == 0
    *table, where = capsys.readouterr().out.splitlines()
    assert where == "report of 3 runs: cells/report.html"
    assert sorted(line.split()[0] for line in table) == ["fedavg", "in", "rscfed"]
    assert (cells / "report.html").read_text().startswith("<!doctype html>")
    assert run("report", "cells/fedavg", "--out", "one.md") == 0
    assert capsys.readouterr().out.endswith("\nreport of 1 run: one.md\n")


def test_report_prints_its_notes(cells, capsys):
    (write_run(cells / "silent") / "metrics.jsonl").unlink()
    write_run(cells / "short", finished=False, stop=3)
    assert run("report", "cells", "--format", "md") == 0
    *notes, last = capsys.readouterr().out.splitlines()
    assert any("cells/silent" in note for note in notes)
    assert last == "report of 4 runs: cells/report.md"


def test_report_does_not_import_jax(cells):
    code = (
        "import sys; from rscfed_jax.cli import main; assert main(['report', 'cells']) == 0; "
        "assert 'jax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, cwd=cells.parent)


def test_plan_ends_in_one_json_object(capsys):
    assert run("plan", *TINY, "--memory", "64MB", "--flops", "1T") == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [row["clients"] for row in told["clients"]] == [10, 50, 500, 10_000]
    assert all(row["hours"] > 0 for row in told["clients"])


def test_a_grid_from_the_command_line(here, capsys):
    flags = [*TINY, "--set", "beta=0,10000", "--set", "tau=0.5,1", "--out", "grid", "--quiet", "--cells-at-once", "1"]
    assert run("grid", *flags, "--dry-run") == 0
    out = capsys.readouterr().out
    assert "program 2: 1 cell, 0.0" in out
    assert "beta-10000_tau-1, seed 0" in out
    assert "4 runs, 0 of them finished; 4 programs" in out
    assert list(here.iterdir()) == []
    assert run("grid", *flags) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0].split() == ["beta", "tau", "seeds", *metrics(), "best_oracle"]
    assert "\n4 runs, " in out
    assert "files: grid/grid.csv, summary.csv, summary.md, heatmap.png" in out
    assert run("grid", *flags, "--dry-run") == 0
    assert "beta-0_tau-0.5, seed 0: finished\n" in capsys.readouterr().out


def test_the_config_of_a_run_is_one_that_a_config_is_made_of(trained):
    stored = json.loads((trained / "config.json").read_text())
    assert Config(**stored).to_dict() == stored


@pytest.mark.slow
def test_resnet_trains_and_travels_through_a_file(here, capsys):
    few = ["--clients=2", "--subset-size=2", "--subsets=1", "--rounds=1", "--train-fraction=0.3", "--model=resnet18"]
    assert run("train", *TINY, *few, "--out", "run", "--quiet") == 0
    assert run("export", "run", "model.safetensors") == 0
    of_run = evaluated(capsys, "run")
    assert of_run["round"] == 1
    assert evaluated(capsys, "model.safetensors", *TINY[:2], "--model=resnet18") == of_run | {"round": None}
