"""The settings of an experiment.

`Config` holds every setting, resolved and checked. `Hyper` holds the numbers that a compiled program takes as
arguments: changing them never compiles again. No JAX is imported here, so that a wrong value is refused at once.
"""

import dataclasses
import math
import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np


class SettingError(ValueError):
    """A setting has a value that is not allowed; the message is one line for the user."""

    def __init__(self, setting: str, value: object, allowed: str):
        self.setting = setting
        flag = setting if setting.isupper() else "--" + setting.replace("_", "-")
        super().__init__(" ".join(f"{flag} {value}: {allowed}".split()))


MAX_INT = 2**31 - 1  # the largest number that a counter on the device holds


class Kind(NamedTuple):
    """What a setting accepts: how its text is read, which values are right, and how both are said."""

    read: Callable[[str], Any]
    accepts: Callable[[Any], bool]
    allowed: str
    metavar: str


def plain(value: Any) -> Any:
    """A NumPy number as Python's own and a path as a text, which JSON can hold; anything else as it is."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value.item() if isinstance(value, np.generic) else value


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    """A number that float32, in which training sees it, keeps apart from infinity and zero."""
    return (_is_int(value) or isinstance(value, float)) and (value == 0 or 1e-30 < abs(value) < 1e30)


def _whole(low: int, high: int = MAX_INT) -> Kind:
    bounds = f"of at least {low}" if high == MAX_INT else f"from {low} to {high}"
    return Kind(int, lambda v: _is_int(v) and low <= v <= high, f"a whole number {bounds}", "N")


def _number(low: float = -math.inf, high: float = math.inf, *, above: float = -math.inf) -> Kind:
    parts = []
    if above > -math.inf:
        parts.append(f"above {above:g}")
    if low > -math.inf and high < math.inf:
        parts.append(f"from {low:g} to {high:g}")
    elif low > -math.inf:
        parts.append(f"of at least {low:g}")
    elif high < math.inf:
        parts.append(f"of at most {high:g}")
    allowed = f"a number {' and '.join(parts)}".strip()
    return Kind(float, lambda v: _is_number(v) and low <= v <= high and v > above, allowed, "F")


def _one_of(*choices: str) -> Kind:
    return Kind(str, lambda v: v in choices, "one of " + ", ".join(choices), "|".join(choices))


def _or_word(kind: Kind, word: str | None) -> Kind:
    """Accepts what `kind` accepts, or one word besides (None stands for a setting that is not given)."""

    def read(text: str) -> Any:
        return text if text == word else kind.read(text)

    also = f", or {word}" if word else ""
    metavar = f"{kind.metavar}|{word}" if word else kind.metavar
    return Kind(read, lambda v: v == word or kind.accepts(v), kind.allowed + also, metavar)


_TEXT = Kind(str, lambda v: isinstance(v, str) and v != "", "a text", "TEXT")
_PATH = Kind(str, lambda v: v is None or (isinstance(v, str) and v != ""), "a path", "PATH")
_SWITCH = Kind(lambda text: {"true": True, "false": False}[text], lambda v: isinstance(v, bool), "true or false", "")


def _setting(default: Any, kind: Kind, help_text: str, group: str) -> Any:
    return dataclasses.field(default=default, metadata={"kind": kind, "help": help_text, "group": group})


METHODS = ("rscfed", "sso", "fed_consist", "fedirm", "fedavg")

# Where paper and published code differ, a preset chooses; a setting given by hand wins over it.
PRESETS: dict[str, dict[str, Any]] = {
    "paper": {
        "repeat": "retrain",
        "distance": "l2",
        "labeled_share": 0.5,
        "labeled_multiplier": 1.0,
        "beta": 10_000.0,
        "beta_labeled": None,
        "teacher_init": "initial",
        "ema_warmup": False,
        "flip": False,
        "warmup_rounds": 0,
    },
    "published": {
        "repeat": "sequential",
        "distance": "sum",
        "labeled_share": "off",
        "labeled_multiplier": 6.0,
        "beta": 10_000.0,
        "beta_labeled": 100.0,
        "teacher_init": "first-selected",
        "ema_warmup": True,
        "flip": True,
        "warmup_rounds": 7,
    },
}
# A factor that the text does not give, chosen on validation samples of SVHN by benchmarks/svhn_settings.py.
PRESETS["tuned"] = PRESETS["paper"] | {"lambda_u": 0.005}


# Numbers of the authors' commands: for SVHN and CIFAR-100, which serve all data but isic2018, and for that.
USUAL: dict[str, Any] = {
    "model": "simple-cnn",
    "stem": "cifar",
    "image_size": 32,
    "batch_size": 64,
    "lr_labeled": 0.03,
    "lr_unlabeled": 0.021,
    "lambda_u": 0.02,
    "ema": 0.999,
}
ISIC: dict[str, dict[str, Any]] = {
    "paper": {
        "model": "resnet18",
        "stem": "imagenet",
        "image_size": 224,
        "batch_size": 12,
        "lr_labeled": 0.002,
        "lr_unlabeled": 0.001,
        "beta": 0.01,
    },
}
ISIC["published"] = ISIC["paper"] | {"stem": "cifar", "beta_labeled": 0.01, "labeled_multiplier": 200.0}
ISIC["tuned"] = ISIC["paper"]
# What a baseline's own code has.
FEDIRM = {"ema": 0.99, "warmup_rounds": 21}
# Sides to which training images are resized, over the side that is cropped of them.
RESIZE = {"isic2018": {"paper": 240 / 224, "published": 250 / 224, "tuned": 240 / 224}}
USUAL_RESIZE = 5 / 4


@dataclasses.dataclass(frozen=True)
class Config:
    """Every setting of an experiment, resolved against its preset and checked when it is made."""

    if TYPE_CHECKING:
        _by_default: ClassVar[frozenset[str]]  # no field, but of each config: the settings that were not given by hand

    dataset: str = _setting(
        "fashion",
        _TEXT,
        "fashion (embedded Fashion-MNIST subset), svhn, cifar10, cifar100, isic2018, npz:PATH, "
        "folder:PATH (a directory of pictures per class), or "
        "synthetic[:train=2000,test=500,classes=10,size=32,channels=3]",
        "data",
    )
    data_dir: str | None = _setting(
        None, _PATH, "the folder that holds the data set (default: data; npz: and folder: the current one)", "data"
    )
    download: bool = _setting(False, _SWITCH, "let TFDS prepare a data set that is not found; needs TensorFlow", "data")
    split: str = _setting(
        "lesion", _one_of("lesion", "image"), "isic2018: split by lesion, or image by image as the paper", "data"
    )
    image_size: int = _setting(None, _whole(4), "side of the model's input (default 32; isic2018 224)", "data")
    resize: int = _setting(
        None,
        _whole(4),
        "side to which training images are resized before the random crop (default 5/4 of --image-size; isic2018 240 "
        "for 224, published 250 for 224)",
        "data",
    )
    train_fraction: float = _setting(
        1.0, _number(above=0, high=1), "keep this seeded fraction of every client's samples, for quick runs", "data"
    )
    validation: float = _setting(
        0.0,
        _number(0, 0.9),
        "evaluate on this part of the training samples, which no client then holds, instead of the test set: "
        "for choosing settings",
        "data",
    )

    clients: int = _setting(10, _whole(1), "number of clients N", "federation")
    labeled_clients: int | None = _setting(
        None, _or_word(_whole(0), None), "how many clients hold labels (default 1)", "federation"
    )
    labeled_choice: str = _setting(
        None,
        _or_word(_one_of("most-classes", "first", "random"), None),
        "which clients hold labels (default most-classes; first for a partition file)",
        "federation",
    )
    labeled_fraction: float | None = _setting(
        None,
        _or_word(_number(0, 1), None),
        "give every client this part of its labels, instead of --labeled-clients",
        "federation",
    )
    gamma: float | str = _setting(
        0.8,
        _or_word(_number(above=0), "iid"),
        "Dirichlet concentration: smaller means more different clients",
        "federation",
    )
    min_client_size: int = _setting(10, _whole(1), "redraw the partition until every client has so many", "federation")
    partition_file: str | None = _setting(
        None,
        _PATH,
        "npz with index arrays client_0, client_1, ..., or a published .pth file, instead of a random partition",
        "federation",
    )

    model: str = _setting(
        None,
        _one_of("simple-cnn", "resnet18"),
        "network of every client (default simple-cnn; isic2018 resnet18)",
        "model",
    )
    stem: str = _setting(
        None,
        _one_of("cifar", "imagenet"),
        "first layers of resnet18: 3x3 as published, or 7x7 with stride 2 and a max-pool (default cifar; isic2018 "
        "imagenet, unless published)",
        "model",
    )
    conv: str = _setting(
        "auto",
        _one_of("auto", "matmul", "plain"),
        "form of the convolution; auto: matmul on CPU, plain elsewhere",
        "model",
    )
    init_from: str | None = _setting(None, _PATH, "run directory or model file to start from", "model")

    method: str = _setting("rscfed", _one_of(*METHODS), "federated method", "method")
    preset: str = _setting(
        "paper",
        _one_of(*PRESETS),
        "the paper's equations, the published code's choices, or the paper's with a smaller --lambda-u",
        "method",
    )
    subsets: int = _setting(3, _whole(1), "subsets per round, M", "method")
    subset_size: int = _setting(5, _whole(1), "clients in a subset, K", "method")
    repeat: str = _setting(
        None,
        _one_of("retrain", "sequential", "share"),
        "a client in several subsets is trained anew for each, one after the other, or once for all",
        "method",
    )
    beta: float = _setting(None, _number(0), "how fast a client's weight falls with its distance", "method")
    beta_labeled: float = _setting(
        None, _number(0), "beta of a subset that holds a labeled client (paper: the same as --beta)", "method"
    )
    distance: str = _setting(
        None, _one_of("l2", "sum"), "one norm over all parameters, or the sum of each tensor's norm", "method"
    )
    labeled_share: float | str = _setting(
        None, _or_word(_number(0, 1), "off"), "weight that the labeled clients of a subset have together", "method"
    )
    labeled_multiplier: float = _setting(
        None, _number(above=0), "factor on labeled data amounts, and once more after the distance", "method"
    )
    warmup_rounds: int = _setting(
        None, _whole(0), "rounds on the labeled clients alone, before round 1 (default: by preset; fedirm 21)", "method"
    )

    local_epochs: int = _setting(1, _whole(1), "epochs of a client's training in a round", "local training")
    batch_size: int = _setting(None, _whole(1), "samples in a local step (default 64; isic2018 12)", "local training")
    lr_labeled: float = _setting(
        None, _number(0), "learning rate of labeled clients (default 0.03; isic2018 0.002)", "local training"
    )
    lr_unlabeled: float = _setting(
        None, _number(0), "learning rate of unlabeled clients (default 0.021; isic2018 0.001)", "local training"
    )
    momentum: float = _setting(0.9, _number(0, 1), "momentum of SGD, kept per client", "local training")
    weight_decay: float = _setting(5e-4, _number(0), "L2 weight decay, added to the gradient", "local training")
    clip_norm: float = _setting(5.0, _number(above=0), "largest global norm of a gradient", "local training")
    tau: float = _setting(0.5, _number(above=0), "temperature of sharpening", "local training")
    ema: float = _setting(
        None,
        _number(0, 1),
        "factor by which a teacher keeps itself in a step (default 0.999; fedirm 0.99)",
        "local training",
    )
    ema_warmup: bool = _setting(
        None,
        _SWITCH,
        "let a teacher follow faster in a client's first steps: min(1 - 1/(step + 1), ema)",
        "local training",
    )
    teacher_init: str = _setting(
        None,
        _one_of("initial", "first-selected"),
        "a teacher starts from the global model of round 0, or of the client's first round",
        "local training",
    )
    lambda_u: float = _setting(
        None, _number(0), "factor of the consistency loss (default 0.02; tuned 0.005)", "local training"
    )
    flip: bool = _setting(None, _SWITCH, "also flip images left to right, with probability 1/2", "local training")

    client_state: str = _setting(
        "kept",
        _one_of("kept", "fresh"),
        "clients keep teacher and momentum between selections, or begin anew from the global model each time, so that "
        "memory does not grow with their number",
        "local training",
    )

    drop_rate: float = _setting(0.0, _number(0, 1), "probability that a sampled client does not answer", "faults")
    byzantine: int = _setting(
        0, _whole(0), "so many clients send a corrupted model: the last of the unlabeled ones", "faults"
    )
    attack: str = _setting(
        "sign-flip",
        _one_of("noise", "sign-flip", "scale"),
        "what they send: the global model plus noise, their step backwards, or ten times their step",
        "faults",
    )

    rounds: int = _setting(100, _whole(1), "rounds to run (the paper: 1000)", "run")
    eval_every: int = _setting(1, _whole(1), "evaluate every so many rounds", "run")
    checkpoint_every: int = _setting(10, _whole(1), "save the state every so many rounds, and at the end", "run")
    seed: int = _setting(0, _whole(0), "seed of partition, initial model, sampling and augmentation", "run")
    chunk: int | str = _setting(
        "auto", _or_word(_whole(1), "auto"), "clients trained at once on a device by vmap", "run"
    )
    devices: int | str = _setting(
        "auto", _or_word(_whole(1), "auto"), "devices that share the clients of a round", "run"
    )
    dtype: str = _setting("float32", _one_of("float32", "bfloat16"), "number format of the model's computation", "run")

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_default", frozenset())
        fields = {field.name: field for field in dataclasses.fields(self)}
        for name in fields:
            object.__setattr__(self, name, plain(getattr(self, name)))
        _check(fields["preset"], self.preset)
        of_dataset = ISIC[self.preset] if self.dataset == "isic2018" else {}
        of_method = FEDIRM if self.method == "fedirm" else {}
        for name, value in (USUAL | PRESETS[self.preset] | of_dataset | of_method).items():
            if getattr(self, name) is None:
                self._resolve(name, value)
        if self.resize is None and _is_int(self.image_size):
            factor = RESIZE.get(self.dataset, {}).get(self.preset, USUAL_RESIZE)
            self._resolve("resize", int(self.image_size * factor))
        if self.beta_labeled is None:
            self._resolve("beta_labeled", self.beta)
        if self.labeled_choice is None:
            self._resolve("labeled_choice", "first" if self.partition_file else "most-classes")
        if self.labeled_fraction is None and self.labeled_clients is None:
            self._resolve("labeled_clients", 1)
        for field in fields.values():
            value = getattr(self, field.name)
            _check(field, value)
            if field.type in (float, float | None, float | str) and _is_int(value):
                object.__setattr__(self, field.name, float(value))
        self._check_together()

    def _resolve(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)
        object.__setattr__(self, "_by_default", self._by_default | {name})

    def replace(self, **changes: Any) -> "Config":
        """A config with other settings; what was not given by hand is resolved anew."""
        return Config(**self.given() | changes)

    def given(self) -> dict[str, Any]:
        """The settings that no preset, data set or method has chosen."""
        fields = dataclasses.fields(self)
        return {field.name: getattr(self, field.name) for field in fields if field.name not in self._by_default}

    def _check_together(self) -> None:
        """Refuses settings that are right alone but not together."""
        if self.labeled_fraction is not None:
            if self.labeled_clients is not None:
                raise SettingError(
                    "labeled_fraction", self.labeled_fraction, "excludes --labeled-clients; give one of them"
                )
            if self.labeled_fraction == 0:
                raise SettingError("labeled_fraction", 0, "no client would hold a label; must be above 0, at most 1")
            if self.method == "fedirm":
                raise SettingError(
                    "method", "fedirm", "needs clients with all their labels; --labeled-fraction gives each only a part"
                )
        elif self.labeled_clients == 0:
            raise SettingError("labeled_clients", 0, f"no client would hold a label; must be from 1 to {self.clients}")
        elif self.labeled_clients is not None and self.labeled_clients > self.clients:
            raise SettingError("labeled_clients", self.labeled_clients, f"must be from 1 to --clients {self.clients}")
        if self.method in ("rscfed", "sso") and self.subset_size > self.clients:
            raise SettingError("subset_size", self.subset_size, f"must be from 1 to --clients {self.clients}")
        if self.byzantine > self.clients:
            raise SettingError("byzantine", self.byzantine, f"must be from 0 to --clients {self.clients}")
        if self.resize < self.image_size:
            raise SettingError("resize", self.resize, f"must be at least --image-size {self.image_size}")
        if self.model == "simple-cnn" and (self.image_size < 16 or self.image_size % 4):
            raise SettingError("image_size", self.image_size, "simple-cnn takes multiples of 4 from 16 on")
        if self.model == "resnet18" and self.image_size < 16:
            raise SettingError("image_size", self.image_size, "resnet18 halves its input up to five times; at least 16")

    def to_dict(self) -> dict[str, Any]:
        """Returns the settings as a flat dictionary that JSON can hold: the content of config.json."""
        return dataclasses.asdict(self)


def _check(field: dataclasses.Field, value: object) -> None:
    kind: Kind = field.metadata["kind"]
    if not kind.accepts(value):
        raise SettingError(field.name, value, f"must be {kind.allowed}")


def read_setting(name: str, text: str) -> Any:
    """Reads the text of one setting as the command line gives it."""
    kind: Kind = Config.__dataclass_fields__[name].metadata["kind"]
    try:
        return kind.read(text)
    except (ValueError, KeyError, OverflowError):
        raise SettingError(name, text, f"must be {kind.allowed}") from None


UNITS = {
    "": 1,
    "K": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "P": 1e15,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}


def read_size(name: str, text: str) -> float:
    """Reads a number with a unit, as in 16GiB, 1.5e13 or 20T."""
    match = re.fullmatch(r"(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)\s*([A-Za-z]*)", text.strip())
    unit = match and match[2].upper()
    unit = unit if unit in UNITS else unit and unit.removesuffix("B")
    if match is None or unit not in UNITS or not 0 < float(match[1]) * UNITS[unit] < 1e30:
        raise SettingError(name, text, "must be a number above 0, if you like with a unit, as in 16GiB, 20T or 1.5e13")
    return float(match[1]) * UNITS[unit]


class Hyper(NamedTuple):
    """Numbers that training takes as arguments; a grid over them is one more batch axis of the same program."""

    lr_labeled: Any
    lr_unlabeled: Any
    momentum: Any
    weight_decay: Any
    clip_norm: Any
    tau: Any
    ema: Any
    ema_warmup: Any  # 1: the teacher follows faster in a client's first steps
    teacher_from_selection: Any  # 1: a teacher starts from the global model of the client's first round
    lambda_u: Any
    flip_rate: Any
    beta: Any
    beta_labeled: Any
    labeled_share: Any  # negative: by data amount alone
    labeled_multiplier: Any
    warmup_rounds: Any
    drop_rate: Any
    byzantine: Any  # number of attackers

    @classmethod
    def of(cls, config: Config) -> "Hyper":
        """Takes the numbers out of a config, as Python floats."""
        values = config.to_dict()
        values["ema_warmup"] = float(config.ema_warmup)
        values["teacher_from_selection"] = float(config.teacher_init == "first-selected")
        values["flip_rate"] = 0.5 if config.flip else 0.0
        values["labeled_share"] = -1.0 if config.labeled_share == "off" else config.labeled_share
        return cls(**{name: float(values[name]) for name in cls._fields})
