"""ResNet-18: its parameters, parity with PyTorch, half precision."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rscfed_jax.models.resnet18 import ResNet18
from rscfed_jax.models.torch_names import from_torch_names, to_torch_names


@pytest.mark.parametrize(("stem", "kernel"), [("cifar", (3, 3, 3, 64)), ("imagenet", (7, 7, 3, 64))])
def test_the_model_has_the_papers_parameters(stem, kernel):
    network = ResNet18(7, stem=stem)
    shapes = jax.eval_shape(lambda: network.init(jax.random.key(0), jnp.zeros((3, 16, 16, 1)), train=False))
    params = shapes["params"]
    assert params["stem_conv"]["kernel"].shape == kernel
    heads = {name: params[name]["kernel"].shape for name in ("l1", "l2", "l3")}
    assert heads == {"l1": (512, 512), "l2": (512, 256), "l3": (256, 7)}
    # torchvision's ResNet-18 without its classifier has 11,176,512 parameters, of which 9,408 are the stem's.
    backbone = sum(leaf.size for name, layer in params.items() if name[:2] != "l1" for leaf in jax.tree.leaves(layer))
    head = sum(leaf.size for name in ("l2", "l3") for leaf in jax.tree.leaves(params[name]))
    assert backbone - head == 11_176_512 - 9_408 + np.prod(kernel)
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes["batch_stats"])) == 2 * 4_800


def test_with_a_linear_head_it_is_torchvisions():
    network = ResNet18(1000, head=None, stem="imagenet")
    shapes = jax.eval_shape(lambda: network.init(jax.random.key(0), jnp.zeros((3, 16, 16, 1)), train=False))
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes["params"])) == 11_689_512
    assert shapes["params"]["l3"]["kernel"].shape == (512, 1000)


@pytest.mark.slow
def test_bfloat16_computes_in_bfloat16_and_keeps_float32_parameters_and_statistics():
    network = ResNet18(4, dtype=jnp.bfloat16)
    x = jax.random.normal(jax.random.key(0), (3, 16, 16, 6), jnp.bfloat16)
    variables = jax.jit(lambda: network.init(jax.random.key(1), x, train=False))()
    run = jax.jit(lambda network, x: network.apply(variables, x, train=True, mutable=["batch_stats"]), static_argnums=0)
    half, new = run(network, x)
    full, _ = run(ResNet18(4), x.astype(jnp.float32))
    assert {leaf.dtype for leaf in jax.tree.leaves((variables, new))} == {jnp.dtype(jnp.float32)}
    assert half.dtype == jnp.bfloat16
    np.testing.assert_allclose(half.astype(jnp.float32), full, atol=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stem", "form", "size"), [("cifar", "matmul", 16), ("cifar", "plain", 16), ("imagenet", "auto", 32)]
)
def test_training_equals_pytorch(stem, form, size):
    torch = pytest.importorskip("torch")
    from tests.models import torch_models

    torch.manual_seed(0)
    theirs = torch_models.resnet18(4, stem=stem)
    network = ResNet18(4, conv=form, stem=stem)
    like = jax.eval_shape(lambda: dict(network.init(jax.random.key(0), jnp.zeros((3, size, size, 1)), train=False)))
    variables = from_torch_names({name: value.numpy() for name, value in theirs.state_dict().items()}, like)

    images = np.random.default_rng(1).normal(size=(6, 3, size, size)).astype(np.float32)
    labels = np.arange(6) % 4
    there = np.array([1, 1, 1, 0, 1, 1], bool)

    @jax.jit
    def step(variables, x):
        def loss(params):
            variables_now = {"params": params, "batch_stats": variables["batch_stats"]}
            logits, new = network.apply(variables_now, x, train=True, valid=jnp.array(there), mutable=["batch_stats"])
            return -jnp.mean(jax.nn.log_softmax(logits)[there, labels[there]]), (logits, new)

        grads, (logits, new) = jax.grad(loss, has_aux=True)(variables["params"])
        params = jax.tree.map(lambda p, g: p - 0.01 * g, variables["params"], grads)
        return {"params": params, **new}, logits

    new, logits = step(variables, images.transpose(1, 2, 3, 0))
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.01)
    their_logits = theirs.train()(torch.from_numpy(images[there]))
    torch.nn.functional.cross_entropy(their_logits, torch.from_numpy(labels[there])).backward()
    optimizer.step()

    np.testing.assert_allclose(logits[there], their_logits.detach(), atol=1e-4)
    ours = to_torch_names(new)
    state = theirs.state_dict()
    assert set(ours) == set(state)
    for name, value in state.items():
        if not name.endswith("num_batches_tracked"):
            np.testing.assert_allclose(ours[name], value.numpy(), atol=1e-4, rtol=1e-4, err_msg=name)
    with torch.no_grad():
        expected = theirs.eval()(torch.from_numpy(images))
    evaluated = jax.jit(lambda v, x: network.apply(v, x, train=False))(new, images.transpose(1, 2, 3, 0))
    np.testing.assert_allclose(evaluated, expected, atol=1e-3, rtol=1e-3)
