"""Files that are written as a whole."""

import json
import os
from pathlib import Path

import pytest

from rscfed_jax.config.files import cache_folder, remove_parts, write_json, write_whole


def test_a_file_has_its_content_on_disk_before_it_has_its_name(tmp_path, monkeypatch):
    """After a power loss a file that was renamed too early is there, and empty."""
    done = []
    monkeypatch.setattr(os, "fsync", lambda number: done.append(os.fstat(number).st_size))
    monkeypatch.setattr(Path, "replace", lambda self, target: done.append(target.name))
    write_json(tmp_path / "config.json", {"rounds": 3})
    assert done == [len('{\n  "rounds": 3\n}\n'), "config.json"]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "config.json"
    write_whole(path, "old")

    def fail(number):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, b"new")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("config.json", "old")]


def test_json_has_a_line_for_each_key(tmp_path):
    content = {"gamma": "iid", "own": {"a": 1}, "none": None}
    write_json(tmp_path / "a.json", content)
    text = (tmp_path / "a.json").read_text()
    assert json.loads(text) == content
    assert text.splitlines()[1:-1] == ['  "gamma": "iid",', '  "own": {"a": 1},', '  "none": null']


def test_what_can_be_made_again_lies_in_the_users_cache(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder("programs") == Path("/somewhere/rscfed_jax/programs")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache_folder("programs") == Path.home() / ".cache/rscfed_jax/programs"


def test_what_a_killed_process_left_is_removed_and_nothing_else(tmp_path):
    for name in (".grid.csv.12.part", ".lock", "grid.csv", "a.part"):
        (tmp_path / name).touch()
    remove_parts(tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == [".lock", "a.part", "grid.csv"]
