"""How JAX is started."""

import os
import platform

import jax
import pytest

from rscfed_jax import __version__
from rscfed_jax.runner.start import PATIENCE, claim_cores, start_jax, surroundings, use_all_cores


def test_a_running_jax_stays_as_it_is():
    before = jax.device_count()
    assert use_all_cores() == before


@pytest.mark.parametrize("flags", ["", "--xla_force_host_platform_device_count=3"])
def test_devices_may_wait_long_for_each_other_and_other_flags_stay(monkeypatch, flags):
    monkeypatch.setenv("XLA_FLAGS", flags)
    claim_cores()
    assert os.environ["XLA_FLAGS"] == f"{flags} {PATIENCE}".strip()
    claim_cores()
    assert os.environ["XLA_FLAGS"].count("xla_cpu_collective_timeout") == 1


@pytest.mark.parametrize("given", [None, "elsewhere"])
def test_programs_are_remembered_where_the_user_says(monkeypatch, tmp_path, given):
    chosen = {}
    monkeypatch.setattr(jax.config, "update", chosen.__setitem__)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    if given:
        monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", given)
    start_jax()
    expected = None if given else f"{tmp_path}/rscfed_jax/xla"  # JAX reads the variable itself
    assert chosen.get("jax_compilation_cache_dir") == expected


def test_a_summary_names_device_and_versions():
    told = surroundings(3)
    assert told["device"].startswith("3 x ")
    assert told["versions"]["rscfed-jax"] == __version__
    assert told["versions"]["jax"] == jax.__version__
    assert told["versions"]["python"] == platform.python_version()
