"""The settings of an experiment, resolved and checked. Without JAX, so wrong values are refused at once."""

import dataclasses
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from rscfed_jax.config.changes import HASHES, RECORD, changed
from rscfed_jax.config.checks import check_together, wrong_clients
from rscfed_jax.config.kinds import SettingError, is_int, plain
from rscfed_jax.config.presets import PRESETS, USUAL
from rscfed_jax.config.registry import DATASETS, METHODS, NETWORKS, Declaration, Room
from rscfed_jax.config.settings import SAMPLES, SETTINGS, Settings

SUBSET_SIZE = 5
ATTACK_SCALE = {"noise": 1.0, "sign-flip": 1.0, "scale": 10.0}
SERVER_LABELS = 25
GAMMA = 0.8
RATIO = "([1-9][0-9]{0,3})/([1-9][0-9]{0,3})"  # of sides, as data sets declare it
SERVER_LR = {"momentum": 1.0, "adam": 0.01, "none": 1.0}


@dataclasses.dataclass(frozen=True, init=False)
class Config(Settings):
    """Every setting of an experiment, resolved and checked when it is made.

    What is not given by hand comes from the method, the data set and the preset, in this order. `method` and `model`
    take a name or the path of a Python file. A method's own settings are given as `<method>_<name>`. If
    `given` is passed, as in a run's config.json, only the settings it lists count as given by hand; otherwise all do.
    """

    if TYPE_CHECKING:  # no fields, but of each config
        _made_of: ClassVar[dict[str, Any]]  # the settings that it was called with
        _by_hand: ClassVar[set[str]]  # the names of the settings that were given by hand
        _method: ClassVar[Declaration | None]
        _model: ClassVar[Declaration | None]

    method_hash: str | None = None  # of the file that the method was read from; "none" for one given as an object
    model_hash: str | None = None
    own: dict[str, Any] = dataclasses.field(
        default_factory=dict, hash=False
    )  # the method's own settings by their names

    def __init__(self, **settings: Any) -> None:
        record = settings.pop(RECORD, None)
        given = {name: plain(value) for name, value in settings.items() if value is not None}
        method_name = given.get("method", SETTINGS["method"].default)
        given |= {f"{method_name}_{name}": value for name, value in given.pop("own", {}).items()}
        self._set("_made_of", given)
        self._set("_by_hand", {*given} - {*HASHES} if record is None else _names_in(record) & given.keys())
        values = {name: given.get(name, setting.default) for name, setting in SETTINGS.items()}
        SETTINGS["preset"].checked(values["preset"])
        method = self._find(METHODS, values)
        dataset = DATASETS.declarations.get(str(values["dataset"]).partition(":")[0])
        for name, value in self._defaults(values["preset"], dataset, method).items():
            if name not in given:
                values[name] = value
        self._find(NETWORKS, values)
        _resolve_partition(values, given, dataset)
        _resolve_the_rest(values)
        for name, setting in SETTINGS.items():
            self._set(name, setting.checked(values[name]))
        self._set("own", self._own_settings(given))
        check_together(self)

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _find(self, room: Room, values: dict[str, Any]) -> Declaration | None:
        """Puts the name of a method or network in the place of its file's path, and notes the file's hash.

        A stored config has a hash already, and a method given as an object has no file: nothing is read then.
        """
        setting = room.setting
        stored = self._made_of.get(f"{setting}_hash")
        name = SETTINGS[setting].checked(values[setting])
        found = None if stored else room.find(name)
        self._set(f"{setting}_hash", stored if found is None else found.hash)
        self._set(f"_{setting}", found)
        values[setting] = name if found is None else found.name
        return found

    def _defaults(self, preset: str, *declarations: Declaration | None) -> dict[str, Any]:
        """The defaults of the preset, over which those of the data set and then of the method win."""
        defaults = USUAL | PRESETS[preset]
        for declared in filter(None, declarations):
            own = declared.get("DEFAULTS", {}) | declared.get("PRESETS", {}).get(preset, {})
            if unknown := [name for name in own if name not in SETTINGS or name in ("dataset", "method", "preset")]:
                reason = f"its DEFAULTS name {unknown[0]}, which is not a setting that it can change"
                raise SettingError("method" if declared is declarations[-1] else "dataset", declared.path, reason)
            defaults |= own
        return defaults

    def _own_settings(self, given: dict[str, Any]) -> dict[str, Any]:
        """The method's own settings by their short names; refuses those of another method and unknown ones."""
        more = {name: value for name, value in given.items() if name not in SETTINGS and name not in HASHES}
        prefix = f"{self.method}_"
        if self._method is None:
            return {name.removeprefix(prefix): value for name, value in more.items() if name.startswith(prefix)}
        known = {setting.name: setting for setting in self._method.settings}
        for name in more:
            if name in known:
                continue
            for other in METHODS.declarations.values():
                if name in (setting.name for setting in other.settings):
                    reason = f"is a setting of the method {other.name}, but the method is {self.method}"
                    raise SettingError(name, more[name], reason)
            raise TypeError(f"Config() got an unexpected keyword argument {name!r}")
        if clash := next((name for name in known if name in SETTINGS or name in HASHES), None):
            raise SettingError("method", self._method.path, f"its number {clash} has the name of a setting; rename it")
        values = {name: setting.checked(more.get(name, setting.default)) for name, setting in known.items()}
        return {name.removeprefix(prefix): value for name, value in values.items()}

    @property
    def numbers(self) -> dict[str, Any]:
        """The method's own numbers by their short names, without the choices that shape the program."""
        if self._method is None:
            return dict(self.own)
        names = [setting.name.removeprefix(f"{self.method}_") for setting in self._method.numbers]
        return {name: self.own[name] for name in names}

    @property
    def method_file(self) -> Declaration | None:
        """What the method's file declares; None for an object, or where only a stored hash is known."""
        return self._method

    @property
    def model_file(self) -> Declaration | None:
        """What the network's file declares; None as for the method."""
        return self._model

    @property
    def samples(self) -> str | None:
        """Who takes part in a round: `--sampling`, or what the method's file says; None where an object decides it."""
        if self.sampling != "own":
            return self.sampling
        return None if self._method is None else self._method.get("SAMPLES", SAMPLES[0])

    @property
    def server(self) -> int | None:
        """The server's place among the holders of data, the last; None where it holds none."""
        return self.clients if self.labels_at == "server" else None

    @property
    def holders(self) -> int:
        """How many hold data: the clients, and the server with --labels-at server."""
        return self.clients + (self.server is not None)

    @classmethod
    def from_file(cls, path: str | Path, **changes: Any) -> "Config":
        """The config of a run's config.json or of a TOML file, with some settings changed as `replace` does it."""
        from rscfed_jax.config.config_file import read_config_file  # which resolves defaults by a config

        file = read_config_file(path, methods=[plain(changes.get("method"))])
        file.check_no_grid()
        return cls(**file.changed(changes))

    def replace(self, **changes: Any) -> "Config":
        """A config with other settings; what was not given by hand is resolved anew.

        A config that was stored keeps its resolved settings unless method, data set or preset change.
        """
        return Config(**changed(self.settings(), changes))

    def fixed(self) -> "Config":
        """A stored config of which no setting is resolved anew: only its resize and what its method refuses are."""
        stored = self.settings()
        refused = {} if self._method is None else self._method.get("REFUSES", {})
        loose = {RECORD, "resize", *refused}  # test images have no crops: another image size needs no other resize
        return Config(**stored | {RECORD: [name for name in stored if name not in loose]})

    def resolved(self) -> dict[str, Any]:
        """All settings as `Config` takes them, with their resolved values; files by their paths."""
        settings = self.to_dict()
        for setting, file in (("method", self._method), ("model", self._model)):
            if file is not None:
                settings |= {setting: file.name if file.hash is None else str(file.path), f"{setting}_hash": None}
        return settings

    def given(self) -> dict[str, Any]:
        """The settings that were given by hand, with the hashes that belong to them."""
        return {name: value for name, value in self._made_of.items() if name in self._by_hand or name in HASHES}

    def settings(self) -> dict[str, Any]:
        """The settings that it was made of, as `Config` takes them."""
        return self._made_of | {RECORD: self._record()}

    def _record(self) -> list[str]:
        names = (*SETTINGS, *(f"{self.method}_{name}" for name in self.own))
        return [name for name in names if name in self._by_hand]

    def to_dict(self) -> dict[str, Any]:
        """The settings as a flat dictionary that JSON can hold: the content of config.json."""
        shared = {name: getattr(self, name) for name in SETTINGS}
        hashes = {name: getattr(self, name) for name in HASHES}
        own = {f"{self.method}_{name}": value for name, value in self.own.items()}
        return shared | hashes | own | {RECORD: self._record()}


def _names_in(record: Any) -> set[str]:
    """The settings that a record names as given by hand."""
    if not isinstance(record, list | tuple | set) or not all(isinstance(name, str) for name in record):
        raise SettingError(RECORD, record, "must be a list of the settings that were given by hand")
    return {*record} - {*HASHES}


def _resolve_partition(values: dict[str, Any], given: dict[str, Any], dataset: Declaration | None) -> None:
    """Asks a data set that may name its clients how many there are; a config that says all about it asks nothing."""
    asked = values["partition"] is None or (values["partition"] == "natural" and "clients" not in given)
    named = None
    if asked and dataset is not None and dataset.get("NAMES_CLIENTS", False):
        name, folder = (SETTINGS[setting].checked(values[setting]) for setting in ("dataset", "data_dir"))
        named = dataset.load().count_clients(name, folder)
    if values["partition"] is None:
        values["partition"] = "drawn" if named is None else "natural"
    if named is not None:
        if given.get("clients", named) != named:
            raise SettingError("clients", given["clients"], wrong_clients(values["dataset"], named))
        values["clients"] = named


def _resolve_the_rest(values: dict[str, Any]) -> None:
    """Settings whose default follows from others; `FOLLOWS` names them for those who change a stored config."""
    if is_int(values["image_size"]) and (ratio := re.fullmatch(RATIO, str(values["resize"]))):
        values["resize"] = values["image_size"] * int(ratio[1]) // int(ratio[2])
    if values["subset_size"] is None:
        values["subset_size"] = min(SUBSET_SIZE, values["clients"]) if is_int(values["clients"]) else SUBSET_SIZE
    if values["beta_labeled"] is None:
        values["beta_labeled"] = values["beta"]
    if values["server_lr"] is None:
        values["server_lr"] = SERVER_LR.get(values["server_optimizer"])
    if values["attack_scale"] is None:
        values["attack_scale"] = ATTACK_SCALE.get(values["attack"], 1.0)
    if values["labeled_choice"] is None:
        values["labeled_choice"] = "first" if values["partition_file"] else "most-classes"
    at_server = values["labels_at"] == "server"
    if at_server and values["server_labels"] is None:
        values["server_labels"] = SERVER_LABELS
    if not at_server and values["labeled_fraction"] is None and values["labeled_clients"] is None:
        values["labeled_clients"] = 1
    if values["gamma"] is None and values["classes_per_client"] is None and values["partition"] != "natural":
        values["gamma"] = GAMMA
