"""ISIC 2018, task 3 (HAM10000): pictures of skin lesions and a table of diagnoses.

From https://challenge.isic-archive.com/data/#2018 or https://doi.org/10.7910/DVN/DBW86T.
"""

import csv
import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from rscfed_jax.config import Config
from rscfed_jax.config.files import read_bounded
from rscfed_jax.config.limits import OverLimitError
from rscfed_jax.data.dataset import HELD_OUT, Dataset, Refuse, folders, not_found, refuse_file
from rscfed_jax.data.pictures import pictures_dataset

HELP = "skin lesions, pictures and a table"
SOURCES = "https://doi.org/10.7910/DVN/DBW86T or https://challenge.isic-archive.com/data/#2018"
# The authors' command for this data set.
DEFAULTS = {
    "model": "resnet18",
    "stem": "imagenet",
    "image_size": 224,
    "resize": "240/224",  # of the image size
    "batch_size": 12,
    "lr_labeled": 0.002,
    "lr_unlabeled": 0.001,
    "beta": 0.01,
}
PRESETS = {"published": {"stem": "cifar", "beta_labeled": 0.01, "labeled_multiplier": 200.0, "resize": "250/224"}}
CLASSES = ("mel", "nv", "bcc", "akiec", "bkl", "df", "vasc")
MEAN = (0.7630332, 0.5456457, 0.5700465)
STD = (0.1409281, 0.1526123, 0.1699709)


def load(config: Config) -> Dataset:
    """10,015 pictures of 7 kinds of lesions; 80% for training, split by lesion unless `--split image` is given."""
    for folder in folders(config):
        tables = {path: _columns(path, refuse_file(config, path)) for path in sorted(folder.glob("*.csv"))}
        diagnoses = [path for path, columns in tables.items() if _is_metadata(columns) or _is_one_hot(columns)]
        if diagnoses:
            return _read(config, folder, diagnoses[0], tables)
    raise not_found(
        config,
        "HAM10000_metadata.csv (lesion_id,image_id,dx) or ISIC's one-hot ground truth, and the unpacked JPEG files,",
        source=f"{SOURCES}: you must accept their licence yourself, so --download does not fetch them",
    )


def _columns(path: Path, refuse: Refuse) -> list[str]:
    """The heads of a table's columns; none if the file is not one of ours."""
    try:
        return next(csv.reader(_text_of(path)), [])
    except OverLimitError as error:
        raise refuse(str(error)) from None
    except (OSError, UnicodeDecodeError, csv.Error):
        return []


def _text_of(path: Path) -> io.StringIO:
    return io.StringIO(read_bounded(path, "text").decode("utf-8-sig"), newline="")


def _is_metadata(columns: list[str]) -> bool:
    return {"lesion_id", "image_id", "dx"} <= set(columns)


def _is_one_hot(columns: list[str]) -> bool:
    return {"image", *(name.upper() for name in CLASSES)} <= set(columns)


def _read(config: Config, folder: Path, table: Path, tables: dict[Path, list[str]]) -> Dataset:
    refuse = refuse_file(config, table)
    labels, lesions = _read_metadata(table, refuse) if _is_metadata(tables[table]) else _read_one_hot(table, refuse)
    for path, columns in tables.items():
        if not lesions and {"image", "lesion_id"} <= set(columns):  # ISIC's file of lesion groupings
            lesions = {row["image"]: row["lesion_id"] for row in _rows(path, refuse_file(config, path))}
    files = {path.stem: path for path in sorted(folder.rglob("*")) if path.suffix.lower() in (".jpg", ".jpeg")}
    without_file, without_row = sorted(labels.keys() - files.keys()), sorted(files.keys() - labels.keys())
    if without_file:
        raise refuse(f"names {without_file[0]}, but there is no {without_file[0]}.jpg in {folder}")
    if without_row:
        raise refuse(f"has no row for {files[without_row[0]]}")
    images = sorted(labels)
    if config.split == "lesion":
        unknown = [image for image in images if image not in lesions]
        if unknown:
            raise refuse(f"no lesion_id for {unknown[0]}: give HAM10000_metadata.csv, or --split image")
        groups = np.unique([lesions[image] for image in images], return_inverse=True)[1]
    else:
        groups = np.arange(len(images))
    dataset = pictures_dataset(
        config,
        [files[image] for image in images],
        np.array([labels[image] for image in images], np.int32),
        split_by_group(groups, config.seed),
        CLASSES,
        origin=f"{len(images)} pictures and {table.name} in {folder}, split by {config.split}",
    )
    return dataset._replace(mean=MEAN, std=STD)


def split_by_group(groups: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Seeded indices of training and test samples, given [S] group numbers: a group is never on both sides."""
    sizes = np.bincount(groups)
    order = np.random.default_rng([seed, 8]).permutation(len(sizes))
    held_out = order[np.cumsum(sizes[order]) <= round(len(groups) * HELD_OUT)]
    tested = np.isin(groups, held_out)
    return np.flatnonzero(~tested), np.flatnonzero(tested)


def _rows(path: Path, refuse: Refuse) -> Iterator[dict[str, str]]:
    try:
        for row in (reader := csv.DictReader(_text_of(path))):
            if None in row.values():
                raise refuse(f"line {reader.line_num} has fewer columns than the first")
            yield row
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise refuse(f"is not a readable CSV file ({type(error).__name__})") from None


def _read_metadata(path: Path, refuse: Refuse) -> tuple[dict[str, int], dict[str, str]]:
    """Label and lesion of each image."""
    labels, lesions = {}, {}
    for line, row in enumerate(_rows(path, refuse), 2):
        image, diagnosis = row["image_id"], row["dx"]
        if diagnosis not in CLASSES:
            raise refuse(f"line {line}: dx is {diagnosis!r}, allowed are {', '.join(CLASSES)}")
        if image in labels:
            raise refuse(f"line {line}: {image} has two rows")
        labels[image], lesions[image] = CLASSES.index(diagnosis), row["lesion_id"]
    if not labels:
        raise refuse("holds no rows")
    return labels, lesions


def _read_one_hot(path: Path, refuse: Refuse) -> tuple[dict[str, int], dict[str, str]]:
    """Label of each image; this table has no lesions."""
    labels: dict[str, int] = {}
    for line, row in enumerate(_rows(path, refuse), 2):
        marked = [number for number, name in enumerate(CLASSES) if row[name.upper()] in ("1", "1.0")]
        if len(marked) != 1:
            raise refuse(f"line {line}: exactly one of {', '.join(CLASSES).upper()} must be 1")
        if row["image"] in labels:
            raise refuse(f"line {line}: {row['image']} has two rows")
        labels[row["image"]] = marked[0]
    if not labels:
        raise refuse("holds no rows")
    return labels, {}
