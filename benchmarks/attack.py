"""RSCFed, the mean and robust aggregators under 0 to 3 attackers: test accuracy, and the weight that attackers have.

    python benchmarks/attack.py               # an estimated 17 minutes on two cores; stop and start it as you like

Ten clients of a tenth of the Fashion-MNIST subset, each with labels for half of its samples: attackers hold labels and
take steps as long as those of honest clients, so that an attack matters. Batches of 16, learning rate 0.05, which falls
to zero along a cosine in 40 rounds; no warm-up, one seed. Beta is a tenth of its default as well: what counts is beta
by a client's data amount. Aggregators that ask for a number of attackers are told three, whatever the truth. RSCFed
averages three subsets of five clients, the others average all ten at once.

Each aggregator and attack is a grid over the number of attackers, which is one program; finished cells are skipped.
"""

import argparse
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from common import RESULTS, publish
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

import rscfed_jax as rj

# The strength of each attack: deviation of the noise, factor of the step.
ATTACKS = {"noise": 1.0, "sign-flip": 4.0, "scale": 10.0}
TITLES = {
    "noise": "global model + noise of deviation 1",
    "sign-flip": "4 times the step, backwards",
    "scale": "10 times the step",
}
ATTACKERS = (0, 1, 2, 3)


class Row(NamedTuple):
    """A line of the picture."""

    title: str
    settings: dict[str, Any]


ROWS = {
    "rscfed": Row("RSCFed", {"sampling": "subsets", "aggregator": "dma"}),
    "mean": Row("mean", {"aggregator": "mean"}),
    "median": Row("median", {"aggregator": "median"}),
    "trimmed_mean": Row("trimmed mean", {"aggregator": "trimmed_mean"}),
    "krum": Row("Krum", {"aggregator": "krum"}),
    "multi_krum": Row("multi-Krum", {"aggregator": "multi_krum"}),
    "geometric_median": Row("geometric median", {"aggregator": "geometric_median"}),
}
NO_WEIGHTS = ("median", "trimmed_mean")  # no member has a weight of its own

Cell = dict[str, float | None]
Table = dict[str, dict[str, list[Cell]]]  # attack -> row -> a cell for each number of attackers


def settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """What all cells have in common."""
    return {
        "dataset": "fashion",
        "train_fraction": arguments.fraction,
        "labeled_fraction": 0.5,
        "batch_size": 16,
        "lr_labeled": 0.05,
        "beta": 10_000 * arguments.fraction,
        "sampling": "all",
        "assumed_attackers": max(ATTACKERS),
        "rounds": arguments.rounds,
        "cosine_rounds": arguments.rounds,
        "eval_every": arguments.rounds,
        "checkpoint_every": arguments.rounds,
    }


def cells(config: rj.Config, attackers: tuple[int, ...], out: Path) -> list[Cell]:
    """Final accuracy, and the mean weight of the attackers over all rounds, for each number of attackers."""
    found = rj.grid(config, {"byzantine": attackers}, out=out)
    result: list[Cell] = []
    for point in found.summary:
        rows = [row for row in found.rows if row["byzantine"] == point["byzantine"]]
        weights = [row["attacker_weight"] for row in rows if row["attacker_weight"] is not None]
        shown = weights and config.aggregator not in NO_WEIGHTS
        weight = sum(weights) / len(weights) if shown else None
        result.append({"accuracy": point["accuracy"], "attacker_weight": weight})
    return result


def draw(table: Table, path: Path) -> None:
    """A heat map for each attack: aggregators by number of attackers."""
    lines = max(len(rows) for rows in table.values())
    figure = Figure(figsize=(2.4 + 2.9 * len(table), 1.6 + 0.36 * lines), layout="constrained")
    panels = figure.subplots(1, len(table), sharey=True, squeeze=False)[0]
    values = {
        attack: np.array([[np.nan if c["accuracy"] is None else c["accuracy"] for c in row] for row in rows.values()])
        for attack, rows in table.items()
    }
    highest = max((np.nanmax(them) for them in values.values() if np.isfinite(them).any()), default=1.0)
    for panel, (attack, rows) in zip(panels, table.items(), strict=True):
        panel.set_facecolor("0.85")
        image = panel.imshow(values[attack], cmap="viridis", vmin=0, vmax=highest, aspect="auto")
        for (y, x), value in np.ndenumerate(values[attack]):
            text = "diverged" if np.isnan(value) else f"{value:.0%}"
            dark = value < 0.55 * highest
            panel.text(x, y, text, ha="center", va="center", fontsize=9, color="white" if dark else "black")
        panel.set_title(f"{attack}\n{TITLES[attack]}", fontsize=10)
        panel.set_xticks(range(len(ATTACKERS)), map(str, ATTACKERS))
        panel.set_yticks(range(len(rows)), [ROWS[name].title for name in rows])
        panel.set_xlabel("Attackers among ten clients")
        panel.tick_params(length=0)
        panel.spines[:].set_visible(False)
    figure.colorbar(image, ax=panels, label="Test accuracy", format=PercentFormatter(1.0, decimals=0), pad=0.01)
    FigureCanvasAgg(figure)
    figure.savefig(path, dpi=150)


def show(attack: str, name: str, row: list[Cell]) -> None:
    """Prints a line: accuracy, and the attackers' weight in brackets."""
    texts = [_text(cell["accuracy"]) + f" ({_text(cell['attacker_weight'])})" for cell in row]
    print(f"{attack:<11}{ROWS[name].title:<18}" + "".join(f"{text:>17}" for text in texts), flush=True)


def _text(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def main() -> None:
    """Trains every cell that is not finished, prints the table, draws the picture and publishes both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attacks", nargs="+", default=list(ATTACKS), choices=ATTACKS)
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=ROWS, help="aggregators to compare")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--fraction", type=float, default=0.1, help="part of every client's samples (default 0.1)")
    parser.add_argument("--out", type=Path, default=Path("runs/attack"), help="where the cells are kept")
    parser.add_argument("--dry", action="store_true", help="publish nothing; the picture goes to --out")
    arguments = parser.parse_args()
    rj.use_all_cores()
    began = time.perf_counter()
    print(f"{'attack':<11}{'aggregator':<18}" + "".join(f"{number:>17}" for number in ATTACKERS) + "  attackers")
    honest: dict[str, list[Cell]] = {}
    table: Table = {}
    for attack in arguments.attacks:
        table[attack] = {}
        for name in arguments.rows:
            config = rj.Config(**settings(arguments) | ROWS[name].settings)
            if name not in honest:
                honest[name] = cells(config, ATTACKERS[:1], arguments.out / name / "honest")
            attacked = config.replace(attack=attack, attack_scale=ATTACKS[attack])
            row = [*honest[name], *cells(attacked, ATTACKERS[1:], arguments.out / name / attack)]
            table[attack][name] = row
            show(attack, name, row)
    minutes = round((time.perf_counter() - began) / 60, 1)
    if arguments.dry:
        draw(table, arguments.out / "attack.png")
        return
    draw(table, RESULTS / "attack.png")
    common = settings(arguments)
    result = {"attackers": ATTACKERS, "attack_scale": ATTACKS, "table": table, "settings": common}
    publish("attack", result | {"minutes_since_last_start": minutes})


if __name__ == "__main__":
    main()
