"""What the presets choose."""

import pytest

from rscfed_jax.config import PRESETS, SETTINGS, Config
from rscfed_jax.config.presets import USUAL
from rscfed_jax.config.registry import DATASETS


def differences(one, other):
    return {name for name in SETTINGS if getattr(one, name) != getattr(other, name)}


def test_presets_choose_every_difference_at_once():
    paper, published = Config(preset="paper"), Config(preset="published")
    assert differences(paper, published) == set(PRESETS["paper"]) - {"beta"} | {"preset"}
    assert (published.repeat, published.distance, published.beta_labeled) == ("sequential", "sum", 100.0)
    assert (published.labeled_share, published.labeled_multiplier, published.warmup_rounds) == ("off", 6.0, 7)


def test_the_published_codes_small_stem_is_not_the_papers():
    assert [Config(dataset="isic2018", preset=preset).stem for preset in PRESETS] == ["imagenet", "cifar"]
    assert Config(model="resnet18").stem == "cifar"


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_and_the_usual_numbers_resolve_every_setting(preset):
    for dataset in DATASETS.declarations:
        config = Config(dataset=dataset, preset=preset)
        open_ones = {name for name in SETTINGS if getattr(config, name) is None}
        partition = {"labeled_fraction", "server_labels", "labeled_gamma", "classes_per_client", "partition_file"}
        assert open_ones == {"data_dir", "init_from", "labeled_batch_size"} | partition
    assert set(PRESETS[preset]) | set(USUAL) <= set(SETTINGS)


def test_a_setting_given_by_hand_wins_over_the_preset():
    config = Config(preset="published", repeat="share", flip=False)
    assert (config.repeat, config.flip, config.distance) == ("share", False, "sum")
