"""Dictionaries of lists and arrays in pickle files, in which CIFAR is published, read without unpickling.

A pickle is a program for a small machine, which can call anything. The machine here knows only the instructions that
make lists, dictionaries, texts, numbers and NumPy arrays, and calls nothing: an array is its bytes, type and shape.
"""

import math
import pickletools
from typing import Any, NamedTuple

import numpy as np

MODULES = ("numpy.core.multiarray", "numpy._core.multiarray")  # before and since NumPy 2
RECONSTRUCT = {f"{module} _reconstruct" for module in MODULES}
ARRAY, DTYPE, ENCODE = "numpy ndarray", "numpy dtype", "_codecs encode"
KNOWN = {*RECONSTRUCT, ARRAY, DTYPE, ENCODE}
NUMBERS = {f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)}
LITERALS = {"BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1", "LONG4", "BINFLOAT", "FLOAT"}
LITERALS |= {"BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BINUNICODE", "SHORT_BINUNICODE", "UNICODE"}
OLD_TEXTS = {"STRING", "BINSTRING", "SHORT_BINSTRING"}  # of Python 2: bytes
PUT = {"PUT", "BINPUT", "LONG_BINPUT"}
GET = {"GET", "BINGET", "LONG_BINGET"}
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class ForbiddenError(ValueError):
    """A pickle that asks for something that is never loaded; the message says for what."""


class _Name(NamedTuple):
    """A function or class that a pickle names."""

    name: str


class _Made:
    """An array or a type in the making: the arguments that it was called with, and its state."""

    def __init__(self, name: str, arguments: tuple):
        self.name, self.arguments = name, arguments
        self.state: Any = ()


_MARK = object()


def read_pickled(content: bytes) -> dict[Any, Any]:
    """The dictionary in a pickle, its arrays as NumPy's; a ValueError if it is damaged or holds anything else."""
    stack: list[Any] = []
    memo: dict[Any, Any] = {}
    try:
        for operation, argument, _ in pickletools.genops(content):
            if operation.name == "MEMOIZE":
                memo[len(memo)] = stack[-1]
            elif operation.name in PUT:
                memo[argument] = stack[-1]
            elif operation.name in GET:
                stack.append(memo[argument])
            elif operation.name == "STOP":
                break
            else:
                _step(stack, operation.name, argument)
        found = stack.pop()
        return {key: _array_of(value) if isinstance(value, _Made) else value for key, value in found.items()}
    except ForbiddenError:
        raise
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"is damaged ({type(error).__name__})") from None


def _step(stack: list[Any], name: str, argument: Any) -> None:
    """One instruction of the machine."""
    if name in LITERALS:
        stack.append(argument)
    elif name in OLD_TEXTS:
        stack.append(argument.encode("latin-1"))
    elif name in CONSTANTS:
        stack.append(CONSTANTS[name])
    elif name == "MARK":
        stack.append(_MARK)
    elif name in ("EMPTY_LIST", "EMPTY_DICT"):
        stack.append([] if name == "EMPTY_LIST" else {})
    elif name in TUPLES:
        stack[len(stack) - TUPLES[name] :] = [tuple(_last(stack, TUPLES[name]))]
    elif name == "TUPLE":
        stack.append(tuple(_since_mark(stack)))
    elif name == "APPEND":
        stack[-2].append(stack.pop())
    elif name == "APPENDS":
        values = _since_mark(stack)
        stack[-1].extend(values)
    elif name in ("SETITEM", "SETITEMS"):
        pairs = _since_mark(stack) if name == "SETITEMS" else [stack.pop(), stack.pop()][::-1]
        if not all(isinstance(key, bytes | str) for key in pairs[::2]):
            raise TypeError  # also because the hash of tuples in tuples in tuples would overflow Python's stack
        stack[-1].update(zip(pairs[::2], pairs[1::2], strict=True))
    elif name in ("GLOBAL", "STACK_GLOBAL"):
        stack.append(_named(argument if name == "GLOBAL" else " ".join((stack.pop(), stack.pop())[::-1])))
    elif name == "REDUCE":
        called, arguments = _last(stack, 2)
        stack[-2:] = [_made(called, arguments)]
    elif name == "BUILD":
        state = stack.pop()
        if not isinstance(stack[-1], _Made):
            raise ForbiddenError("asks for a state of an object, which is never set")
        stack[-1].state = state
    elif name not in ("PROTO", "FRAME"):
        raise ForbiddenError(f"asks for {name}, which is never done")


def _last(stack: list[Any], number: int) -> list[Any]:
    if len(stack) < number:
        raise IndexError
    return stack[len(stack) - number :]


def _since_mark(stack: list[Any]) -> list[Any]:
    place = max(place for place, value in enumerate(stack) if value is _MARK)
    values = stack[place + 1 :]
    del stack[place:]
    return values


def _named(name: str) -> _Name:
    if name not in KNOWN:
        raise ForbiddenError(f"asks for {name.replace(' ', '.')}, which is never loaded")
    return _Name(name)


def _made(called: Any, arguments: Any) -> Any:
    name = called.name
    if name == ENCODE:
        text, encoding = arguments
        if encoding != "latin1":
            raise ValueError
        return text.encode("latin-1")
    if name != DTYPE and name not in RECONSTRUCT:
        raise ForbiddenError(f"asks to call {name.replace(' ', '.')}, which is never done")
    return _Made(name, arguments)


def _array_of(made: _Made) -> np.ndarray:
    if made.name not in RECONSTRUCT:
        raise ValueError
    *_, shape, kind, by_columns, values = made.state
    code, order = kind.arguments[0], kind.state[1]
    code, order = (text.decode() if isinstance(text, bytes) else text for text in (code, order))
    if kind.name != DTYPE or code not in NUMBERS or order not in ("<", ">", "|", "="):
        raise ValueError
    dtype = np.dtype(f"{order}{code}")
    if not all(type(side) is int and side >= 0 for side in shape) or math.prod(shape) * dtype.itemsize != len(values):
        raise ValueError
    return np.frombuffer(values, dtype).reshape(shape, order="F" if by_columns else "C")
