"""The pytrees that travel between the parts of a round."""

from typing import Any, NamedTuple

import optax
from jax import Array

Model = dict[str, Any]  # flax variables: "params" and, where a network has them, "batch_stats"


class FederatedData(NamedTuple):
    """Training samples of N clients, sorted by client: row i holds samples starts[i] to starts[i] + sizes[i].

    With `--labels-at server` the last of the N is the server, the only one with labels.
    Cells of a grid share the images; each has its own partition and visible labels.

    The rows are the clients of a federation, row i is client i; or they are the working set of a larger population,
    the clients that take part in the rounds to come. Then `ids` names them, and all other ids here are rows.
    """

    images: Array  # [I, R, R] uint32 packed pixels, larger than the model's input: a random crop is taken of them
    image_ids: Array  # [S] int32: the image of each sample
    labels: Array  # [S] int32; negative where training may not see it
    starts: Array  # [N] int32
    sizes: Array  # [N] int32
    labeled: Array  # [N] bool: the client holds a label
    unlabeled: Array  # [N] bool: the client holds a sample without a label
    labeled_ids: Array  # [L] int32: the clients that hold labels
    unlabeled_ids: Array  # [U] int32: the clients that hold samples without a label
    class_counts: Array  # [N, classes] int32: visible labels of each class
    positions: Array  # [P] int32: 0, 1, 2, ...; P, a power of two, is not below the largest client's size
    mean: Array  # [3] of the pixel values 0 to 255
    std: Array  # [3]
    truth: Array  # [S] int32: all labels, to judge pseudo-labels by; no part of a method ever sees them
    ids: Array | None = None  # [N] int32: the client of each row of a working set, in rising order, padded at the end
    attackers: Array | None = None  # [N] bool: who attacks, which a working set cannot tell by itself

    @property
    def clients(self) -> int:
        """Number of clients N, a server that holds the labels among them; in a working set, of its rows."""
        return self.sizes.shape[0]


class TestData(NamedTuple):
    """Test samples at the model's input size."""

    images: Array  # [T, H, H] uint32 packed pixels
    labels: Array  # [T] int32
    mean: Array
    std: Array


TestData.__test__ = False  # type: ignore[attr-defined]  # not a test case for pytest

# Which parts have a leading axis of cells in a grid, as `vmap` wants to be told.
SHARED_BY_CELLS = ("images", "positions", "mean", "std")
OF_A_CELL: Any = FederatedData(*(None if name in SHARED_BY_CELLS else 0 for name in FederatedData._fields))  # type: ignore[arg-type]


def data_of_cell(data: FederatedData, number: int) -> FederatedData:
    """The data of one of G cells, without their leading axis."""
    parts: Any = zip(data, OF_A_CELL, strict=True)
    return FederatedData(*(leaf if part is None or leaf is None else leaf[number] for leaf, part in parts))


class Broadcast(NamedTuple):
    """What the server sends to every client of a round."""

    key: Array
    model: Model  # the global model
    initial_model: Model  # from which teachers start
    round: Array  # int32, counted from 0; negative in the warm-up
    memory: Any  # what the method's server remembers; None for most


class Slot(NamedTuple):
    """One piece of work: a client that trains for a subset."""

    client: Array  # int32: its id, which its randomness is derived from
    row: Array  # int32: its place among the clients whose data and states are on the devices
    subset: Array  # int32
    answers: Array  # bool: the client sends a model at all
    attacks: Array  # bool: it sends a corrupted one


class ClientState(NamedTuple):
    """What a client keeps from one selection to the next; stacked over clients it has a leading axis of rows."""

    teacher: Model | None  # None where no client needs one of its own
    optimizer: optax.OptState
    step: Array  # int32: mean-teacher steps in the client's whole life; 0: the teacher has not started


class Losses(NamedTuple):
    """The two parts of the loss, before they are weighed."""

    labeled: Array
    consistency: Array


class Trained(NamedTuple):
    """What a slot sends to the server."""

    model: Model
    losses: Losses
    news: dict[str, Array]  # what the method's clients report to the server; empty for most
    judged: Array | None  # [classes, 3] samples without a label by their true class: seen, kept, labeled right
    healthy: Array  # bool: the client answered with a finite model
    answered: Array  # bool


class State(NamedTuple):
    """What changes from round to round."""

    round: Array  # int32
    key: Array  # of the whole experiment; never changes
    model: Model  # the global model
    initial_model: Model
    memory: Any  # what the method's server remembers beside the model; None for most
    optimizer: optax.OptState | None  # of the server; None where it takes the mean as it is
    clients: ClientState | None  # stacked over the rows of the data and padding, as many for each device, or not kept
    models_down: Array  # int32: models sent to clients so far
    models_up: Array  # int32: models sent to the server so far


class RoundReport(NamedTuple):
    """What a round reports."""

    subsets: Array  # [M, K] client ids
    weights: Array  # [M, K] of each model in its subset
    distances: Array  # [M, K] from the subset's mean
    labeled_loss: Array  # mean over the steps of clients with labels; NaN if none takes part
    consistency_loss: Array  # mean over the steps of clients with unlabeled samples; NaN if none takes part
    broken: Array  # [M, K] bool: the client answered with a model that is not finite
    dropped: Array  # [M, K] bool: the client did not answer
    attackers: Array  # [M, K] bool: the client's model was corrupted on purpose
    finite: Array  # bool: the new global model is
    judged: Array | None  # [classes, 3] as in `Trained`, over all clients; None where the method has no pseudo-labels
