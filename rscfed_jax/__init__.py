"""Federated semi-supervised learning as one compiled JAX program: RSCFed and its baselines.

    import rscfed_jax as rj

    config = rj.Config(method="rscfed", rounds=30, warmup_rounds=5)
    result = rj.train(config)
    print(result.summary["final"])        # accuracy, auc, precision, recall
    probabilities = result.predict(images)  # of the trained global model

Everything listed in `__all__` is public; everything else may change. Importing the package does not import JAX.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "Config": "config",
    "Hyper": "config",
    "SettingError": "config",
    "Dataset": "data.dataset",
    "load_dataset": "data.load",
    "Federation": "data.federation",
    "build_federation": "data.federation",
    "FederatedData": "core.types",
    "TestData": "core.types",
    "to_device": "runner.build",
    "train": "api",
    "grid": "api",
    "reproduce": "api",
    "evaluate_run": "api",
    "Result": "runner.result",
    "GridResult": "runner.grid",
    "Stopped": "runner.loop",
    "DivergedError": "runner.history",
    "Simulation": "runner.build",
    "build_simulation": "runner.build",
    "Algorithm": "core.algorithm",
    "State": "core.types",
    "RoundReport": "core.types",
    "one_round": "core.round",
    "run_rounds": "core.program",
    "scan_rounds": "core.program",
    "Method": "core.method",
    "Mean": "core.method",
    "Sum": "core.method",
    "Mixed": "core.method",
    "Separate": "core.method",
    "Verdict": "core.method",
    "Pause": "core.method",
    "Server": "core.method",
    "Finish": "core.method",
    "METHODS": "methods.registry",
    "RandomSubsets": "core.sampling",
    "AllClients": "core.sampling",
    "LabeledClients": "core.sampling",
    "Members": "core.aggregation",
    "Consensus": "core.aggregation",
    "sub_consensus": "core.aggregation",
    "by_data_amount": "core.aggregation",
    "data_shares": "core.aggregation",
    "weighted_mean": "core.aggregation",
    "l2_distance": "core.aggregation",
    "weak": "core.augment",
    "strong": "core.randaugment",
    "as_prepared": "core.augment",
    "Batch": "core.objective",
    "Step": "core.objective",
    "Told": "core.objective",
    "Losses": "core.types",
    "student_logits": "core.objective",
    "teacher_logits": "core.objective",
    "cross_entropy": "core.objective",
    "consistency": "core.objective",
    "mean_teacher_loss": "core.objective",
    "Metrics": "core.metrics",
    "evaluate": "core.metrics",
    "rows_of": "paper.tables",
    "plot_curves": "report.plots",
    "plot_heatmap": "report.plots",
    "plot_partition": "report.plots",
    "plot_weights": "report.plots",
    "plot_confusion": "report.plots",
    "write_report": "report.write",
    "use_all_cores": "runner.start",
}

__all__ = sorted(_HOMES)

if TYPE_CHECKING:
    from rscfed_jax.api import evaluate_run, grid, reproduce, train
    from rscfed_jax.config import Config, Hyper, SettingError
    from rscfed_jax.core.aggregation import (
        Consensus,
        Members,
        by_data_amount,
        data_shares,
        l2_distance,
        sub_consensus,
        weighted_mean,
    )
    from rscfed_jax.core.algorithm import Algorithm
    from rscfed_jax.core.augment import as_prepared, weak
    from rscfed_jax.core.method import Finish, Mean, Method, Mixed, Pause, Separate, Server, Sum, Verdict
    from rscfed_jax.core.metrics import Metrics, evaluate
    from rscfed_jax.core.objective import (
        Batch,
        Step,
        Told,
        consistency,
        cross_entropy,
        mean_teacher_loss,
        student_logits,
        teacher_logits,
    )
    from rscfed_jax.core.program import run_rounds, scan_rounds
    from rscfed_jax.core.randaugment import strong
    from rscfed_jax.core.round import one_round
    from rscfed_jax.core.sampling import AllClients, LabeledClients, RandomSubsets
    from rscfed_jax.core.types import FederatedData, Losses, RoundReport, State, TestData
    from rscfed_jax.data.dataset import Dataset
    from rscfed_jax.data.federation import Federation, build_federation
    from rscfed_jax.data.load import load_dataset
    from rscfed_jax.methods.registry import METHODS
    from rscfed_jax.paper.tables import rows_of
    from rscfed_jax.report.plots import plot_confusion, plot_curves, plot_heatmap, plot_partition, plot_weights
    from rscfed_jax.report.write import write_report
    from rscfed_jax.runner.build import Simulation, build_simulation, to_device
    from rscfed_jax.runner.grid import GridResult
    from rscfed_jax.runner.history import DivergedError
    from rscfed_jax.runner.loop import Stopped
    from rscfed_jax.runner.result import Result
    from rscfed_jax.runner.start import use_all_cores


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
