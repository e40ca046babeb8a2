"""SemiFL: clients train on labels of the global model, then the holder of labels continues training from their mean.

Diao, Ding, Tarokh. SemiFL: semi-supervised federated learning for unlabeled clients with alternate training.
NeurIPS 2022. https://arxiv.org/abs/2106.01432

Numbers are those of its code: labels fixed at the round's start from a confidence of 0.95 on, five epochs over them
with a strong view and mixup (Beta 0.75), a client without a sure label left out, the mean of equals, server momentum
0.5, then five epochs on the labels. Choices:
- Labels are at the server (`--labels-at server`), or at labeled clients, which then take the server's part: all of them
  train on from the mean, and their models are averaged by data amount.
- Optimiser, batches and learning rates are those of the other methods (`--cosine-rounds` for its schedule).
- The strong view is FixMatch's RandAugment (`--strong`); its code has a variant of full strength.
- Clients that hold some labels use them in both phases, without a balanced softmax in the first.
- Batch statistics are averaged like parameters; its code has the server compute them anew from all data.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from rscfed_jax.config import Config, Hyper
from rscfed_jax.core.aggregation import Consensus, Members, as_equals
from rscfed_jax.core.augment import weak
from rscfed_jax.core.method import Finish, Method, News, Sum, Verdict
from rscfed_jax.core.objective import Batch, Step, Told, cross_entropy, student_logits, teacher_logits
from rscfed_jax.core.pseudo_labels import confident, hidden, supervised_loss
from rscfed_jax.core.randaugment import STRONG_VIEWS
from rscfed_jax.core.types import Array, Losses, Model

SAMPLES = "unlabeled"
STRONG_VIEW = True
DEFAULTS = {
    "local_epochs": 5,
    "labeled_share": "off",
    "labeled_multiplier": 1.0,
    "server_optimizer": "momentum",
    "server_momentum": 0.5,
}
NUMBERS = {
    "threshold": (0.95, "0..1", "confidence from which a pseudo-label counts"),
    "mixup": (0.75, "above 0", "both parameters of the Beta distribution of mixup"),
    "mixup_factor": (1.0, "0..", "factor of mixup's loss"),
}
CHOICES = {"finish_epochs": (5, "whole 1..", "epochs on the labels that follow the mean")}
REFUSES = {"labeled_batch_size": "trains on labels in a phase of their own; --labeled-batch-size does not apply"}


def method(config: Config) -> Method:
    """The unlabeled clients, averaged as equals, then the labeled ones; the server has momentum."""
    return Method(
        aggregate=of_the_sure,
        views={"weak": weak, "strong": STRONG_VIEWS[config.strong]},
        teacher="frozen",
        prepare=label,
        partners=True,
        objective=loss,
        news=kept_count,
        finish=Finish(objective=supervised_loss, epochs=config.own["finish_epochs"]),
    )


def kept_count(network: nn.Module) -> dict[str, News]:
    """A client reports how many samples it trained on."""
    del network
    return {"kept": Sum()}


def label(network: nn.Module, step: Step, hyper: Hyper) -> Verdict:
    """Labels of the model that was sent, on one weak view; kept where it is sure."""
    batch = step.batch
    pseudo = confident(teacher_logits(network, step.sent, batch.views["weak"]), hyper.own["threshold"])
    kept = batch.valid & (pseudo.keep | (batch.labels >= 0))
    return Verdict(pseudo.labels, pseudo.keep, news={"kept": jnp.sum(kept)})


def of_the_sure(models: Model, members: Members, hyper: Hyper) -> Consensus:
    """The mean of equals over the clients that had something to train on."""
    return as_equals(models, members._replace(healthy=members.healthy & (members.news["kept"] > 0)), hyper)


def loss(network: nn.Module, model: Model, step: Step, hyper: Hyper) -> tuple[Array, Told]:
    """Cross-entropy on a strong view, and on a mixture of two weak views with both labels."""
    batch = step.batch
    if step.teacher is None:  # in the warm-up
        return supervised_loss(network, model, step, hyper)
    assert batch.pseudo_labels is not None
    assert batch.partner is not None
    logits, stats = student_logits(network, model, batch.views["strong"], batch.valid)
    on_strong = cross_entropy(logits, batch.pseudo_labels, batch.valid)
    share = jax.random.beta(step.key, hyper.own["mixup"], hyper.own["mixup"], dtype=logits.dtype)
    mixed, stats = student_logits(network, {**model, **stats}, mixture(batch, batch.partner, share), batch.valid)
    assert batch.partner.pseudo_labels is not None
    on_mixed = share * cross_entropy(mixed, batch.pseudo_labels, batch.valid)
    on_mixed += (1 - share) * cross_entropy(mixed, batch.partner.pseudo_labels, batch.valid)
    whole = on_strong + hyper.own["mixup_factor"] * on_mixed
    labeled, unlabeled = (
        cross_entropy(logits, batch.pseudo_labels, mask) for mask in (batch.valid & ~hidden(batch), hidden(batch))
    )
    return whole, Told(stats, Losses(labeled, unlabeled))


def mixture(batch: Batch, partner: Batch, share: Array) -> Array:
    """[3, H, W, B] weak views of a batch, mixed with those of its partners."""
    share = share.astype(batch.views["weak"].dtype)
    return share * batch.views["weak"] + (1 - share) * partner.views["weak"]
