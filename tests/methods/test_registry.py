"""The methods of the package by name."""

from collections.abc import Mapping

import pytest

import rscfed_jax as rj
from rscfed_jax.config import Config, SettingError
from rscfed_jax.config.registry import METHODS as FILES
from rscfed_jax.config.settings import AGGREGATORS as CONFIG_AGGREGATORS
from rscfed_jax.core.aggregation import by_data_amount
from rscfed_jax.core.algorithm import Algorithm
from rscfed_jax.core.method import Separate
from rscfed_jax.core.robust import median
from rscfed_jax.core.sampling import SAMPLERS
from rscfed_jax.methods.registry import METHODS, method_of
from rscfed_jax.runner.build import Objects
from tests.helpers import TinyNetwork


def test_the_table_of_methods_is_a_mapping_of_all_files():
    assert rj.METHODS is METHODS
    assert isinstance(METHODS, Mapping)
    assert {"fedavg", "fed_consist", "fedirm", "sso", "rscfed"} <= set(METHODS)
    assert len(METHODS) == len(list(METHODS)) == len(FILES.declarations)
    assert METHODS.get("no_such_method") is None
    with pytest.raises(KeyError, match="no_such_method"):
        METHODS["no_such_method"]


@pytest.mark.parametrize("name", METHODS)
def test_equal_configs_build_equal_methods_that_share_a_program(name):
    config = {"method": name, "subsets": 2, "subset_size": 3}
    one, other = (method_of(Config(**config)) for _ in range(2))
    assert one == other == METHODS[name](Config(**config))
    algorithms = {Algorithm(method, TinyNetwork(), image_size=16, batch_size=8) for method in (one, other)}
    assert len(algorithms) == 1


@pytest.mark.parametrize("name", METHODS)
def test_a_method_has_the_name_of_its_file_and_the_sampler_that_the_file_declares(name):
    config = Config(method=name)
    method = method_of(config)
    assert method.name == name
    declared = FILES.declarations[name].load().method(config)
    sampler = SAMPLERS[FILES.declarations[name].get("SAMPLES", "subsets")](config)
    assert method.sample == (declared.sample or sampler)


def test_a_method_can_be_asked_for_with_the_config_of_another():
    config = Config(method="fedirm", fedirm_factor=3.0, subsets=2)
    assert METHODS["rscfed"](config) == method_of(Config(method="rscfed", subsets=2))


def test_a_choice_of_a_config_makes_another_method():
    assert method_of(Config(distance="l2")) != method_of(Config(distance="sum"))
    assert method_of(Config(subsets=2)) != method_of(Config(subsets=3))


def test_a_config_that_knows_only_the_hash_of_a_file_asks_for_the_file():
    stored = Config(method="mine", method_hash="0123456789abcdef")
    with pytest.raises(SettingError, match="--method mine: is not built in: give the file it came from"):
        method_of(stored)


def test_settings_that_all_methods_share_change_who_takes_part_who_averages_and_which_batches():
    plain = method_of(Config(method="fixmatch"))
    combined = method_of(Config(method="fixmatch", sampling="subsets", aggregator="dma", subsets=2, subset_size=4))
    rscfed = method_of(Config(method="rscfed", subsets=2, subset_size=4))
    assert (combined.sample, combined.aggregate) == (rscfed.sample, rscfed.aggregate)
    assert combined.objective == plain.objective
    assert method_of(Config(method="rscfed", aggregator="mean")).aggregate is by_data_amount
    mixed = method_of(Config(method="sage", labeled_fraction=0.1, labeled_batch_size=16, batch_size=48))
    assert mixed.batches == Separate(16, 48)


@pytest.mark.parametrize("name", CONFIG_AGGREGATORS)
def test_every_aggregator_of_the_settings_is_there(name):
    assert callable(method_of(Config(aggregator=name)).aggregate)


def test_settings_change_a_method_that_is_given_as_an_object_too():
    mine = rj.Method(name="mine", sample=SAMPLERS["all"](Config()))
    config = rj.Config(sampling="labeled", aggregator="median")
    changed = Objects(method=mine).method_of(config)
    assert changed.sample == SAMPLERS["labeled"](config)
    assert changed.aggregate is median
