"""Event files: every number of the metrics, each round once, and refusals before anything runs."""

import importlib.util
import json
import struct

import pytest

from rscfed_jax.config import SettingError
from rscfed_jax.config.registry import metrics
from rscfed_jax.storage.run_directory import RunDirectory
from rscfed_jax.storage.tensorboard import EventLog, scalars

event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2", reason="needs tensorboardX")


def events_in(file):
    """The events of a file: length, checksum, event, checksum, and so on."""
    content, events = file.read_bytes(), []
    while content:
        (length,) = struct.unpack("<Q", content[:8])
        events.append(event_pb2.Event.FromString(content[12 : 12 + length]))
        content = content[16 + length :]
    return events


def shown(path):
    """The points that TensorBoard shows: a start drops what is told before it from its step on."""
    points = {}
    for file in sorted((path / "tensorboard").iterdir()):
        assert "tfevents" in file.name  # or TensorBoard would not find it
        for event in events_in(file):
            if event.session_log.status == event_pb2.SessionLog.START:
                points = {key: value for key, value in points.items() if key[1] < event.step}
            for value in event.summary.value:
                assert (value.tag, event.step) not in points
                points[value.tag, event.step] = value.simple_value
    return points


def expected(path):
    records = map(json.loads, (path / "metrics.jsonl").read_text().splitlines())
    return {(tag, r["round"]): pytest.approx(value) for r in records for tag, value in scalars(r).items()}


def record_of(round_):
    """A line of metrics.jsonl."""
    return {
        "round": round_,
        **{name: 0.5 + 0.01 * round_ * place for place, name in enumerate(metrics())},
        "labeled_loss": 0.5 if round_ else None,
        "broken_clients": 0,
        "broken_ids": [],
        "client_weights": {"3": 0.25, "11": 0.75} if round_ else {},
        "bytes_up": 2_200_000 * round_,
        "seconds": 1.5 * round_,
    }


def write_run(path, rounds=range(7)):
    path.mkdir()
    RunDirectory(path).rewrite_metrics([record_of(round_) for round_ in rounds])
    return path


def test_every_number_of_the_metrics_is_there_once(tmp_path):
    path = write_run(tmp_path / "run")
    lines = (path / "metrics.jsonl").read_text().splitlines(keepends=True)
    directory = RunDirectory(path)
    for first, last in ((0, 4), (3, 7)):  # the second process goes on from an earlier checkpoint
        directory.rewrite_metrics([json.loads(line) for line in lines[:first]])
        with EventLog(directory) as log:
            for record in map(json.loads, lines[first:last]):
                directory.append_metrics(record)
                log.add(record)
                assert shown(path) == expected(path)  # at once, to be looked at
    assert len(list((path / "tensorboard").iterdir())) == 2
    points = shown(path)
    assert points["test/accuracy", 6] == pytest.approx(json.loads(lines[6])["accuracy"])
    assert ("loss/labeled_loss", 0) not in points
    assert any(tag.startswith("weight/client ") for tag, _ in points)


def test_a_run_that_was_finished_already_is_told_whole(tmp_path):
    path = write_run(tmp_path / "run")
    with EventLog(RunDirectory(path)):
        pass
    assert shown(path) == expected(path)


def test_a_place_that_cannot_be_written_is_refused_in_a_line(tmp_path):
    path = write_run(tmp_path / "run")
    (path / "tensorboard").write_text("a file")
    with pytest.raises(SettingError, match=r"--tensorboard .*cannot be written"), EventLog(RunDirectory(path)) as log:
        log.add({"round": 1, "accuracy": 0.5})


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


def test_without_the_package_nothing_is_written(tmp_path, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "tensorboardX" else found(name))
    with pytest.raises(SettingError) as error:
        EventLog(RunDirectory(tmp_path / "run"))
    assert f"--tensorboard {tmp_path}/run/tensorboard: needs the package tensorboardX" in str(error.value)
    assert not (tmp_path / "run").exists()
