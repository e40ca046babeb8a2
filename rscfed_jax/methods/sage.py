"""SAGE: local and global pseudo-labels, mixed by how far their confidences are apart.

Liu et al. Mind the gap: confidence discrepancy can guide federated semi-supervised learning across pseudo-mismatch.
CVPR 2025. https://arxiv.org/abs/2503.13227

Numbers are those of its code: threshold 0.95, and a mixture of halves where confidences differ by 0.05. Choices:
- Made for clients that each hold some labels (`--labeled-fraction`, `--labeled-batch-size`); here it also serves
  clients that hold all of their labels or none. A labeled sample is not used a second time without its label.
- Optimiser, learning rates and augmentation are those of the other methods; in its code, all clients share one
  momentum buffer.
- One local epoch over a client's samples by default; its code has five, in each of which an unlabeled sample is seen
  twice. Batch normalisation sees each view by itself; its code joins labeled, weak and strong images in one batch.
- Models are averaged by data amount; clients that hold all labels have half of the weight together by default.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from rscfed_jax.config import Config, Hyper
from rscfed_jax.core.augment import weak
from rscfed_jax.core.method import Method
from rscfed_jax.core.objective import PseudoLabels, Step, Told, labeled_loss, student_logits, teacher_logits
from rscfed_jax.core.pseudo_labels import confident, mean_over_hidden, supervised_loss, weak_if_labeled
from rscfed_jax.core.randaugment import STRONG_VIEWS
from rscfed_jax.core.types import Array, Losses, Model

SAMPLES = "all"
STRONG_VIEW = True
DEFAULTS = {"lambda_u": 1.0, "labeled_share": 0.5, "labeled_multiplier": 1.0}
NUMBERS = {
    "threshold": (0.95, "0..1", "confidence from which a pseudo-label counts"),
    "half": (0.05, "above 0", "difference of confidences at which both labels count half"),
}


def method(config: Config) -> Method:
    """One subset of all clients, averaged by data amount, with labels of both models."""
    return Method(
        views={"weak": weak, "strong": STRONG_VIEWS[config.strong]},
        teacher="frozen",
        objective=loss,
        pseudo_labels=True,
    )


def mixed_labels(local: Array, server: Array, *, threshold: Array, half: Array) -> tuple[Array, Array]:
    """[B, classes] soft labels from the logits [B, classes] of both models, and [B] whether either is sure.

    A sure local label counts exp(-ln 2 * difference / half), the global one the rest; else the global one is taken.
    """
    ours, theirs = confident(local, threshold), confident(server, threshold)
    confidences = [jnp.max(jax.nn.softmax(logits), axis=1) for logits in (local, server)]
    difference = jnp.clip(jnp.abs(confidences[0] - confidences[1]), 1e-6, 1)
    share = jnp.where(ours.keep, jnp.exp(-difference * jnp.log(2.0) / half), 0)[:, None]
    one, other = (jax.nn.one_hot(said.labels, local.shape[1], dtype=local.dtype) for said in (ours, theirs))
    return share * one + (1 - share) * other, ours.keep | theirs.keep


def divergence(targets: Array, logits: Array) -> Array:
    """[B] Kullback-Leibler divergence of the predictions [B, classes] from soft labels."""
    return jnp.sum(jax.scipy.special.xlogy(targets, targets) - targets * jax.nn.log_softmax(logits), axis=1)


def loss(network: nn.Module, model: Model, step: Step, hyper: Hyper) -> tuple[Array, Told]:
    """Cross-entropy on visible labels, and the divergence of strong views from mixed labels where either is sure."""
    batch, own = step.batch, hyper.own
    if step.teacher is None:
        return supervised_loss(network, model, step, hyper)
    logits, stats = student_logits(network, model, weak_if_labeled(batch), batch.valid)
    local = jax.lax.stop_gradient(student_logits(network, model, batch.views["weak"], batch.valid)[0])
    server = teacher_logits(network, step.teacher, batch.views["weak"])
    targets, sure = mixed_labels(local, server, threshold=own["threshold"], half=own["half"])
    labeled = labeled_loss(logits, step)
    unlabeled = mean_over_hidden(divergence(targets, logits) * sure, batch)
    pseudo = PseudoLabels(jnp.argmax(targets, axis=1), sure)
    return labeled + hyper.lambda_u * unlabeled, Told(stats, Losses(labeled, unlabeled), pseudo=pseudo)
