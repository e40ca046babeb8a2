"""How samples would be divided if a federation had more or fewer clients."""

import numpy as np

from rscfed_jax.config import Config
from rscfed_jax.data.federation import Federation


def holdings(config: Config, federation: Federation, *, clients: int) -> tuple[np.ndarray, np.ndarray]:
    """[N] samples and [N] labels of each holder; other clients than the federation's share its samples equally.

    A server that holds the labels comes last and keeps what it has.
    """
    sizes, labels, server = federation.sizes, federation.label_counts.sum(axis=1), federation.server
    if clients == len(sizes[:server]):
        return sizes, labels
    shared = np.full(clients, max(sizes[:server].sum() / clients, 1))
    if server is not None:
        return np.append(shared, sizes[server]), np.append(np.zeros(clients), labels[server])
    return shared, shared * (config.labeled_fraction or 1) * (np.arange(clients) < (config.labeled_clients or clients))
