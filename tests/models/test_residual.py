"""The residual networks beside plain flax ones in float64, and many clients at once beside a loop over clients."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rscfed_jax.core.objective import features_and_logits
from rscfed_jax.models.resnet8 import ResNet8
from rscfed_jax.models.resnet18 import ResNet18
from rscfed_jax.models.wide_resnet import WideResNet
from tests.models import flax_models

CLASSES = 3
SIDE = 8
THERE = np.array([1, 0, 1, 1, 1], bool)
LABELS = np.array([0, 1, 2, 1, 0])
F64 = {"dtype": jnp.float64, "param_dtype": jnp.float64}


def resnet(kind, widths, blocks, head=None, **more):
    """One of our ResNets and its counterpart, as narrow as told."""
    theirs = flax_models.ResNet(CLASSES, widths, blocks, head=head or (), **more)
    return kind(CLASSES, widths=widths, blocks=blocks, head=head, **more, **F64), theirs


PAIRS = {
    "resnet8": resnet(ResNet8, (4, 6, 8), 1),
    "resnet18, imagenet stem, linear": resnet(ResNet18, (4, 5, 6), 2, stem="imagenet"),
    "resnet18, cifar stem, MLP": resnet(ResNet18, (4, 6), 2, head=(7, 5)),
    "wrn": (WideResNet(CLASSES, depth=16, widen=2, **F64), flax_models.WideResNet(CLASSES, 16, 2)),
    "wrn, no widening": (WideResNet(CLASSES, depth=10, widen=1, **F64), flax_models.WideResNet(CLASSES, 10, 1)),
}


def random_variables(network):
    """Variables far from where they begin, so that no layer is the identity."""
    shapes = jax.eval_shape(lambda: dict(network.init(jax.random.key(0), jnp.zeros((3, SIDE, SIDE, 1)), train=False)))
    rng = np.random.default_rng(0)
    variables = jax.tree.map(lambda leaf: rng.normal(0, 0.3, leaf.shape), shapes)
    variables["batch_stats"] = jax.tree.map(lambda leaf: 1 + leaf**2, variables["batch_stats"])
    return variables


def images_of(seed):
    return np.random.default_rng(seed).normal(size=(3, SIDE, SIDE, len(LABELS)))


def cross_entropy(logits, labels):
    return -jnp.mean(jax.nn.log_softmax(logits)[jnp.arange(len(labels)), labels])


def ours(network, variables, images):
    """Gradients in training, the new running means; features and logits in evaluation."""

    def loss(params):
        model = variables | {"params": params}
        logits, new = network.apply(model, images, train=True, valid=jnp.array(THERE), mutable=["batch_stats"])
        return cross_entropy(logits[THERE], LABELS[THERE]), new

    grads, new = jax.grad(loss, has_aux=True)(variables["params"])
    return grads, means_of(new), *features_and_logits(network, variables, images)


def theirs(network, variables, images):
    """The same, of the samples that are there."""
    images = images.transpose(3, 1, 2, 0)

    def loss(params):
        model = variables | {"params": params}
        (_, logits), new = network.apply(model, images[THERE], True, mutable=["batch_stats"])
        return cross_entropy(logits, LABELS[THERE]), new

    grads, new = jax.grad(loss, has_aux=True)(variables["params"])
    return grads, means_of(new), *network.apply(variables, images, False)


def means_of(new):
    """The running means, by the layer's place."""
    leaves = jax.tree_util.tree_leaves_with_path(new["batch_stats"])
    return {jax.tree_util.keystr(path): leaf for path, leaf in leaves if path[-1].key == "mean"}


QUICK = ("resnet8", "resnet18, imagenet stem, linear", "wrn, no widening")  # the smallest of each kind


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow) for n in PAIRS])
def test_features_logits_gradients_and_running_means_equal_plain_flax_in_both_forms(x64, name):
    network, reference = PAIRS[name]
    variables, images = random_variables(network), images_of(1)
    expected = jax.jit(theirs, static_argnums=0)(reference, variables, images)
    for form in ("matmul", "plain"):
        found = jax.jit(ours, static_argnums=0)(network.copy(conv=form), variables, images)
        chex.assert_trees_all_close(found, expected, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("name", ["resnet8", pytest.param("wrn, no widening", marks=pytest.mark.slow)])
def test_training_clients_at_once_equals_a_loop_over_clients(x64, name):
    network = PAIRS[name][0]

    def train(variables, images, valid):
        """Two steps of SGD on one client's [2, 3, H, W, B] images."""

        def step(variables, batch):
            def loss(params):
                model = variables | {"params": params}
                logits, new = network.apply(model, batch[0], train=True, valid=batch[1], mutable=["batch_stats"])
                kept = jax.nn.log_softmax(logits)[jnp.arange(len(LABELS)), LABELS] * batch[1]
                return -jnp.sum(kept) / jnp.sum(batch[1]), new

            grads, new = jax.grad(loss, has_aux=True)(variables["params"])
            return new | {"params": jax.tree.map(lambda p, g: p - 0.05 * g, variables["params"], grads)}, None

        return jax.lax.scan(step, variables, (images, valid))[0]

    variables = random_variables(network)
    images = np.stack([[images_of(2 * client), images_of(2 * client + 1)] for client in range(3)])
    valid = np.ones((3, 2, len(LABELS)), bool)
    valid[0, 1, 2:] = valid[2, 0, 1:] = False
    at_once = jax.jit(jax.vmap(train, in_axes=(None, 0, 0)))(variables, images, valid)
    alone = [jax.jit(train)(variables, *client) for client in zip(images, valid, strict=True)]
    chex.assert_trees_all_close(at_once, jax.tree.map(lambda *leaves: jnp.stack(leaves), *alone), atol=1e-9)


def parameters_of(network):
    shapes = jax.eval_shape(lambda: network.init(jax.random.key(0), jnp.zeros((3, 32, 32, 1)), train=False))
    return shapes["params"], sum(leaf.size for leaf in jax.tree.leaves(shapes["params"]))


def test_resnet8_has_the_published_widths():
    params, count = parameters_of(ResNet8(10))
    kernels = {name: layer["conv2"]["kernel"].shape for name, layer in params.items() if name.startswith("layer")}
    assert kernels == {"layer1_0": (3, 3, 64, 64), "layer2_0": (3, 3, 128, 128), "layer3_0": (3, 3, 256, 256)}
    assert params["stem_conv"]["kernel"].shape == (3, 3, 3, 64)
    assert params["l3"]["kernel"].shape == (256, 10)
    assert count == 1_227_594


@pytest.mark.parametrize(("widen", "classes", "expected"), [(2, 10, 1_467_610), (8, 100, 23_401_012)])
def test_wide_resnets_have_the_known_numbers_of_parameters(widen, classes, expected):
    params, count = parameters_of(WideResNet(classes, widen=widen))
    assert count == expected
    assert sum(name.startswith("layer") for name in params) == 12


def test_a_depth_that_no_wide_resnet_has_is_refused():
    for depth in (4, 27):
        with pytest.raises(ValueError, match=f"depth {depth}: must be 10, 16, 22, 28"):
            parameters_of(WideResNet(10, depth=depth))


def test_a_wide_resnet_begins_as_semifls_does():
    network = WideResNet(50, depth=10, widen=1)
    begin = jax.jit(lambda: network.init(jax.random.key(0), jnp.zeros((3, SIDE, SIDE, 1)), train=False))
    params = begin()["params"]
    kernel = params["layer3_0"]["conv2"]["kernel"]
    np.testing.assert_allclose(kernel.std(), np.sqrt(2 / (9 * 64)), rtol=0.02)  # He by fan-out
    np.testing.assert_array_equal(params["l3"]["bias"], 0)
    assert 0.99 / 8 < jnp.abs(params["l3"]["kernel"]).max() <= 1 / 8  # PyTorch's default for 64 inputs
