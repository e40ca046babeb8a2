"""Compiles the rounds that users run for a TPU or GPU that is not present, and reports what the compiler made.

    make accelerators                                        # both environments, all targets; an hour on two cores
    python benchmarks/accelerators.py --target a100          # in an environment with jax[cuda12]: a100, t4, h100
    python benchmarks/accelerators.py --target v5e           # in one with jax[tpu]: v5e, v2

Nothing is run: there are no times here, only what the compiler says. `kernels` are the instructions of the local step
that start one; `cycles` a TPU compiler's own estimate of them, which leaves transfers out. Every case has the default
settings but for what its name says. Results go to benchmarks/results/accelerators/TARGET.json as they come.
"""

import argparse
import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rscfed_jax.runner.targets import TARGETS, prepare

prepare()

import jax  # noqa: E402 - after the environment
from compiled_step import local_step  # noqa: E402

import rscfed_jax as rj  # noqa: E402
from rscfed_jax.config import SettingError  # noqa: E402
from rscfed_jax.report.tables import as_console, as_markdown  # noqa: E402
from rscfed_jax.runner.described import Shapes, compile_round  # noqa: E402
from rscfed_jax.runner.fit import usable  # noqa: E402

RESULTS = Path(__file__).parent / "results" / "accelerators"
GIB = 2**30
SHOWN: dict[str, Callable[[dict[str, Any]], str]] = {
    "clients at once, GiB of the limit": lambda row: (
        f"{row['chunk']}, {row['temp_gib'] + row['arguments_gib']:.1f} of {row['limit_gib']:.1f}"
        if row["compiled"]
        else "does not fit"
        if row["error"].startswith("--chunk")
        else "does not compile"
    ),
    "kernels of a local step": lambda row: str(row.get("step_kernels", "-")),
    "largest window of a convolution": lambda row: str(row.get("largest_window", "")),
    "cycles of a local step": lambda row: f"{row['step_cycles'] / 1e6:.2f} M" if "step_cycles" in row else "",
}
# SVHN, as the paper divides it: 73,257 samples, of which the largest client has fewer than 16,384.
SVHN = {"samples": 73_257, "largest": 16_384, "classes": 10, "test": 26_032}
# ISIC 2018, 8,012 samples for training; and at 64 pixels as if SVHN were that large.
ISIC = {"samples": 8_012, "largest": 2_048, "classes": 7, "test": 2_003}
RESNET = {"model": "resnet18", "batch_size": 64}
CASES: dict[str, dict[str, Any]] = {
    "10 clients 3x5": {},
    "50 clients 3x5": {"settings": {"clients": 50}, "largest": 4_096},
    "500 clients 10x50": {"settings": {"clients": 500, "subsets": 10, "subset_size": 50}, "largest": 1_024},
    "grid of 12": {"cells": 12},
    "two devices": {"devices": 2},
    "eight devices": {"devices": 8},
    "resnet18 64 px": {"settings": RESNET | {"image_size": 64}, "data": ISIC, "kernel": 3},
    "resnet18 224 px": {"settings": RESNET | {"image_size": 224, "stem": "imagenet"}, "data": ISIC, "kernel": 7},
    "bfloat16": {"settings": {"dtype": "bfloat16"}},
}


def compile_case(target: str, case: dict[str, Any], *, chunk: str | int, conv: str, graphs: bool) -> dict[str, Any]:
    """Compiles one case and reads what came out."""
    settings = {"chunk": chunk, "conv": conv, "gpu_graphs": graphs, "min_client_size": 1} | case.get("settings", {})
    config = rj.Config(dataset="synthetic", labeled_clients=1, **{"image_size": 32} | settings)
    sizes = case.get("data", SVHN) | {name: case[name] for name in ("largest", "cells") if name in case}
    shapes = Shapes(labeled=1, unlabeled=config.clients - 1, **sizes)
    began = time.perf_counter()
    try:
        fitted = compile_round(target, config, shapes, devices=case.get("devices", 1))
    except (jax.errors.JaxRuntimeError, SettingError) as error:
        return {"compiled": False, "error": str(error).splitlines()[0][:200]}
    seconds = time.perf_counter() - began
    device = TARGETS[target]
    text = fitted.program.as_text()
    step = local_step(text, tpu=device.platform == "tpu")
    return {
        "compiled": True,
        "compile_seconds": round(seconds, 1),
        "compilations": fitted.compilations,
        "chunk": fitted.chunk,
        "temp_gib": round(fitted.need.temporary / GIB, 3),
        "arguments_gib": round(fitted.need.fixed / GIB, 3),
        "limit_gib": round(device.limit / GIB, 2),
        "fits": fitted.need.total <= usable(device.limit, device.platform),
        "largest_window": step.largest_window,
        "kernel_size": case.get("kernel", 5),
        "pixel_gathers": step.pixel_gathers,
        "step_kernels": step.kernels,
        **({} if step.cycles is None else {"step_cycles": step.cycles}),
    }


def markdown() -> Iterator[str]:
    """The committed results of all targets, a table for what each figure is."""
    files = {name: RESULTS / f"{name}.json" for name in TARGETS}
    found = {name: json.loads(file.read_text())["cases"] for name, file in files.items() if file.exists()}
    for title, of_case in SHOWN.items():
        rows = [
            [case, *(of_case(cases[case]) if case in cases else "not tried" for cases in found.values())]
            for case in CASES
        ]
        yield as_markdown([[title, *found], *rows])


def main() -> None:
    """Compiles the cases one after the other and prints them as a table and as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", choices=TARGETS)
    parser.add_argument("--show", action="store_true", help="only print the results that are there, as Markdown")
    parser.add_argument("--case", choices=CASES, action="append", help="only this one; repeatable")
    parser.add_argument("--chunk", default="auto", help="clients at once (default: what fits)")
    parser.add_argument("--conv", default="auto", help="form of the convolutions (default auto: plain)")
    parser.add_argument("--graphs", action="store_true", help="with the loops in CUDA graphs")
    parser.add_argument("--out", type=Path, help="file of the results (default benchmarks/results/accelerators/)")
    arguments = parser.parse_args()
    if arguments.show:
        print(*markdown(), sep="\n\n")
        return
    if arguments.target is None:
        parser.error("--target is needed, or --show")
    file = arguments.out or RESULTS / f"{arguments.target}.json"
    found: dict[str, Any] = json.loads(file.read_text())["cases"] if file.exists() else {}
    chunk = int(arguments.chunk) if re.fullmatch("[0-9]+", arguments.chunk) else arguments.chunk
    for name in arguments.case or CASES:
        found[name] = compile_case(
            arguments.target, CASES[name], chunk=chunk, conv=arguments.conv, graphs=arguments.graphs
        )
        print(f"{name}: {found[name]}", flush=True)
        file.parent.mkdir(parents=True, exist_ok=True)
        content = {"target": arguments.target, "jax": jax.__version__, "cases": found}
        file.write_text(json.dumps(content, indent=1) + "\n")
    columns = ["chunk", "temp_gib", "arguments_gib", "limit_gib", "largest_window", "step_kernels", "step_cycles"]
    lines = [["case", "compiled", *columns]]
    for name, row in found.items():
        lines.append(
            [name, "yes" if row["compiled"] else row["error"], *(str(row.get(column, "")) for column in columns)]
        )
    print(as_console(lines))
    print(json.dumps({"target": arguments.target, "cases": found}))


if __name__ == "__main__":
    main()
