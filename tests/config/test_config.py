"""Settings: presets, what wins, what is refused."""

import dataclasses
import json
from pathlib import Path

import pytest

from rscfed_jax.config import METHODS, PRESETS, Config, Hyper, SettingError, read_setting


def test_the_default_is_the_paper():
    config = Config()
    assert (config.preset, config.method) == ("paper", "rscfed")
    assert (config.subsets, config.subset_size, config.beta, config.tau, config.ema) == (3, 5, 10_000.0, 0.5, 0.999)
    assert (config.lr_labeled, config.lr_unlabeled, config.batch_size, config.gamma) == (0.03, 0.021, 64, 0.8)
    assert (config.labeled_clients, config.labeled_choice, config.labeled_share) == (1, "most-classes", 0.5)


def test_presets_choose_every_difference_at_once():
    paper, published = Config(preset="paper"), Config(preset="published")
    different = {f.name for f in dataclasses.fields(Config) if getattr(paper, f.name) != getattr(published, f.name)}
    assert different == set(PRESETS["paper"]) - {"beta"} | {"preset"}
    assert (published.repeat, published.distance, published.beta_labeled) == ("sequential", "sum", 100.0)
    assert (published.labeled_share, published.labeled_multiplier, published.warmup_rounds) == ("off", 6.0, 7)


@pytest.mark.parametrize("dataset", ["svhn", "isic2018"])
def test_tuned_changes_only_what_the_text_leaves_open(dataset):
    paper, tuned = Config(dataset=dataset), Config(dataset=dataset, preset="tuned")
    different = {f.name for f in dataclasses.fields(Config) if getattr(paper, f.name) != getattr(tuned, f.name)}
    assert different == {"preset", "lambda_u"}


def test_the_published_codes_small_stem_is_not_the_papers():
    assert [Config(dataset="isic2018", preset=preset).stem for preset in PRESETS] == ["imagenet", "cifar", "imagenet"]
    assert Config(model="resnet18").stem == "cifar"


def test_a_path_may_be_one():
    assert Config(data_dir=Path("data"), init_from=Path("runs") / "first").init_from == "runs/first"


def test_a_setting_given_by_hand_wins_over_the_preset():
    config = Config(preset="published", repeat="share", flip=False)
    assert (config.repeat, config.flip, config.distance) == ("share", False, "sum")


def test_the_papers_beta_is_the_same_in_every_subset():
    assert Config(beta=5.0).beta_labeled == 5.0
    assert Config(beta=5.0, preset="published").beta_labeled == 100.0


def test_an_imported_partition_takes_the_first_client_as_labeled():
    assert Config(partition_file="x.npz").labeled_choice == "first"


def test_config_survives_json():
    config = Config(preset="published", gamma="iid", labeled_fraction=0.1)
    assert Config(**json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"method": "sgd"}, "--method sgd: must be one of " + ", ".join(METHODS)),
        ({"preset": "mine"}, "--preset mine: must be one of paper, published, tuned"),
        ({"subset_size": 11}, "--subset-size 11: must be from 1 to --clients 10"),
        ({"subsets": 0}, "--subsets 0: must be a whole number of at least 1"),
        ({"rounds": 1.5}, "--rounds 1.5: must be a whole number of at least 1"),
        ({"rounds": True}, "--rounds True: must be a whole number of at least 1"),
        ({"tau": 0.0}, "--tau 0.0: must be a number above 0"),
        ({"lr_labeled": float("nan")}, "--lr-labeled nan: must be a number of at least 0"),
        ({"labeled_fraction": 1.5}, "--labeled-fraction 1.5: must be a number from 0 to 1"),
        ({"labeled_fraction": 0.5, "labeled_clients": 2}, "excludes --labeled-clients"),
        ({"labeled_clients": 0}, "no client would hold a label"),
        ({"gamma": "flat"}, "--gamma flat: must be a number above 0, or iid"),
        ({"image_size": 18}, "multiples of 4 from 16 on"),
    ],
)
def test_a_wrong_setting_is_named_with_its_value_and_what_is_allowed(settings, named):
    with pytest.raises(SettingError) as error:
        Config(**settings)
    assert named in str(error.value)
    assert "\n" not in str(error.value)


def test_text_is_read_by_kind():
    assert read_setting("rounds", "12") == 12
    assert read_setting("gamma", "iid") == "iid"
    assert read_setting("chunk", "auto") == "auto"
    with pytest.raises(SettingError, match="--rounds many: must be a whole number"):
        read_setting("rounds", "many")


def test_hyper_holds_floats_only():
    hyper = Hyper.of(Config(preset="published"))
    assert all(isinstance(value, float) for value in hyper)
    assert hyper.labeled_share < 0
    assert (hyper.flip_rate, hyper.ema_warmup, hyper.teacher_from_selection) == (0.5, 1.0, 1.0)


def test_replace_resolves_anew_what_was_not_given_by_hand():
    config = Config(repeat="share", beta=5.0)
    other = config.replace(preset="published")
    assert (other.repeat, other.beta, other.beta_labeled, other.warmup_rounds) == ("share", 5.0, 100.0, 7)
    assert config.replace(beta=7.0).beta_labeled == 7.0
    assert config.replace(labeled_fraction=0.1).labeled_clients is None
