"""FedAvg with FixMatch: confident predictions on a weak view are the labels of a strong view.

Sohn et al. FixMatch: simplifying semi-supervised learning with consistency and confidence. NeurIPS 2020.
https://arxiv.org/abs/2001.07685

Numbers are those of the federated baselines in SAGE and Twin-sight: threshold 0.95, factor 1. With `--prox-mu` it is
their FedProx + FixMatch. Choices:
- Labels are the frozen global model's by default, which federated comparisons found better than the client's own
  (`--fixmatch-labels own`: the model in training, in training mode).
- A sample is seen in one view: labeled ones in the weak, others in the strong. So a step costs as much as a mean
  teacher's.
- Models are averaged by data amount; by default the labeled clients have half of the weight together, as Fed-Consist
  has it. `--labeled-share off --labeled-multiplier 1` is plain FedAvg.
"""

from dataclasses import dataclass

import flax.linen as nn

from rscfed_jax.config import Config, Hyper
from rscfed_jax.core.augment import weak
from rscfed_jax.core.method import Method
from rscfed_jax.core.objective import Step, Told, labeled_loss, student_logits, teacher_logits
from rscfed_jax.core.pseudo_labels import confident, kept_loss, supervised_loss, weak_if_labeled
from rscfed_jax.core.randaugment import STRONG_VIEWS
from rscfed_jax.core.types import Array, Losses, Model

SAMPLES = "all"
STRONG_VIEW = True
DEFAULTS = {"lambda_u": 1.0, "labeled_share": 0.5, "labeled_multiplier": 1.0}
NUMBERS = {"threshold": (0.95, "0..1", "confidence from which a pseudo-label counts")}
CHOICES = {"labels": ("global", "global|own", "who labels: the model that was sent, or the one in training")}


def method(config: Config) -> Method:
    """One subset of all clients, averaged by data amount, with FixMatch's loss."""
    return Method(
        views={"weak": weak, "strong": STRONG_VIEWS[config.strong]},
        teacher="frozen",
        objective=FixMatchLoss(own_labels=config.own["labels"] == "own"),
        pseudo_labels=True,
    )


@dataclass(frozen=True)
class FixMatchLoss:
    """Cross-entropy on visible labels, and on the strong views of samples whose label the model is sure of."""

    own_labels: bool = False

    def __call__(self, network: nn.Module, model: Model, step: Step, hyper: Hyper) -> tuple[Array, Told]:
        """The loss of a batch with the views `weak` and `strong`."""
        batch = step.batch
        if step.teacher is None:  # in the warm-up, and where every sample has a label
            return supervised_loss(network, model, step, hyper)
        logits, stats = student_logits(network, model, weak_if_labeled(batch), batch.valid)
        if self.own_labels:
            on_weak = student_logits(network, model, batch.views["weak"], batch.valid)[0]
        else:
            on_weak = teacher_logits(network, step.teacher, batch.views["weak"])
        pseudo = confident(on_weak, hyper.own["threshold"])
        labeled, unlabeled = labeled_loss(logits, step), kept_loss(logits, pseudo, batch)
        return labeled + hyper.lambda_u * unlabeled, Told(stats, Losses(labeled, unlabeled), pseudo=pseudo)
