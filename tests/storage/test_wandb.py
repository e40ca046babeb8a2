"""Runs in Weights & Biases: with a package that only listens, and offline with the real one where it is installed."""

import json
import struct
import sys
from types import ModuleType, SimpleNamespace

import pytest

from rscfed_jax.config import SettingError
from rscfed_jax.storage.run_log import scalars
from rscfed_jax.storage.wandb import WandbLog
from tests.storage.run_records import go_on, record_of, write_run

VARIABLES = ("MODE", "PROJECT", "NAME", "DIR", "ENTITY", "API_KEY", "RUN_ID", "RESUME", "SILENT")


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(f"WANDB_{name}", raising=False)


class _Fake(ModuleType):
    """The package, and a server that keeps what it is told."""

    __file__ = "wandb.py"
    Settings = dict
    Error = type("Error", (Exception,), {})

    def __init__(self, *, offline=False, key=True):
        super().__init__("wandb")
        self.offline, self.key, self.runs, self.begun, self.ended = offline, key, {}, [], []

    def login(self):
        if not self.key:
            raise self.Error("No API key configured.")

    def init(self, **arguments):
        self.begun.append(arguments)
        steps = self.runs.setdefault(arguments["id"], {})
        step = 0 if self.offline else max(steps, default=-1) + 1

        def log(values, *, step, commit):
            assert commit  # or the server would get it with the next one
            assert step not in steps
            steps[step] = values

        return SimpleNamespace(offline=self.offline, step=step, log=log, finish=self.finish)

    def finish(self, *, exit_code):
        self.ended.append(exit_code)


@pytest.fixture
def fake(monkeypatch, request):
    module = _Fake(**getattr(request, "param", {}))
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


@pytest.mark.parametrize("fake", [{}, {"offline": True}], ids=["online", "offline"], indirect=True)
def test_a_resumed_run_is_one_run_with_every_round_once(tmp_path, fake):
    directory = write_run(tmp_path / "first", rounds=4)
    go_on(WandbLog(directory), directory, 0, 4)
    write_run(tmp_path / "first", rounds=9)
    go_on(WandbLog(directory, resume=True), directory, 3, 9)
    [steps] = fake.runs.values()
    assert steps == {round_: scalars(record_of(round_)) for round_ in range(10)}
    assert fake.ended == [0, 0]
    one, two = fake.begun
    assert one["id"] == two["id"] == json.loads((directory.path / "wandb.json").read_text())["id"]
    assert (one["resume"], one["project"], one["name"]) == ("allow", "rscfed-jax", "first")
    assert one["dir"] == str(directory.path)
    assert (one["config"]["rounds"], two["config"]["rounds"], two["allow_val_change"]) == (4, 9, True)


def test_another_run_in_the_same_place_is_another_run(tmp_path, fake):
    directory = write_run(tmp_path / "run")
    for _ in range(2):
        go_on(WandbLog(directory), directory, 0, 2)
    assert [set(steps) for steps in fake.runs.values()] == [{0, 1, 2}] * 2


def test_a_server_that_lost_rounds_gets_them_again(tmp_path, fake):
    directory = write_run(tmp_path / "run")
    go_on(WandbLog(directory), directory, 0, 4)
    [steps] = fake.runs.values()
    del steps[3], steps[4]
    with WandbLog(directory, resume=True):
        pass
    assert set(steps) == set(range(5))


@pytest.mark.parametrize("fake", [{"offline": True}], indirect=True)
def test_a_round_that_could_not_be_told_is_told_when_the_run_is_resumed(tmp_path, fake, monkeypatch):
    directory, said = write_run(tmp_path / "run"), []
    log = WandbLog(directory, warn=said.append)
    with log:
        log.add(record_of(1))
        monkeypatch.setattr(log._run, "log", lambda *_, **__: 1 / 0)
        log.add(record_of(2))
        log.add(record_of(3))
    assert [line.partition(";")[0] for line in said] == ["--wandb: division by zero"]
    directory.rewrite_metrics([record_of(round_) for round_ in range(4)])
    with WandbLog(directory, resume=True):
        pass
    [steps] = fake.runs.values()
    assert set(steps) == {0, 1, 2, 3}


def test_a_run_that_stops_has_failed(tmp_path, fake):
    log = WandbLog(write_run(tmp_path / "run"))
    log.add(record_of(1))
    with pytest.raises(KeyError), log:
        raise KeyError
    assert fake.ended == [1]


def test_variables_of_the_user_hold(tmp_path, fake, monkeypatch):
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    with WandbLog(write_run(tmp_path / "run")):
        pass
    [arguments] = fake.begun
    assert arguments["name"] == "run"
    assert not {"project", "dir", "entity", "mode"} & set(arguments)


@pytest.mark.parametrize("fake", [{"key": False}], indirect=True)
def test_without_a_key_it_is_refused_unless_there_is_no_server(tmp_path, fake, monkeypatch):
    log = WandbLog(write_run(tmp_path / "run"))
    with pytest.raises(SettingError, match=r"--wandb .*run: No API key configured\. Or set WANDB_MODE=offline and"):
        log.check()
    for mode in ("offline", "disabled"):
        monkeypatch.setenv("WANDB_MODE", mode)
        log.check()


def parts_of(path, records):
    """The run's id and its rounds with their accuracy, in each part that an offline process left, oldest first."""
    for file in sorted(path.glob("wandb/offline-run-*/*.wandb"), key=lambda file: file.parent.name):
        found = [getattr(record, record.WhichOneof("record_type")) for record in whole(file.read_bytes(), records)]
        [run] = [each for each in found if type(each).__name__ == "RunRecord"]
        history = [each for each in found if type(each).__name__ == "HistoryRecord"]
        items = [{"/".join(item.nested_key) or item.key: item.value_json for item in each.item} for each in history]
        yield run.run_id, {json.loads(each["_step"]): json.loads(each["test/accuracy"]) for each in items}


def whole(content, records, *, block=32 * 1024, header=7):
    """The records of a file: blocks of fragments, each with checksum, length and kind; the last has kind 1 or 4."""
    place, fragments = header, b""
    while place + header <= len(content):
        if (left := block - place % block) < header:
            place += left
            continue
        _, length, kind = struct.unpack("<IHB", content[place : place + header])
        fragments += content[place + header : place + header + length]
        place += header + length
        if kind in (1, 4):
            yield records.Record.FromString(fragments)
            fragments = b""


@pytest.mark.filterwarnings("ignore")
def test_the_real_package_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="needs wandb")
    records = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    directory = write_run(tmp_path / "run", rounds=4)
    for first, last in ((0, 4), (3, 9)):
        write_run(tmp_path / "run", rounds=last)
        log = WandbLog(directory, resume=first > 0)
        log.check()
        go_on(log, directory, first, last)
    parts = list(parts_of(directory.path, records))
    assert [id_ for id_, _ in parts] == [json.loads((directory.path / "wandb.json").read_text())["id"]] * 2
    told = {round_: pytest.approx(record_of(round_)["accuracy"]) for round_ in range(10)}
    assert [set(steps) for _, steps in parts] == [set(range(5)), set(range(5, 10))]
    assert parts[0][1] | parts[1][1] == told
