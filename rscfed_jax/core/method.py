"""The parts of a method. Most methods define two or three of them; the rest have defaults.

Every part is a function of a module or a frozen dataclass with `__call__`: a `Method` is static and hashable, and equal
methods share one compiled program. A part that a method does not bring costs nothing in the program.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, Protocol

import flax.linen as nn
import jax.numpy as jnp

from rscfed_jax.config import Hyper
from rscfed_jax.core.aggregation import Consensus, Members, by_data_amount
from rscfed_jax.core.augment import View, weak
from rscfed_jax.core.objective import Step, Told, mean_teacher_loss
from rscfed_jax.core.types import Array, FederatedData, Model

Sample = Callable[[Array, FederatedData], Array]  # key -> [M, K] client ids
Aggregate = Callable[[Model, Members, Hyper], Consensus]  # the [K, ...] models of a subset -> what it agrees on
Objective = Callable[[nn.Module, Model, Step, Hyper], tuple[Array, Told]]  # network, model, step -> loss
Teacher = Literal["none", "ema", "frozen"]


@dataclasses.dataclass(frozen=True)
class Mean:
    """News that the server gets as the mean over a client's steps."""

    shape: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class Sum:
    """News that the server gets as the sum over a client's steps and over its preparation."""

    shape: tuple[int, ...] = ()


News = Mean | Sum


@dataclasses.dataclass(frozen=True)
class Mixed:
    """Batches of the client's samples as they come, labeled or not, of the size that `--batch-size` says."""


@dataclasses.dataclass(frozen=True)
class Separate:
    """Batches of `labeled` labeled and `unlabeled` unlabeled samples, in this order; labeled samples repeat.

    An epoch ends when each unlabeled sample was used once or, without unlabeled samples, each labeled one.
    """

    labeled: int
    unlabeled: int

    def steps(self, labeled: Any, others: Any) -> Any:
        """Batches of an epoch over this many labeled and other samples; numbers or arrays."""
        by_labeled, by_others = -(-labeled // self.labeled), -(-others // self.unlabeled)
        return by_others + by_labeled * (others == 0)


@dataclasses.dataclass(frozen=True)
class Labeled:
    """Batches of the samples with a visible label alone, of the size that `--batch-size` says."""


class Verdict(NamedTuple):
    """What `prepare` says of the B samples of a batch. Samples with a visible label are kept with that label."""

    labels: Array  # [B] int32 pseudo-labels
    keep: Array  # [B] bool: train on the sample
    statistics: Any = ()  # a pytree of sums over samples; the objective sees the sums over the whole client
    news: dict[str, Array] = {}  # noqa: RUF012 - never changed


class Pause(NamedTuple):
    """What `between` knows when an epoch is over."""

    epoch: Array  # int32, counted from 0
    labeled: Array  # bool: the client holds labels
    sent: Model  # the model that the client began the round with


class Server(NamedTuple):
    """What the server knows when the models of a round are averaged."""

    round: Array  # int32; negative in the warm-up
    before: Model  # the global model that was sent
    mean: Model  # of the subsets' models, after --server-optimizer
    memory: Any


class Prepare(Protocol):
    """One pass over a client's samples before its first step, batch by batch."""

    def __call__(self, network: nn.Module, step: Step, hyper: Hyper) -> Verdict:
        """What becomes of the samples of `step.batch`; `step.sent` is the model to ask."""


@dataclasses.dataclass(frozen=True)
class Finish:
    """A second phase of the round: all labeled clients train on from the new global model; their mean replaces it.

    They have their own momentum and no teacher, and no faults happen.
    """

    objective: Objective | None = None  # None: the method's own
    epochs: int = 1
    aggregate: Aggregate = by_data_amount


def no_news(network: nn.Module) -> dict[str, News]:
    """Clients send their model alone."""
    return {}


def no_memory(network: nn.Module, model: Model) -> None:
    """The server keeps nothing but the model."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Method:
    """A federated method: who takes part, what a client minimises, and how models become one."""

    name: str = ""  # that of its file; a method without a file must say one
    sample: Sample | None = None  # None: as the file's SAMPLES says
    aggregate: Aggregate = by_data_amount
    warmup: Aggregate = by_data_amount  # the same for the labeled clients of the warm-up
    views: Any = dataclasses.field(default_factory=lambda: {"student": weak, "teacher": weak})  # augmentations by name
    objective: Objective = mean_teacher_loss
    batches: Mixed | Separate | Labeled = Mixed()
    prepare: Prepare | None = None
    partners: bool = False  # a batch brings as many samples of the client besides, drawn at random: for mixup
    features: bool = False  # the objective asks for the network's features: one that gives none is refused
    pseudo_labels: bool = False  # the objective tells pseudo-labels; otherwise those of `prepare` are judged
    tally: Callable[[nn.Module, Model], Any] | None = None  # what a client carries through its local steps
    between: Callable[[Pause, Model, Any, Hyper], tuple[Model, Any]] | None = None  # model, tally after an epoch
    teacher: Teacher = "ema"  # none, the client's own average, or the frozen model that was sent
    epochs: Callable[[Array, Hyper], Array] | None = None  # labeled -> epochs; None: --local-epochs
    news: Callable[[nn.Module], dict[str, News]] = no_news
    memory: Callable[[nn.Module, Model], Any] = no_memory  # what the server knows before the first round
    serve: Callable[[Server, Members, Hyper], tuple[Model, Any]] | None = None  # -> global model, memory
    finish: Finish | None = None

    def __post_init__(self) -> None:
        views: Mapping[str, View] = dict(self.views)
        object.__setattr__(self, "views", tuple(views.items()))  # hashable

    @property
    def judged(self) -> bool:
        """Whether there are pseudo-labels to be judged by the truth."""
        return self.pseudo_labels or self.prepare is not None

    def zero_news(self, network: nn.Module, dtype: Any) -> dict[str, Array]:
        """The news of a client that has not trained yet."""
        return {name: jnp.zeros(kind.shape, dtype) for name, kind in self.news(network).items()}
