"""Methods, networks and data sets by name: each is one file, and what the file declares is known without running it.

A file declares itself by literals in capitals at its top level, which are read as text. So a wrong value is refused
before JAX is imported, and nothing that a user did not ask to run is run. What a file of each kind may declare is in
docs/extending.md.
"""

import ast
import hashlib
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from rscfed_jax.config.files import read_bounded
from rscfed_jax.config.kinds import SWITCH, Setting, SettingError, kind_of
from rscfed_jax.config.limits import OverLimitError
from rscfed_jax.config.settings import SAMPLES, SETTINGS

PACKAGE = Path(__file__).parent.parent
DECLARED = {"CHOICES", "DEFAULTS", "HELP", "NAME", "NUMBERS", "PRESETS", "REFUSES", "SAMPLES", "SEEDED", "USAGE"}
DECLARED |= {"SMALLEST_SIDE", "SIDE_MULTIPLE", "STRONG_VIEW", "NAMES_CLIENTS"}
NO_FILE = "none"  # the hash of a method or network that was given as an object


class Declaration(NamedTuple):
    """What a file says of itself."""

    name: str
    path: Path
    hash: str | None  # of a user's file; None for one of the package
    source: bytes
    literals: dict[str, Any]
    numbers: tuple[Setting, ...] = ()  # of a method: they become leaves of `Hyper`
    choices: tuple[Setting, ...] = ()  # of a method: they shape the program

    @property
    def settings(self) -> tuple[Setting, ...]:
        """All settings that the file brings."""
        return (*self.numbers, *self.choices)

    def get(self, literal: str, default: Any) -> Any:
        """What the file declares, or the default."""
        return self.literals.get(literal, default)

    def call(self, room: "Room", *arguments: Any) -> Any:
        """What the file's function returns; a user's file that fails is refused in a line."""
        try:
            return getattr(self.load(), room.function)(*arguments)
        except SettingError:
            raise
        except (Exception, SystemExit) as error:
            if self.hash is None:
                raise
            reason = " ".join(f"fails with {type(error).__name__}: {error}".split())
            raise SettingError(room.setting, self.path, reason) from error

    def load(self) -> ModuleType:
        """Runs the file, once in a process, and returns its module."""
        if self.hash is None:
            import importlib

            place = self.path.relative_to(PACKAGE.parent).with_suffix("")
            return importlib.import_module(".".join(place.parts))
        name = f"_rscfed_jax_{self.name}_{self.hash}"
        if name not in sys.modules:
            module = ModuleType(name, f"The file {self.path}.")
            module.__file__ = str(self.path)
            sys.modules[name] = module  # dataclasses look their module up there
            try:
                exec(compile(self.source, self.path, "exec"), module.__dict__)
            except BaseException:
                del sys.modules[name]
                raise
        return sys.modules[name]


class Room(NamedTuple):
    """A folder of the package in which every file that has `function` is one of a kind."""

    setting: str  # that names one of them
    folder: str
    function: str

    @property
    def declarations(self) -> dict[str, Declaration]:
        """Those of the package, by name."""
        return _declarations(self)

    def find(self, name: str) -> Declaration:
        """The one of that name, or the one in a user's file of that path."""
        if name in self.declarations:
            return self.declarations[name]
        if not is_path(name):
            names = ", ".join(self.declarations)
            raise SettingError(self.setting, name, f"must be one of {names}, or the path of a Python file")
        return _read(self, Path(name), foreign=True)


METHODS = Room("method", "methods", "method")
NETWORKS = Room("model", "models", "network")
DATASETS = Room("dataset", "data/loaders", "load")


def known_settings(*methods: str) -> dict[str, Setting]:
    """The settings that an experiment takes: the shared ones, and those of the built-in methods and of `methods`."""
    files = [*METHODS.declarations.values(), *(METHODS.find(method) for method in filter(is_path, methods))]
    return SETTINGS | {setting.name: setting for file in files for setting in file.settings}


def is_path(name: object) -> bool:
    """Whether a name is meant as that of a user's file."""
    return isinstance(name, str) and (name.endswith(".py") or "/" in name)


@cache
def _declarations(room: Room) -> dict[str, Declaration]:
    files = sorted((PACKAGE / room.folder).glob("*.py"))
    found = [_read(room, path, foreign=False) for path in files if f"\ndef {room.function}(" in path.read_text("utf-8")]
    return {declaration.name: declaration for declaration in found}


def literals_of(tree: ast.Module) -> dict[str, Any]:
    """The names in capitals that a file assigns literals to at its top level; a ValueError if a declaration is none."""
    literals = {}
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target, value = statement.targets[0], statement.value
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            target, value = statement.target, statement.value
        else:
            continue
        if isinstance(target, ast.Name) and target.id.isupper():
            try:
                literals[target.id] = ast.literal_eval(value)
            except (ValueError, TypeError):
                if target.id in DECLARED:
                    reason = f"line {statement.lineno}: {target.id} must be a literal: the file is not run to read it"
                    raise ValueError(reason) from None
    return literals


def metrics() -> dict[str, str]:
    """Name and title of every metric, as the file that computes them declares them."""
    return _literals_of_metrics()["METRICS"]


def lower_is_better() -> tuple[str, ...]:
    """The metrics whose lowest number is the best."""
    return _literals_of_metrics()["LOWER_IS_BETTER"]


@cache
def _literals_of_metrics() -> dict[str, Any]:
    return literals_of(ast.parse((PACKAGE / "core/metrics.py").read_bytes()))


def _read(room: Room, path: Path, *, foreign: bool) -> Declaration:
    def refuse(reason: str) -> SettingError:
        return SettingError(room.setting, path, reason)

    try:
        source = read_bounded(path, "config") if foreign else path.read_bytes()
    except OverLimitError as error:
        raise refuse(str(error)) from None
    except OSError as error:
        raise refuse(f"cannot be read: {error.strerror}") from None
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        place = f"line {error.lineno}: {error.msg}" if isinstance(error, SyntaxError) else str(error)
        raise refuse(f"is not a valid Python file: {place}") from None
    try:
        literals = literals_of(tree)
    except ValueError as error:
        raise refuse(str(error)) from None
    name = literals.get("NAME", path.stem)
    if foreign:
        if not (isinstance(name, str) and name.isidentifier() and name == name.lower()):
            raise refuse(
                f"its name {name!r} must be lower-case letters, digits and underscores, as in my_{room.setting}.py"
            )
        if name in room.declarations:
            raise refuse(f"{name} is the name of a built-in {room.setting}; rename the file")
        if not any(isinstance(node, ast.FunctionDef) and node.name == room.function for node in tree.body):
            raise refuse(f"holds no {room.setting}: it must define a function {room.function}")
    declaration = Declaration(
        name, path, hashlib.sha256(source).hexdigest()[:16] if foreign else None, source, literals
    )
    return _with_settings(declaration, refuse) if room is METHODS else declaration


def _with_settings(declaration: Declaration, refuse: Any) -> Declaration:
    """Reads the numbers and choices of a method; each must have a default within its own range."""

    def settings(literal: str) -> tuple[Setting, ...]:
        declared = declaration.get(literal, {})
        if not isinstance(declared, dict):
            raise refuse(f"{literal} must be a dictionary")
        settings = tuple(_setting(declaration.name, name, parts, refuse) for name, parts in declared.items())
        if literal == "NUMBERS" and (words := [setting.name for setting in settings if setting.kind.read is str]):
            raise refuse(f"{words[0]} takes words, not numbers: put it into CHOICES")
        return settings

    if declaration.get("SAMPLES", SAMPLES[0]) not in SAMPLES:
        raise refuse(f"SAMPLES {declaration.get('SAMPLES', '')!r} must be one of {', '.join(SAMPLES)}")
    for literal in ("DEFAULTS", "REFUSES", "PRESETS"):
        if not isinstance(declaration.get(literal, {}), dict):
            raise refuse(f"{literal} must be a dictionary")
    if not all(isinstance(values, dict) for values in declaration.get("PRESETS", {}).values()):
        raise refuse("PRESETS must hold a dictionary for each preset")
    return declaration._replace(numbers=settings("NUMBERS"), choices=settings("CHOICES"))


def _setting(method: str, name: Any, parts: Any, refuse: Any) -> Setting:
    if not (isinstance(name, str) and name.isidentifier() and name == name.lower()):
        raise refuse(f"the name {name!r} must be lower-case letters, digits and underscores")
    if (
        not isinstance(parts, tuple)
        or len(parts) != 3
        or not isinstance(parts[1], str)
        or not isinstance(parts[2], str)
    ):
        raise refuse(f"{name} must be (default, range, help), as in (0.95, '0..1', 'confidence to keep a label')")
    default, allowed, text = parts
    try:
        kind = kind_of(allowed)
    except ValueError as error:
        raise refuse(f"{name} has the range {allowed!r}, which {error}") from None
    if default is None:
        raise refuse(f"{name} has no default")
    if not kind.accepts(default):
        raise refuse(f"{name} has the default {default}, which must be {kind.allowed}")
    if kind is not SWITCH and kind.read is float:
        default = float(default)
    return Setting(f"{method}_{name}", default, kind, text, f"method {method}")
