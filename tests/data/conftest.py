"""Fixtures of the tests of data."""

from pathlib import Path

import pytest

from rscfed_jax.config.files import cache_folder
from rscfed_jax.data import download
from tests.data.file_server import file_server


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """The folder of cached pictures, in a place of its own for each test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return cache_folder("pictures")


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A file server on loopback; between attempts nobody waits."""
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "no_tfds"))
    monkeypatch.setattr(download, "PAUSE", 0.0)
    with file_server() as serving:
        yield serving
