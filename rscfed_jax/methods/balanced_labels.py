"""Balanced labels: every client corrects its loss for its own class shares, and the labeled ones train for long.

A combination of known parts, chosen on validation samples of SVHN (benchmarks/results/balanced_labels):
- Unlabeled clients take the labels of the frozen global model where it is sure, as in FixMatch. It sees the middle of
  the image, where nothing of the object is cut off, and the student a random crop. It is asked for the label under the
  client's own class shares, which are the mean of its predictions so far in the round (one step of Saerens, Latinne,
  Decaestecker. Neural Computation 2002).
- Labeled clients have a balanced softmax (Ren et al. NeurIPS 2020, https://arxiv.org/abs/2007.10740). The others have
  one as well, with the shares of the labels that they kept so far in the round: without it a client that holds few
  classes makes them likelier everywhere.
- Labeled clients train five epochs where the others train one, but have only a fifth of the weight in the mean. So
  their labels are learned without the global model becoming theirs.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from rscfed_jax.config import Config, Hyper
from rscfed_jax.core.augment import centre, weak
from rscfed_jax.core.method import Method
from rscfed_jax.core.objective import Step, Told, labeled_loss, student_logits, teacher_logits
from rscfed_jax.core.pseudo_labels import confident, hidden, kept_loss, supervised_loss
from rscfed_jax.core.types import Array, Losses, Model

SAMPLES = "all"
DEFAULTS = {"lambda_u": 1.0, "balanced_softmax": True, "labeled_share": 0.2, "labeled_multiplier": 1.0}
NUMBERS = {
    "threshold": (0.8, "0..1", "confidence from which a pseudo-label counts"),
    "expected": (True, "true|false", "labels under the class shares that the global model expects at the client"),
    "balanced": (True, "true|false", "correct the loss on pseudo-labels for the class shares of those kept so far"),
    "labeled_epochs": (5, "whole 1..", "local epochs of a labeled client; the others have --local-epochs"),
}
CHOICES = {"label_view": ("centre", "centre|crop", "what is labeled: the middle of the image, or another random crop")}
LABEL_VIEWS = {"centre": centre, "crop": weak}
# Samples that a client pretends to have seen and kept before its first step, equally many of each class.
PRETENDED = 64


def method(config: Config) -> Method:
    """One subset of all clients, averaged by data amount, the labeled ones with their own share."""
    return Method(
        views={"weak": weak, "label": LABEL_VIEWS[config.own["label_view"]]},
        teacher="frozen",
        objective=loss,
        pseudo_labels=True,
        tally=nothing_seen,
        epochs=LabeledEpochs(config.local_epochs),
    )


class Tally(NamedTuple):
    """[classes] numbers of samples of a client in the round so far."""

    expected: Array  # by the probabilities that the global model gives them
    kept: Array  # by the labels that were kept


@dataclass(frozen=True)
class LabeledEpochs:
    """More local epochs for clients that hold labels."""

    others: int  # local epochs of the other clients

    def __call__(self, labeled: Array, hyper: Hyper) -> Array:
        """Local epochs by kind of client."""
        return jnp.where(labeled, hyper.own["labeled_epochs"], self.others)


def nothing_seen(network: nn.Module, model: Model) -> Tally:
    """A client before its first step."""
    del model
    equal = jnp.full(network.classes, PRETENDED / network.classes)
    return Tally(equal, equal)


def log_shares(counts: Array, switch: Array, dtype: Any) -> Array:
    """[classes] logarithms of the shares of counts [classes], or zeros if the switch is off."""
    counts = counts.astype(dtype)
    return jnp.where(switch > 0, jnp.log(counts / jnp.sum(counts)), 0)


def loss(network: nn.Module, model: Model, step: Step, hyper: Hyper) -> tuple[Array, Told]:
    """Cross-entropy on visible labels and on kept pseudo-labels, each corrected for the class shares of its kind."""
    batch, own = step.batch, hyper.own
    if step.teacher is None:  # in the warm-up, and where every sample has a label
        return supervised_loss(network, model, step, hyper)
    logits, stats = student_logits(network, model, batch.views["weak"], batch.valid)
    said, tally = teacher_logits(network, step.teacher, batch.views["label"]), step.tally
    pseudo = confident(said + log_shares(tally.expected, own["expected"], said.dtype), own["threshold"])
    shifted = logits + log_shares(tally.kept, own["balanced"], logits.dtype)
    labeled, unlabeled = labeled_loss(logits, step), kept_loss(shifted, pseudo, batch)
    there = hidden(batch).astype(tally.kept.dtype)
    labels = jax.nn.one_hot(pseudo.labels, said.shape[1], dtype=there.dtype)
    expected = tally.expected + there @ jax.nn.softmax(said).astype(there.dtype)
    tally = Tally(expected, tally.kept + (there * pseudo.keep) @ labels)
    return labeled + hyper.lambda_u * unlabeled, Told(stats, Losses(labeled, unlabeled), tally=tally, pseudo=pseudo)
