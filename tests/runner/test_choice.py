"""Form and chunk on a device that is made up, timed by a pretended clock and fitted to a pretended memory."""

import itertools
import json
from types import SimpleNamespace

import pytest

import rscfed_jax as rj
from rscfed_jax.config import SettingError
from rscfed_jax.runner import choice, race, together, tuning
from rscfed_jax.runner.build import NO_OBJECTS, build_cells
from rscfed_jax.runner.fit import usable
from rscfed_jax.runner.processes import as_letters
from rscfed_jax.storage.run_directory import RunDirectory
from tests.helpers import SMALL

SETTINGS = {
    "dataset": "synthetic:train=60,test=20,classes=3,size=16",
    "image_size": 16,
    "clients": 4,
    "subsets": 2,
    "subset_size": 2,
    "min_client_size": 1,
    "gamma": "iid",
    "batch_size": 8,
    "rounds": 2,
    "devices": 1,
}


def pretended(limit=2**34, kind="Pretended GPU"):
    return SimpleNamespace(
        platform="gpu",
        device_kind=kind,
        client=SimpleNamespace(platform_version="1"),
        memory_stats=lambda: {"bytes_limit": limit},
    )


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    """Makes this process believe that it has a GPU; the function sets its memory and kind."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def set_up(**given):
        device = pretended(**given)
        monkeypatch.setattr(together, "this_device", lambda: device)
        monkeypatch.setattr("rscfed_jax.core.client_axis.LARGEST_AUTO_CHUNK", 64)
        return device

    return set_up


@pytest.fixture
def races(monkeypatch):
    """Replaces the race by one in which matmul wins, and tells how often it was run."""
    run = []

    def pretend(config, federation, *, clients, objects):
        run.append(clients)
        return race.Race({"plain": 0.002, "matmul": 0.001})

    monkeypatch.setattr(race, "race", pretend)
    return run


def device_of(out):
    return json.loads((out / "device.json").read_text())


def test_a_form_is_timed_once_and_remembered_for_the_device_and_the_shapes(gpu, races):
    config = rj.Config(**SETTINGS)
    federation = rj.build_federation(config)

    def form(config, device, stored=()):
        said = []
        return choice.choose_form(
            config, federation, objects=NO_OBJECTS, stored=dict(stored), say=said.append, device=device
        ), said

    found, said = form(config, gpu())
    assert (found, races) == ("matmul", [4])
    assert said[-1] == "a step of 4 clients: plain 2.00 ms, matmul 1.00 ms; matmul is used"
    assert form(config.replace(seed=1), gpu()) == ("matmul", [])
    form(config.replace(batch_size=16), gpu())
    form(config, gpu(kind="Another GPU"))
    assert races == [4, 4, 4]
    assert form(config.replace(conv="plain"), gpu(kind="A third")) == ("plain", [])
    assert form(config, gpu(kind="A third"), {"conv": "plain"}) == ("plain", [])
    assert races == [4, 4, 4]


@pytest.mark.slow
def test_a_resumed_run_repeats_what_was_chosen_unless_the_device_is_another(gpu, races, tmp_path, monkeypatch):
    gpu()
    config, out = rj.Config(**SETTINGS), tmp_path / "run"
    rj.train(config, out=out)
    stored = device_of(out)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "emptied"))
    monkeypatch.setattr(race, "race", lambda *_, **__: pytest.fail("timed again"))
    rj.train(config.replace(rounds=3), out=out, resume=True)
    assert device_of(out) == stored
    assert choice.of_the_same_device(stored, pretended()) == stored
    assert choice.of_the_same_device(stored, pretended(kind="Another GPU")) == {}


@pytest.mark.slow
def test_the_chunk_is_what_fits_and_one_that_does_not_is_refused_before_anything_is_written(gpu, tmp_path):
    gpu()
    config = rj.Config(**SETTINGS | {"rounds": 1, "conv": "matmul"})
    needs = []
    for chunk in ("auto", 1):
        rj.train(config.replace(chunk=chunk), out=tmp_path / str(chunk))
        needs.append(device_of(tmp_path / str(chunk))["memory_gib"])
    assert device_of(tmp_path / "auto")["chunk"] == 4  # all clients of a round
    gpu(limit=int(sum(needs) / 2 * 2**30 / usable(1, "gpu")))
    rj.train(config, out=tmp_path / "small")
    assert 1 <= device_of(tmp_path / "small")["chunk"] < 4
    with pytest.raises(SettingError, match="--chunk 4: 4 clients at once take"):
        rj.train(config.replace(chunk=4), out=tmp_path / "refused")
    assert not (tmp_path / "refused").exists()


def test_on_cpu_nothing_is_timed_and_the_choice_is_told(monkeypatch):
    monkeypatch.setattr(race, "race", lambda *_, **__: pytest.fail("timed on CPU"))
    config, device = rj.Config(**SETTINGS), choice.this_device()
    federation = rj.build_federation(config)
    form = choice.choose_form(config, federation, objects=NO_OBJECTS, stored={}, say=print, device=device)
    simulation = build_cells([config], [federation], conv=form)
    after, chosen, compilations = choice.choose_chunk(simulation, config, capacity=1, stored={}, device=device)
    assert (after.algorithm, compilations) == (simulation.algorithm, 0)
    assert chosen._asdict() == {
        "device": "cpu",
        "platform": "cpu",
        "devices": 1,
        "conv": "matmul",
        "chunk": 1,
        "memory_gib": None,
        "limit_gib": None,
    }
    assert str(chosen) == "1 x cpu: matmul convolutions, 1 client at once on each"


def test_the_race_is_decided_by_the_clock():
    config = rj.Config(**SETTINGS | {"model": SMALL["model"]})
    ticks = itertools.accumulate(itertools.cycle([5.0, 3.0, 5.0, 1.0]))  # plain takes 3, matmul 1
    found = race.race(config, rj.build_federation(config), clients=2, objects=NO_OBJECTS, clock=lambda: next(ticks))
    assert found.seconds == {"plain": 3.0 / race.STEPS, "matmul": 1.0 / race.STEPS}
    assert found.fastest == "matmul"


def test_a_damaged_memory_of_races_is_run_again(gpu, races, tmp_path):
    device = gpu()
    config = rj.Config(**SETTINGS)
    key = race.key_of(config, clients=4, device=device)
    race.remember(key, race.Race({"plain": 1.0}))
    [file] = (tmp_path / "cache").rglob("*.json")
    assert race.remembered(key) == "plain"
    for content in ("{", "[]", '{"conv": "other"}', json.dumps({"conv": "plain", "key": {}})):
        file.write_text(content)
        assert race.remembered(key) is None


def test_what_xla_found_out_goes_with_the_run_and_comes_back(tmp_path, monkeypatch):
    cache, directory = tmp_path / "xla", RunDirectory(tmp_path / "run")
    monkeypatch.setattr(tuning, "_cache", lambda: cache)
    cache.mkdir()
    (cache / "fusion.textproto").write_text("choice")
    tuning.keep_tuning(directory, pretended())
    assert (directory.tuning / "fusion.textproto").read_text() == "choice"
    (cache / "fusion.textproto").unlink()
    tuning.bring_tuning(directory, pretended())
    assert (cache / "fusion.textproto").read_text() == "choice"
    (directory.tuning / "fusion.textproto").write_text("another")
    tuning.bring_tuning(directory, pretended())
    assert (cache / "fusion.textproto").read_text() == "choice"  # what XLA has now is not replaced
    tuning.keep_tuning(None, pretended())


def test_the_first_of_several_processes_decides_for_all(gpu, races, monkeypatch):
    config = rj.Config(**SETTINGS)
    monkeypatch.setattr(choice, "is_first", lambda: False)
    monkeypatch.setattr(choice, "from_the_first", lambda arrays: {"conv": as_letters("plain")})
    form = choice.choose_form(
        config, rj.build_federation(config), objects=NO_OBJECTS, stored={}, say=print, device=gpu()
    )
    assert (form, races) == ("plain", [])
