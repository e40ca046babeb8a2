"""Balanced labels: every client corrects its loss for its own class shares, and the labeled ones train for long.

A combination of known parts, chosen on validation samples of SVHN; docs/results.md tells what each of them brings:
- Unlabeled clients take the labels of the frozen global model where it is sure, as in FixMatch, on another crop.
- Labeled clients have a balanced softmax (Ren et al. NeurIPS 2020, https://arxiv.org/abs/2007.10740). The others have
  one as well, with the shares of the labels that they kept so far in the round: without it a client that holds few
  classes makes them likelier everywhere.
- Labeled clients train five epochs where the others train one, but have only a fifth of the weight in the mean. So
  their labels are learned without the global model becoming theirs.
"""

from dataclasses import dataclass

import flax.linen as nn
import jax
import jax.numpy as jnp

from rscfed_jax.config import Config, Hyper
from rscfed_jax.core.augment import weak
from rscfed_jax.core.method import Method
from rscfed_jax.core.objective import Step, Told, labeled_loss, student_logits, teacher_logits
from rscfed_jax.core.pseudo_labels import confident, hidden, kept_loss, supervised_loss, weak_if_labeled
from rscfed_jax.core.randaugment import STRONG_VIEWS
from rscfed_jax.core.types import Array, Losses, Model

SAMPLES = "all"
STRONG_VIEW = True
DEFAULTS = {
    "lambda_u": 1.0,
    "balanced_softmax": True,
    "labeled_share": 0.2,
    "labeled_multiplier": 1.0,
    "strong": "weak",
}
NUMBERS = {
    "threshold": (0.8, "0..1", "confidence from which a pseudo-label counts"),
    "balanced": (True, "true|false", "correct the loss on pseudo-labels for the class shares of those kept so far"),
    "labeled_epochs": (5, "whole 1..", "local epochs of a labeled client; the others have --local-epochs"),
}
# Labels that a client pretends to have kept before its first step, equally many of each class.
PRETENDED = 64


def method(config: Config) -> Method:
    """One subset of all clients, averaged by data amount, the labeled ones with their own share."""
    return Method(
        views={"weak": weak, "strong": STRONG_VIEWS[config.strong]},
        teacher="frozen",
        objective=loss,
        pseudo_labels=True,
        tally=no_labels_yet,
        epochs=LabeledEpochs(config.local_epochs),
    )


@dataclass(frozen=True)
class LabeledEpochs:
    """More local epochs for clients that hold labels."""

    others: int  # local epochs of the other clients

    def __call__(self, labeled: Array, hyper: Hyper) -> Array:
        """Local epochs by kind of client."""
        return jnp.where(labeled, hyper.own["labeled_epochs"], self.others)


def no_labels_yet(network: nn.Module, model: Model) -> Array:
    """[classes] pseudo-labels that a client has kept in the round, before its first step."""
    del model
    return jnp.full(network.classes, PRETENDED / network.classes)


def loss(network: nn.Module, model: Model, step: Step, hyper: Hyper) -> tuple[Array, Told]:
    """Cross-entropy on visible labels and on kept pseudo-labels, each corrected for the class shares of its kind."""
    batch, own = step.batch, hyper.own
    if step.teacher is None:  # in the warm-up, and where every sample has a label
        return supervised_loss(network, model, step, hyper)
    logits, stats = student_logits(network, model, weak_if_labeled(batch), batch.valid)
    pseudo = confident(teacher_logits(network, step.teacher, batch.views["weak"]), own["threshold"])
    counts = step.tally.astype(logits.dtype)
    prior = jnp.where(own["balanced"] > 0, jnp.log(counts / jnp.sum(counts)), 0)
    labeled, unlabeled = labeled_loss(logits, step), kept_loss(logits + prior, pseudo, batch)
    kept = (hidden(batch) & pseudo.keep).astype(step.tally.dtype)
    tally = step.tally + kept @ jax.nn.one_hot(pseudo.labels, len(counts), dtype=kept.dtype)
    told = Told(stats, Losses(labeled, unlabeled), tally=tally, pseudo=pseudo)
    return labeled + hyper.lambda_u * unlabeled, told
