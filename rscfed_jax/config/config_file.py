"""Settings from a file: the config.json of a run, or a TOML file that a user wrote. Nothing in it is ever executed."""

import difflib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rscfed_jax.config.changes import DECIDING, HASHES, RECORD, changed
from rscfed_jax.config.config import Config
from rscfed_jax.config.documents import Refuse, cut, is_toml, read_document, shown
from rscfed_jax.config.kinds import Setting, SettingError, whole
from rscfed_jax.config.presets import PRESETS, with_known_preset
from rscfed_jax.config.registry import METHODS, NO_FILE, is_path, known_settings
from rscfed_jax.config.settings import SETTINGS

GRID = "grid"  # the table of a TOML file that holds values to combine
SEEDS = Setting("seeds", 1, whole(1, 9999), "how many seeds", GRID)
UNSAFE = "a Python file is run only if the command names it"


class ConfigFile(NamedTuple):
    """What a file says."""

    path: Path
    settings: dict[str, Any]  # as `Config` takes them; those of a run with its record
    of_run: bool
    axes: dict[str, list[Any]]  # the lists of the table [grid]
    seeds: int | None

    def changed(self, changes: Mapping[str, Any], *, varied: Collection[str] = ()) -> dict[str, Any]:
        """The settings with changes that override the file; `varied` names the settings that a grid decides.

        A Python file that is named here alone is refused: nothing but the user's own word makes a file run.
        """
        settings = dict(self.settings)
        for name in ("method", "model"):
            if is_path(settings.get(name)) and settings.get(f"{name}_hash") is None:
                if changes.get(name) is None and name not in varied:
                    raise self.refuse(f"{name} = {shown(settings[name])}: {UNSAFE}; give it as --{name} PATH")
                del settings[name]
        return changed(settings, changes)

    def check_no_grid(self) -> None:
        """Refuses a file that holds a grid where one experiment is meant."""
        if self.axes or self.seeds is not None:
            raise self.refuse(f"[{GRID}] works only with the command grid")

    def check_built_in(self, *, named: Collection[str]) -> None:
        """Refuses a run's method or network that is not built in, unless it is among those `named` anew."""
        for name in ("method", "model"):
            stored = self.settings.get(f"{name}_hash")
            if stored is not None and name not in named:
                reason = "was an object, which only Python can give again" if stored == NO_FILE else UNSAFE
                raise self.refuse(f"{name} = {shown(self.settings.get(name))}: {reason}; give it as --{name} PATH")

    def refuse(self, reason: str) -> SettingError:
        """An error that names the file."""
        return SettingError("config", self.path, reason)


def read_config_file(path: str | Path, *, methods: Sequence[Any] = ()) -> ConfigFile:
    """Reads and checks a config file; `methods` are the files of methods that the user named, as paths."""
    path = Path(path)

    def refuse(reason: str) -> SettingError:
        return SettingError("config", path, reason)

    content = read_document(path, refuse)
    foreign = [METHODS.find(method) for method in methods if is_path(method)]
    known = known_settings(*(str(file.path) for file in foreign))
    if is_toml(path):
        grid = content.pop(GRID, {})
        settings = _checked(content, known, refuse)
        axes, seeds = _axes(grid, settings, known, refuse)
        return ConfigFile(path, settings, of_run=False, axes=axes, seeds=seeds)
    content = with_known_preset(content)
    hashes = {name: content.pop(name, None) for name in HASHES}
    for name, value in hashes.items():
        if value is not None and not (isinstance(value, str) and value.isalnum()):
            raise refuse(f"{name} = {shown(value)}: must be the hash of a file, {NO_FILE} or null")
    record = content.pop(RECORD, None)
    own = _own_of_a_file(content, hashes["method_hash"], [file.name for file in foreign], refuse)
    shared = {name: value for name, value in content.items() if name not in own}
    settings = _checked(shared, known, refuse) | own | {name: value for name, value in hashes.items() if value}
    if record is None and not settings.keys() >= {*DECIDING, *PRESETS["paper"]}:
        return ConfigFile(path, settings, of_run=False, axes={}, seeds=None)  # a user's own JSON
    names = _not_default(settings, refuse) if record is None else _record(record, known, own, refuse)
    return ConfigFile(path, settings | {RECORD: names}, of_run=True, axes={}, seeds=None)


def _checked(content: dict[str, Any], known: Mapping[str, Setting], refuse: Refuse) -> dict[str, Any]:
    """The settings, if each is known and has a value that it accepts; null stands for none."""
    for name, value in content.items():
        setting = _find(name, known, refuse)
        if value is not None:
            _check(name, value, setting, refuse)
    return {name: value for name, value in content.items() if value is not None}


def _find(name: str, known: Mapping[str, Setting], refuse: Refuse) -> Setting:
    if name in known:
        return known[name]
    if name in ("out", "resume"):
        raise refuse(f"{name} belongs to one run, not to its settings: give --{name} on the command line")
    alike = difflib.get_close_matches(name.strip("-").replace("-", "_"), known, n=1)
    meant = f"did you mean {alike[0]}?" if alike else "settings are the flags of train --help, with underscores"
    raise refuse(f"{cut(name)} is not a setting; {meant}")


def _check(name: str, value: Any, setting: Setting, refuse: Refuse) -> None:
    if not setting.kind.accepts(value):
        raise refuse(f"{name} = {shown(value)}: must be {setting.kind.allowed}")
    if isinstance(value, str) and not value.isprintable():
        raise refuse(f"{name} = {shown(value)}: must not contain control characters")


def _axes(
    grid: Any, settings: Mapping[str, Any], known: Mapping[str, Setting], refuse: Refuse
) -> tuple[dict[str, list[Any]], int | None]:
    """The values to combine, and the number of seeds."""
    if not isinstance(grid, dict):
        raise refuse(f"{GRID} = {shown(grid)}: must be a table of lists, as in beta = [0, 100]")
    seeds = grid.pop("seeds", None)
    if seeds is not None:
        _check("seeds", seeds, SEEDS, refuse)
    for name, values in grid.items():
        if name == "seed":
            raise refuse(f"{name} in [{GRID}]: to vary the seed, give seeds = N")
        setting = _find(name, known, refuse)
        if name in settings:
            raise refuse(f"{name} is both a setting and in [{GRID}]; give only one")
        if not isinstance(values, list) or not values:
            raise refuse(f"{name} = {shown(values)}: must be a list of values in [{GRID}], as in beta = [0, 100]")
        for value in values:
            _check(name, value, setting, refuse)
            if name in ("method", "model") and is_path(value):
                raise refuse(f"{name} = {shown(value)}: {UNSAFE}; give it as --set {name}=...")
        if len({*values}) < len(values):
            raise refuse(f"{name} in [{GRID}] holds a value twice")
    return {name: [known[name].checked(value) for value in values] for name, values in grid.items()}, seeds


def _own_of_a_file(
    content: Mapping[str, Any], method_hash: str | None, named: Sequence[str], refuse: Refuse
) -> dict[str, Any]:
    """The own settings of a method from a file that is not at hand, so that their ranges are not known."""
    method = content.get("method")
    if method_hash is None or not isinstance(method, str) or method in named:
        return {}
    own = {name: value for name, value in content.items() if name.startswith(f"{method}_") and name not in SETTINGS}
    for name, value in own.items():
        if not isinstance(value, int | float | str):
            raise refuse(f"{cut(name)} = {shown(value)}: must be a number, a text, true or false")
    return own


def _record(record: Any, known: Mapping[str, Setting], own: Mapping[str, Any], refuse: Refuse) -> list[str]:
    """The names of the settings that were given by hand."""
    if not isinstance(record, list) or not all(isinstance(name, str) for name in record):
        raise refuse(f"{RECORD} = {shown(record)}: must be a list of names of settings")
    for name in record:
        if name not in own:
            _find(name, known, refuse)
    return record


def _not_default(settings: Mapping[str, Any], refuse: Refuse) -> list[str]:
    """The settings of a run without a record that differ from the defaults of its method, data set and preset."""
    deciding = {name: settings[name] for name in (*DECIDING, *HASHES) if name in settings}
    if is_path(deciding["method"]) and deciding.get("method_hash") is None:
        return list(settings)  # its defaults are not known without its file
    try:
        usual = Config(**deciding).to_dict() | {name: SETTINGS[name].default for name in DECIDING}
    except SettingError as error:
        raise refuse(str(error)) from None
    return [name for name, value in settings.items() if name not in HASHES and value != usual.get(name)]
