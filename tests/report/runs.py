"""Run directories written by hand, as a run would leave them."""

import json
from pathlib import Path

import numpy as np

from rscfed_jax.config import HASHES, Config
from rscfed_jax.config.registry import metrics
from rscfed_jax.storage.records import MOST_LISTED, best_of, final_of

FIRST_METRICS = ("accuracy", "auc", "precision", "recall")  # of version 0.1


def write_run(
    path: Path,
    *,
    finished=True,
    old=False,
    rounds=6,
    classes=4,
    class_names=None,
    stop=None,
    pseudo_labels=False,
    behind=0.0,
    **settings,
) -> Path:
    """Writes a run; one of an `old` version holds less, one that is not `finished` was evaluated until `stop`.

    With `pseudo_labels` its last class is never kept. Its metrics are lower by `behind`, and by up to 0.1 at random.
    """
    config = Config(
        rounds=rounds, **{"clients": 5, "subset_size": 2, "dataset": f"synthetic:classes={classes}"} | settings
    )
    rng = np.random.default_rng([config.seed, len(path.name), rounds])
    records = [record_of(rng, config, round_, behind) for round_ in range((stop or rounds) + 1)]
    if pseudo_labels:
        records = [record | (judged(rng, classes) if record["round"] else {}) for record in records]
    stored = config.to_dict()
    if old:
        newer = {"client_weights", "client_accuracy", "client_accuracy_mean", "client_accuracy_min", *metrics()} - set(
            FIRST_METRICS
        )
        records = [{name: record[name] for name in record if name not in newer} for record in records]
        stored = {name: value for name, value in stored.items() if name not in HASHES}
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(stored))
    (path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    if finished:
        final, best = (
            {name: value for name, value in part.items() if value is not None}
            for part in (final_of(records), best_of(records))
        )
        facts = {"rounds": rounds, "seconds_per_round": 1.5, "device": "2 x cpu (cpu)"}
        confusion = {} if old else {"confusion": rng.integers(0, 90, (classes, classes)).tolist()}
        (path / "summary.json").write_text(json.dumps({"final": final, "best": best, **facts, **confusion}))
    if not old:
        counts = rng.integers(0, 300, (config.holders, classes))
        labels = [int(row.sum()) * (client == 1) for client, row in enumerate(counts)]
        names = class_names or [f"kind {label}" for label in range(classes)]
        content = {"class_names": names, "class_counts": counts.tolist(), "labels": labels, "server": config.server}
        (path / "partition.json").write_text(json.dumps(content))
    return path


def record_of(rng: np.random.Generator, config: Config, round_: int, behind: float = 0.0) -> dict:
    """One line of metrics.jsonl."""
    level = 1 - 0.8 * float(np.exp(-2 * round_ / config.rounds)) - behind
    drawn = rng.permutation(config.clients)[: max(config.subset_size, config.clients // 2)] if round_ else []
    accuracies = (level * rng.random(config.clients)).tolist()
    return {
        "round": round_,
        **{name: level - 0.1 * float(rng.random()) for name in metrics()},
        "client_accuracy_mean": float(np.mean(accuracies)),
        "client_accuracy_min": min(accuracies),
        **({"client_accuracy": accuracies} if config.clients <= MOST_LISTED else {}),
        "labeled_loss": 0.5 if round_ else None,
        "consistency_loss": None,
        "broken_clients": 0,
        "dropped_clients": 0,
        "attacker_weight": None,
        "client_weights": {str(client): float(rng.random()) for client in sorted(drawn)},
        "models_down": 4 * round_,
        "models_up": 6 * round_,
        "bytes_down": 1_500_000 * round_,
        "bytes_up": 2_200_000 * round_,
        "seconds": 1.5 * round_,
    }


def judged(rng: np.random.Generator, classes: int) -> dict:
    """What a record of a method with pseudo-labels holds besides."""
    share, accuracy = rng.random((2, classes)).tolist()
    share[-1], accuracy[-1] = 0.0, None
    return {
        "kept_share": float(rng.random()),
        "kept_accuracy": float(rng.random()),
        "kept_share_by_class": share,
        "kept_accuracy_by_class": accuracy,
    }


def change_config(path: Path, **changes) -> None:
    """Overwrites settings in a run's config.json."""
    file = path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
