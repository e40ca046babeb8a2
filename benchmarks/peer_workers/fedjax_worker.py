"""Federated averaging in FedJAX with its default backend, which trains one client after the other."""

import fedjax
import jax
import jax.numpy as jnp
import optax
from fedjax.algorithms import fed_avg
from work import BATCH, CLASSES, DECAY, MEAN, MOMENTUM, RATE, SCALE, client_samples, setting, turns

DENSE = ((400, 120), (120, 84), (84, 84), (84, 256), (256, CLASSES))
LINEAR = 3  # the layer that no ReLU follows


def new_params(key: jax.Array) -> dict[str, list]:
    """Kernels and biases of the paper's simple CNN."""
    shapes = {"conv": [(5, 5, 3, 6), (5, 5, 6, 16)], "dense": DENSE}
    draw = jax.nn.initializers.he_uniform()
    return {
        kind: [(draw(jax.random.fold_in(key, i), shape), jnp.zeros(shape[-1])) for i, shape in enumerate(layers)]
        for kind, layers in shapes.items()
    }


def logits(params: dict[str, list], pixels: jax.Array) -> jax.Array:
    """[B, 32, 32, 3] bytes to [B, classes] logits."""
    x = (pixels.astype(jnp.float32) - MEAN) * SCALE
    for kernel, bias in params["conv"]:
        x = jax.lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        x = jax.nn.relu(x + bias)
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    x = x.reshape(len(x), -1)
    for layer, (kernel, bias) in enumerate(params["dense"]):
        x = x @ kernel + bias
        x = x if layer >= LINEAR else jax.nn.relu(x)
    return x


def loss(params: dict[str, list], batch: dict[str, jax.Array], key: jax.Array) -> jax.Array:
    """Cross-entropy of a batch."""
    del key
    return optax.softmax_cross_entropy_with_integer_labels(logits(params, batch["x"]), batch["y"]).mean()


def main() -> None:
    """Runs rounds on request."""
    clients, samples, _ = setting()
    local = optax.chain(optax.add_decayed_weights(DECAY), optax.sgd(RATE, momentum=MOMENTUM))
    algorithm = fed_avg.federated_averaging(
        jax.grad(loss),
        fedjax.optimizers.create_optimizer_from_optax(local),
        fedjax.optimizers.sgd(learning_rate=1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=BATCH, num_epochs=1),
    )
    held = []
    for client in range(clients):
        images, labels = client_samples(client, samples)
        held.append(fedjax.ClientDataset({"x": images, "y": labels}))
    state = algorithm.init(new_params(jax.random.PRNGKey(0)))
    key = jax.random.PRNGKey(1)
    for rounds in turns():
        for _ in range(rounds):
            key, *keys = jax.random.split(key, clients + 1)
            state, _ = algorithm.apply(state, list(zip(range(clients), held, keys, strict=True)))
        jax.block_until_ready(state.params)


if __name__ == "__main__":
    main()
