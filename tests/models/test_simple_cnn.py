"""The paper's simple CNN: its parameters, PyTorch's logits, half precision."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rscfed_jax.models.simple_cnn import SimpleCNN
from rscfed_jax.models.torch_names import from_torch_names


def shapes_of(network, size):
    return jax.eval_shape(lambda: dict(network.init(jax.random.key(0), jnp.zeros((3, size, size, 1)), train=False)))


def test_the_model_has_the_papers_parameters():
    kernels = {name: layer["kernel"].shape for name, layer in shapes_of(SimpleCNN(10), 32)["params"].items()}
    assert kernels == {
        "conv1": (5, 5, 3, 6),
        "conv2": (5, 5, 6, 16),
        "fc1": (400, 120),
        "fc2": (120, 84),
        "l1": (84, 84),
        "l2": (84, 256),
        "l3": (256, 10),
    }


@pytest.mark.parametrize("size", [16, 32])
def test_it_gives_pytorchs_logits(size):
    torch = pytest.importorskip("torch")
    from tests.models import torch_models

    torch.manual_seed(0)
    theirs = torch_models.simple_cnn(10, size=size)
    network = SimpleCNN(10)
    state = {name: value.numpy() for name, value in theirs.state_dict().items()}
    variables = from_torch_names(state, shapes_of(network, size))
    images = np.random.default_rng(0).normal(size=(5, 3, size, size)).astype(np.float32)
    with torch.no_grad():
        expected = theirs(torch.from_numpy(images)).numpy()
    ours = jax.jit(lambda images: network.apply(variables, images, train=False))(images.transpose(1, 2, 3, 0))
    np.testing.assert_allclose(ours, expected, atol=1e-5, rtol=1e-5)


def test_bfloat16_computes_in_bfloat16_and_keeps_float32_parameters():
    network = SimpleCNN(4, dtype=jnp.bfloat16)
    x = jax.random.normal(jax.random.key(0), (3, 16, 16, 5), jnp.bfloat16)
    variables = jax.jit(lambda: network.init(jax.random.key(1), x, train=False))()
    assert {leaf.dtype for leaf in jax.tree.leaves(variables)} == {jnp.dtype(jnp.float32)}
    run = jax.jit(lambda network, x: network.apply(variables, x, train=False), static_argnums=0)
    half, full = run(network, x), run(SimpleCNN(4), x.astype(jnp.float32))
    assert half.dtype == jnp.bfloat16
    np.testing.assert_allclose(half.astype(jnp.float32), full, atol=0.02)
