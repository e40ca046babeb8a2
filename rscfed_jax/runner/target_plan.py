"""The cost of experiments on a device that is not present: memory by its compiler, least time by its data sheet."""

import json
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rscfed_jax.report.tables import as_console
from rscfed_jax.runner.described import Shapes, compile_round, compile_step, devices_of
from rscfed_jax.runner.estimate import steps_per_round
from rscfed_jax.runner.step_cost import Parts, step_flops
from rscfed_jax.runner.sweep import Program
from rscfed_jax.runner.targets import TARGETS

GIB = 2**30


class Bound(NamedTuple):
    """One program on a target. Figures of a round are those of all its cells."""

    cells: int
    rounds: int
    chunk: int
    temp_gib: float
    arguments_gib: float
    limit_gib: float
    flops_per_round: float
    bytes_per_round: float  # between the devices' memory and their cores, by the compiler's count
    seconds_per_round: float  # at least
    hours: float  # at least, for all rounds and cells


def bound_of(target: str, program: Program) -> Bound:
    """Compiles a program's round and its local step for a target.

    Arithmetic and bytes are those of the steps; what surrounds them is little. No step is faster than the device's
    peak and bandwidth allow, so neither is the round: it will take longer.
    """
    device, configs, objects = TARGETS[target], [cell.config for cell in program.cells], program.objects
    config, federation = configs[0], program.federations[0]
    number = config.devices if isinstance(config.devices, int) else 1
    shapes = Shapes.of(program.federations)
    fitted = compile_round(target, config, shapes, devices=number, objects=objects)
    parts = Parts.of(config.replace(devices=1, gpu_graphs=False), federation, objects)
    flops = step_flops(config, shapes.classes, parts, objects=objects)
    moved = compile_step(target, config, shapes.classes, parts, objects, chunk=fitted.chunk) / fitted.chunk
    steps = sum(
        steps_per_round(each, parts.algorithm.method, held.sizes, held.label_counts.sum(axis=1))
        for each, held in zip(configs, program.federations, strict=True)
    )
    seconds = steps * max(flops / device.flops, moved / device.bandwidth) / number
    return Bound(
        cells=len(configs),
        rounds=config.rounds,
        chunk=fitted.chunk,
        temp_gib=fitted.need.temporary / GIB,
        arguments_gib=fitted.need.fixed / GIB,
        limit_gib=device.limit / GIB,
        flops_per_round=steps * flops,
        bytes_per_round=steps * moved,
        seconds_per_round=seconds,
        hours=seconds * config.rounds / 3600,
    )


def target_lines(target: str, programs: Sequence[Program]) -> Iterator[str]:
    """The plan for a reader, and as one JSON object in its last line."""
    devices_of(target)  # refuses a target whose compiler is not here, before anything is compiled
    bounds = []
    for number, program in enumerate(programs, 1):
        yield f"program {number} of {len(programs)}: compiling {program.cells[0].name} for {target}"
        bounds.append(bound_of(target, program))
    lines = [["program", "cells", "chunk", "temp GiB", "arguments GiB", "GFLOP", "GB moved", "s per round", "hours"]]
    for number, bound in enumerate(bounds, 1):
        figures = (bound.temp_gib, bound.arguments_gib, bound.flops_per_round / 1e9, bound.bytes_per_round / 1e9)
        times = (bound.seconds_per_round, bound.hours)
        chosen = [str(number), str(bound.cells), str(bound.chunk)]
        lines.append([*chosen, *(f"{figure:,.2f}" for figure in figures), *(f"{time:.3g}" for time in times)])
    yield as_console(lines)
    hours = sum(bound.hours for bound in bounds)
    yield (
        f"chunk: the most clients at once that fit into {bounds[0].limit_gib:.1f} GiB. Times are lower bounds from "
        f"the peak and bandwidth of the data sheet; nothing was run. At least {hours:.3g} h in total."
    )
    yield json.dumps({"target": target, "hours": hours, "programs": [bound._asdict() for bound in bounds]})
