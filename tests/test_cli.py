"""The command line as its users meet it: what it refuses, what it writes."""

import json
import subprocess
import sys

import numpy as np
import pytest

from rscfed_jax.cli import main
from rscfed_jax.config import Config

TINY = [
    *("--dataset", "synthetic:train=120,test=40,classes=3,size=16", "--image-size", "16", "--clients", "4"),
    *("--min-client-size", "5", "--subsets", "2", "--subset-size", "2", "--batch-size", "16", "--devices", "1"),
]


def run(*arguments):
    """The exit code of a command, in this process."""
    try:
        return main([str(a) for a in arguments])
    except SystemExit as stop:
        return stop.code


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A new working directory, and a compilation cache that others do not see."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path.parent / "cache"))
    return tmp_path


def save_npz(path, **changes):
    arrays = {
        "train_images": np.zeros((20, 8, 8, 3), np.uint8),
        "train_labels": np.arange(20) % 4,
        "test_images": np.zeros((8, 8, 8, 3), np.uint8),
        "test_labels": np.arange(8) % 4,
    } | changes
    np.savez(path, **{key: value for key, value in arrays.items() if value is not None})


BAD = [
    # What is said must name the setting, the value, and what is allowed.
    (["--dataset", "mnist"], ["--dataset mnist", "fashion"]),
    (["--dataset", "svhn2"], ["--dataset svhn2", "must be"]),
    (["--dataset", "synthetic:train=none"], ["--dataset", "train=none"]),
    (["--dataset", "npz:missing.npz"], ["--dataset npz:missing.npz", "no such file"]),
    (["--dataset", "npz:keys.npz"], ["lacks train_labels"]),
    (["--dataset", "npz:dtype.npz"], ["must be uint8, not float32"]),
    (["--dataset", "npz:shape.npz"], ["must have shape N,H,W"]),
    (["--dataset", "npz:labels.npz"], ["must be from 0 to classes - 1"]),
    (["--dataset", "npz:empty.npz"], ["holds no images"]),
    (["--dataset", "npz:pickled.npz"], ["never read"]),
    (["--dataset", "npz:text.npz"], ["not a readable npz file"]),
    (["--method", "fedprox"], ["--method fedprox", "rscfed"]),
    (["--preset", "best"], ["--preset best", "paper, published, tuned"]),
    (["--model", "vgg"], ["--model vgg", "simple-cnn"]),
    (["--distance", "cosine"], ["--distance cosine", "l2, sum"]),
    (["--repeat", "never"], ["--repeat never", "retrain"]),
    (["--teacher-init", "zero"], ["--teacher-init zero", "initial"]),
    (["--labeled-choice", "best"], ["--labeled-choice best", "most-classes"]),
    (["--dtype", "float8"], ["--dtype float8", "bfloat16"]),
    (["--subset-size", "11"], ["--subset-size 11", "--clients 10"]),
    (["--subset-size", "0"], ["--subset-size 0", "at least 1"]),
    (["--subsets", "0"], ["--subsets 0", "at least 1"]),
    (["--rounds", "0"], ["--rounds 0", "at least 1"]),
    (["--rounds", "-3"], ["--rounds -3", "at least 1"]),
    (["--rounds", "ten"], ["--rounds ten", "whole number"]),
    (["--rounds", "1e3"], ["--rounds 1e3", "whole number"]),
    (["--batch-size", "0"], ["--batch-size 0", "at least 1"]),
    (["--local-epochs", "0"], ["--local-epochs 0", "at least 1"]),
    (["--clients", "0"], ["--clients 0", "at least 1"]),
    (["--labeled-clients", "11"], ["--labeled-clients 11", "--clients 10"]),
    (["--labeled-clients", "0"], ["--labeled-clients 0", "no client would hold a label"]),
    (["--labeled-fraction", "0"], ["--labeled-fraction 0", "no client would hold a label"]),
    (["--labeled-fraction", "1.1"], ["--labeled-fraction 1.1", "from 0 to 1"]),
    (["--labeled-fraction", "-0.1"], ["--labeled-fraction -0.1", "from 0 to 1"]),
    (["--labeled-fraction", "0.1", "--labeled-clients", "1"], ["excludes --labeled-clients"]),
    (["--labeled-share", "2"], ["--labeled-share 2", "from 0 to 1, or off"]),
    (["--labeled-multiplier", "0"], ["--labeled-multiplier 0", "above 0"]),
    (["--train-fraction", "0"], ["--train-fraction 0", "above 0"]),
    (["--validation", "1"], ["--validation 1", "0.9"]),
    (["--train-fraction", "1.5"], ["--train-fraction 1.5", "1"]),
    (["--gamma", "0"], ["--gamma 0", "above 0, or iid"]),
    (["--gamma", "-1"], ["--gamma -1", "above 0"]),
    (["--lr-labeled", "-0.1"], ["--lr-labeled -0.1", "at least 0"]),
    (["--lr-unlabeled", "-1"], ["--lr-unlabeled -1", "at least 0"]),
    (["--lr-labeled", "nan"], ["--lr-labeled nan", "at least 0"]),
    (["--lr-labeled", "inf"], ["--lr-labeled inf", "at least 0"]),
    (["--beta", "-1"], ["--beta -1", "at least 0"]),
    (["--lambda-u", "-1"], ["--lambda-u -1", "at least 0"]),
    (["--tau", "0"], ["--tau 0", "above 0"]),
    (["--ema", "1.5"], ["--ema 1.5", "from 0 to 1"]),
    (["--seed", "-1"], ["--seed -1", "at least 0"]),
    (["--chunk", "0"], ["--chunk 0", "at least 1, or auto"]),
    (["--devices", "some"], ["--devices some", "at least 1, or auto"]),
    (["--image-size", "30"], ["--image-size 30", "multiples of 4"]),
    (["--model", "resnet18", "--image-size", "8"], ["--image-size 8", "resnet18", "at least 16"]),
    (["--model", "resnet18", "--stem", "wide"], ["--stem wide", "cifar, imagenet"]),
    (["--eval-every", "0"], ["--eval-every 0", "at least 1"]),
    (["--partition-file", "missing.npz"], ["--partition-file missing.npz", "no such file"]),
    (["--partition-file", "range.npz", "--clients", "2", "--subset-size", "2"], ["index 12000", "0 to 11999"]),
    (["--partition-file", "twice.npz", "--clients", "2", "--subset-size", "2"], ["index 5 is used 2 times"]),
    (["--partition-file", "range.npz", "--clients", "3", "--subset-size", "2"], ["3 arrays client_0 to client_2"]),
    (["--min-client-size", "1300"], ["--min-client-size 1300", "at most 1200 each"]),
    (["--gamma", "iid", "--min-client-size", "1300"], ["--min-client-size 1300", "1200"]),
    (["--clients", "2000", "--min-client-size", "6"], ["--min-client-size 6", "in 1000 draws"]),
    (["--init-from", "missing"], ["--init-from missing", "not a run directory"]),
    (["--init-from", "missing.safetensors"], ["--init-from missing.safetensors", "cannot be read"]),
    (["--init-from", "text.safetensors"], ["--init-from text.safetensors", "not a readable safetensors file"]),
    (["--out", "taken"], ["--out taken", "holds a run already"]),
    (["--out", "text.npz/run"], ["--out text.npz/run", "cannot be written"]),
    (["--out", "text.npz"], ["--out text.npz", "cannot be written"]),
    (["--out", "x" * 300], ["--out xxx", "cannot be written"]),
    (["--init-from", "x" * 300], ["--init-from xxx", "not a run directory"]),
    (["--tau", "1e-50"], ["--tau 1e-50", "above 0"]),
    (["--beta", "1e39"], ["--beta 1e+39", "at least 0"]),
    (["--warmup-rounds", "10000000000"], ["--warmup-rounds 10000000000", "whole number"]),
    (["--speed", "a\nb"], ["unrecognized arguments"]),
    (["--out", "taken", "--resume", "--seed", "5"], ["--resume taken", "seed was 0 and is 5"]),
    (["--out", "taken", "--resume", "--rounds", "3"], ["--rounds 3", "at least its 100 rounds"]),
    (["--out", "broken", "--resume"], ["--out broken", "not readable JSON"]),
    (["--speed", "fast"], ["unrecognized arguments: --speed fast"]),
    (["--rounds"], ["--rounds", "expected one argument"]),
]


@pytest.fixture(scope="module")
def bad_files(tmp_path_factory):
    """A directory with files that hold something wrong."""
    folder = tmp_path_factory.mktemp("bad")
    save_npz(folder / "keys.npz", train_labels=None)
    save_npz(folder / "dtype.npz", train_images=np.zeros((20, 8, 8, 3), np.float32))
    save_npz(folder / "shape.npz", train_images=np.zeros((20, 8, 8), np.uint8))
    save_npz(folder / "labels.npz", train_labels=np.arange(20) - 5)
    save_npz(folder / "empty.npz", train_images=np.zeros((0, 8, 8, 3), np.uint8), train_labels=np.zeros(0, int))
    save_npz(folder / "pickled.npz", train_labels=np.array([None] * 20))
    (folder / "text.npz").write_text("hello")
    (folder / "text.safetensors").write_text("hello")
    np.savez(folder / "range.npz", client_0=np.arange(10), client_1=np.array([12_000]))
    np.savez(folder / "twice.npz", client_0=np.arange(10), client_1=np.array([5]))
    (folder / "taken").mkdir()
    (folder / "taken" / "config.json").write_text(json.dumps(Config().to_dict()))
    (folder / "broken").mkdir()
    (folder / "broken" / "config.json").write_text("{")
    return folder


@pytest.mark.parametrize(("flags", "said"), BAD, ids=[" ".join(flags) for flags, _ in BAD])
def test_bad_input_ends_in_exit_code_2_and_one_line_and_writes_nothing(bad_files, monkeypatch, capsys, flags, said):
    monkeypatch.chdir(bad_files)
    before = sorted(bad_files.rglob("*"))
    assert run("train", *flags) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("rscfed-jax")
    assert "error: " in err
    for part in said:
        assert part in err
    assert sorted(bad_files.rglob("*")) == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["evaluate", "missing"], "PATH missing: is not a run directory"),
        (["evaluate", "x" * 300], "is not a run directory"),
        (["evaluate", "missing.safetensors"], "PATH missing.safetensors: cannot be read: No such file"),
        (["evaluate", "missing/checkpoints/3"], "PATH missing/checkpoints/3: is not a run directory"),
        (["export", "missing", "model.safetensors"], "RUN_DIR missing: is not a run directory"),
        (["data", "mnist"], "--dataset mnist"),
        (["data", "fashion", "--labeled-clients", "20"], "--labeled-clients 20"),
        (["data", "fashion", "--figure", "missing/p.png"], "--figure missing/p.png"),
        (["data", "fashion", "--figure", "p.xyz"], "--figure p.xyz"),
        (["data", "fashion", "--export", "missing/p.npz"], "--export missing/p.npz"),
        (["data", "svhn"], "put train_32x32.mat and test_32x32.mat there"),
        (["data", "fashion:"], "--dataset fashion:"),
        (["train", "--image-size", "32", "--resize", "30"], "--resize 30: must be at least --image-size 32"),
        (["fly"], "invalid choice: 'fly'"),
        ([], "required: COMMAND"),
    ],
)
def test_bad_input_to_the_other_commands(here, capsys, arguments, said):
    assert run(*arguments) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1
    assert list(here.iterdir()) == []


def test_a_refusal_does_not_import_jax():
    code = (
        "import sys; from rscfed_jax.cli import main; assert main(['train', '--subset-size', '11']) == 2; "
        "assert main(['train', '--dataset', 'npz:missing']) == 2; "
        "assert main(['train', '--init-from', 'missing.safetensors']) == 2; "
        "assert main(['evaluate', 'missing.safetensors']) == 2; assert 'jax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@pytest.mark.parametrize("command", [[], ["train"], ["evaluate"], ["export"], ["data"]])
def test_help_everywhere(capsys, command):
    assert run(*command, "--help") == 0
    assert "usage: rscfed-jax" in capsys.readouterr().out


def test_help_of_train_names_every_setting(capsys):
    run("train", "--help")
    text = capsys.readouterr().out
    for name in Config.__dataclass_fields__:
        assert "--" + name.replace("_", "-") in text


def test_data_prints_what_was_found_and_draws_and_exports_the_partition(here, capsys):
    files = ("--figure", "partition.png", "--export", "partition.npz")
    assert run("data", "fashion", "--clients", "3", *files) == 0
    out = capsys.readouterr().out
    assert "fashion: embedded in the package\n12000 training and 2000 test images, 28x28x1" in out
    assert "mean of the training images: 0.2865 0.2865 0.2865; these are in use" in out
    assert "     9    1200     200  ankle boot" in out
    table = out[out.index("client labels") :]
    assert (here / "partition.png").stat().st_size > 10_000
    assert (
        run("data", "fashion", "--clients", "3", "--partition-file", "partition.npz", "--labeled-choice", "random") == 0
    )
    again = capsys.readouterr().out

    def counts(text):
        return [line.split()[2:] for line in text.splitlines()[1:4]]

    assert counts(again[again.index("client labels") :]) == counts(table)


def test_train_writes_the_contract_and_evaluate_agrees(here, capsys):
    assert run("train", *TINY, "--rounds", "3", "--warmup-rounds", "1", "--eval-every", "2", "--out", "run") == 0
    out = capsys.readouterr().out
    assert "accuracy" in out
    assert "run/curve.png" in out
    settings = json.loads((here / "run" / "config.json").read_text())
    assert set(settings) == set(Config.__dataclass_fields__)
    assert (settings["rounds"], settings["repeat"], settings["beta"]) == (3, "retrain", 10_000.0)
    records = [json.loads(line) for line in (here / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [record["round"] for record in records] == [0, 2, 3]
    for name in ("accuracy", "auc", "precision", "recall"):
        assert 0 <= records[-1][name] <= 1
    assert {"labeled_loss", "consistency_loss", "seconds", "models_up", "bytes_down"} <= set(records[-1])
    assert records[-1]["models_up"] == 1 + 3 * 4
    assert records[-1]["models_down"] <= records[-1]["models_up"]
    summary = json.loads((here / "run" / "summary.json").read_text())
    trained = [record["accuracy"] for record in records[1:]]
    assert summary["final"]["accuracy"] == pytest.approx(np.mean(trained))
    assert summary["best"]["accuracy"] == max(trained)
    assert {"seconds_per_round", "compile_seconds", "device", "versions"} <= set(summary)
    partition = json.loads((here / "run" / "partition.json").read_text())
    assert np.sum(summary["confusion"]) == 40
    assert sum(map(sum, partition["class_counts"])) == 120
    assert [labels > 0 for labels in partition["labels"]].count(True) == 1
    assert set(records[-1]["client_weights"]) <= {"0", "1", "2", "3"}
    assert (here / "run" / "curve.png").stat().st_size > 5_000
    assert (here / "run" / "checkpoints" / "3").is_dir()

    assert run("evaluate", "run") == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last["round"] == 3
    for name in ("accuracy", "auc", "precision", "recall"):
        assert last[name] == pytest.approx(records[-1][name], abs=1e-6)

    # A program may have trained it on data of its own, which the settings do not name.
    (here / "run" / "partition.json").write_text(json.dumps(partition | {"test_counts": [20, 20, 0]}))
    assert run("evaluate", "run") == 2
    said = "PATH run: the run has other test samples than synthetic:"
    assert said in capsys.readouterr().err
    assert run("evaluate", "run", *TINY[:2]) == 0
    (here / "run" / "partition.json").write_text(json.dumps(partition))

    # A finished run says so, and stays as it is.
    before = (here / "run" / "summary.json").read_text()
    same = ["train", *TINY, "--rounds", "3", "--warmup-rounds", "1", "--eval-every", "2", "--out", "run", "--resume"]
    assert run(*same) == 0
    assert "the run is finished" in capsys.readouterr().err
    assert (here / "run" / "summary.json").read_text() == before


def test_a_model_travels_from_a_run_to_a_file_and_into_the_next_run(here, capsys):
    flags = ["--checkpoint-every", "1", "--out", "run", "--quiet", "--tensorboard"]
    assert run("train", *TINY, "--rounds", "2", *flags) == 0
    assert len(list((here / "run" / "tensorboard").iterdir())) == 1
    assert run("export", "run", "model.safetensors") == 0
    assert "model of round 2: model.safetensors" in capsys.readouterr().out

    def evaluated(*arguments):
        assert run("evaluate", *arguments) == 0
        return json.loads(capsys.readouterr().out.splitlines()[-1])

    of_run = evaluated("run")
    data = TINY[:4]
    assert evaluated("model.safetensors", *data) == of_run | {"round": None}
    assert evaluated("run/checkpoints/2") == of_run
    first = [json.loads(line) for line in (here / "run" / "metrics.jsonl").read_text().splitlines()][1]
    earlier = evaluated("run/checkpoints/1")
    assert earlier["round"] == 1
    assert earlier["accuracy"] == pytest.approx(first["accuracy"])

    start = ["--init-from", "model.safetensors", "--rounds", "1"]
    assert run("train", *TINY, *start, "--out", "next", "--quiet") == 0
    began = json.loads((here / "next" / "metrics.jsonl").read_text().splitlines()[0])
    assert began["accuracy"] == pytest.approx(of_run["accuracy"])

    # What does not fit is refused in one line, and nothing is overwritten unasked.
    before = (here / "model.safetensors").read_bytes()
    capsys.readouterr()
    for arguments, said in [
        (["export", "run", "model.safetensors"], "FILE model.safetensors: is there already; add --force"),
        (["export", "run", "model.npz"], "FILE model.npz: must end in .safetensors, .pt, .pth"),
        (["export", "run", "nowhere/model.safetensors"], "must be a file in a folder that is there"),
        (["export", "run/checkpoints/7", "new.safetensors"], "RUN_DIR run/checkpoints/7: is not a run directory"),
        (["evaluate", "model.safetensors"], "PATH model.safetensors: tensor features.fc1.weight has shape (120, 16)"),
        (["evaluate", "model.safetensors", *data, "--model", "resnet18"], "features.conv1.bias is not part"),
        (["evaluate", "run", "--model", "resnet18"], "PATH run: its model has other parameters"),
    ]:
        assert run(*arguments) == 2
        err = capsys.readouterr().err
        assert said in err
        assert err.count("\n") == 1
    assert (here / "model.safetensors").read_bytes() == before
    assert run("export", "run/checkpoints/1", "model.safetensors", "--force") == 0
    assert evaluated("model.safetensors", *data) == earlier | {"round": None}


@pytest.mark.slow
def test_resnet_trains_and_travels_to_pytorch_and_back(here, capsys):
    torch = pytest.importorskip("torch")
    from tests.models import torch_models

    data = ["--dataset", "synthetic:train=40,test=20,classes=3,size=16", "--image-size", "16"]
    few = ["--clients", "2", "--subset-size", "2", "--subsets", "1", "--batch-size", "8", "--rounds", "1"]
    network = ["--model", "resnet18", "--devices", "1", "--out", "run", "--quiet"]
    assert run("train", *data, *few, *network) == 0
    assert run("export", "run", "model.pt") == 0
    torch_models.resnet18(3, stem="cifar").load_state_dict(torch.load("model.pt", weights_only=True))
    results = []
    for arguments in (["run"], ["model.pt", *data, "--model", "resnet18"]):
        assert run("evaluate", *arguments) == 0
        results.append(json.loads(capsys.readouterr().out.splitlines()[-1]))
    assert results[0]["round"] == 1
    assert results[1] == results[0] | {"round": None}
