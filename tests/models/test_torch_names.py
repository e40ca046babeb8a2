"""Models under PyTorch's names: there and back, in memory and in files, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rscfed_jax.config import SettingError
from rscfed_jax.models import ResNet18, SimpleCNN
from rscfed_jax.models.torch_names import from_torch_names, load_model_file, save_model, to_torch_names
from tests.conftest import assert_trees_equal

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
    assert {name: array.shape for name, array in to_torch_names(cnn).items()} == CNN_SHAPES


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
    assert_trees_equal(from_torch_names(tensors, variables), variables)


@pytest.mark.parametrize("size", [16, 32])
def test_the_simple_cnn_gives_pytorchs_logits(size):
    torch = pytest.importorskip("torch")
    from tests.models import torch_models

    torch.manual_seed(0)
    theirs = torch_models.simple_cnn(10, size=size)
    network = SimpleCNN(10)
    state = {name: value.numpy() for name, value in theirs.state_dict().items()}
    variables = from_torch_names(state, random_variables(network, size))
    images = np.random.default_rng(0).normal(size=(5, 3, size, size)).astype(np.float32)
    with torch.no_grad():
        expected = theirs(torch.from_numpy(images)).numpy()
    np.testing.assert_allclose(
        network.apply(variables, images.transpose(1, 2, 3, 0), train=False), expected, atol=1e-5, rtol=1e-5
    )
    assert_trees_equal(to_torch_names(variables), state)


@pytest.mark.parametrize("ending", [".safetensors", ".pt", ".pth"])
def test_a_file_gives_back_what_was_saved(tmp_path, cnn, ending):
    if ending != ".safetensors":
        pytest.importorskip("torch")
    cnn["params"]["l3"]["bias"][0] = np.nan  # a broken model may travel, too
    save_model(tmp_path / f"model{ending}", cnn)
    assert_trees_equal(load_model_file(tmp_path / f"model{ending}", cnn), cnn)
    assert [path.name for path in tmp_path.iterdir()] == [f"model{ending}"]


def test_pytorch_loads_the_exported_state_dict(tmp_path):
    torch = pytest.importorskip("torch")
    from tests.models import torch_models

    save_model(tmp_path / "model.pt", random_variables(ResNet18(7), 16))
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


def test_a_file_that_does_not_fit_is_named(tmp_path, cnn):
    save_model(tmp_path / "resnet.safetensors", random_variables(ResNet18(7), 16))
    with pytest.raises(SettingError, match=r"FILE .*resnet.safetensors: tensor features.0.weight is not part"):
        load_model_file(tmp_path / "resnet.safetensors", cnn)
