"""Federated semi-supervised learning as one compiled JAX program: RSCFed and its baselines.

    import rscfed_jax as rj

    config = rj.Config(method="rscfed", rounds=30, warmup_rounds=5)
    result = rj.train(config)
    print(result.summary["final"])        # accuracy, auc, ...
    probabilities = result.predict(images)  # of the trained global model

Everything listed in `__all__` is public; everything else may change. Importing the package does not import JAX.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

# Where public names live; a module is imported when one of its names is first used.
_PUBLIC = {
    "config": "Config Hyper SettingError",
    "data.dataset": "Dataset",
    "data.load": "load_dataset",
    "data.federation": "Federation build_federation",
    "core.types": "FederatedData TestData State RoundReport Losses",
    "runner.build": "to_device Simulation build_simulation",
    "api": "train grid reproduce evaluate_run load_classifier",
    "runner.result": "Result",
    "runner.classifier": "Classifier",
    "runner.grid": "GridResult",
    "runner.loop": "Stopped",
    "runner.history": "DivergedError",
    "core.algorithm": "Algorithm",
    "core.round": "one_round",
    "core.program": "run_rounds scan_rounds",
    "core.method": "Method Mean Sum Mixed Separate Verdict Pause Server Finish",
    "methods.registry": "METHODS",
    "core.sampling": "RandomSubsets AllClients LabeledClients UnlabeledClients",
    "core.aggregation": (
        "Members Consensus sub_consensus by_data_amount as_equals data_shares weighted_mean l2_distance"
    ),
    "core.augment": "weak as_prepared centre",
    "core.randaugment": "strong RandAugment",
    "core.objective": (
        "Batch Step Told PseudoLabels student_logits teacher_logits features_and_logits labeled_loss balanced "
        "cross_entropy consistency mean_teacher_loss"
    ),
    "core.pseudo_labels": "confident kept_loss",
    "core.metrics": "Metrics evaluate",
    "paper.tables": "rows_of",
    "report.plots": "plot_curves plot_pseudo_labels plot_heatmap plot_partition plot_weights plot_confusion",
    "report.write": "write_report",
    "runner.start": "use_all_cores",
    "runner.choice": "device_line",
}
_HOMES = {name: home for home, names in _PUBLIC.items() for name in names.split()}

__all__ = sorted(_HOMES)

if TYPE_CHECKING:
    from rscfed_jax.api import evaluate_run, grid, load_classifier, reproduce, train
    from rscfed_jax.config import Config, Hyper, SettingError
    from rscfed_jax.core.aggregation import (
        Consensus,
        Members,
        as_equals,
        by_data_amount,
        data_shares,
        l2_distance,
        sub_consensus,
        weighted_mean,
    )
    from rscfed_jax.core.algorithm import Algorithm
    from rscfed_jax.core.augment import as_prepared, centre, weak
    from rscfed_jax.core.method import Finish, Mean, Method, Mixed, Pause, Separate, Server, Sum, Verdict
    from rscfed_jax.core.metrics import Metrics, evaluate
    from rscfed_jax.core.objective import (
        Batch,
        PseudoLabels,
        Step,
        Told,
        balanced,
        consistency,
        cross_entropy,
        features_and_logits,
        labeled_loss,
        mean_teacher_loss,
        student_logits,
        teacher_logits,
    )
    from rscfed_jax.core.program import run_rounds, scan_rounds
    from rscfed_jax.core.pseudo_labels import confident, kept_loss
    from rscfed_jax.core.randaugment import RandAugment, strong
    from rscfed_jax.core.round import one_round
    from rscfed_jax.core.sampling import AllClients, LabeledClients, RandomSubsets, UnlabeledClients
    from rscfed_jax.core.types import FederatedData, Losses, RoundReport, State, TestData
    from rscfed_jax.data.dataset import Dataset
    from rscfed_jax.data.federation import Federation, build_federation
    from rscfed_jax.data.load import load_dataset
    from rscfed_jax.methods.registry import METHODS
    from rscfed_jax.paper.tables import rows_of
    from rscfed_jax.report.plots import (
        plot_confusion,
        plot_curves,
        plot_heatmap,
        plot_partition,
        plot_pseudo_labels,
        plot_weights,
    )
    from rscfed_jax.report.write import write_report
    from rscfed_jax.runner.build import Simulation, build_simulation, to_device
    from rscfed_jax.runner.choice import device_line
    from rscfed_jax.runner.classifier import Classifier
    from rscfed_jax.runner.grid import GridResult
    from rscfed_jax.runner.history import DivergedError
    from rscfed_jax.runner.loop import Stopped
    from rscfed_jax.runner.result import Result
    from rscfed_jax.runner.start import use_all_cores


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
