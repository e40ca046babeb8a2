"""What stays of settings when others change: what was given by hand, and what does not follow from the change."""

import json

import pytest

from rscfed_jax.config import PRESETS, RECORD, SETTINGS, Config, SettingError, changed
from rscfed_jax.config.kinds import SWITCH
from rscfed_jax.config.registry import DATASETS, METHODS, NETWORKS

MINE = """
NUMBERS = {"threshold": (0.9, "0..1", "a number")}
DEFAULTS = {"tau": 0.25}

def method(config):
    return None
"""


def stored(config):
    """The content of a run's config.json."""
    return json.loads(json.dumps(config.to_dict()))


def values_of(setting):
    """Some values that a setting accepts."""
    if setting.kind is SWITCH:
        return [True, False]
    words = [word for word in setting.kind.metavar.split("|") if setting.kind.accepts(word) and word not in "NF"]
    names = {"method": METHODS, "model": NETWORKS, "dataset": DATASETS}.get(setting.name)
    words += [] if names is None else names.declarations
    numbers = [value for value in (0, 1, 2, 3, 16, 64, 0.25, 0.5) if setting.kind.accepts(value)]
    return words + numbers


def outcome(make):
    """The config, or why there is none."""
    try:
        return make()
    except SettingError as error:
        return str(error)


def test_the_record_lists_what_was_given_by_hand_in_the_order_of_settings():
    assert Config().to_dict()[RECORD] == []
    config = Config(method="fedirm", fedirm_factor=3, seed=None, rounds=7, dataset="svhn")
    assert config.to_dict()[RECORD] == ["dataset", "method", "rounds", "fedirm_factor"]
    again = Config(**stored(config))
    assert again.given() == config.given()
    assert again.to_dict() == config.to_dict()
    assert dict(again.settings(), given=None) != again.given()  # it keeps what was resolved


@pytest.mark.parametrize("method", METHODS.declarations)
@pytest.mark.parametrize("preset", PRESETS)
def test_a_stored_config_is_repeated_exactly(method, preset):
    for settings in ({}, {"dataset": "isic2018"}, {"clients": 20, "beta": 3.0, "labels_at": "server"}):
        config = Config(method=method, preset=preset, **settings)
        again = Config(**changed(stored(config), {}))
        assert again == config
        assert again.to_dict() == config.to_dict()


@pytest.mark.parametrize("name", SETTINGS)
def test_a_change_of_a_stored_config_gives_what_it_gives_from_the_start(name):
    begun = [{}, {"preset": "published"}, {"method": "cbafed"}, {"dataset": "isic2018", "method": "semifl"}]
    begun += [{"labels_at": "server"}, {"labeled_fraction": 0.5}, {"clients": 2}, {"server_optimizer": "adam"}]
    tried = 0
    for given in begun:
        content = stored(Config(**given))
        for value in values_of(SETTINGS[name]):
            direct = outcome(lambda given=given, value=value: Config(**given | {name: value}))
            later = outcome(lambda content=content, value=value: Config(**content).replace(**{name: value}))
            assert later == direct
            if isinstance(direct, Config):
                assert later.to_dict()[RECORD] == direct.to_dict()[RECORD]
                tried += 1
    assert tried


@pytest.mark.parametrize("change", [{"method": "fedirm"}, {"dataset": "isic2018"}, {"preset": "published"}])
def test_only_what_was_given_by_hand_outlives_another_method_data_set_or_preset(change):
    content = stored(Config(beta=5.0, rounds=7)) | {"tau": 0.125}  # tau: the default of another version
    later = Config(**content).replace(**change)
    assert later == Config(beta=5.0, rounds=7, **change)
    assert Config(**content).replace(seed=3).tau == 0.125
    unchanged = {name: content[name] for name in change}
    assert Config(**content).replace(**unchanged).tau == 0.125  # the same method again is no change


def test_a_setting_given_by_hand_does_not_follow_another():
    content = stored(Config(clients=8, subset_size=4, beta=5.0, beta_labeled=6.0))
    later = Config(**content).replace(clients=20, beta=7.0)
    assert (later.subset_size, later.beta_labeled) == (4, 6.0)


def test_none_takes_a_setting_back():
    assert Config(beta=5.0, rounds=7).replace(beta=None) == Config(rounds=7)
    assert Config(**stored(Config(beta=5.0))).replace(beta=None).given() == {}


def test_own_settings_leave_with_their_method_and_come_with_a_new_one():
    content = stored(Config(method="fedirm", fedirm_factor=3.0))
    assert Config(**content).replace(method="rscfed").own == {}
    assert Config(**content).replace(seed=1).own == Config(method="fedirm", fedirm_factor=3.0).own
    assert changed({"fedirm_factor": 3.0}, {"method": "fedirm"})["fedirm_factor"] == 3.0


def test_a_method_whose_file_has_changed_brings_its_defaults_anew(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    content = stored(Config(method=str(file), mine_threshold=0.5)) | {"ema": 0.75}
    same = Config(**changed(content, {"method": str(file)}))
    assert (same.tau, same.ema, same.own["threshold"]) == (0.25, 0.75, 0.5)
    file.write_text(MINE.replace("0.25", "0.125"))
    other = Config(**changed(content, {"method": file}))
    assert (other.tau, other.ema, other.own["threshold"]) == (0.125, 0.999, 0.5)
    assert other.method_hash != same.method_hash == content["method_hash"]


@pytest.mark.parametrize("record", [5, "beta", [1], {"beta": 1}])
def test_a_record_that_is_none_is_refused(record):
    with pytest.raises(SettingError, match=r"--given .*: must be a list of the settings that were given by hand"):
        Config(given=record)
    assert Config(given=["beta", "no_such"], rounds=3).given() == {}
