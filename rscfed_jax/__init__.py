"""Federated semi-supervised learning as one compiled JAX program: RSCFed and what it is compared with.

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
    "load_dataset": "data.sources",
    "Federation": "data.federation",
    "build_federation": "data.federation",
    "FederatedData": "data.table",
    "TestData": "data.table",
    "to_device": "data.table",
    "Result": "group",
    "train": "experiment",
    "grid": "grids",
    "GridResult": "grids",
    "Stopped": "group",
    "DivergedError": "history",
    "evaluate_run": "experiment",
    "Simulation": "simulation",
    "build_simulation": "simulation",
    "Algorithm": "rounds",
    "State": "rounds",
    "RoundReport": "rounds",
    "one_round": "rounds",
    "run_rounds": "rounds",
    "scan_rounds": "rounds",
    "Method": "methods.base",
    "METHODS": "methods",
    "RandomSubsets": "sampling",
    "AllClients": "sampling",
    "LabeledClients": "sampling",
    "Members": "aggregation",
    "Consensus": "aggregation",
    "sub_consensus": "aggregation",
    "data_shares": "aggregation",
    "weighted_mean": "aggregation",
    "l2_distance": "aggregation",
    "Batch": "local.objective",
    "Bulletin": "local.objective",
    "Losses": "local.objective",
    "student_logits": "local.objective",
    "cross_entropy": "local.objective",
    "consistency": "local.objective",
    "Metrics": "metrics",
    "evaluate": "metrics",
    "reproduce": "paper.reproduce",
    "cells_of": "paper.tables",
    "plot_curves": "report.plots",
    "plot_heatmap": "report.plots",
    "plot_partition": "report.plots",
    "plot_weights": "report.plots",
    "plot_confusion": "report.plots",
    "write_report": "report.write",
    "use_all_cores": "cores",
}

__all__ = sorted(_HOMES)

if TYPE_CHECKING:
    from rscfed_jax.aggregation import Consensus, Members, data_shares, l2_distance, sub_consensus, weighted_mean
    from rscfed_jax.config import Config, Hyper, SettingError
    from rscfed_jax.cores import use_all_cores
    from rscfed_jax.data.dataset import Dataset
    from rscfed_jax.data.federation import Federation, build_federation
    from rscfed_jax.data.sources import load_dataset
    from rscfed_jax.data.table import FederatedData, TestData, to_device
    from rscfed_jax.experiment import evaluate_run, train
    from rscfed_jax.grids import GridResult, grid
    from rscfed_jax.group import Result, Stopped
    from rscfed_jax.history import DivergedError
    from rscfed_jax.local.objective import Batch, Bulletin, Losses, consistency, cross_entropy, student_logits
    from rscfed_jax.methods import METHODS
    from rscfed_jax.methods.base import Method
    from rscfed_jax.metrics import Metrics, evaluate
    from rscfed_jax.paper.reproduce import reproduce
    from rscfed_jax.paper.tables import cells_of
    from rscfed_jax.report.plots import plot_confusion, plot_curves, plot_heatmap, plot_partition, plot_weights
    from rscfed_jax.report.write import write_report
    from rscfed_jax.rounds import Algorithm, RoundReport, State, one_round, run_rounds, scan_rounds
    from rscfed_jax.sampling import AllClients, LabeledClients, RandomSubsets
    from rscfed_jax.simulation import Simulation, build_simulation


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
