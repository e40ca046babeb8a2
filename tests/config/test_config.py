"""Settings: what wins, what belongs to the method, what survives, what is refused."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from rscfed_jax.config import PRESETS, SETTINGS, Config, Hyper, SettingError
from rscfed_jax.config.registry import METHODS, NETWORKS

MINE = """
DEFAULTS = {"tau": 0.25, "stem": "cifar"}
NUMBERS = {"factor": (1, "0..", "a number")}
CHOICES = {"sharp": (True, "true|false", "a switch"), "form": ("round", "round|square", "a word")}
REFUSES = {"drop_rate": "cannot lose clients"}

def method(config):
    return None
"""


@pytest.fixture
def mine(tmp_path):
    """The path of a method's file."""
    (tmp_path / "mine.py").write_text(MINE)
    return str(tmp_path / "mine.py")


def test_the_default_is_the_paper():
    config = Config()
    assert (config.preset, config.method) == ("paper", "rscfed")
    assert (config.subsets, config.subset_size, config.beta, config.tau, config.ema) == (3, 5, 10_000.0, 0.5, 0.999)
    assert (config.lr_labeled, config.lr_unlabeled, config.batch_size, config.gamma) == (0.03, 0.021, 64, 0.8)
    assert (config.labeled_clients, config.labeled_choice, config.labeled_share) == (1, "most-classes", 0.5)


def test_what_is_given_wins_over_the_method_that_over_the_data_set_and_that_over_the_preset(mine):
    isic = {"dataset": "isic2018", "preset": "published"}
    assert Config(preset="published").beta == PRESETS["published"]["beta"]
    assert (Config(**isic).beta, Config(**isic).stem) == (0.01, "cifar")
    assert Config(dataset="isic2018").stem == "imagenet"
    ours = Config(dataset="isic2018", method=mine)
    assert (ours.stem, ours.tau, ours.beta) == ("cifar", 0.25, 0.01)
    by_hand = Config(dataset="isic2018", method=mine, stem="imagenet", tau=0.75, beta=3)
    assert (by_hand.stem, by_hand.tau, by_hand.beta) == ("imagenet", 0.75, 3.0)


@pytest.mark.parametrize(
    ("settings", "resolved"),
    [
        ({"clients": 3}, {"subset_size": 3}),
        ({"clients": 100}, {"subset_size": 5}),
        ({"clients": 3, "subset_size": 2}, {"subset_size": 2}),
        ({"image_size": 64}, {"resize": 80}),
        ({"image_size": 64, "resize": 64}, {"resize": 64}),
        ({"dataset": "isic2018"}, {"resize": 240}),
        ({"beta": 5.0}, {"beta_labeled": 5.0}),
        ({"beta": 5.0, "preset": "published"}, {"beta_labeled": 100.0}),
        ({"partition_file": "x.npz"}, {"labeled_choice": "first"}),
        ({"labeled_fraction": 0.1}, {"labeled_clients": None}),
        ({"data_dir": Path("data"), "rounds": np.int64(3)}, {"data_dir": "data", "rounds": 3}),
        ({"tau": 1, "gamma": 2}, {"tau": 1.0, "gamma": 2.0}),
    ],
)
def test_settings_follow_from_others(settings, resolved):
    config = Config(**settings)
    for name, value in resolved.items():
        assert getattr(config, name) == value
        assert type(getattr(config, name)) is type(value)


def test_a_methods_own_settings_have_its_name_in_front(mine):
    config = Config(method="fedirm", fedirm_factor=3)
    assert config.own == config.numbers
    assert (config.own["factor"], config.own["temperature"]) == (3.0, 2.0)
    assert config.to_dict()["fedirm_factor"] == 3.0
    assert Config().own == {}
    ours = Config(method=mine, mine_sharp=False)
    assert ours.own == {"factor": 1.0, "sharp": False, "form": "round"}
    assert ours.numbers == {"factor": 1.0}  # choices shape the program


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"method": "rscfed", "fedirm_temperature": 3.0},
            "--fedirm-temperature 3.0: is a setting of the method fedirm, but the method is rscfed",
        ),
        ({"method": "fedirm", "fedirm_temperature": 0}, "--fedirm-temperature 0: must be a number above 0"),
        ({"method": "fedirm", "fedirm_smoothing": "much"}, "--fedirm-smoothing much: must be a number from 0 to 1"),
    ],
)
def test_an_own_setting_of_another_method_or_out_of_range_is_refused(settings, said):
    with pytest.raises(SettingError) as error:
        Config(**settings)
    assert str(error.value) == said


def test_an_unknown_setting_is_a_type_error():
    for name in ("colour", "rscfed_factor", "fedirm_colour"):
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
            Config(method="fedirm", **{name: 1})


def test_a_number_with_the_name_of_a_setting_is_refused(tmp_path):
    (tmp_path / "batch.py").write_text(MINE.replace("factor", "size"))
    with pytest.raises(SettingError, match=r"--method .*batch.py: its number batch_size has the name of a setting"):
        Config(method=str(tmp_path / "batch.py"))


@pytest.mark.parametrize("name", ["colour", "mine_factor", "dataset", "preset"])
def test_a_default_that_a_method_cannot_choose_is_refused(tmp_path, name):
    (tmp_path / "mine.py").write_text(MINE.replace('"tau"', f'"{name}"'))
    with pytest.raises(SettingError, match=rf"--method .*mine.py: its DEFAULTS name {name}, which is not a setting"):
        Config(method=str(tmp_path / "mine.py"))


def test_replace_resolves_anew_what_was_not_given_by_hand():
    config = Config(repeat="share", beta=5.0)
    other = config.replace(preset="published")
    assert (other.repeat, other.beta, other.beta_labeled, other.warmup_rounds) == ("share", 5.0, 100.0, 7)
    assert config.replace(beta=7.0).beta_labeled == 7.0
    assert config.replace(labeled_fraction=0.1).labeled_clients is None
    assert config.replace() == config


def test_replace_takes_a_methods_defaults_and_own_settings_with_it():
    config = Config(method="fedirm", fedirm_factor=3.0, tau=0.25)
    same, other = config.replace(rounds=7), config.replace(method="rscfed")
    assert (same.own["factor"], same.ema) == (3.0, 0.99)
    assert (other.own, other.ema, other.tau) == ({}, 0.999, 0.25)
    assert other == Config(tau=0.25)
    assert other.replace(method="fedirm").own["factor"] == 15.0


@pytest.mark.parametrize(
    "settings",
    [
        {"preset": "published", "gamma": "iid", "labeled_fraction": 0.1},
        {"method": "fedirm", "fedirm_factor": 3.0},
        {"dataset": "isic2018", "chunk": 4},
        {"method": "given_as_object", "method_hash": "none"},
    ],
)
def test_a_config_survives_json(settings):
    config = Config(**settings)
    stored = config.to_dict()
    again = Config(**json.loads(json.dumps(stored)))
    assert again == config
    assert hash(again) == hash(config)
    assert again.to_dict() == stored
    assert dataclasses.replace(config) == config


def test_a_config_knows_its_method_by_the_hash_of_its_file(mine):
    config = Config(method=mine, mine_factor=2)
    assert config.method == "mine"
    assert len(config.method_hash) == 16
    assert Config().method_hash is None
    stored = Config(**config.to_dict())  # the file may be gone
    assert stored == config
    assert stored.method_file is None
    Path(mine).write_text(MINE + "# changed\n")
    assert Config(method=mine, mine_factor=2) != config
    assert stored.replace(method="rscfed").method_hash is None


def test_a_config_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().rounds = 3


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"method": "sgd"}, "--method sgd: must be one of " + ", ".join(METHODS.declarations)),
        ({"model": "vgg"}, "--model vgg: must be one of " + ", ".join(NETWORKS.declarations)),
        ({"preset": "mine"}, "--preset mine: must be one of paper, published"),
        ({"subset_size": 11}, "--subset-size 11: must be from 1 to --clients 10"),
        ({"subsets": 0}, "--subsets 0: must be a whole number of at least 1"),
        ({"rounds": 1.5}, "--rounds 1.5: must be a whole number of at least 1"),
        ({"rounds": True}, "--rounds True: must be a whole number of at least 1"),
        ({"tau": 0.0}, "--tau 0.0: must be a number above 0"),
        ({"lr_labeled": float("nan")}, "--lr-labeled nan: must be a number of at least 0"),
        ({"labeled_fraction": 1.5}, "--labeled-fraction 1.5: must be a number from 0 to 1"),
        ({"labeled_fraction": 0.5, "labeled_clients": 2}, "cannot be combined with --labeled-clients"),
        ({"labeled_fraction": 0}, "no client would hold a label"),
        ({"labeled_clients": 0}, "no client would hold a label"),
        ({"labeled_clients": 11}, "--labeled-clients 11: must be from 1 to --clients 10"),
        ({"byzantine": 11}, "--byzantine 11: must be from 0 to --clients 10"),
        (
            {"aggregator": "krum", "subset_size": 4},
            "--aggregator krum: needs at least 5 models to withstand --assumed-attackers 1, but 4 are averaged",
        ),
        ({"aggregator": "multi_krum", "assumed_attackers": 2}, "needs at least 7 models"),
        ({"aggregator": "trimmed_mean", "assumed_attackers": 3}, "needs at least 7 models"),
        ({"aggregator": "krum", "method": "fed_consist", "assumed_attackers": 4}, "needs at least 11 models"),
        ({"aggregator": "krum", "method": "fedavg", "labeled_clients": 4}, "but 4 are averaged"),
        ({"gamma": "flat"}, "--gamma flat: must be a number above 0, or iid"),
        ({"image_size": 18}, "--image-size 18: simple-cnn takes multiples of 4 of at least 16"),
        ({"model": "resnet8", "image_size": 7}, "--image-size 7: resnet8 takes sides of at least 8"),
        ({"model": "wrn28-2", "image_size": 4}, "--image-size 4: wrn28-2 takes sides of at least 8"),
        ({"model": "resnet18-linear", "image_size": 8}, "--image-size 8: resnet18-linear takes sides of at least 16"),
        ({"image_size": 32, "resize": 31}, "--resize 31: must be at least --image-size 32"),
        ({"clients": "many"}, "--clients many: must be a whole number of at least 1"),
    ],
)
def test_a_wrong_setting_is_named_with_its_value_and_what_is_allowed(settings, named):
    with pytest.raises(SettingError) as error:
        Config(**settings)
    assert named in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"aggregator": "median", "subset_size": 1},
        {"aggregator": "geometric_median", "subset_size": 1},
        {"aggregator": "geometric_median", "assumed_attackers": 9},  # it withstands half of the weight, come what may
        {"aggregator": "krum", "assumed_attackers": 1},
        {"aggregator": "krum", "assumed_attackers": 3, "sampling": "all"},
        {"aggregator": "multi_krum", "assumed_attackers": 0, "subset_size": 3},
        {"aggregator": "trimmed_mean", "assumed_attackers": 2},
    ],
)
def test_a_robust_aggregator_works_where_enough_models_are_averaged(settings):
    assert Config(**settings).aggregator == settings["aggregator"]


def test_a_method_refuses_what_its_file_says_unless_it_is_the_default(mine):
    assert Config(method=mine, drop_rate=0).drop_rate == 0
    with pytest.raises(SettingError, match="--method mine: cannot lose clients"):
        Config(method=mine, drop_rate=0.1)


def test_the_size_of_subsets_does_not_matter_to_a_method_without_them():
    assert Config(method="fedavg", subset_size=11).subset_size == 11


def test_hyper_holds_floats_only_with_the_methods_own_numbers(mine):
    hyper = Hyper.of(Config(preset="published", method=mine))
    assert all(isinstance(value, float) for value in hyper[:-1])
    assert hyper.labeled_share < 0
    assert (hyper.flip_rate, hyper.ema_warmup, hyper.teacher_from_selection) == (0.5, 1.0, 1.0)
    assert hyper.own == {"factor": 1.0}
    assert set(Hyper.of(Config(method="fedirm")).own) == set(METHODS.find("fedirm").literals["NUMBERS"])


def test_every_setting_has_a_help_text_and_a_group():
    assert set(SETTINGS) == {field.name for field in dataclasses.fields(Config) if field.metadata}
    assert all(setting.help and setting.group for setting in SETTINGS.values())


def test_replacing_a_method_by_its_own_file_keeps_its_settings(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text('NUMBERS = {"threshold": (0.9, "0..1", "a number")}\n\n\ndef method(config):\n    """None."""\n')
    config = Config(method=str(file), mine_threshold=0.5)
    assert config.replace(method=file, seed=3).own == {"threshold": 0.5}
    assert config.replace(method="sso").own == {}
