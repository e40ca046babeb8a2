"""Event files: every number of the metrics, each round once."""

import json
import struct

import pytest

from rscfed_jax.config import SettingError
from rscfed_jax.storage.run_log import scalars
from rscfed_jax.storage.tensorboard import EventLog
from tests.storage.run_records import record_of, write_run

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


def test_every_number_of_the_metrics_is_there_once(tmp_path):
    directory = write_run(tmp_path / "run")
    path = directory.path
    for first, last in ((0, 4), (3, 7)):  # the second process goes on from an earlier checkpoint
        directory.rewrite_metrics([record_of(round_) for round_ in range(first)])
        with EventLog(directory) as log:
            for record in map(record_of, range(first, last)):
                directory.append_metrics(record)
                log.add(record)
                assert shown(path) == expected(path)  # at once, to be looked at
    assert len(list((path / "tensorboard").iterdir())) == 2
    points = shown(path)
    assert points["test/accuracy", 6] == pytest.approx(record_of(6)["accuracy"])
    assert ("loss/labeled_loss", 0) not in points
    assert any(tag.startswith("weight/client ") for tag, _ in points)


def test_a_run_that_was_finished_already_is_told_whole(tmp_path):
    directory = write_run(tmp_path / "run")
    with EventLog(directory):
        pass
    assert shown(directory.path) == expected(directory.path)


def test_a_file_in_its_place_is_refused_in_a_line(tmp_path):
    directory = write_run(tmp_path / "run")
    EventLog(directory).check()
    assert not (directory.path / "tensorboard").exists()
    (directory.path / "tensorboard").write_text("a file")
    with pytest.raises(SettingError, match=r"--tensorboard .*run: .*/tensorboard is not a directory; move it away"):
        EventLog(directory).check()


def test_a_place_that_vanishes_does_not_end_the_run(tmp_path):
    directory, said = write_run(tmp_path / "run"), []
    log = EventLog(directory, warn=said.append)
    log.check()
    (directory.path / "tensorboard").write_text("a file")
    with log:
        log.add(record_of(1))
        log.add(record_of(2))
    [line] = said
    assert line.startswith("--tensorboard: [Errno 17] File exists")
