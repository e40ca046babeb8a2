"""What a compiled round's local step consists of, read from the compiler's text."""

import re
from typing import NamedTuple

# What runs no kernel of its own.
FREE = {"parameter", "get-tuple-element", "tuple", "constant", "bitcast", "iota", "after-all"}
BODY = re.compile(r"body=%?([\w.\-]+)")
INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?[\w.\-]+ = (?:\(.*?\)|\S+) ([\w\-]+)\(")
CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
WINDOW = re.compile(r"window=\{size=([0-9x]+)")
GATHER = re.compile(r" gather\(.*slice_sizes=\{1,1,1\}")
CALLED = re.compile(r"(?:calls|to_apply|body|condition|branch_computations)=\{?%?([\w.\-]+)")


class LocalStep(NamedTuple):
    """The innermost loop of a round."""

    kernels: int
    largest_window: int  # side of the largest window of a convolution
    pixel_gathers: int  # gathers of single pixels
    cycles: int | None  # the compiler's estimate, where it has one


def computations(text: str) -> dict[str, list[str]]:
    """The instructions of each computation, by name."""
    found: dict[str, list[str]] = {}
    lines: list[str] | None = None
    for line in text.splitlines():
        if line.endswith("{") and (match := re.match(r"^(?:ENTRY )?%?([\w.\-]+) .*\{$", line)):
            lines = found.setdefault(match[1], [])
        elif line.startswith("}"):
            lines = None
        elif lines is not None:
            lines.append(line)
    return found


def reached(found: dict[str, list[str]], name: str) -> list[str]:
    """All instructions of a computation and of those it calls."""
    seen, waiting, lines = set(), [name], []
    while waiting:
        name = waiting.pop()
        if name not in seen and name in found:
            seen.add(name)
            lines += found[name]
            waiting += [called for line in found[name] for called in CALLED.findall(line)]
    return lines


def local_step(text: str, *, tpu: bool) -> LocalStep:
    """The step of local training: of the innermost loops that train, the one with the largest body."""
    found = computations(text)
    loops = [line for lines in found.values() for line in lines if " while(" in line]
    trains = {name for name in bodies_in(loops) if any(map(is_product, reached(found, name)))}
    inner = {name for name in trains if not trains & bodies_in(reached(found, name))}
    body = max(inner, key=lambda name: len(found[name]))
    own = [line for line in found[body] if (match := INSTRUCTION.match(line)) and match[1] not in FREE]
    below = reached(found, body)
    return LocalStep(
        kernels=len(own),
        largest_window=max((side for line in below for side in sides(line, tpu=tpu)), default=0),
        pixel_gathers=sum(bool(GATHER.search(line)) for line in below),
        cycles=sum(int(number) for line in own for number in CYCLES.findall(line)) if tpu else None,
    )


def bodies_in(lines: list[str]) -> set[str]:
    """The bodies of the loops among some instructions."""
    return {match[1] for line in lines if (match := BODY.search(line))}


def is_product(line: str) -> bool:
    """Whether an instruction is a convolution or a product of matrices."""
    return " convolution(" in line or " dot(" in line or "__cudnn$conv" in line or "__cublas" in line


def sides(line: str, *, tpu: bool) -> list[int]:
    """Sides of the window of a convolution. A TPU's compiler adds the clients to it as another dimension.

    Products of matrices are convolutions there as well; only what the network calls one is looked at.
    """
    if "conv_general_dilated" not in line:
        return []
    return [int(size) for window in WINDOW.findall(line) for size in window.split("x")[: 2 if tpu else None]]
