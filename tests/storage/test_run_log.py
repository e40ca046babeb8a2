"""What all logs share: each round once, refusals before anything runs, and a failure that does not end the run."""

import importlib
import sys
from types import ModuleType

import pytest

from rscfed_jax.cli.commands import LOGS
from rscfed_jax.config import SettingError
from rscfed_jax.config.registry import metrics
from rscfed_jax.storage.run_directory import RunDirectory
from rscfed_jax.storage.run_log import LONGEST_REASON, RunLog, scalars
from tests.storage.run_records import go_on, record_of, write_run


class _Listed(RunLog):
    """A log in memory that already has the rounds before `first`, and fails at `fails`."""

    name, package = "listed", "json"

    def __init__(self, directory, *, first=0, fails=None, **more):
        super().__init__(directory, **more)
        self.first, self.fails, self.told = first, fails, []

    def _do(self, what):
        if what == self.fails:
            raise ConnectionError("the server\nis gone " + 1000 * "x")
        self.told.append(what)

    def reach(self):
        self._do("reach")

    def open(self):
        self._do("open")
        return self.first

    def write(self, round_, values):
        self._do(round_)
        assert values == scalars(record_of(round_))

    def close(self, *, finished):
        self._do("finished" if finished else "stopped")


def test_the_rounds_before_are_told_with_the_first_record(tmp_path):
    log = _Listed(write_run(tmp_path / "run", range(5)))
    with log:
        log.add(record_of(4))
        log.add(record_of(5))
    assert log.told == ["open", 0, 1, 2, 3, 4, 5, "finished"]


def test_rounds_that_a_log_has_are_not_told_again(tmp_path):
    directory = write_run(tmp_path / "run")
    log = _Listed(directory, first=6)
    go_on(log, directory, 3, 8)
    assert log.told == ["open", 6, 7, 8, "finished"]


def test_a_run_that_was_finished_already_is_told_whole(tmp_path):
    with _Listed(write_run(tmp_path / "run", range(3)), first=1) as log:
        pass
    assert log.told == ["open", 1, 2, "finished"]


def test_a_log_is_told_that_a_run_was_stopped_and_is_not_opened_for_one_that_did_not_begin(tmp_path):
    log = _Listed(write_run(tmp_path / "run"))
    log.add(record_of(0))
    with pytest.raises(KeyError), log:
        raise KeyError
    assert log.told == ["open", 0, "stopped"]
    log = _Listed(RunDirectory(tmp_path / "none"))
    with pytest.raises(KeyError), log:
        raise KeyError
    assert log.told == []


@pytest.mark.parametrize(
    ("fails", "told"),
    [("open", []), (1, ["open", 0]), (3, ["open", 0, 1, 2]), ("finished", ["open", 0, 1, 2, 3, 4])],
    ids=str,
)
def test_a_log_that_fails_is_given_up_with_one_line_and_the_run_continues(tmp_path, fails, told):
    directory, said = write_run(tmp_path / "run"), []
    log = _Listed(directory, fails=fails, warn=said.append)
    go_on(log, directory, 2, 4)
    assert log.told == told
    [line] = said
    assert line.startswith("--listed: the server is gone xxx")
    assert line.endswith("...; the run continues without it; --resume sends the missing rounds")
    assert len(line) < LONGEST_REASON + 200


def test_metrics_that_cannot_be_read_do_not_end_the_run(tmp_path):
    directory, said = write_run(tmp_path / "run"), []
    directory.metrics.write_text("{")
    with _Listed(directory, warn=said.append) as log:
        log.add(record_of(3))
    assert "line 1 is not a JSON object" in said[0]
    assert log.told == []


def test_a_stop_from_outside_is_no_failure_of_the_log(tmp_path, monkeypatch):
    log = _Listed(write_run(tmp_path / "run"))
    monkeypatch.setattr(log, "write", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt), log:
        log.add(record_of(0))


def test_a_log_that_cannot_be_reached_is_refused_in_one_line(tmp_path):
    with pytest.raises(SettingError, match=rf"^--listed {tmp_path}/run: the server is gone x+\.\.\.$"):
        _Listed(RunDirectory(tmp_path / "run"), fails="reach").check()
    assert not (tmp_path / "run").exists()


def test_notes_are_those_of_the_run_that_is_resumed(tmp_path):
    directory = write_run(tmp_path / "run")
    assert _Listed(directory, resume=True).remembered() == {}
    _Listed(directory).remember({"id": "a"})
    assert _Listed(directory, resume=True).remembered() == {"id": "a"}
    assert _Listed(directory).remembered() == {}  # of another run, of which nothing else is left


def refusal(log, tmp_path):
    with pytest.raises(SettingError) as refused:
        log(RunDirectory(tmp_path / "run"))
    assert not (tmp_path / "run").exists()
    flag, path, reason = str(refused.value).split(" ", 2)
    assert (flag, path) == (f"--{log.name}", f"{tmp_path}/run:")
    return reason


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.name)
def test_a_missing_package_is_named(log, tmp_path, monkeypatch):
    needed = f"needs the package {log.package}: pip install {log.package}"
    monkeypatch.setitem(sys.modules, log.package, None)
    assert refusal(log, tmp_path) == needed
    # A directory of that name, as W&B leaves one, can be imported, but is not the package.
    monkeypatch.setitem(sys.modules, log.package, ModuleType(log.package))
    assert refusal(log, tmp_path) == needed


@pytest.mark.parametrize("error", [ModuleNotFoundError("No module named 'six'", name="six"), TypeError("no\nsix")])
def test_a_package_that_is_broken_is_refused_with_the_reason(tmp_path, monkeypatch, error):
    def fail(name):
        raise error

    monkeypatch.setattr(importlib, "import_module", fail)
    said = " ".join(str(error).split())
    assert refusal(_Listed, tmp_path) == f"the package json cannot be imported: {said}"


def test_the_numbers_of_a_record_have_their_groups():
    named = scalars(record_of(2) | {"dropped_clients": "many", "attacker_weight": None})
    assert {name.removeprefix("test/") for name in named if name.startswith("test/")} == set(metrics())
    assert {name: value for name, value in named.items() if not name.startswith("test/")} == {
        "loss/labeled_loss": 0.5,
        "clients/broken_clients": 0.0,
        "communication/bytes_up": 4_400_000.0,
        "time/seconds": 3.0,
        "weight/client 3": 0.25,
        "weight/client 11": 0.75,
    }


def test_pseudo_labels_and_accuracies_of_clients_have_groups_of_their_own():
    told = {"kept_share": 0.5, "kept_accuracy": None, "kept_share_by_class": [0.25, None, 0.75]}
    clients = {"client_accuracy": [0.5, 0.75], "client_accuracy_mean": 0.625, "client_accuracy_min": 0.5}
    assert scalars({"round": 1, **told, **clients}) == {
        "pseudo-labels/kept_share": 0.5,
        "kept_share/class 0": 0.25,
        "kept_share/class 2": 0.75,
        "clients/client_accuracy_mean": 0.625,
        "clients/client_accuracy_min": 0.5,
        "accuracy/client 0": 0.5,
        "accuracy/client 1": 0.75,
    }


def test_a_record_without_some_metric_is_fine():
    assert scalars({"round": 3, "accuracy": 0.5, "client_weights": None}) == {"test/accuracy": 0.5}
