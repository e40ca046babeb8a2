"""Networks by name or file, and what is refused before anything is compiled."""

import dataclasses
from functools import partial
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

from rscfed_jax.config import Config, SettingError
from rscfed_jax.config.registry import NETWORKS
from rscfed_jax.models.registry import feature_size, model_like, name_of, network_of
from tests.helpers import TinyNetwork

TINY = Path(__file__).parent.parent / "tiny_network.py"


@pytest.mark.parametrize("name", NETWORKS.declarations)
def test_a_network_of_the_package_turns_the_smallest_images_into_logits(name):
    side = NETWORKS.find(name).get("SMALLEST_SIDE", 16)
    config = Config(model=name, image_size=side, dtype="bfloat16", conv="plain")
    network = network_of(config, 7)
    assert (network.classes, network.dtype, network.conv) == (7, jnp.bfloat16, "plain")
    model = model_like(network, config, 7)
    assert {leaf.dtype for leaf in jax.tree.leaves(model)} == {jnp.dtype(jnp.float32)}
    assert set(model) <= {"params", "batch_stats"}  # features are no part of a model
    assert network == network_of(config, 7)


def test_a_network_comes_out_of_a_users_file():
    config = Config(model=TINY)
    assert (config.model, len(config.model_hash)) == ("tiny_network", 16)
    assert type(network_of(config, 5)).__name__ == "Tiny"
    assert network_of(config, 5) == network_of(Config(model=TINY), 5)  # run once, so that programs are shared
    stored = Config(**config.to_dict())
    with pytest.raises(SettingError, match="--model tiny_network: is not built in: give the file it came from"):
        network_of(stored, 5)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return 3", "its function `network` returns int, not a module"),
        ("raise KeyError('depth')", "fails with KeyError: 'depth'"),
        ("return unknown", "fails with NameError: name 'unknown' is not defined"),
    ],
)
def test_a_file_that_makes_no_network_is_named(tmp_path, body, said):
    path = tmp_path / "mine.py"
    path.write_text(f"def network(config, classes):\n    {body}\n")
    with pytest.raises(SettingError) as error:
        network_of(Config(model=str(path)), 3)
    assert str(error.value) == f"--model {path}: {said}"


class Picky(nn.Module):
    """Takes no images but those of 99 pixels."""

    classes: int = 4
    dtype: type = jnp.float32

    @nn.compact
    def __call__(self, images, *, train, valid=None):
        """Fails for all others."""
        return images.reshape(3, 99, 99, -1)


@pytest.mark.parametrize(
    ("network", "said"),
    [
        (TinyNetwork(classes=9), r"must give logits \[2, 4\] for 2 images, not \(2, 9\)"),
        (Picky(), r"does not take images of 3 x 32 x 32: TypeError: "),
    ],
)
def test_a_network_that_does_not_fit_the_images_or_the_classes_is_refused(network, said):
    with pytest.raises(SettingError, match=rf"--model simple-cnn: {said}"):
        model_like(network, Config(), 4)


def test_an_object_is_called_by_its_class_and_its_fields():
    assert name_of(TinyNetwork(classes=4)) == "TinyNetwork(dtype=float32, classes=4)"
    other = dataclasses.replace(TinyNetwork(classes=4), classes=5)
    assert name_of(other) != name_of(TinyNetwork(classes=4))


class Wrong(nn.Module):
    """A network with one thing wrong."""

    classes: int = 4
    dtype: type = jnp.float32
    wrong: str = ""

    @nn.compact
    def __call__(self, images, *, train, **more):
        """Logits, or not."""
        assert self.wrong != "fails"
        if self.wrong == "no valid" and more:
            raise TypeError("unexpected valid")
        x = images.reshape(-1, images.shape[-1]).T
        if self.wrong == "features":
            self.sow("intermediates", "features", x[0])
        logits = nn.Dense(self.classes)(x)
        return (logits, logits) if self.wrong == "tuple" else logits


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ("fails", "does not take images of 3 x 16 x 16: AssertionError:"),
        ("no valid", "TypeError: unexpected valid"),
        ("tuple", r"must give logits \[2, 4\] for 2 images, not tuple"),
    ],
)
def test_a_network_that_does_not_fit_is_refused_in_a_line(wrong, reason):
    with pytest.raises(SettingError, match=reason):
        model_like(Wrong(wrong=wrong), Config(image_size=16), 4)


def test_a_network_without_a_dtype_is_refused():
    class Bare(nn.Module):
        classes: int = 4

    with pytest.raises(SettingError, match="must have the field dtype"):
        model_like(Bare(), Config(image_size=16), 4)


def test_the_name_of_a_network_has_no_address():
    assert "0x" not in name_of(Wrong(wrong=partial(nn.relu)))


FEATURES = {"simple-cnn": 256, "resnet18": 256, "resnet18-linear": 512, "resnet8": 256, "wrn28-2": 128, "wrn28-8": 512}


@pytest.mark.parametrize("name", NETWORKS.declarations)
def test_every_network_of_the_package_gives_what_its_classifier_sees(name):
    config = Config(model=name, image_size=16)
    network = network_of(config, 7)
    assert feature_size(network, config) == FEATURES[name]
    assert model_like(network, config, 7)["params"]["l3"]["kernel"].shape == (FEATURES[name], 7)


@pytest.mark.parametrize("name", ["simple-cnn", "resnet8"])
def test_features_cost_nothing_where_nobody_asks_for_them(monkeypatch, name):
    config = Config(model=name, image_size=16)
    network = network_of(config, 7)
    like = model_like(network, config, 7)
    images = jax.ShapeDtypeStruct((3, 16, 16, 2), jnp.float32)

    def program():
        return jax.jit(lambda model, x: network.apply(model, x, train=False)).lower(like, images).as_text()

    with_features = program()
    monkeypatch.setattr(nn.Module, "sow", lambda *arguments, **more: False)
    assert feature_size(network, config) is None
    assert program() == with_features


def test_a_network_without_features_is_told_apart_and_wrong_ones_are_refused():
    config = Config(image_size=16)
    assert feature_size(TinyNetwork(), config) == 8
    assert feature_size(Wrong(), config) is None
    with pytest.raises(SettingError, match=r"must give features \[2, F\] for 2 images, not \(768,\)"):
        feature_size(Wrong(wrong="features"), config)
