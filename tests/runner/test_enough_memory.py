"""Runs that need more memory than there is are refused before anything is allocated or written."""

import jax
import pytest

import rscfed_jax as rj
from rscfed_jax.config import SettingError
from rscfed_jax.data.federation import build_federation
from rscfed_jax.runner import enough_memory
from rscfed_jax.runner.build import NO_OBJECTS
from rscfed_jax.runner.enough_memory import check_memory, least_bytes, working_sets
from rscfed_jax.runner.experiment import Experiment
from rscfed_jax.runner.memory import Room
from tests.helpers import SMALL

CONFIG = rj.Config(
    **SMALL
    | {"dataset": "synthetic:train=240,test=40,classes=3,size=16", "clients": 24, "subsets": 2, "subset_size": 3}
    | {"labeled_clients": 6, "min_client_size": 2, "eval_every": 2}
)


def experiment(**settings):
    config = CONFIG.replace(**settings)
    return Experiment(config, build_federation(config))


def check(own, place):
    device = jax.devices()[0]
    check_memory(own, place, objects=NO_OBJECTS, device=device, capacity=2)


@pytest.fixture
def room(monkeypatch):
    """Sets how much memory there is."""
    return lambda size: monkeypatch.setattr(enough_memory, "room_left", lambda: Room(size, "free on this machine"))


def test_all_clients_on_the_devices_need_room_for_images_and_states(room):
    own = [experiment()]
    needed = least_bytes(own, objects=NO_OBJECTS, device=jax.devices()[0])
    assert needed > 240 * 20**2 * 4
    room(needed)
    check(own, "device")
    room(needed - 1)
    with pytest.raises(SettingError, match=r"--clients 24: images and states of these clients take at least .*free on"):
        check(own, "device")
    room(needed)
    with pytest.raises(SettingError, match=r"2 cells of these clients .*fewer --cells-at-once"):
        check(own * 2, "device")


def test_a_working_set_holds_the_clients_of_its_rounds_and_a_warm_up_all_labeled_ones():
    (rounds,) = working_sets(experiment(), objects=NO_OBJECTS, capacity=2)
    assert (rounds.rows, rounds.labeled) == (12, 0)
    _, warmup = working_sets(experiment(warmup_rounds=2), objects=NO_OBJECTS, capacity=2)
    assert (warmup.rows, warmup.labeled) == (6, 6)
    (all_labeled,) = working_sets(experiment(method="fedavg"), objects=NO_OBJECTS, capacity=2)
    assert (all_labeled.rows, all_labeled.labeled) == (6, 6)


def test_labeled_clients_that_do_not_fit_are_named(room):
    own = [experiment(warmup_rounds=2, labeled_clients=24)]
    rounds, warmup = working_sets(own[0], objects=NO_OBJECTS, capacity=1)
    assert warmup.bytes > rounds.bytes
    room(warmup.bytes - 1)
    wrong = (
        r"--population disk: the warm-up has 24 clients on the devices at a time, which take 0.00 GiB, all 24 labeled "
        r"clients among them, and there are 0.00 GiB \(free on this machine\); use fewer --labeled-clients or no "
        r"--warmup-rounds"
    )
    with pytest.raises(SettingError, match=wrong):
        check_memory(own, "disk", objects=NO_OBJECTS, device=jax.devices()[0], capacity=1)


def test_states_on_the_host_need_room_there(room):
    room(40_000)
    with pytest.raises(SettingError, match=r"--population host: .*there are 0.00 GiB"):
        check([experiment(rounds=1000)], "host")


def test_a_run_that_does_not_fit_leaves_nothing_behind(tmp_path, room):
    room(1000)
    with pytest.raises(SettingError, match="--clients 24"):
        rj.train(CONFIG, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
