"""The federated averaging of this project, on every core."""

import numpy as np
from work import BATCH, CLASSES, DECAY, MOMENTUM, RATE, client_samples, setting, turns

import rscfed_jax as rj


def main() -> None:
    """Compiles the round, and runs it on request."""
    clients, samples, capacity = setting()
    rj.use_all_cores()
    import jax
    import jax.numpy as jnp

    images, labels = map(np.concatenate, zip(*(client_samples(c, samples) for c in range(clients)), strict=True))
    federation = rj.Federation(
        rj.Dataset(images, labels, images[:10], labels[:10], CLASSES),
        list(np.arange(clients * samples).reshape(clients, samples)),
        [np.full(samples, True)] * clients,
    )
    config = rj.Config(
        method="fedavg",
        clients=clients,
        labeled_clients=clients,
        batch_size=BATCH,
        local_epochs=1,
        lr_labeled=RATE,
        momentum=MOMENTUM,
        weight_decay=DECAY,
        clip_norm=1e9,
        client_state="fresh",
    )
    sim = rj.build_simulation(config, federation)
    state, data, hyper = sim.state, sim.data, sim.hyper
    lowered = rj.run_rounds.lower(sim.algorithm, state, data, hyper, jnp.int32(1), capacity=capacity)
    program = sim.algorithm.axis.compile(lowered)
    for rounds in turns():
        state, report = jax.block_until_ready(program(state, data, hyper, jnp.int32(rounds)))
        assert report.subsets[0].size == clients, f"{report.subsets[0].size} of {clients} clients took part"


if __name__ == "__main__":
    main()
