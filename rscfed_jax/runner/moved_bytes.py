"""Counts the bytes that a compiled program moves from its text, for platforms whose compiler does not count them."""

import math
import re

SIZES = {"pred": 1, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "f32": 4}
SIZES |= {"s64": 8, "u64": 8, "f64": 8}
SHAPE = re.compile(rf"\b({'|'.join(SIZES)})\[([\d,]*)\]")
INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*?)\)")
FREE = {"parameter", "get-tuple-element", "tuple", "constant", "bitcast"}  # they move no data


def moved_bytes(text: str) -> int:
    """The sum over the instructions of the entry computation, each of which reads its operands and writes results."""
    entry = text[text.index("\nENTRY ") :]
    entry = entry[: entry.index("\n}")]
    found = [match.groups() for line in entry.splitlines() if (match := INSTRUCTION.match(line))]
    sizes = {name: shape_bytes(shape) for name, shape, _, _ in found}
    total = 0
    for name, _, kind, operands in found:
        if kind not in FREE:
            total += sizes[name] + sum(sizes.get(operand, 0) for operand in re.findall(r"%([\w.\-]+)", operands))
    return total


def shape_bytes(shape: str) -> int:
    """Bytes of an array, or of all arrays of a tuple, by the text of its shape."""
    return sum(
        SIZES[kind] * math.prod(map(int, filter(None, sides.split(",")))) for kind, sides in SHAPE.findall(shape)
    )
