"""What the benchmarks share: the machine they ran on, where results go, and the flags of those that train runs."""

import argparse
import datetime
import json
import os
import platform
import shutil
from collections.abc import Collection
from importlib import metadata, resources
from pathlib import Path
from statistics import fmean
from typing import Any

RESULTS = Path(__file__).parent / "results"
# Client sizes of the published SVHN partition.
SVHN_SIZES = (6621, 4594, 7578, 7972, 9178, 7781, 8852, 6374, 8311, 5996)


def machine() -> dict[str, Any]:
    """What a reader must know to judge the numbers."""
    cpu = next(
        (line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.processor(),
    )
    versions = {}
    for package in ("rscfed-jax", "jax", "jaxlib", "torch", "numpy"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    return {
        "date": datetime.date.today().isoformat(),
        "cpu": cpu,
        "cores": len(_cores()),
        "python": platform.python_version(),
        "versions": versions,
    }


def _lines(path: str) -> list[str]:
    file = Path(path)
    return file.read_text().splitlines() if file.exists() else []


def _cores() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def keep_run(run: Path, name: str) -> None:
    """Copies what a reader needs of a run directory to benchmarks/results/NAME."""
    (RESULTS / name).mkdir(parents=True, exist_ok=True)
    for file in ("config.json", "metrics.jsonl", "summary.json"):
        shutil.copy(run / file, RESULTS / name / file)


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """The evaluations of a run."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def smoothed(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each evaluation after round 0, with accuracy and AUC as means of the last five up to it."""
    records = [record for record in records if record["round"] > 0]
    return [
        record | {name: fmean(past[name] for past in records[max(0, i - 4) : i + 1]) for name in ("accuracy", "auc")}
        for i, record in enumerate(records)
    ]


def paper_results() -> dict[str, Any]:
    """The numbers of the RSCFed paper's tables."""
    numbers: dict[str, Any] = json.loads(resources.files("rscfed_jax.paper").joinpath("results.json").read_text())
    return numbers


def publish(name: str, result: dict[str, Any]) -> None:
    """Writes the result under benchmarks/results and prints it as the last line."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps({"result": result, "machine": machine()}, indent=2) + "\n")
    print(json.dumps(result))


def runs_parser(
    description: str | None, names: Collection[str], *, runs: str, first: tuple[str, Collection[str]] | None = None
) -> argparse.ArgumentParser:
    """The parser of a benchmark that trains runs by name; `first` is an argument before the names, and its values."""

    def known(name: str) -> str:
        if name not in names:
            raise argparse.ArgumentTypeError(f"{name}: must be one of {', '.join(names)}")
        return name

    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    if first is not None:
        parser.add_argument(first[0], choices=list(first[1]))
    parser.add_argument("names", nargs="*", type=known, metavar="RUN", help=f"default all: {', '.join(names)}")
    parser.add_argument("--data-dir", type=Path, default=Path("data"), help="where the data are (default data)")
    parser.add_argument("--runs", type=Path, default=Path(runs), help=f"where runs go (default {runs})")
    parser.add_argument("--publish", action="store_true", help="train nothing: only publish finished runs")
    return parser
