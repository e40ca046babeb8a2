"""RSCFed, SSO and Fed-Consist under 0 to 3 attackers: test accuracy, and the weight that attackers have.

    python benchmarks/attack.py               # about 12 minutes of processor time; all three attacks

Ten clients of a fifth of the Fashion-MNIST subset, one of them labeled, 60 warm-up rounds and 15 rounds, one seed. Beta
is a fifth of its default as well: what counts is beta by a client's data amount. The attackers are the last unlabeled
clients; see `rscfed_jax/core/faults.py` for what they send.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
from common import RESULTS, publish
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

import rscfed_jax as rj

METHODS = {"rscfed": "RSCFed", "sso": "SSO", "fed_consist": "Fed-Consist"}
ATTACKS = ("noise", "sign-flip", "scale")
ATTACKERS = (0, 1, 2, 3)
FRACTION = 0.2

Cell = dict[str, float | None]


def cell(method: str, attack: str, attackers: int, rounds: int) -> Cell:
    """Final accuracy, and the mean weight of the attackers over all rounds."""
    config = rj.Config(
        dataset="fashion",
        train_fraction=FRACTION,
        beta=10_000 * FRACTION,
        warmup_rounds=60,
        rounds=rounds,
        eval_every=5,
        method=method,
        attack=attack,
        byzantine=attackers,
    )
    try:
        result = rj.train(config)
    except rj.DivergedError:
        return {"accuracy": None, "attacker_weight": None}
    weights = [record["attacker_weight"] for record in result.metrics if record["attacker_weight"] is not None]
    return {
        "accuracy": result.metrics[-1]["accuracy"],
        "attacker_weight": sum(weights) / len(weights) if weights else None,
    }


def draw(table: dict[str, dict[str, list[Cell]]], path: Path) -> None:
    """A column for each attack: accuracy above, the attackers' weight below."""
    figure = Figure(figsize=(3 + 2.8 * len(table), 5.4), layout="constrained")
    axes = figure.subplots(2, len(table), sharex=True, sharey="row", squeeze=False)
    for column, (attack, rows) in enumerate(table.items()):
        for number, (method, cells) in enumerate(rows.items()):
            style = {
                "marker": "os^"[number],
                "linewidth": 1.6,
                "clip_on": False,
                "color": f"C{number}",
                "label": METHODS[method],
            }
            for row, name in enumerate(("accuracy", "attacker_weight")):
                points = [(n, c[name]) for n, c in zip(ATTACKERS, cells, strict=True) if c[name] is not None]
                axes[row, column].plot(*zip(*points, strict=True), **style)
        axes[0, column].set_title(f"attack: {attack}")
        axes[1, column].set(xlabel="Attackers among ten clients", xticks=ATTACKERS)
    axes[0, 0].set_ylabel("Test accuracy")
    axes[1, 0].set_ylabel("Mean weight of an attacker\nin its subset")
    for axis in axes.flat:
        axis.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    figure.legend(handles=axes[0, 0].get_lines(), loc="outside lower center", ncols=len(METHODS), frameon=False)
    FigureCanvasAgg(figure)
    figure.savefig(path, dpi=150)


def show(attack: str, rows: dict[str, list[Cell]]) -> None:
    """Prints one attack as a table: accuracy, and the attackers' weight in brackets."""
    print(f"{attack:<14}" + "".join(f"{number:>18}" for number in ATTACKERS) + "  attackers")
    for method, cells in rows.items():
        texts = [_text(c["accuracy"]) + f" ({_text(c['attacker_weight'])})" for c in cells]
        print(f"{METHODS[method]:<14}" + "".join(f"{text:>18}" for text in texts), flush=True)


def _text(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def main() -> None:
    """Trains every cell, prints the tables, draws the picture and publishes both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attacks", nargs="+", default=ATTACKS, choices=ATTACKS)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    rj.use_all_cores()
    began = time.perf_counter()
    table: dict[str, dict[str, list[Cell]]] = {}
    with tempfile.TemporaryDirectory() as cache:
        # The number of attackers is an argument of the program: one compilation serves one to three.
        jax.config.update("jax_compilation_cache_dir", cache)
        honest = {method: cell(method, ATTACKS[0], 0, arguments.rounds) for method in METHODS}
        for attack in arguments.attacks:
            table[attack] = {
                method: [honest[method], *(cell(method, attack, n, arguments.rounds) for n in ATTACKERS[1:])]
                for method in METHODS
            }
            show(attack, table[attack])
    RESULTS.mkdir(exist_ok=True)
    draw(table, RESULTS / "attack.png")
    result: dict[str, Any] = {"rounds": arguments.rounds, "attackers": ATTACKERS, "table": table}
    publish("attack", result | {"minutes": round((time.perf_counter() - began) / 60, 1)})


if __name__ == "__main__":
    main()
