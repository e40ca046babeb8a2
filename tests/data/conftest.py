"""Fixtures of the tests of data."""

from pathlib import Path

import pytest

from rscfed_jax.config.files import cache_folder


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """The folder of cached pictures, in a place of its own for each test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return cache_folder("pictures")
