"""The settings of an experiment, resolved and checked. No JAX is imported here: a wrong value is refused at once."""

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar

from rscfed_jax.config.kinds import (
    PATH,
    SWITCH,
    TEXT,
    Kind,
    Setting,
    SettingError,
    is_int,
    number,
    one_of,
    or_word,
    plain,
    whole,
)
from rscfed_jax.config.presets import PRESETS, USUAL
from rscfed_jax.config.registry import DATASETS, METHODS, NETWORKS, SAMPLES, Declaration, Room, is_path

SUBSET_SIZE = 5


def _setting(default: Any, kind: Kind, help_text: str, group: str) -> Any:
    return dataclasses.field(default=default, metadata={"kind": kind, "help": help_text, "group": group})


@dataclasses.dataclass(frozen=True, init=False)
class Config:
    """Every setting of an experiment, resolved and checked when it is made.

    What is not given by hand comes from the method, the data set and the preset, in this order. `method` and `model`
    take a name or the path of a Python file. A method's own settings are given as `<method>_<name>`.
    """

    if TYPE_CHECKING:  # no fields, but of each config
        _given: ClassVar[dict[str, Any]]  # the settings that were given by hand
        _method: ClassVar[Declaration | None]
        _model: ClassVar[Declaration | None]

    dataset: str = _setting("fashion", TEXT, "data set", "data")
    data_dir: str | None = _setting(
        None, PATH, "the folder that holds the data set (default: data; npz: and folder: the current one)", "data"
    )
    download: bool = _setting(False, SWITCH, "let TFDS prepare a data set that is not found; needs TensorFlow", "data")
    split: str = _setting(
        "lesion", one_of("lesion", "image"), "isic2018: split by lesion, or image by image as the paper", "data"
    )
    image_size: int = _setting(None, whole(4), "side of the model's input", "data")
    resize: int = _setting(
        None,
        whole(4),
        "side to which training images are resized before the random crop",
        "data",
    )
    train_fraction: float = _setting(
        1.0, number(above=0, high=1), "keep this seeded fraction of every client's samples, for quick runs", "data"
    )
    validation: float = _setting(
        0.0,
        number(0, 0.9),
        "evaluate on this part of the training samples, which no client then holds, instead of the test set: "
        "for choosing settings",
        "data",
    )

    clients: int = _setting(10, whole(1), "number of clients N", "federation")
    labeled_clients: int | None = _setting(
        None, or_word(whole(0), None), "how many clients hold labels (default 1)", "federation"
    )
    labeled_choice: str = _setting(
        None,
        or_word(one_of("most-classes", "first", "random"), None),
        "which clients hold labels (default most-classes; first for a partition file)",
        "federation",
    )
    labeled_fraction: float | None = _setting(
        None,
        or_word(number(0, 1), None),
        "give every client this part of its labels, instead of --labeled-clients",
        "federation",
    )
    gamma: float | str = _setting(
        0.8,
        or_word(number(above=0), "iid"),
        "Dirichlet concentration: smaller means more different clients",
        "federation",
    )
    min_client_size: int = _setting(
        10, whole(1), "redraw the partition until every client has at least N samples", "federation"
    )
    partition_file: str | None = _setting(
        None,
        PATH,
        "npz with index arrays client_0, client_1, ..., or a published .pth file, instead of a random partition",
        "federation",
    )

    model: str = _setting(None, TEXT, "network of every client", "model")
    stem: str = _setting(
        None,
        one_of("cifar", "imagenet"),
        "first layers of resnet18: 3x3 as published, or 7x7 with stride 2 and a max-pool",
        "model",
    )
    conv: str = _setting(
        "auto",
        one_of("auto", "matmul", "plain"),
        "form of the convolution; auto: matmul on CPU, plain elsewhere",
        "model",
    )
    init_from: str | None = _setting(None, PATH, "run directory or model file to start from", "model")

    method: str = _setting("rscfed", TEXT, "federated method", "method")
    preset: str = _setting(
        "paper",
        one_of(*PRESETS),
        "the paper's equations, the published code's choices, or the paper's with a smaller --lambda-u",
        "method",
    )
    subsets: int = _setting(3, whole(1), "subsets per round, M", "method")
    subset_size: int = _setting(
        None, whole(1), "clients in a subset, K (default 5, or all clients if they are fewer)", "method"
    )
    repeat: str = _setting(
        None,
        one_of("retrain", "sequential", "share"),
        "a client in several subsets is trained anew for each, one after the other, or once for all",
        "method",
    )
    beta: float = _setting(None, number(0), "how fast a client's weight falls with its distance", "method")
    beta_labeled: float = _setting(
        None, number(0), "beta of a subset that holds a labeled client (paper: the same as --beta)", "method"
    )
    distance: str = _setting(
        None, one_of("l2", "sum"), "one norm over all parameters, or the sum of each tensor's norm", "method"
    )
    labeled_share: float | str = _setting(
        None, or_word(number(0, 1), "off"), "weight that the labeled clients of a subset have together", "method"
    )
    labeled_multiplier: float = _setting(
        None, number(above=0), "factor on labeled data amounts, and once more after the distance", "method"
    )
    warmup_rounds: int = _setting(None, whole(0), "rounds on the labeled clients alone, before round 1", "method")

    local_epochs: int = _setting(1, whole(1), "epochs of a client's training in a round", "local training")
    batch_size: int = _setting(None, whole(1), "samples in a local step", "local training")
    lr_labeled: float = _setting(None, number(0), "learning rate of labeled clients", "local training")
    lr_unlabeled: float = _setting(None, number(0), "learning rate of unlabeled clients", "local training")
    momentum: float = _setting(0.9, number(0, 1), "momentum of SGD, kept per client", "local training")
    weight_decay: float = _setting(5e-4, number(0), "L2 weight decay, added to the gradient", "local training")
    clip_norm: float = _setting(5.0, number(above=0), "largest global norm of a gradient", "local training")
    tau: float = _setting(0.5, number(above=0), "temperature of sharpening", "local training")
    ema: float = _setting(
        None,
        number(0, 1),
        "factor by which a teacher keeps itself in a step",
        "local training",
    )
    ema_warmup: bool = _setting(
        None,
        SWITCH,
        "let a teacher follow faster in a client's first steps: min(1 - 1/(step + 1), ema)",
        "local training",
    )
    teacher_init: str = _setting(
        None,
        one_of("initial", "first-selected"),
        "a teacher starts from the global model of round 0, or of the client's first round",
        "local training",
    )
    lambda_u: float = _setting(None, number(0), "factor of the consistency loss", "local training")
    flip: bool = _setting(None, SWITCH, "also flip images left to right, with probability 1/2", "local training")

    client_state: str = _setting(
        "kept",
        one_of("kept", "fresh"),
        "clients keep teacher and momentum between selections, or begin anew from the global model each time, so that "
        "memory does not grow with their number",
        "local training",
    )

    drop_rate: float = _setting(0.0, number(0, 1), "probability that a sampled client does not answer", "faults")
    byzantine: int = _setting(
        0, whole(0), "number of clients that send a corrupted model: the last of the unlabeled ones", "faults"
    )
    attack: str = _setting(
        "sign-flip",
        one_of("noise", "sign-flip", "scale"),
        "what they send: the global model plus noise, their step backwards, or ten times their step",
        "faults",
    )

    rounds: int = _setting(100, whole(1), "rounds to run (the paper: 1000)", "run")
    eval_every: int = _setting(1, whole(1), "evaluate every N rounds", "run")
    checkpoint_every: int = _setting(10, whole(1), "save the state every N rounds, and at the end", "run")
    seed: int = _setting(0, whole(0), "seed of partition, initial model, sampling and augmentation", "run")
    chunk: int | str = _setting("auto", or_word(whole(1), "auto"), "clients trained at once on a device by vmap", "run")
    devices: int | str = _setting("auto", or_word(whole(1), "auto"), "devices that share the clients of a round", "run")
    dtype: str = _setting("float32", one_of("float32", "bfloat16"), "number format of the model's computation", "run")

    method_hash: str | None = None  # of the file that the method was read from; "none" for one given as an object
    model_hash: str | None = None
    own: dict[str, Any] = dataclasses.field(
        default_factory=dict, hash=False
    )  # the method's own settings by their names

    def __init__(self, **settings: Any) -> None:
        given = {name: plain(value) for name, value in settings.items() if value is not None}
        method_name = given.get("method", SETTINGS["method"].default)
        given |= {f"{method_name}_{name}": value for name, value in given.pop("own", {}).items()}
        self._set("_given", given)
        values = {name: given.get(name, setting.default) for name, setting in SETTINGS.items()}
        SETTINGS["preset"].checked(values["preset"])
        method = self._find(METHODS, values)
        dataset = DATASETS.declarations.get(str(values["dataset"]).partition(":")[0])
        for name, value in self._defaults(values["preset"], dataset, method).items():
            if name not in given:
                values[name] = value
        self._find(NETWORKS, values)
        _resolve_the_rest(values)
        for name, setting in SETTINGS.items():
            self._set(name, setting.checked(values[name]))
        self._set("own", self._own_settings(given))
        self._check_together()

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _find(self, room: Room, values: dict[str, Any]) -> Declaration | None:
        """Puts the name of a method or network in the place of its file's path, and notes the file's hash.

        A stored config has a hash already, and a method given as an object has no file: nothing is read then.
        """
        setting = room.setting
        stored = self._given.get(f"{setting}_hash")
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

    def replace(self, **changes: Any) -> "Config":
        """A config with other settings; what was not given by hand is resolved anew."""
        given = self.given()
        for setting in ("method", "model"):
            if setting in changes:
                given.pop(f"{setting}_hash", None)
        method = plain(changes.get("method", self.method))
        if (METHODS.find(method).name if is_path(method) else method) != self.method:
            given = {name: value for name, value in given.items() if name in SETTINGS or name in HASHES}
        return Config(**given | changes)

    def resolved(self) -> dict[str, Any]:
        """All settings as if each was given by hand; files by their paths."""
        settings = self.to_dict()
        for setting, file in (("method", self._method), ("model", self._model)):
            if file is not None:
                settings |= {setting: file.name if file.hash is None else str(file.path), f"{setting}_hash": None}
        return settings

    def given(self) -> dict[str, Any]:
        """The settings that were given by hand."""
        return dict(self._given)

    def _check_together(self) -> None:
        """Refuses settings that are right alone but not together."""
        if self.labeled_fraction is not None:
            if self.labeled_clients is not None:
                raise SettingError(
                    "labeled_fraction", self.labeled_fraction, "excludes --labeled-clients; give one of them"
                )
            if self.labeled_fraction == 0:
                raise SettingError("labeled_fraction", 0, "no client would hold a label; must be above 0, at most 1")
        elif self.labeled_clients == 0:
            raise SettingError("labeled_clients", 0, f"no client would hold a label; must be from 1 to {self.clients}")
        elif self.labeled_clients is not None and self.labeled_clients > self.clients:
            raise SettingError("labeled_clients", self.labeled_clients, f"must be from 1 to --clients {self.clients}")
        if self.byzantine > self.clients:
            raise SettingError("byzantine", self.byzantine, f"must be from 0 to --clients {self.clients}")
        if self.resize < self.image_size:
            raise SettingError("resize", self.resize, f"must be at least --image-size {self.image_size}")
        if self._method is not None:
            self._check_method(self._method)
        if self._model is not None:
            least, multiple = self._model.get("SMALLEST_SIDE", 1), self._model.get("SIDE_MULTIPLE", 1)
            if not (is_int(least) and is_int(multiple) and multiple > 0):
                reason = "its SMALLEST_SIDE and SIDE_MULTIPLE must be whole numbers"
                raise SettingError("model", self._model.path, reason)
            if self.image_size < least or self.image_size % multiple:
                sides = f"multiples of {multiple}" if multiple > 1 else "sides"
                raise SettingError("image_size", self.image_size, f"{self.model} takes {sides} from {least} on")

    def _check_method(self, method: Declaration) -> None:
        for name, reason in method.get("REFUSES", {}).items():
            if name not in SETTINGS:
                raise SettingError("method", method.path, f"its REFUSES name {name}, which is no setting")
            if self._given.get(name) not in (None, False, "off", SETTINGS[name].default):
                raise SettingError("method", self.method, str(reason))
        if method.get("SAMPLES", SAMPLES[0]) == "subsets" and self.subset_size > self.clients:
            raise SettingError("subset_size", self.subset_size, f"must be from 1 to --clients {self.clients}")

    def to_dict(self) -> dict[str, Any]:
        """The settings as a flat dictionary that JSON can hold: the content of config.json."""
        shared = {name: getattr(self, name) for name in SETTINGS}
        hashes = {name: getattr(self, name) for name in HASHES}
        return shared | hashes | {f"{self.method}_{name}": value for name, value in self.own.items()}


HASHES = ("method_hash", "model_hash")
SETTINGS: dict[str, Setting] = {
    field.name: Setting(field.name, field.default, **field.metadata)
    for field in dataclasses.fields(Config)
    if field.metadata
}


def _resolve_the_rest(values: dict[str, Any]) -> None:
    """Settings whose default follows from others."""
    if isinstance(values["resize"], str) and is_int(values["image_size"]):
        above, below = map(int, values["resize"].split("/"))
        values["resize"] = values["image_size"] * above // below
    if values["subset_size"] is None:
        values["subset_size"] = min(SUBSET_SIZE, values["clients"]) if is_int(values["clients"]) else SUBSET_SIZE
    if values["beta_labeled"] is None:
        values["beta_labeled"] = values["beta"]
    if values["labeled_choice"] is None:
        values["labeled_choice"] = "first" if values["partition_file"] else "most-classes"
    if values["labeled_fraction"] is None and values["labeled_clients"] is None:
        values["labeled_clients"] = 1
