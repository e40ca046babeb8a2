"""Published files, fetched from a server on loopback that is slow, breaks off, sends something else or is not there."""

import contextlib
import errno
import fcntl
import io
import logging
import os
import signal
import stat
import subprocess
import sys
import threading
import time

import numpy as np
import pooch
import pytest
from rich.console import Console

from rscfed_jax.config import Config, SettingError
from rscfed_jax.data import download
from rscfed_jax.data.download import PIECE, fetch
from tests.helpers import ROOT

CONTENT = np.random.default_rng(0).bytes(300_000)
CONFIG = Config(dataset="svhn", download=True)


def refusal(files, folder) -> SettingError:
    with pytest.raises(SettingError) as error:
        fetch(CONFIG, files, folder)
    return error.value


def test_files_that_are_missing_are_fetched_and_others_left_alone(server, tmp_path, capsys):
    files = [server.publish(name, CONTENT) for name in ("a.mat", "b.mat")]
    (tmp_path / "b.mat").write_bytes(b"mine")
    fetch(CONFIG, files, tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a.mat": CONTENT, "b.mat": b"mine"}
    assert server.asked == [("a.mat", None)]
    assert capsys.readouterr().err == f"downloading {files[0].url}, 0 MB\n"


def test_progress_is_a_bar_on_a_terminal_and_now_and_then_a_line_elsewhere(server, tmp_path, monkeypatch, capsys):
    file = server.publish("a.mat", CONTENT)
    monkeypatch.setattr(download, "SECONDS_BETWEEN_LINES", 0.0)
    fetch(CONFIG, [file], tmp_path / "one")
    assert "a.mat: 0.3 of 0.3 MB\n" in capsys.readouterr().err
    shown = io.StringIO()
    monkeypatch.setattr(download, "Console", lambda **_: Console(file=shown, force_terminal=True, width=100))
    fetch(CONFIG, [file], tmp_path / "two")
    assert "300.0/300.0 kB" in shown.getvalue()
    assert capsys.readouterr().err == ""


def test_a_file_gets_the_permissions_that_files_usually_have(server, tmp_path):
    fetch(CONFIG, [server.publish("a.mat", CONTENT)], tmp_path)
    (tmp_path / "usual").touch()
    modes = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert len(modes) == 1


def test_a_transfer_that_breaks_off_is_continued_where_it_stopped(server, tmp_path, capsys):
    file = server.publish("a.mat", CONTENT)
    server.cuts = [2 * PIECE, PIECE + 10]
    fetch(CONFIG, [file], tmp_path)
    assert (tmp_path / "a.mat").read_bytes() == CONTENT
    assert [asked for _, asked in server.asked] == [None, f"bytes={2 * PIECE}-", f"bytes={3 * PIECE}-"]
    assert "a.mat failed after 0.1 MB; trying again" in capsys.readouterr().err


def test_a_server_without_ranges_is_asked_for_the_whole_file_again(server, tmp_path):
    file = server.publish("a.mat", CONTENT)
    server.cuts, server.resumes = [100_000], False
    fetch(CONFIG, [file], tmp_path)
    assert (tmp_path / "a.mat").read_bytes() == CONTENT


def test_a_slow_server_is_waited_for_and_a_silent_one_is_asked_again(server, tmp_path, monkeypatch):
    file = server.publish("a.mat", CONTENT)
    server.pause = 0.2
    fetch(CONFIG, [file], tmp_path / "slow")
    assert len(server.asked) == 1
    monkeypatch.setattr(download, "TIMEOUT", (5.0, 0.05))
    error = refusal([file], tmp_path / "silent")
    assert "a.mat cannot be downloaded: the connection was lost after 0." in str(error)
    assert not (tmp_path / "silent").exists()


def test_attempts_that_bring_a_good_part_do_not_count(server, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "PIECE", 5_000)
    monkeypatch.setattr(download, "WORTH_IT", 20_000)
    file = server.publish("a.mat", CONTENT)
    server.cuts = [20_000] * (3 * download.ATTEMPTS)
    fetch(CONFIG, [file], tmp_path)
    assert (tmp_path / "a.mat").read_bytes() == CONTENT


def test_a_server_that_always_breaks_off_is_given_up(server, tmp_path):
    file = server.publish("a.mat", CONTENT)
    server.cuts = [1000] * 100
    error = refusal([file], tmp_path)
    assert "a.mat cannot be downloaded: the connection was lost after 0.0 of 0.3 MB" in str(error)
    assert len(server.asked) == download.ATTEMPTS
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("status", "asked"), [(503, download.ATTEMPTS), (404, 1)])
def test_an_error_of_the_server_may_pass_and_a_missing_file_does_not(server, tmp_path, status, asked):
    file = server.publish("a.mat", CONTENT)
    server.errors = [status] * 100
    error = refusal([file], tmp_path / "data")
    assert f"--dataset svhn: a.mat cannot be downloaded: the server answers {status} " in str(error)
    assert f"; put {file.url} into {tmp_path / 'data'} (--data-dir) by hand" in str(error)
    assert len(server.asked) == asked
    assert list(tmp_path.iterdir()) == []
    server.errors = [status]
    if status == 503:
        fetch(CONFIG, [file], tmp_path)
        assert (tmp_path / "a.mat").read_bytes() == CONTENT


def test_another_file_than_the_published_one_is_refused(server, tmp_path):
    good, bad = server.publish("a.mat", CONTENT), server.publish("b.mat", CONTENT, md5="0" * 32)
    error = refusal([good, bad], tmp_path)
    assert f"b.mat cannot be downloaded: the server sent a different file; its md5 is not {'0' * 32}" in str(error)
    assert [path.name for path in tmp_path.iterdir()] == ["a.mat"]


def test_without_network_one_line_names_every_file_and_its_place(server, tmp_path):
    files = [server.publish(name, CONTENT) for name in ("a.mat", "b.mat")]
    server.server_close()
    message = str(refusal(files, tmp_path / "data"))
    assert "a.mat cannot be downloaded: no connection to the server (ConnectionError); " in message
    assert f"put {files[0].url} and {files[1].url} into {tmp_path / 'data'} (--data-dir) by hand" in message
    assert "\n" not in message
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_named_and_nothing_is_left(server, tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(download.os, "fsync", full)
    error = refusal([server.publish("a.mat", CONTENT)], tmp_path / "x" / "data")
    place = tmp_path / "x" / "data"
    assert str(error) == f"--data-dir {place}: a.mat cannot be written there: No space left on device"
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_a_file_is_named(server, tmp_path):
    (tmp_path / "data").write_text("")
    error = refusal([server.publish("a.mat", CONTENT)], tmp_path / "data")
    assert str(error) == f"--data-dir {tmp_path / 'data'}: a.mat cannot be written there: Not a directory"


def test_two_processes_fetch_a_file_once(server, tmp_path, capsys):
    file = server.publish("a.mat", CONTENT)
    server.pause = 0.2
    threads = [threading.Thread(target=fetch, args=(CONFIG, [file], tmp_path)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(server.asked) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["a.mat"]
    assert "another process is downloading a.mat; waiting for it" in capsys.readouterr().err


def test_a_file_system_without_locks_is_no_obstacle(server, tmp_path, monkeypatch):
    def unsupported(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", unsupported)
    fetch(CONFIG, [server.publish("a.mat", CONTENT)], tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["a.mat"]


def test_a_killed_download_leaves_nothing_under_the_files_name_and_the_next_one_cleans_up(server, tmp_path):
    file = server.publish("a.mat", CONTENT)
    server.pause = 60.0
    code = (
        "from pathlib import Path; from rscfed_jax.config import Config; from rscfed_jax.data.download import *\n"
        f"fetch(Config(download=True), [Published{tuple(file)}], Path({str(tmp_path)!r}))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 30
    while not any(path.is_file() and path.stat().st_size for path in tmp_path.rglob("*")):
        assert time.monotonic() < until
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert [path.name for path in tmp_path.iterdir()] == [".a.mat.part"]
    server.pause = 0.0
    fetch(CONFIG, [file], tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["a.mat"]


def test_an_interrupted_download_leaves_nothing(server, tmp_path, monkeypatch):
    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(download.os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        fetch(CONFIG, [server.publish("a.mat", CONTENT)], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_pooch_logs_as_before_afterwards(server, tmp_path):
    pooch.get_logger().setLevel(logging.INFO)
    with contextlib.suppress(SettingError):
        fetch(CONFIG, [server.publish("a.mat", CONTENT, md5="0" * 32)], tmp_path)
    assert pooch.get_logger().level == logging.INFO
