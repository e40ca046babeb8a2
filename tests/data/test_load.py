"""Data sets by name, and what their files declare."""

import sys

import pytest

from rscfed_jax.config import PRESETS, SETTINGS, Config, SettingError
from rscfed_jax.config.registry import DATASETS
from rscfed_jax.data.dataset import Dataset
from rscfed_jax.data.load import datasets_help, load_dataset

NAMES = ["cifar10", "cifar100", "fashion", "folder", "isic2018", "npz", "svhn", "synthetic"]


def test_every_data_set_is_found():
    assert list(DATASETS.declarations) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_file_declares_its_data_set(name):
    declared = DATASETS.declarations[name]
    assert isinstance(declared.literals["HELP"], str)
    assert declared.literals["HELP"]
    usage = declared.get("USAGE", name)
    assert usage == name or usage.startswith((f"{name}:", f"{name}[:"))
    assert declared.get("SEEDED", True) is (name not in ("fashion", "svhn", "cifar10", "cifar100"))
    assert set(declared.get("PRESETS", {})) <= set(PRESETS)
    for defaults in (declared.get("DEFAULTS", {}), *declared.get("PRESETS", {}).values()):
        assert set(defaults) <= set(SETTINGS)


@pytest.mark.parametrize("name", NAMES)
def test_the_literals_are_those_of_the_module(name):
    module = DATASETS.declarations[name].load()
    for literal, value in DATASETS.declarations[name].literals.items():
        assert getattr(module, literal) == value
    assert module.load.__annotations__ == {"config": Config, "return": Dataset}


def test_a_loader_is_imported_only_for_its_own_data_set(monkeypatch):
    monkeypatch.delitem(sys.modules, "rscfed_jax.data.loaders.svhn", raising=False)
    load_dataset("synthetic:train=20,test=10")
    assert "rscfed_jax.data.loaders.svhn" not in sys.modules


@pytest.mark.parametrize("name", ["mnist", "npz", "folder", "fashion:", "svhn:x", "npz.py", "./fashion.py"])
def test_a_name_that_is_not_a_data_set_is_refused_with_those_that_are(name):
    allowed = r"must be cifar10, cifar100, fashion, folder:PATH, isic2018, npz:PATH, svhn or synthetic\[:train=2000,"
    with pytest.raises(SettingError, match=allowed):
        load_dataset(name)


def test_the_help_gives_every_usage_with_its_words():
    words = datasets_help()
    assert words.startswith("cifar10 (")
    assert "fashion (embedded Fashion-MNIST subset), folder:PATH (a directory of pictures per class), " in words
