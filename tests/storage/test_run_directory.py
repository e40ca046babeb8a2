"""Run directories: who may write into one, which run may be resumed, and what is read out of its files."""

import json
import re
import signal
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rscfed_jax.config import Config, SettingError
from rscfed_jax.config.files import write_json
from rscfed_jax.storage.run_directory import RunDirectory, load_config, split_checkpoint, stored_config

METHOD = 'NUMBERS = {"threshold": (0.95, "0..1", "confidence")}\n\n\ndef method(config):\n    pass\n'
NETWORK = "def network(config):\n    pass\n"


def write_config(path, content):
    """A run directory of some settings."""
    path.mkdir(parents=True)
    (path / "checkpoints").mkdir()
    (path / "config.json").write_text(json.dumps(content))
    return RunDirectory(path)


def names_in(path):
    return sorted(inner.name for inner in path.iterdir())


def test_saved_rounds_are_sorted_and_may_be_those_of_a_warm_up(tmp_path):
    assert RunDirectory(tmp_path).saved_rounds == []
    for name in ("10", "9", "-4", "-20", "0", ".7.12.part", "8.orbax-checkpoint-tmp-3", "notes"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    assert RunDirectory(tmp_path).saved_rounds == [-20, -4, 0, 9, 10]


@pytest.mark.parametrize("round_", [7, 0, -4])
def test_a_path_may_be_that_of_a_checkpoint(tmp_path, monkeypatch, round_):
    directory = write_config(tmp_path / "run", Config(seed=3).to_dict())
    place = directory.checkpoints / str(round_)
    assert split_checkpoint(place) == (tmp_path / "run", round_)
    assert split_checkpoint(tmp_path / "run") == (tmp_path / "run", None)
    assert split_checkpoint(tmp_path / "run" / str(round_)) == (tmp_path / "run" / str(round_), None)
    monkeypatch.chdir(directory.checkpoints)
    assert split_checkpoint(str(round_)) == (tmp_path / "run", round_)
    with pytest.raises(SettingError, match=rf"PATH {place}: is not a run directory .*, nor a checkpoint of one$"):
        load_config(place, setting="PATH")
    place.mkdir()
    assert load_config(place, setting="PATH") == load_config(tmp_path / "run", setting="PATH") == Config(seed=3)


def test_an_opened_directory_holds_settings_and_data_and_no_leftovers(tmp_path):
    config = Config(method="sso", rounds=7)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".config.json.17.part").write_text("{")
    with RunDirectory(tmp_path / "run").open(config, {"labels": [3]}, resume=False):
        assert names_in(tmp_path / "run") == [".lock", "config.json", "partition.json"]
    stored = json.loads((tmp_path / "run" / "config.json").read_text())
    assert stored == config.to_dict()
    assert stored.keys() >= {"method", "method_hash", "model_hash", "rounds"}
    assert stored_config(tmp_path / "run" / "config.json", setting="out") == config


def test_a_check_leaves_nothing_behind(tmp_path):
    RunDirectory(tmp_path / "a" / "run").check(Config(), resume=False)
    assert names_in(tmp_path) == []


def test_a_second_writer_is_refused_while_the_first_lives(tmp_path):
    first, second = RunDirectory(tmp_path / "run"), RunDirectory(tmp_path / "run")
    with first.open(Config(), {}, resume=False):
        with pytest.raises(SettingError, match=r"--out .*/run: another run is writing there"):
            second.check(Config(), resume=True)
        with pytest.raises(SettingError, match="another run is writing there"), second.open(Config(), {}, resume=True):
            pytest.fail("two runs in one directory")
    with second.open(Config(), {}, resume=True):
        pass
    with (
        pytest.raises(SettingError, match="already holds a run; add --resume"),
        second.open(Config(), {}, resume=False),
    ):
        pytest.fail("the directory holds a run")


def test_a_dead_process_holds_no_lock(tmp_path):
    code = (
        "import os, sys; from rscfed_jax.config import Config\n"
        "from rscfed_jax.storage.run_directory import RunDirectory\n"
        "with RunDirectory(sys.argv[1]).open(Config(), {}, resume=False):\n    os.kill(os.getpid(), 9)"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(tmp_path / "run")], check=False)
    assert killed.returncode == -signal.SIGKILL
    with RunDirectory(tmp_path / "run").open(Config(), {}, resume=True):
        pass


@pytest.mark.parametrize("out", ["/proc/run", "file/run", "/dev/null", "dangling/run"])
def test_a_place_that_cannot_be_written_is_refused(tmp_path, monkeypatch, out):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    (tmp_path / "dangling").symlink_to("nowhere/at/all")
    with pytest.raises(SettingError, match=rf"^--out {out}: cannot be written: [^\n]+$"):
        RunDirectory(out).check(Config(), resume=False)


def test_parts_of_a_run_are_not_written_over(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("mine")
    for resume in (False, True):
        with pytest.raises(SettingError, match=r"holds parts of a run but no config.json"):
            RunDirectory(tmp_path).check(Config(), resume=resume)


def test_a_vanished_directory_is_told_in_one_line(tmp_path):
    directory = RunDirectory(tmp_path / "run")
    for write in (lambda: directory.append_metrics({"round": 1}), lambda: directory.rewrite_metrics([])):
        with pytest.raises(SettingError, match=r"--out .*/run: cannot be written: No such file"):
            write()


def resumed(directory, config):
    """Why a run cannot be resumed with a config; None if it can."""
    try:
        directory.check(config, resume=True)
    except SettingError as error:
        return str(error)
    return None


def test_other_settings_are_refused_by_name_and_some_may_change(tmp_path):
    config = Config(method="sso", rounds=10)
    directory = write_config(tmp_path / "run", config.to_dict())
    said = f"--resume {tmp_path}/run: the run there has different settings: "
    assert resumed(directory, config) is None
    assert resumed(directory, config.replace(rounds=11, chunk=2, devices=1, data_dir="x", checkpoint_every=3)) is None
    assert resumed(directory, config.replace(seed=4, beta=1)) == (
        said + "beta was 10000.0 and is 1.0, beta_labeled was 10000.0 and is 1.0, seed was 0 and is 4"
    )
    assert resumed(directory, config.replace(method="rscfed")) == said + "method was sso and is rscfed"
    assert (
        resumed(directory, config.replace(rounds=9))
        == "--rounds 9: must be at least 10, the rounds of the run that is resumed"
    )


def test_other_data_are_refused_and_nothing_is_written(tmp_path):
    directory = RunDirectory(tmp_path)
    with directory.open(Config(rounds=5), {"labels": [1], "class_counts": [[2]]}, resume=False):
        pass
    before = (tmp_path / "config.json").read_bytes()
    other = {"labels": [2], "class_counts": [[2]], "new": 3}
    with (
        pytest.raises(SettingError, match=r"--resume .*: the run there has different data: labels in partition.json"),
        directory.open(Config(rounds=6), other, resume=True),
    ):
        pytest.fail("these are other data")
    assert (tmp_path / "config.json").read_bytes() == before


@pytest.fixture
def files(tmp_path):
    """A user's method and network, and changed copies of them that have the same names."""
    for folder, more in (("old", ""), ("new", "# changed\n"), ("copy", "")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text(METHOD + more)
        (tmp_path / folder / "net.py").write_text(NETWORK + more)
    (tmp_path / "old" / "other.py").write_text(METHOD)
    return tmp_path


FILE = {"method": "old/mine.py", "model": "old/net.py"}
OBJECT = {"method": "mine", "method_hash": "none"}
NETWORK_OBJECT = {"model": "Perceptron", "model_hash": "none"}
IDENTITY = [
    (FILE, FILE, None),
    (FILE, {"method": "copy/mine.py", "model": "copy/net.py"}, None),  # the place does not matter
    (OBJECT, OBJECT, None),
    (NETWORK_OBJECT, NETWORK_OBJECT, None),
    (OBJECT, {}, "the run there has the method mine, given as an object: give it again (method=)"),
    (OBJECT, OBJECT | {"method": "yours"}, "the run there has the method mine, given as an object"),
    (OBJECT, {"method": "old/mine.py"}, "the run there has the method mine, given as an object"),
    (FILE, FILE | {"method": "new/mine.py"}, "the file of method mine has changed since the run began"),
    (
        FILE,
        {"model": "old/net.py"},
        "the run there has the method mine of a file: give that file again (--method PATH)",
    ),
    (FILE, FILE | OBJECT, "the run there has the method mine of a file: give that file again (--method PATH)"),
    (FILE, FILE | {"method": "old/other.py"}, "the run there has the method mine of a file: give that file again"),
    (FILE, FILE | {"model": "new/net.py"}, "the file of model net has changed since the run began"),
    (FILE, {"method": "old/mine.py"}, "the run there has the model net of a file: give that file again (--model PATH)"),
    (
        NETWORK_OBJECT,
        {"seed": 3},
        "the run there has the model Perceptron, given as an object: give it again (network=)",
    ),
    ({}, {"method": "old/mine.py"}, "the run there has different settings: method was rscfed and is mine"),
    (
        {},
        {"method": "rscfed", "method_hash": "none"},
        "the run there has the built-in method rscfed, not a different one",
    ),
    (FILE, FILE | {"mine_threshold": 0.5}, "different settings: mine_threshold was 0.95 and is 0.5"),
    (OBJECT, OBJECT | {"mine_threshold": 0.5}, "different settings: mine_threshold was None and is 0.5"),
    (OBJECT | {"mine_threshold": 0.5}, OBJECT, "different settings: mine_threshold was 0.5 and is None"),
]


@pytest.mark.parametrize(("before", "now", "said"), IDENTITY)
def test_a_run_knows_its_method_and_network(files, monkeypatch, before, now, said):
    monkeypatch.chdir(files)
    directory = write_config(files / "run", Config(**before).to_dict())
    for place in (files / "old").iterdir():
        place.touch()  # the content counts, not the time
    refused = resumed(directory, Config(**now))
    if said is None:
        assert refused is None
    else:
        assert refused.startswith(f"--resume {files}/run: ")
        assert said in refused


def test_a_run_of_version_0_1_is_read_but_not_resumed(tmp_path):
    config = Config(method="fedirm", seed=3)
    old = {name: value for name, value in config.to_dict().items() if not name.endswith("_hash")}
    directory = write_config(tmp_path / "run", old)
    assert load_config(tmp_path / "run", setting="PATH") == config
    assert resumed(directory, config) == (
        f"--resume {tmp_path}/run: was written by version 0.1, "
        "whose runs can be evaluated, exported and reported but not resumed"
    )


def test_a_run_with_the_former_preset_tuned_is_read_as_paper_with_its_lambda_u(tmp_path):
    config = Config(lambda_u=0.005)
    write_config(tmp_path / "run", config.to_dict() | {"preset": "tuned"})
    assert load_config(tmp_path / "run", setting="PATH") == config


def test_a_setting_that_an_older_version_did_not_have_gets_its_default(tmp_path):
    path = tmp_path / "config.json"
    stored = Config(method="sso", rounds=7, byzantine=2).to_dict()
    del stored["byzantine"], stored["conv"]
    write_json(path, stored | {"dropped_since": 4, "sso_dropped_since": 4, "own": {"sso_x": 1}})
    assert stored_config(path, setting="out") == Config(method="sso", rounds=7)
    write_json(path, {"rscfed_dropped_since": 4})
    assert stored_config(path, setting="out") == Config()


def test_the_settings_of_a_users_method_are_read_without_its_file(files):
    config = Config(method=str(files / "old" / "mine.py"), model=str(files / "old" / "net.py"), mine_threshold=0.5)
    write_json(files / "config.json", config.to_dict() | {"other_threshold": 0.1})
    for file in ("mine.py", "net.py"):
        (files / "old" / file).unlink()
    stored = stored_config(files / "config.json", setting="out")
    assert stored.own == {"threshold": 0.5}
    assert stored.to_dict() == config.to_dict()


@pytest.mark.parametrize("content", ["", "[1]", "\x00", "[" * 99_999, None])
def test_a_config_that_is_none_is_refused(tmp_path, content):
    directory = write_config(tmp_path / "run", {})
    if content is None:
        directory.config.unlink()
        directory.config.mkdir()
    else:
        directory.config.write_text(content)
    with pytest.raises(
        SettingError, match=r"RUN_DIR .*/run: config.json there is (not readable JSON|nested too deeply)"
    ):
        load_config(tmp_path / "run", setting="RUN_DIR")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"rounds": -5}, "--rounds -5: must be"),
        ({"lr_labeled": "fast"}, "--lr-labeled fast: must be"),
        ({"method": ["rscfed"]}, r"--method \['rscfed'\]: must be"),
        ({"method": "of_the_future"}, "--method of_the_future: must be one of"),
    ],
)
def test_a_wrong_value_in_a_config_is_refused(tmp_path, content, said):
    write_config(tmp_path / "run", content)
    with pytest.raises(SettingError, match=said):
        load_config(tmp_path / "run", setting="PATH")


def test_a_summary_of_something_else_is_refused(tmp_path):
    write_json(tmp_path / "summary.json", {"final": {}, "best": {}, "rounds": 3})
    assert RunDirectory(tmp_path).read_summary()["rounds"] == 3
    write_json(tmp_path / "summary.json", {"final": {}})
    with pytest.raises(SettingError, match=r"summary.json there is not that of a run"):
        RunDirectory(tmp_path).read_summary()


def record(round_, **more):
    """A line of metrics.jsonl, as a run writes it."""
    metrics = {"accuracy": 0.5, "auc": 0.6, "precision": 0.25, "recall": 0.125}
    return {
        "round": round_,
        **metrics,
        "broken_ids": [],
        "client_weights": {"3": 0.5, "12": 0.5},
        "models_up": 6,
    } | more


def test_metrics_are_read_as_they_were_written(tmp_path):
    directory = RunDirectory(tmp_path)
    records = [record(0), record(2, labeled_loss=None, of_a_method=[1]), {"round": 4, "accuracy": 1}]
    directory.rewrite_metrics(records[:1])
    for line in records[1:]:
        directory.append_metrics(line)
    assert directory.read_metrics() == records
    directory.rewrite_metrics([])
    assert directory.read_metrics() == []


def test_not_a_number_is_nothing(tmp_path):
    directory = RunDirectory(tmp_path)
    directory.rewrite_metrics([record(1, auc=np.nan, client_weights={"1": np.nan}), record(2, client_weights=None)])
    assert directory.read_metrics() == [
        record(1, auc=None, client_weights={"1": None}),
        record(2, client_weights=None),
    ]


LINE = '{"round": 1, "accuracy": 0.5'
WRONG_LINES = {
    LINE: "is not a JSON object",
    "": "is not a JSON object",
    "[1]": "is not a JSON object",
    "\x00": "is not a JSON object",
    "[" * 99_999: "is nested too deeply for Python to read",
    '{"accuracy": 0.5}': "has no round",
    '{"round": 1.5, "accuracy": 0.5}': "has no round",
    '{"round": true, "accuracy": 0.5}': "has no round",
    '{"round": -1, "accuracy": 0.5}': "has no round",
    '{"round": 1' + "0" * 30 + ', "accuracy": 0.5}': "has no round",
    '{"round": 1}': "has no accuracy",
    '{"round": 1, "accuracy": NaN}': "has no accuracy",
    '{"round": 1, "accuracy": "high"}': 'has accuracy "high", which must be a finite number',
    LINE + ', "auc": Infinity}': "has auc Infinity",
    LINE + ', "recall": false}': "has recall false",
    LINE + ', "bytes_up": ' + "9" * 400 + "}": "has bytes_up 9999",
    LINE + ', "client_weights": [1]}': "has client_weights that do not name clients",
    LINE + ', "client_weights": {"x": 1}}': "has client_weights that do not name clients",
    LINE + ', "client_weights": {"' + "1" * 5000 + '": 1}}': "has client_weights that do not name clients",
    LINE + ', "client_weights": {"1": "x"}}': 'has 1 "x"',
}


@pytest.mark.parametrize("line", WRONG_LINES, ids=lambda line: line[:40])
def test_a_broken_line_is_named_with_its_number(tmp_path, line):
    directory = RunDirectory(tmp_path)
    directory.metrics.write_text("\n".join([json.dumps(record(0)), line, json.dumps(record(2))]) + "\n")
    with pytest.raises(SettingError) as error:
        directory.read_metrics(setting="DIR")
    assert str(error.value).startswith(f"DIR {tmp_path}/metrics.jsonl: line 2 {WRONG_LINES[line]}")


def test_metrics_that_cannot_be_read_are_refused(tmp_path):
    with pytest.raises(SettingError, match=r"--out .*/metrics.jsonl: cannot be read: No such file or directory"):
        RunDirectory(tmp_path).read_metrics()
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(SettingError, match=r"cannot be read: Is a directory"):
        RunDirectory(tmp_path).read_metrics()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("01x", max_size=3), inner, max_size=3),
    max_leaves=5,
)
NUMBERS = st.none() | st.floats(0, 1) | st.integers(0, 99) | st.just(float("nan"))
RECORDS = st.fixed_dictionaries(
    {"round": st.integers(0, 9), "accuracy": st.floats(0, 1)},
    optional={
        "auc": NUMBERS | JSON,
        "bytes_up": NUMBERS | JSON,
        "labeled_loss": JSON,
        "client_weights": st.dictionaries(st.sampled_from(["0", "7", "12"]), NUMBERS) | JSON,
    },
)


def is_number(value):
    return value is None or (type(value) in (int, float) and np.isfinite(value))


@given(lines=st.lists(RECORDS.map(json.dumps).map(str.encode) | JSON.map(json.dumps).map(str.encode) | st.binary()))
def test_what_is_read_of_random_lines_is_right(tmp_path_factory, lines):
    directory = RunDirectory(tmp_path_factory.mktemp("random"))
    directory.metrics.write_bytes(b"\n".join(lines))
    try:
        records = directory.read_metrics()
    except SettingError as refusal:
        assert re.search("/metrics.jsonl: line [0-9]+ [^\n]+$", str(refusal))  # noqa: PT017 - some lines are right
        return
    for one in records:
        assert type(one["round"]) is int
        assert one["accuracy"] is not None
        weights = one.get("client_weights") or {}
        assert all(map(is_number, [one["accuracy"], one.get("auc"), one.get("bytes_up"), *weights.values()]))
        assert all(int(client) >= 0 for client in weights)
    directory.rewrite_metrics(records)
    assert json.dumps(directory.read_metrics()) == json.dumps(records)
