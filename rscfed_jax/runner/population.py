"""A population larger than the devices' memory: for each chunk of rounds, they hold the clients that take part in it.

Who is drawn follows from the seed alone, so the host knows it ahead: while the devices run a chunk, it reads the images
of the next one. States return to the host after each chunk.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from rscfed_jax.config import Config, Hyper
from rscfed_jax.core.algorithm import Algorithm
from rscfed_jax.core.client_axis import CLIENTS, GRID, place_data
from rscfed_jax.core.faults import Faults
from rscfed_jax.core.round import round_keys
from rscfed_jax.core.sampling import RandomSubsets
from rscfed_jax.core.types import Array, FederatedData, RoundReport, State
from rscfed_jax.data.federation import Federation
from rscfed_jax.data.working_set import Holders
from rscfed_jax.runner.client_states import ClientStates

Chunk = tuple[int, int]  # the number of its first round, and how many rounds it has


class WorkingSet(NamedTuple):
    """The clients of a chunk of rounds, and what a program takes of them."""

    chunk: Chunk
    ids: np.ndarray  # [n] in rising order: client ids[i] is in row i
    data: FederatedData  # on the devices, with an axis of one cell
    drawn: Array | None  # [capacity, 1, M, K] the rows that take part in each round; None: the same in every round


@partial(jax.jit, static_argnames=("sample", "holders"))
def draw_subsets(key: Array, rounds: Array, *, sample: RandomSubsets, holders: int) -> Array:
    """[rounds, M, K] the clients that take part in the rounds of these numbers, as the rounds would draw them."""
    return jax.vmap(lambda number: sample.draw(round_keys(key, number)[0], holders))(rounds)


class Population:
    """All holders of data of one experiment, most of them on the host alone."""

    def __init__(self, config: Config, federation: Federation):
        self.config = config
        self.holders = Holders(federation, resize_to=config.resize)

    def attackers(self, faults: Faults) -> np.ndarray | None:
        """[N] who attacks; None if nobody does."""
        if faults.attack is None:
            return None
        totals: dict[str, Any] = dict.fromkeys(FederatedData._fields)
        totals |= {"sizes": self.holders.sizes.astype(np.int32), "labeled": self.holders.labeled}
        return np.asarray(faults.attackers(FederatedData(**totals), Hyper.of(self.config)))


class Stage:
    """Rounds of one algorithm, chunk by chunk, each on a working set of its own; all have the same shapes."""

    def __init__(self, population: Population, algorithm: Algorithm, *, capacity: int):
        self.population, self.algorithm, self.capacity = population, algorithm, capacity
        self.axis, holders = algorithm.axis, population.holders
        method, number = algorithm.method, len(holders.sizes)
        self.sample = method.sample if isinstance(method.sample, RandomSubsets) else None
        # The second phase and the warm-up train all labeled clients.
        in_all = method.finish is not None or self.sample is None
        self.always = np.flatnonzero(holders.labeled if in_all else np.zeros(number, bool)).astype(np.int32)
        slots = self._draw((0, 1)).size * capacity if self.sample is not None else 0
        self.rows = min(number, slots + len(self.always))
        self.samples = holders.most_samples(self.rows)
        self.attackers = population.attackers(algorithm.faults)
        self._next: WorkingSet | None = None

    def _draw(self, chunk: Chunk) -> np.ndarray:
        """[rounds, M, K] the clients that take part in each round; none if it is always the same ones."""
        if self.sample is None:
            return np.zeros((chunk[1], 0, 0), np.int32)
        first, rounds = chunk
        with jax.default_device(_host_device()):
            numbers = np.arange(first, first + self.capacity, dtype=np.int32)  # all at once: one program for any chunk
            key = jax.random.key(self.population.config.seed)
            holders = len(self.population.holders.sizes)
            return np.asarray(draw_subsets(key, numbers, sample=self.sample, holders=holders))[:rounds]

    def _set_of(self, chunk: Chunk, drawn: np.ndarray) -> WorkingSet:
        """The working set of a chunk in which these clients take part, on the devices."""
        ids = np.union1d(drawn, self.always).astype(np.int32)
        table = self.population.holders.table(
            ids, rows=self.rows, samples=self.samples, always=self.always, attackers=self.attackers
        )
        rows: Any = None
        if self.sample is not None:
            rows = np.zeros((self.capacity, 1, *drawn.shape[1:]), np.int32)
            rows[: len(drawn), 0] = np.searchsorted(ids, drawn)
        data = place_data(self.axis, FederatedData(**table))
        return WorkingSet(chunk, ids, data, None if rows is None else self.axis.place(rows))

    def blank(self) -> FederatedData:
        """Data like those of all working sets, of nobody."""
        nobody = self.always[:0]
        table = self.population.holders.table(
            nobody, rows=self.rows, samples=self.samples, always=nobody, attackers=None
        )
        return FederatedData(**table | {"labeled_ids": np.zeros((1, len(self.always)), np.int32)})

    def drawn(self) -> Array | None:
        """Who takes part in the rounds of a chunk, as an array like those of all working sets."""
        if self.sample is None:
            return None
        nobody: Any = np.zeros((self.capacity, 1, *self._draw((0, 1)).shape[1:]), np.int32)
        return self.axis.place(nobody)

    def fitted(self, state: State) -> State:
        """The state with as many rows of clients as a working set has."""
        rows = self.axis.rows(self.rows)

        def blank(leaf: Any) -> Any:
            return leaf if leaf.shape[1] == rows else np.zeros((1, rows, *leaf.shape[2:]), leaf.dtype)

        return state._replace(clients=self.axis.place(jax.tree.map(blank, state.clients), GRID, CLIENTS))

    def advance(
        self,
        program: Callable[..., tuple[State, RoundReport]],
        state: State,
        hyper: Hyper,
        states: ClientStates,
        chunk: Chunk,
        *,
        then: Chunk | None,
    ) -> tuple[State, RoundReport]:
        """Runs a chunk of rounds; meanwhile the host prepares the chunk `then` that follows."""
        current = self._next
        if current is None or (self.sample is not None and current.chunk != chunk):
            current = self._set_of(chunk, self._draw(chunk))
        # Before the program runs: a draw would wait for it.
        drawn = None if then is None or self.sample is None else self._draw(then)
        state = state._replace(clients=states.bring(self.axis, state.clients, current.ids))
        running = program(state, current.data, hyper, np.int32(chunk[1]), current.drawn)
        self._next = current if then is None or drawn is None else self._set_of(then, drawn)
        state, reports = jax.block_until_ready(running)
        states.keep(self.axis, state.clients, current.ids)
        return state, reports


def _host_device() -> jax.Device:
    """The CPU, or where JAX_PLATFORMS leaves it out, an accelerator: random numbers are the same."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        return jax.local_devices()[0]
