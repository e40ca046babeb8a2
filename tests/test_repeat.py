"""Writing client states back."""

import jax.numpy as jnp
import numpy as np

from rscfed_jax.clients import NOBODY
from rscfed_jax.local.training import ClientState
from rscfed_jax.repeat import write_back


def test_the_last_slot_of_a_client_wins_and_nobody_is_dropped():
    clients = ClientState(teacher=None, optimizer=(jnp.zeros((4, 2)),), step=jnp.zeros(4, jnp.int32))
    ids = jnp.array([2, 0, 2, 3, 2, NOBODY])
    new = ClientState(teacher=None, optimizer=(jnp.arange(12.0).reshape(6, 2),), step=jnp.arange(6, dtype=jnp.int32))
    out = write_back(clients, ids, new)
    np.testing.assert_array_equal(out.step, [1, 0, 4, 3])
    np.testing.assert_array_equal(out.optimizer[0], [[2, 3], [0, 0], [8, 9], [6, 7]])
