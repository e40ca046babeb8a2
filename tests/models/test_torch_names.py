"""Models under PyTorch's names: there and back, in memory and in files, and what is refused."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rscfed_jax.models.resnet8 import ResNet8
from rscfed_jax.models.resnet18 import ResNet18
from rscfed_jax.models.simple_cnn import SimpleCNN
from rscfed_jax.models.torch_names import from_torch_names, to_torch_names
from rscfed_jax.models.wide_resnet import WideResNet
from rscfed_jax.storage.model_file import read_tensors, write_tensors
from tests.helpers import TinyNetwork

CNN_SHAPES = {
    "features.conv1.weight": (6, 3, 5, 5),
    "features.conv1.bias": (6,),
    "features.conv2.weight": (16, 6, 5, 5),
    "features.conv2.bias": (16,),
    "features.fc1.weight": (120, 400),
    "features.fc1.bias": (120,),
    "features.fc2.weight": (84, 120),
    "features.fc2.bias": (84,),
    "l1.weight": (84, 84),
    "l1.bias": (84,),
    "l2.weight": (256, 84),
    "l2.bias": (256,),
    "l3.weight": (10, 256),
    "l3.bias": (10,),
}


def random_variables(network, size):
    """Variables of the network's shapes, each number another."""
    shapes = jax.eval_shape(lambda: dict(network.init(jax.random.key(0), jnp.zeros((3, size, size, 1)), train=False)))
    draw = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: draw.uniform(0.1, 0.9, leaf.shape).astype(np.float32), shapes)


@pytest.fixture(scope="module")
def cnn():
    return random_variables(SimpleCNN(10), 32)


def test_the_simple_cnn_has_the_published_names_and_shapes(cnn):
    tensors = to_torch_names(cnn)
    assert {name: array.shape for name, array in tensors.items()} == CNN_SHAPES
    chex.assert_trees_all_equal(from_torch_names(tensors, cnn), cnn)


@pytest.mark.parametrize(("stem", "first", "kernel"), [("cifar", 3, 3), ("imagenet", 4, 7)])
def test_resnets_names_are_positions_in_a_sequence(stem, first, kernel):
    variables = random_variables(ResNet18(7, stem=stem), 16)
    tensors = to_torch_names(variables)
    shapes = {name: array.shape for name, array in tensors.items()}
    assert shapes["features.0.weight"] == (64, 3, kernel, kernel)
    for leaf in ("weight", "bias", "running_mean", "running_var"):
        assert shapes[f"features.1.{leaf}"] == (64,)
    assert tensors["features.1.num_batches_tracked"].dtype == np.int64
    assert tensors["features.1.num_batches_tracked"] == 0
    assert shapes[f"features.{first}.0.conv1.weight"] == (64, 64, 3, 3)
    assert shapes[f"features.{first + 1}.0.downsample.0.weight"] == (128, 64, 1, 1)
    assert shapes[f"features.{first + 3}.1.bn2.running_var"] == (512,)
    assert len(tensors) == 20 * 6 + 3 * 2
    chex.assert_trees_all_equal(from_torch_names(tensors, variables), variables)


@pytest.mark.parametrize(
    ("network", "name"),
    [
        (ResNet8(7), "features.5.0.downsample.0.weight"),
        (ResNet18(7, head=None), "features.6.1.conv2.weight"),
        (WideResNet(7, depth=10), "layer3_0.shortcut.weight"),
    ],
)
def test_other_residual_networks_travel_there_and_back(network, name):
    variables = random_variables(network, 8)
    tensors = to_torch_names(variables)
    assert {name, "l3.weight"} <= set(tensors)
    chex.assert_trees_all_equal(from_torch_names(tensors, variables), variables)


def test_another_network_keeps_the_names_of_flax():
    variables = random_variables(TinyNetwork(), 16)
    tensors = to_torch_names(variables)
    assert {"Dense_0.weight", "BatchNorm_0.running_var", "l3.bias"} <= set(tensors)
    assert tensors["l3.weight"].shape == (4, 8)
    chex.assert_trees_all_equal(from_torch_names(tensors, variables), variables)


@pytest.mark.parametrize("ending", [".safetensors", ".pt", ".pth"])
def test_a_file_gives_back_what_was_saved(tmp_path, cnn, ending):
    if ending != ".safetensors":
        pytest.importorskip("torch")
    cnn["params"]["l3"]["bias"][0] = np.nan  # a broken model may travel, too
    path = tmp_path / f"model{ending}"
    write_tensors(path, to_torch_names(cnn), setting="FILE")
    chex.assert_trees_all_equal(from_torch_names(read_tensors(path, setting="FILE"), cnn), cnn)
    assert list(tmp_path.iterdir()) == [path]


def test_pytorch_loads_the_exported_state_dict(tmp_path):
    torch = pytest.importorskip("torch")
    from tests.models import torch_models

    write_tensors(tmp_path / "model.pt", to_torch_names(random_variables(ResNet18(7), 16)), setting="FILE")
    model = torch_models.resnet18(7, stem="cifar")
    model.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.pop("l2.bias"), "lacks the tensor l2.bias"),
        (lambda t: t.update({"l4.bias": t["l3.bias"]}), "tensor l4.bias is not part of this model"),
        (
            lambda t: t.update({"features.fc1.weight": t["features.fc1.weight"].T}),
            r"features.fc1.weight has shape \(400, 120\), not \(120, 400\)",
        ),
    ],
    ids=["missing", "unexpected", "shape"],
)
def test_a_tensor_that_does_not_fit_is_named(cnn, change, said):
    tensors = to_torch_names(cnn)
    change(tensors)
    with pytest.raises(ValueError, match=said):
        from_torch_names(tensors, cnn)


def test_layers_whose_names_only_look_like_the_papers_keep_theirs():
    model = {"params": {"layer1": {"kernel": np.zeros((2, 3))}, "fc1": {"bias": np.zeros(3)}}}
    assert set(to_torch_names(model)) == {"layer1.weight", "fc1.bias"}
