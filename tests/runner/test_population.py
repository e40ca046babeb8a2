"""Populations of which the devices hold a working set at a time: the same runs bit for bit, and who is refused."""

import chex
import jax
import numpy as np
import pytest

import rscfed_jax as rj
from rscfed_jax.config import SettingError
from rscfed_jax.core.sampling import RandomSubsets
from rscfed_jax.runner import choose_population, population
from rscfed_jax.runner.population import draw_subsets
from tests.helpers import SMALL, StopAfter, assert_same_run, records_of, saved_rounds

# Chunks of at most two rounds, so that working sets change; a chunk draws fewer clients than there are.
CONFIG = rj.Config(
    **SMALL
    | {"dataset": "synthetic:train=240,test=40,classes=3,size=16", "clients": 24, "subsets": 2, "subset_size": 3}
    | {"rounds": 6, "eval_every": 2, "checkpoint_every": 3, "min_client_size": 2}
)


class Killed(BaseException):
    """The end of a process."""


class KillAfter(StopAfter):
    """Ends a run after a number of chunks of rounds, before it can save anything."""

    def __call__(self):
        """Never whether to stop: the run is over if so."""
        if super().__call__():
            raise Killed
        return False


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run whose clients are all on the devices."""
    out = tmp_path_factory.mktemp("whole") / "run"
    rj.train(CONFIG.replace(population="device"), out=out)
    return out


def test_a_population_on_the_host_gives_the_run_of_one_on_the_devices(tmp_path, whole):
    result = rj.train(CONFIG.replace(population="host"), out=tmp_path / "run")
    assert_same_run(tmp_path / "run", whole)
    assert result.cells.data.sizes.shape == (1, 2 * 2 * 3)  # rows: of two rounds, two subsets, three clients


def test_a_run_on_disk_is_killed_and_goes_on_in_any_place(tmp_path, whole):
    out = tmp_path / "run"

    def go_on(place, stop=lambda: False):
        rj.train(CONFIG.replace(population=place), out=out, resume=True, stop=stop)

    with pytest.raises(rj.Stopped):
        go_on("host", StopAfter(1))
    with pytest.raises(Killed):
        go_on("disk", KillAfter(1))
    with pytest.raises(rj.Stopped):
        go_on("disk", StopAfter(1))
    with pytest.raises(Killed):  # at rounds that were not saved, whose states are in the file
        go_on("disk", KillAfter(1))
    assert saved_rounds(out)[-1] == 4
    go_on("device")
    assert_same_run(out, whole)


CASES = {
    "shared, dropped, attacked": {
        "repeat": "share",
        "drop_rate": 0.3,
        "byzantine": 8,
        "attackers": "largest-first",
        "gamma": 0.8,
        "rounds": 4,
    },
    "warm-up, server": {"labels_at": "server", "server_labels": 4, "warmup_rounds": 1, "rounds": 4},
    "two devices": {"method": "fixmatch", "sampling": "subsets", "client_state": "fresh", "rounds": 4, "devices": 2},
    "one after the other": {"repeat": "sequential", "labeled_fraction": 0.5, "rounds": 4, "devices": 2, "chunk": 2},
}
QUICK = ("shared, dropped, attacked",)


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in CASES if name not in QUICK]


@pytest.mark.parametrize("name", [*QUICK, *SLOW])
def test_other_methods_and_settings_give_the_same_run_on_disk(tmp_path, name):
    config = CONFIG.replace(**CASES[name])
    rj.train(config.replace(population="device"), out=tmp_path / "device")
    disk, stored = config.replace(population="disk"), tmp_path / "disk"
    rj.train(disk, out=stored)
    assert records_of(stored) == records_of(tmp_path / "device")
    rj.train(disk.replace(population="host", rounds=5), out=stored, resume=True)
    rj.train(config.replace(population="device", rounds=5), out=tmp_path / "device", resume=True)
    assert_same_run(stored, tmp_path / "device")


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"labels_at": "server", "server_labels": 4}, {"labeled_clients": 3}])
def test_a_second_phase_gives_the_same_run_up_to_rounding(changes):
    # In some cases models differ by up to 1e-7; the order in which XLA adds is the likely cause.
    config = CONFIG.replace(method="semifl", sampling="subsets", warmup_rounds=1, rounds=4, **changes)
    models = [rj.train(config.replace(population=place)).model for place in ("device", "host")]
    chex.assert_trees_all_close(*models, rtol=1e-4, atol=1e-6)


def test_the_host_draws_what_a_round_would_draw():
    key = rj.build_simulation(CONFIG, rj.build_federation(CONFIG)).state.key
    drawn = draw_subsets(key, np.arange(-2, 3), sample=RandomSubsets(2, 3), holders=24)
    assert drawn.shape == (5, 2, 3)
    again = draw_subsets(key, np.arange(1, 3), sample=RandomSubsets(2, 3), holders=24)
    np.testing.assert_array_equal(drawn[3:], again)


def test_the_host_draws_also_where_jax_has_no_cpu(monkeypatch):
    def local_devices(backend=None):
        if backend == "cpu":
            raise RuntimeError("Unknown backend cpu")
        return jax.devices()

    monkeypatch.setattr(jax, "local_devices", local_devices)
    assert population._host_device() == jax.devices()[0]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"method": "fed_consist"}, "host: the method fed_consist trains all clients in every round"),
        ({"method": "fedrgd", "image_size": 16}, "host: the method fedrgd draws clients by a rule of its own"),
        ({"population": "disk"}, "disk: needs a run directory for the clients' states; give --out"),
    ],
)
def test_a_population_that_must_be_elsewhere_is_refused_in_one_line(changes, reason):
    with pytest.raises(SettingError, match=f"--population {reason}"):
        rj.train(CONFIG.replace(**{"population": "host"} | changes))


@pytest.mark.parametrize(
    ("memory", "method", "place"),
    [(2**40, "rscfed", "device"), (6 * 10**5, "rscfed", "host"), (1, "rscfed", "disk"), (1, "fed_consist", "device")],
)
def test_auto_is_the_first_place_that_has_room(tmp_path, monkeypatch, memory, method, place):
    from rscfed_jax.runner.build import NO_OBJECTS
    from rscfed_jax.runner.choice import this_device
    from rscfed_jax.runner.experiment import Experiment
    from rscfed_jax.storage.run_directory import RunDirectory

    monkeypatch.setattr(choose_population, "memory_of_the_host", lambda: memory)
    config = CONFIG.replace(method=method)
    experiment = Experiment(config, rj.build_federation(config), RunDirectory(tmp_path / "run"))
    for capacity, chosen in ((2, place), (4, "device")):  # of 24 clients, four rounds may draw all
        options = {"objects": NO_OBJECTS, "device": this_device(), "capacity": capacity}
        assert choose_population.choose_population([experiment], **options) == chosen


def test_cells_of_a_grid_run_one_after_the_other(tmp_path):
    config = CONFIG.replace(population="host", rounds=2)
    result = rj.grid(config, {"beta": [0.0, 100.0]}, out=tmp_path)
    assert len(result.summary) == 2
    assert result.compilations <= 1
