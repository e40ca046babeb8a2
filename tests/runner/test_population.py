"""Populations of which the devices hold a working set at a time give the same run, bit for bit."""

import pytest

import rscfed_jax as rj
from tests.helpers import SMALL, assert_same_run

# Chunks of two rounds, so that the working sets change; more clients than a chunk draws.
CONFIG = rj.Config(
    **SMALL
    | {"dataset": "synthetic:train=240,test=40,classes=3,size=16", "clients": 24, "subsets": 2, "subset_size": 3}
    | {"rounds": 6, "eval_every": 2, "checkpoint_every": 3, "min_client_size": 2}
)
CASES = {
    "kept states": {},
    "shared": {"repeat": "share", "drop_rate": 0.3, "byzantine": 8, "attackers": "largest-first"},
    "warm-up and server": {"warmup_rounds": 3, "labels_at": "server", "server_labels": 4, "rounds": 4},
    "second phase": {"method": "semifl", "sampling": "subsets", "labeled_clients": 3, "rounds": 2},
    "fresh": {"method": "fixmatch", "sampling": "subsets", "client_state": "fresh", "rounds": 2, "devices": 2},
}


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_a_population_on_the_host_gives_the_run_of_one_on_the_devices(tmp_path, changes):
    config = CONFIG.replace(**changes)
    for place in ("device", "host"):
        rj.train(config.replace(population=place), out=tmp_path / place)
    assert_same_run(tmp_path / "host", tmp_path / "device")
