"""RSCFed between its bounds on the embedded Fashion-MNIST subset: a table and a figure of docs/results.md.

    python benchmarks/fashion.py             # about ten minutes on two cores; finished runs in runs/fashion are kept

Ten clients, one of them labeled, seven warm-up rounds, 150 rounds, the same partition and initial model for all.
"""

import json
from pathlib import Path

from common import RESULTS, keep_run, publish

import rscfed_jax as rj

RUNS = Path("runs/fashion")
NAMES = {
    "upper": ("FedAvg, all labeled (upper bound)", {"method": "fedavg", "labeled_clients": 10}),
    "rscfed": ("RSCFed, 1 of 10 labeled", {"method": "rscfed"}),
    "lower": ("FedAvg, the labeled client alone (lower bound)", {"method": "fedavg", "labeled_clients": 1}),
}


def main() -> None:
    """Trains the runs that are missing, draws the curves and publishes the table."""
    rj.use_all_cores()
    curves, rows = {}, {}
    for name, (title, settings) in NAMES.items():
        config = rj.Config(dataset="fashion", warmup_rounds=7, rounds=150, eval_every=5, **settings)
        rj.train(config, out=RUNS / name, resume=True, progress=True)
        keep_run(RUNS / name, f"fashion/{name}")
        kept = RESULTS / "fashion" / name
        curves[title] = [json.loads(line) for line in (kept / "metrics.jsonl").read_text().splitlines()]
        rows[name] = json.loads((kept / "summary.json").read_text())["final"]
        print(f"{title:<50}" + "".join(f"{metric} {value:7.2%}  " for metric, value in rows[name].items()))
    rj.plot_curves(curves, RESULTS / "fashion" / "curves.png", title="Fashion-MNIST subset, test set, one seed")
    publish("fashion/table", rows)


if __name__ == "__main__":
    main()
