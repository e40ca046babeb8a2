"""CBAFed: pseudo-labels fixed at the round's start, thresholds that balance classes, residual weight connections.

Li, Li, Wang. Class balanced adaptive pseudo labeling for federated semi-supervised learning. CVPR 2023.
https://openaccess.thecvf.com/content/CVPR2023/html/Li_Class_Balanced_Adaptive_Pseudo_Labeling_for_Federated_Semi-Supervised_Learning_CVPR_2023_paper.html

Numbers are those of its code. Each part can be switched off, as in its ablation; then all labels have the threshold
`cap`. Choices where it cannot be followed:
- Its warm-up is one training of the labeled client of 501 epochs. Here it is 45 rounds of 11 epochs, and the local
  residual connection begins anew in each.
- Without a warm-up the first round has the thresholds of balanced classes, and the server's record is the model after
  that round.
- Classes are counted over the clients that take part in a round, once for each subset that drew them.
- Its cap is 0.9 on SVHN and ISIC, and 0.95 elsewhere, which is the default here. On ISIC it counts labels ten times
  (`--labeled-multiplier 10`).
- Made for clients that hold all labels or none. One that holds a part counts as labeled: its labels and its kept
  pseudo-labels have the same weight in a batch, whatever their numbers.
- Kept samples are shuffled, and a last batch of one sample trains like any other; its code takes them in the order in
  which it labeled them, and skips such a batch.
- Optimiser and learning rates are those of the other methods: 0.021 for unlabeled clients instead of 0.02.
"""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from rscfed_jax.config import Config, Hyper
from rscfed_jax.core.aggregation import Consensus, Members, by_data_amount
from rscfed_jax.core.augment import as_prepared
from rscfed_jax.core.method import Method, News, Pause, Server, Sum, Verdict
from rscfed_jax.core.objective import Step, Told, cross_entropy, labeled_loss, student_logits, teacher_logits
from rscfed_jax.core.pseudo_labels import hidden
from rscfed_jax.core.trees import choose
from rscfed_jax.core.types import Array, Losses, Model

SAMPLES = "all"
DEFAULTS = {"labeled_share": "off", "labeled_multiplier": 1.0, "warmup_rounds": 45}
NUMBERS = {
    "balanced": (True, "true|false", "thresholds follow the classes' shares"),
    "base": (0.84, "0..1", "threshold of a class without samples, before the spread of the shares is taken off"),
    "cap": (0.95, "0..1", "largest threshold, and that of all classes without cbafed-balanced (its code: SVHN 0.9)"),
    "tail": (True, "true|false", "take the second class of a sample that is not sure of its first, if it is rare"),
    "tail_share": (0.03, "0..1", "share below which a class is rare"),
    "server_residual": (True, "true|false", "blend the global model with an earlier one"),
    "server_every": (5, "whole 1..", "rounds between two such blends"),
    "server_keep": (0.5, "0..1", "weight of the earlier model"),
    "local_residual": (True, "true|false", "blend a labeled client's model with an earlier one"),
    "local_every": (5, "whole 1..", "local epochs between two such blends"),
    "local_keep": (0.8, "0..1", "weight of the earlier model"),
    "labeled_epochs": (11, "whole 1..", "local epochs of a labeled client"),
    "unlabeled_epochs": (1, "whole 1..", "local epochs of an unlabeled client"),
}
REFUSES = {"local_epochs": "has --cbafed-labeled-epochs and --cbafed-unlabeled-epochs instead of --local-epochs"}


class Memory(NamedTuple):
    """What the server keeps."""

    counts: Array  # [classes] labels and kept pseudo-labels of the last round; all zero before the first
    record: Model  # the model to blend with


def method(config: Config) -> Method:
    """Every client every round, averaged by how many samples each trained on."""
    del config
    return Method(
        aggregate=by_kept,
        warmup=by_kept,
        views={"weak": as_prepared},
        teacher="none",
        prepare=label,
        objective=loss,
        epochs=epochs,
        tally=sent_model,
        between=blend_locally,
        news=classes_told,
        memory=nothing_counted,
        serve=serve,
    )


def class_shares(counts: Array) -> Array:
    """[classes] shares of all labels, times classes / 10: balanced classes have 0.1 each, however many there are."""
    uniform = jnp.full_like(counts, 1 / len(counts))
    shares = jnp.where(jnp.sum(counts) > 0, counts / jnp.maximum(jnp.sum(counts), 1), uniform)
    return shares * len(counts) / 10


def thresholds(counts: Array, own: dict[str, Array]) -> Array:
    """[classes] confidences above which a class's label is kept: the more samples a class has, the higher."""
    shares = class_shares(counts)
    adapted = jnp.minimum(shares + own["base"] - jnp.std(shares, ddof=1), own["cap"])
    return jnp.where(own["balanced"] > 0, adapted, own["cap"])


def label(network: nn.Module, step: Step, hyper: Hyper) -> Verdict:
    """Labels of the model that was sent, on the very views that training will see."""
    batch, own, counts = step.batch, hyper.own, step.memory.counts
    logits = teacher_logits(network, step.sent, batch.views["weak"])
    labels, keep = chosen(jax.nn.softmax(logits), counts.astype(logits.dtype), own)
    keep &= step.round >= 0  # a warm-up trains on visible labels alone
    final = jnp.where(hidden(batch), labels, batch.labels)
    counted = batch.valid & (keep | ~hidden(batch))
    told = jnp.sum(jax.nn.one_hot(final, len(counts), dtype=logits.dtype) * counted[:, None], axis=0)
    return Verdict(labels, keep, news={"classes": told})


def chosen(probabilities: Array, counts: Array, own: dict[str, Array]) -> tuple[Array, Array]:
    """[B] labels and which are kept: the first class if it is sure, else the second if that is a rare one."""
    first, confidence = jnp.argmax(probabilities, axis=1), jnp.max(probabilities, axis=1)
    sure = confidence > thresholds(counts, own)[first]
    second = jnp.argmax(jnp.where(jax.nn.one_hot(first, len(counts), dtype=bool), 0, probabilities), axis=1)
    rare = class_shares(counts) < own["tail_share"]
    discovered = ~sure & rare[second] & (own["tail"] > 0)
    return jnp.where(discovered, second, first), sure | discovered


def loss(network: nn.Module, model: Model, step: Step, hyper: Hyper) -> tuple[Array, Told]:
    """Cross-entropy on labels and on kept pseudo-labels."""
    del hyper
    batch = step.batch
    assert batch.pseudo_labels is not None
    logits, stats = student_logits(network, model, batch.views["weak"], batch.valid)
    labeled, unlabeled = labeled_loss(logits, step), cross_entropy(logits, batch.pseudo_labels, hidden(batch))
    return labeled + unlabeled, Told(stats, Losses(labeled, unlabeled))


def epochs(labeled: Array, hyper: Hyper) -> Array:
    """Local epochs by kind of client."""
    return jnp.where(labeled, hyper.own["labeled_epochs"], hyper.own["unlabeled_epochs"])


def sent_model(network: nn.Module, model: Model) -> Model:
    """The model to blend with, before there is one of the client's own."""
    del network
    return model


def blend_locally(pause: Pause, model: Model, record: Model, hyper: Hyper) -> tuple[Model, Model]:
    """A labeled client continues from a mixture with its model of some epochs before."""
    own = hyper.own
    due = pause.labeled & (pause.epoch > 0) & (pause.epoch % own["local_every"] == 0) & (own["local_residual"] > 0)
    model = choose(due, blended(record, model, own["local_keep"]), model)
    return model, choose(due | (pause.epoch == 0), model, record)


def blended(record: Model, model: Model, keep: Array) -> Model:
    """The mean of two models, the first of which has the weight `keep`."""
    return jax.tree.map(lambda old, new: keep * old + (1 - keep) * new, record, model)


def classes_told(network: nn.Module) -> dict[str, News]:
    """A client reports how many samples of each class it trained on."""
    return {"classes": Sum((network.classes,))}


def by_kept(models: Model, members: Members, hyper: Hyper) -> Consensus:
    """Averages [K, ...] models by the number of samples that each was trained on."""
    return by_data_amount(models, members._replace(sizes=jnp.sum(members.news["classes"], axis=-1)), hyper)


def nothing_counted(network: nn.Module, model: Model) -> Memory:
    """The server before the first round."""
    return Memory(jnp.zeros(network.classes), model)


def serve(server: Server, members: Members, hyper: Hyper) -> tuple[Model, Memory]:
    """The mean, every few rounds blended with an earlier global model, and the classes reported in this round."""
    own, memory = hyper.own, server.memory
    told = jnp.where(members.healthy[..., None], members.news["classes"], 0)
    counts = jnp.sum(told, axis=(0, 1)).astype(memory.counts.dtype)
    begins = (server.round < 0) | ((server.round == 0) & (hyper.warmup_rounds == 0))
    due = (server.round > 0) & (server.round % own["server_every"] == 0) & (own["server_residual"] > 0)
    model = choose(due, blended(memory.record, server.mean, own["server_keep"]), server.mean)
    record = choose(due | begins, model, memory.record)
    return model, Memory(jnp.where(jnp.sum(counts) > 0, counts, memory.counts), record)
