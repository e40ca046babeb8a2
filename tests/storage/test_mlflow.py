"""Runs in MLflow: with a package that only listens, and in a file with the real one where it is installed."""

import json
import os
import sys
from types import ModuleType, SimpleNamespace
from typing import NamedTuple

import pytest

from rscfed_jax.config import SettingError
from rscfed_jax.storage.mlflow import MOST_METRICS, MOST_PARAMS, PATIENCE, MlflowLog
from rscfed_jax.storage.run_directory import MAY_CHANGE
from rscfed_jax.storage.run_log import scalars
from tests.storage.run_records import go_on, record_of, write_run


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in ("TRACKING_URI", "EXPERIMENT_NAME", "EXPERIMENT_ID", "RUN_ID"):
        monkeypatch.delenv(f"MLFLOW_{name}", raising=False)
    for name in PATIENCE:  # which the log sets where they are not
        monkeypatch.setenv(name, "1")


class _Metric(NamedTuple):
    key: str
    value: float
    timestamp: int
    step: int


class _Param(NamedTuple):
    key: str
    value: str


class _Fake(ModuleType):
    """The package, its client, and a server that keeps what it is told."""

    __file__ = "mlflow.py"

    def __init__(self):
        super().__init__("mlflow")
        self.entities = SimpleNamespace(Metric=_Metric, Param=_Param)
        self.runs, self.experiments, self.down = {}, [], False

    def MlflowClient(self):  # noqa: N802 - the name of the package
        return self

    def search_experiments(self, *, max_results):
        if self.down:
            raise ConnectionError("no answer")

    def set_experiment(self, name):
        self.experiments.append(name)
        return SimpleNamespace(experiment_id="7")

    def create_run(self, experiment, *, run_name):
        self.runs[f"run{len(self.runs)}"] = run = SimpleNamespace(
            experiment=experiment, name=run_name, metrics=[], params={}, tags={}, status=["RUNNING"]
        )
        return SimpleNamespace(info=SimpleNamespace(run_id=f"run{len(self.runs) - 1}"), run=run)

    def set_tag(self, run, name, value):
        self.runs[run].tags[name] = value

    def update_run(self, run, *, status):
        self.runs[run].status.append(status)

    def set_terminated(self, run, status):
        self.update_run(run, status=status)

    def get_metric_history(self, run, name):
        return [metric for metric in self.runs[run].metrics if metric.key == name]

    def log_batch(self, run, *, metrics=(), params=()):
        assert 0 < len(metrics) <= MOST_METRICS or 0 < len(params) <= MOST_PARAMS
        for name, value in params:
            assert self.runs[run].params.setdefault(name, value) == value  # it cannot change
        told = {(metric.key, metric.step) for metric in self.runs[run].metrics}
        assert not told & {(metric.key, metric.step) for metric in metrics}
        self.runs[run].metrics += metrics


@pytest.fixture
def fake(monkeypatch):
    module = _Fake()
    monkeypatch.setitem(sys.modules, "mlflow", module)
    monkeypatch.setitem(sys.modules, "mlflow.entities", module.entities)
    return module


def told(metrics):
    """By round, the numbers."""
    return {step: {m.key: m.value for m in metrics if m.step == step} for step in {m.step for m in metrics}}


def test_a_resumed_run_is_one_run_with_every_round_once(tmp_path, fake):
    directory = write_run(tmp_path / "first", rounds=4)
    go_on(MlflowLog(directory), directory, 0, 4)
    write_run(tmp_path / "first", rounds=9)
    go_on(MlflowLog(directory, resume=True), directory, 3, 9)
    [run] = fake.runs.values()
    assert told(run.metrics) == {round_: scalars(record_of(round_)) for round_ in range(10)}
    assert (run.experiment, run.name, fake.experiments) == ("7", "first", ["rscfed-jax"])
    assert run.status == ["RUNNING", "RUNNING", "FINISHED", "RUNNING", "FINISHED"]
    settings = json.loads(directory.config.read_text())
    assert run.params | run.tags == {name: str(value) for name, value in settings.items()}
    assert (set(run.tags), run.tags["rounds"]) == (set(MAY_CHANGE), "9")


def test_another_run_in_the_same_place_is_another_run(tmp_path, fake, monkeypatch):
    directory = write_run(tmp_path / "run")
    for experiment in ("mine", None):
        if experiment:
            monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", experiment)
        else:
            monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", "12")
        go_on(MlflowLog(directory), directory, 0, 2)
    assert [set(told(run.metrics)) for run in fake.runs.values()] == [{0, 1, 2}] * 2
    assert [run.experiment for run in fake.runs.values()] == ["7", "12"]
    assert fake.experiments == ["mine"]


def test_many_numbers_are_many_requests_and_the_mark_comes_last(tmp_path, fake):
    many = {"round": 1, "accuracy": 0.5, "client_weights": {str(client): 0.5 for client in range(MOST_METRICS + 5)}}
    with MlflowLog(write_run(tmp_path / "run", evaluated=[])) as log:
        log.add(many)
    [run] = fake.runs.values()
    assert len(run.metrics) == MOST_METRICS + 6
    assert run.metrics[-1].key == "test/accuracy"


def test_a_run_that_stops_has_failed(tmp_path, fake):
    log = MlflowLog(write_run(tmp_path / "run"))
    log.add(record_of(1))
    with pytest.raises(KeyError), log:
        raise KeyError
    assert fake.runs["run0"].status[-1] == "FAILED"


def test_a_server_that_does_not_answer_is_refused_before_the_run_and_given_up_in_it(tmp_path, fake, monkeypatch):
    directory, said = write_run(tmp_path / "run"), []
    log = MlflowLog(directory, warn=said.append)
    log.check()
    with log:
        log.add(record_of(1))
        monkeypatch.setattr(fake, "log_batch", lambda *_, **__: 1 / 0)
        log.add(record_of(2))
        log.add(record_of(3))
    assert [line.partition(";")[0] for line in said] == ["--mlflow: division by zero"]
    fake.down = True
    with pytest.raises(SettingError, match=r"--mlflow .*run: no answer"):
        MlflowLog(directory).check()


def test_the_users_patience_with_a_server_holds(tmp_path, fake, monkeypatch):
    monkeypatch.delenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES")
    MlflowLog(write_run(tmp_path / "run")).check()
    assert {name: os.environ[name] for name in PATIENCE} == PATIENCE | {"MLFLOW_HTTP_REQUEST_TIMEOUT": "1"}


@pytest.mark.filterwarnings("ignore")
def test_the_real_package_with_a_file(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    mlflow = pytest.importorskip("mlflow", reason="needs mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/store.db")
    directory = write_run(tmp_path / "run")
    for first, last in ((0, 4), (3, 9)):
        write_run(tmp_path / "run", rounds=last)
        log = MlflowLog(directory, resume=first > 0)
        log.check()
        go_on(log, directory, first, last)
    client, noted = mlflow.MlflowClient(), json.loads((directory.path / "mlflow.json").read_text())
    run = client.get_run(noted["id"])
    assert (run.info.status, run.data.tags["rounds"], run.data.params["method"]) == ("FINISHED", "9", "rscfed")
    for name in scalars(record_of(2)):
        history = {point.step: point.value for point in client.get_metric_history(noted["id"], name)}
        expected = {round_: scalars(record_of(round_)) for round_ in range(10)}
        assert len(client.get_metric_history(noted["id"], name)) == len(history)
        assert history == {step: pytest.approx(values[name]) for step, values in expected.items() if name in values}
