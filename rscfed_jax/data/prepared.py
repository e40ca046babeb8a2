"""Data sets that TensorFlow Datasets (TFDS) has prepared; reading array_record needs no TensorFlow."""

import os
from pathlib import Path
from typing import Any

import numpy as np

from rscfed_jax.config import Config, SettingError
from rscfed_jax.config.documents import parse_json
from rscfed_jax.config.files import read_bounded
from rscfed_jax.data.dataset import DEFAULT_FOLDER, Dataset, Refuse, check_images

NEEDED = "pip install 'rscfed-jax[tfds]'"


def from_tfds(config: Config, name: str, *, classes: int) -> Dataset | None:
    """The official splits of the prepared data set `name`; None if it is not found and TFDS is not to prepare it.

    Only preparing a data set needs TensorFlow. TFDS shuffles the samples; those with an id are put back in the
    official order.
    """
    bases = [Path(config.data_dir or DEFAULT_FOLDER)]
    bases.append(Path(os.environ.get("TFDS_DATA_DIR") or Path.home() / "tensorflow_datasets"))
    found = next(filter(None, (_newest(base / name) for base in bases)), None)
    if found is None and not (config.download and config.download_from == "tfds"):
        return None

    def refuse(reason: str) -> SettingError:
        return SettingError("dataset", config.dataset, f"{found or f'TFDS {name}'}: {reason}")

    try:
        import tensorflow_datasets as tfds
    except ImportError:
        raise refuse(f"tensorflow-datasets is needed to read it: {NEEDED}") from None
    if found is not None:
        _check_features(found / "features.json", refuse)
    try:
        if found is not None:
            builder = tfds.builder_from_directory(found)
        else:
            builder = tfds.builder(name, data_dir=bases[0], file_format="array_record")
            builder.download_and_prepare()
        arrays, in_order = [], True
        for split in ("train", "test"):
            rows = list(builder.as_data_source(split=split))
            in_order &= all("id" in row for row in rows)
            if in_order:
                rows.sort(key=lambda row: row["id"])  # as in train_00123
            arrays.append(np.stack([row["image"] for row in rows]))
            arrays.append(np.array([row["label"] for row in rows], np.int32))
    except ImportError as error:
        raise refuse(
            f"{error.name} is needed; to prepare a data set, install tensorflow ({NEEDED} tensorflow)"
        ) from None
    except NotImplementedError:
        raise refuse(
            "is not in the format array_record, which TFDS reads without TensorFlow; prepare it in that format"
        ) from None
    except Exception as error:
        # TFDS raises errors of many types, with long messages.
        first = str(error).strip().splitlines()[0] if str(error).strip() else ""
        raise refuse(f"TFDS cannot read or prepare it: {type(error).__name__} {first}") from None
    if config.partition_file is not None and not in_order:
        reason = (
            f"names samples in the official order, which is unknown for {builder.data_path}: its samples have no id"
        )
        raise SettingError("partition_file", config.partition_file, reason)
    for place, split in enumerate(("train", "test")):
        if check_images(arrays[2 * place], arrays[2 * place + 1], split, refuse) > classes:
            raise refuse(f"{split} labels must be from 0 to {classes - 1}")
    train_images, train_labels, test_images, test_labels = arrays
    return Dataset(train_images, train_labels, test_images, test_labels, classes, origin=str(builder.data_path))


def _check_features(file: Path, refuse: Refuse) -> None:
    """Refuses a data set whose file of features names classes of other packages: TFDS would import them."""
    named: list[str] = []

    def note(content: dict[str, Any]) -> dict[str, Any]:
        named.extend(str(content[key]) for key in ("pythonClassName", "python_class_name") if key in content)
        return content

    try:
        parse_json(read_bounded(file, "text"), object_hook=note)
    except FileNotFoundError:
        return
    except (OSError, ValueError):
        raise refuse(f"{file.name} is not readable JSON") from None
    if foreign := [name for name in named if not name.startswith("tensorflow_datasets.")]:
        raise refuse(f"{file.name} names {foreign[0]}, which is never imported")


def _newest(folder: Path) -> Path | None:
    """The newest version of a data set that is prepared in a folder."""
    versions = sorted(path.parent for path in folder.glob("**/dataset_info.json"))
    return next((path for path in reversed(versions) if ".incomplete" not in path.name), None)
