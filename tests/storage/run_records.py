"""A run directory with records, for the tests of the logs that repeat them elsewhere."""

import json
from pathlib import Path

from rscfed_jax.config import Config
from rscfed_jax.config.registry import metrics
from rscfed_jax.storage.run_directory import RunDirectory


def record_of(round_: int) -> dict:
    """A line of metrics.jsonl."""
    return {
        "round": round_,
        **{name: 0.5 + 0.01 * round_ * place for place, name in enumerate(metrics())},
        "labeled_loss": 0.5 if round_ else None,
        "broken_clients": 0,
        "broken_ids": [],
        "client_weights": {"3": 0.25, "11": 0.75} if round_ else {},
        "bytes_up": 2_200_000 * round_,
        "seconds": 1.5 * round_,
    }


def write_run(path: Path, evaluated=range(7), **settings) -> RunDirectory:
    """A run with these evaluated rounds."""
    path.mkdir(exist_ok=True)
    directory = RunDirectory(path)
    directory.config.write_text(json.dumps(Config(**settings).to_dict()))
    directory.rewrite_metrics([record_of(round_) for round_ in evaluated])
    return directory


def go_on(log, directory: RunDirectory, first: int, last: int) -> None:
    """A process that goes on from a checkpoint before the round `first` and evaluates up to `last`."""
    directory.rewrite_metrics([record_of(round_) for round_ in range(first)])
    with log:
        for round_ in range(first, last + 1):
            directory.append_metrics(record_of(round_))
            log.add(record_of(round_))
