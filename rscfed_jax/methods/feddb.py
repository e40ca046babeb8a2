"""FedDB: pseudo-labels and averages corrected for the classes that a model prefers.

Zhu et al. Estimating before debiasing: a Bayesian approach to detaching prior bias in federated semi-supervised
learning. IJCAI 2024. https://arxiv.org/abs/2405.19789

A client's mean prediction estimates which classes its model prefers. Predictions are divided by it before they become
labels, and models are averaged so that their mean predictions together come close to uniform. Numbers are those of its
code. Choices:
- Labels are those of the frozen global model on a fresh weak view in each step, not once at the round's start, and
  batches are those of the other methods; its code has one batch of all labeled and one of all kept samples.
- Made for clients that each hold some labels. A client without unlabeled samples has no such estimate: such
  clients are averaged by data amount and together have half of the weight by default.
- The mean prediction follows the strong views that the loss sees; in its code, weak ones. A labeled sample is not used
  a second time without its label.
- The strong view is FixMatch's RandAugment (`--strong`); its code has a variant of full strength.
- Optimiser and learning rates are those of the other methods: 0.021 for clients without labels instead of 0.03.
- In its code the weights are 100 times the softmax of themselves after a step, which keeps them close to equal.
"""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from rscfed_jax.config import Config, Hyper
from rscfed_jax.core.aggregation import Consensus, Members, by_data_amount, with_scores
from rscfed_jax.core.augment import weak
from rscfed_jax.core.method import Method, News, Pause, Sum, Verdict
from rscfed_jax.core.objective import (
    PseudoLabels,
    Step,
    Told,
    cross_entropy,
    labeled_loss,
    student_logits,
    teacher_logits,
)
from rscfed_jax.core.pseudo_labels import confident, hidden, supervised_loss, weak_if_labeled
from rscfed_jax.core.randaugment import STRONG_VIEWS
from rscfed_jax.core.types import Array, Losses, Model

SAMPLES = "all"
STRONG_VIEW = True
STEPS = 100  # of the search for the weights
NESTEROV = 1.9  # what a first step with Nesterov's momentum of 0.9 takes of a gradient; its code takes first steps only
DEFAULTS = {
    "lambda_u": 1.0,
    "labeled_share": 0.5,
    "labeled_multiplier": 1.0,
    "local_epochs": 5,
    "server_optimizer": "momentum",
    "server_momentum": 0.5,
}
NUMBERS = {
    "threshold": (0.95, "0..1", "confidence from which a pseudo-label counts"),
    "keep": (0.5, "0..1", "factor by which the mean prediction keeps itself in a step"),
    "rate": (1.0, "0..", "learning rate of the weights"),
    "decay": (0.9, "0..", "weight decay of the weights"),
}


class Preference(NamedTuple):
    """The mean prediction of a client as it trains: that of the epoch's start, mixed with the epoch's kept samples."""

    mean: Array  # [classes] as of now
    at_start: Array  # [classes] as of the epoch's start
    total: Array  # [classes] sum of the predictions of the epoch's kept samples
    number: Array  # of them
    begun: Array  # 0 before the first step, when it is that of `prepare`


def method(config: Config) -> Method:
    """One subset of all clients, averaged so that mean predictions balance; the server has momentum."""
    return Method(
        aggregate=balancing,
        views={"weak": weak, "strong": STRONG_VIEWS[config.strong]},
        teacher="frozen",
        prepare=predictions,
        objective=loss,
        pseudo_labels=True,
        tally=no_preference,
        between=next_epoch,
        news=preference_told,
    )


def predictions(network: nn.Module, step: Step, hyper: Hyper) -> Verdict:
    """Sums up the sent model's predictions of the unlabeled samples; all samples are trained on."""
    del hyper
    batch = step.batch
    probabilities = jax.nn.softmax(teacher_logits(network, step.sent, batch.views["weak"]))
    counted = hidden(batch)[:, None]
    sums = {"predicted": jnp.sum(probabilities * counted, axis=0), "unlabeled": jnp.sum(counted).astype(jnp.float32)}
    labels = jnp.argmax(probabilities, axis=1)
    return Verdict(labels, jnp.ones_like(batch.valid), statistics=sums, news=sums)


def mean_prediction(sums: dict[str, Array]) -> Array:
    """[..., classes] the mean prediction; uniform where a client has no unlabeled samples."""
    number, total = sums["unlabeled"][..., None], sums["predicted"]
    return jnp.where(number > 0, total / jnp.maximum(number, 1), 1 / total.shape[-1])


def no_preference(network: nn.Module, model: Model) -> Preference:
    """Before the first step."""
    del model
    nothing = jnp.zeros(network.classes)
    return Preference(nothing, nothing, nothing, jnp.zeros(()), jnp.zeros(()))


def next_epoch(pause: Pause, model: Model, tally: Preference, hyper: Hyper) -> tuple[Model, Preference]:
    """The mean prediction that an epoch ends with is the start of the next."""
    del pause, hyper
    return model, tally._replace(at_start=tally.mean, total=tally.total * 0, number=tally.number * 0)


def debiased(logits: Array, preference: Array, *, threshold: Array) -> PseudoLabels:
    """Labels of predictions [B, classes] divided by the client's mean prediction [classes], kept where sure."""
    return confident(logits - jnp.log(jnp.maximum(preference, 1e-12)), threshold)


def loss(network: nn.Module, model: Model, step: Step, hyper: Hyper) -> tuple[Array, Told]:
    """Cross-entropy on visible labels, and on strong views over the kept debiased labels.

    The mean prediction follows that of the kept samples; each change is reported, and their sum is the whole change.
    """
    batch, own = step.batch, hyper.own
    if step.teacher is None:
        return supervised_loss(network, model, step, hyper)
    prepared, tally = mean_prediction(step.statistics), step.tally
    logits, stats = student_logits(network, model, weak_if_labeled(batch), batch.valid)
    pseudo = debiased(teacher_logits(network, step.teacher, batch.views["weak"]), prepared, threshold=own["threshold"])
    kept = hidden(batch) & pseudo.keep
    labeled, unlabeled = labeled_loss(logits, step), cross_entropy(logits, pseudo.labels, kept)
    before, at_start = (jnp.where(tally.begun > 0, part, prepared) for part in (tally.mean, tally.at_start))
    probabilities = jax.nn.softmax(jax.lax.stop_gradient(logits))
    total, number = tally.total + jnp.sum(probabilities * kept[:, None], axis=0), tally.number + jnp.sum(kept)
    mixed = own["keep"] * at_start + (1 - own["keep"]) * total / jnp.maximum(number, 1)
    mean = jnp.where(number > 0, mixed, at_start)
    after = Preference(mean, at_start, total, number, jnp.ones_like(tally.begun))
    after = Preference(*(new.astype(old.dtype) for new, old in zip(after, tally, strict=True)))
    told = Told(stats, Losses(labeled, unlabeled), {"change": mean - before}, after, pseudo)
    return labeled + hyper.lambda_u * unlabeled, told


def preference_told(network: nn.Module) -> dict[str, News]:
    """A client reports its mean prediction: the sums of the round's start, and its change in training."""
    return {"predicted": Sum((network.classes,)), "unlabeled": Sum(), "change": Sum((network.classes,))}


def balancing_weights(preferences: Array, counted: Array, own: dict[str, Array]) -> Array:
    """[K] weights with which mean predictions [K, classes] come close to uniform; none for members not `counted`."""
    number = jnp.maximum(jnp.sum(counted), 1)
    preferences = jnp.where(counted[:, None], preferences, 0)  # zero times what a broken client told may be NaN

    def step(_: Array, weights: Array) -> Array:
        off = jnp.sum(preferences * weights[:, None], axis=0) - 1 / preferences.shape[1]
        gradient = jnp.sum(preferences * off, axis=1) * 2 / preferences.shape[1]
        weights = weights - own["rate"] * NESTEROV * (gradient + own["decay"] * weights)
        return jnp.where(counted, jax.nn.softmax(jnp.where(counted, weights, -jnp.inf)), 0)

    return jax.lax.fori_loop(0, STEPS, step, counted / number)


def balancing(models: Model, members: Members, hyper: Hyper) -> Consensus:
    """Averages [K, ...] models so that the mean predictions of clients with unlabeled samples balance."""
    preferences = mean_prediction(members.news) + members.news["change"]
    scored = members.news["unlabeled"] > 0
    weights = balancing_weights(preferences, scored & members.healthy, hyper.own)
    return by_data_amount(models, with_scores(members, weights, scored), hyper)
