"""Data sets by name: each is a file in `loaders`, which is imported only when its data set is needed."""

from typing import Any

import numpy as np

from rscfed_jax.config import Config, SettingError
from rscfed_jax.config.registry import DATASETS, Declaration
from rscfed_jax.data.dataset import Dataset, with_validation


def load_dataset(name: str, **settings: Any) -> Dataset:
    """Loads a data set by the name that `--dataset` takes; `settings` are those of `Config`."""
    return dataset_of(Config(dataset=name, **settings))


def dataset_of(config: Config) -> Dataset:
    """Loads the data set of a config."""
    name, colon, _ = config.dataset.partition(":")
    declared = DATASETS.declarations.get(name)
    if declared is None or not _takes(declared, argument=bool(colon)):
        *first, last = map(_usage, DATASETS.declarations.values())
        raise SettingError("dataset", config.dataset, f"must be {', '.join(first)} or {last}")
    loader = declared.load()
    try:
        dataset: Dataset = loader.load(config)
    except OSError as error:  # as of a folder that may not be entered, or a link to nothing
        what = f"cannot be read: {error.strerror or error}"
        raise SettingError(
            "dataset", config.dataset, what if error.filename is None else f"{error.filename}: {what}"
        ) from None
    if config.validation:
        dataset = with_validation(dataset, config.validation)
    if len(np.unique(dataset.test_labels)) < 2:
        if config.validation:
            reason = f"holds out {len(dataset.test_labels)} samples of a single class; AUC needs two, so must be larger"
            raise SettingError("validation", config.validation, reason)
        raise SettingError(
            "dataset", config.dataset, "the test set must hold samples of at least two classes: AUC needs them"
        )
    return dataset


def datasets_help() -> str:
    """What `--dataset` takes, for the command line's help."""
    return ", ".join(f"{_usage(declared)} ({declared.get('HELP', '')})" for declared in DATASETS.declarations.values())


def _usage(declared: Declaration) -> str:
    return declared.get("USAGE", declared.name)


def _takes(declared: Declaration, *, argument: bool) -> bool:
    """Whether the name may stand with an argument, or without one: "x:..." needs it, "x[:...]" may have it."""
    form = _usage(declared).removeprefix(declared.name)
    return form.startswith("[") or form.startswith(":") == argument
