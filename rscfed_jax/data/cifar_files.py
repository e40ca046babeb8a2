"""The files of CIFAR-10 and CIFAR-100: official python or binary archives, packed or unpacked, or TFDS."""

import gzip
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Self

import numpy as np

from rscfed_jax.config import Config
from rscfed_jax.config.files import open_regular, read_bounded
from rscfed_jax.config.kinds import is_int
from rscfed_jax.config.limits import OverLimitError, check_limit
from rscfed_jax.data.dataset import Dataset, Refuse, folders, not_found, refuse_file
from rscfed_jax.data.download import Published, fetch, may_download
from rscfed_jax.data.pickled import ForbiddenError, read_pickled
from rscfed_jax.data.prepared import from_tfds

SOURCE = "https://www.cs.toronto.edu/~kriz"
GZIP = b"\x1f\x8b"
SIDE = 32
PIXELS = 3 * SIDE * SIDE


class Layout(NamedTuple):
    """How one of the two data sets is laid out in its archives; a pair is (python, binary)."""

    classes: int
    label_key: str  # in a pickle
    labels_before: int  # bytes before an image in a binary file; the last of them is the label
    archives: tuple[str, str]
    folders: tuple[str, str]
    files: tuple[dict[str, list[str]], dict[str, list[str]]]
    published: Published  # the python archive


def load_cifar(config: Config, layout: Layout) -> Dataset:
    """Reads the first archive or folder that is found, or else what TFDS has prepared, or what may be downloaded."""
    for folder in folders(config):
        for form in range(2):
            for path in (folder / layout.folders[form], folder / layout.archives[form]):
                if path.exists():
                    return _read(config, layout, form, path)
    prepared = from_tfds(config, config.dataset, classes=layout.classes)
    if prepared is not None:
        return prepared
    if may_download(config):
        folder = folders(config)[0]
        fetch(config, [layout.published], folder)
        return _read(config, layout, 0, folder / layout.published.name)
    wanted = f"{' or '.join(layout.archives)} (packed or unpacked)"
    size = f"{layout.published.size / 1e6:.0f} MB"
    ways = f", or use --download ({size}); a prepared TFDS {config.dataset} also works"
    raise not_found(config, wanted, source=f"{SOURCE}/cifar.html", also=ways)


def _read(config: Config, layout: Layout, form: int, path: Path) -> Dataset:
    parts = []
    for names in layout.files[form].values():
        contents = _contents(path, layout.folders[form], names, refuse_file(config, path))
        read = [
            (_read_pickle, _read_binary)[form](content, layout, refuse_file(config, path / name))
            for name, content in zip(names, contents, strict=True)
        ]
        images, labels = (np.concatenate(arrays) for arrays in zip(*read, strict=True))
        parts += [np.ascontiguousarray(images.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)), labels]
    train_images, train_labels, test_images, test_labels = parts
    return Dataset(train_images, train_labels, test_images, test_labels, layout.classes, origin=str(path))


def _contents(path: Path, folder: str, names: list[str], refuse: Refuse) -> list[bytes]:
    """The files' bytes; an archive is read in place, never unpacked."""
    try:
        if path.is_dir():
            return [read_bounded(path / name, "bytes") for name in names]
        with open_regular(path) as packed, _Unpacked(packed) as archive:
            return archive.contents([f"{folder}/{name}" for name in names])
    except OverLimitError as error:
        raise refuse(str(error)) from None
    except FileNotFoundError as error:
        raise refuse(f"{Path(error.filename).name} is missing") from None
    except KeyError:
        raise refuse(f"must hold {', '.join(f'{folder}/{name}' for name in names)}") from None
    except Exception:  # the type of the error depends on which byte is wrong
        raise refuse("is damaged or incomplete; remove it and fetch it again (--download)") from None


class _Unpacked:
    """A tar archive, packed with gzip or not, read once from its beginning, with a limit on its unpacked size.

    It is the stream that `tarfile` reads: a header in an archive may itself claim any size.
    """

    def __init__(self, file: BinaryIO):
        packed = file.read(2) == GZIP
        file.seek(0)
        self._stream: Any = gzip.GzipFile(fileobj=file) if packed else file
        self._total = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def read(self, size: int) -> bytes:
        """The next bytes, at most `size`."""
        check_limit("bytes", self._total + size, "unpacks to at least")
        content = self._stream.read(size)
        self._total += len(content)
        return content

    def contents(self, names: Sequence[str]) -> list[bytes]:
        """The content of the files of these names; a KeyError if one is missing. The rest is not unpacked."""
        found: dict[str, bytes] = {}
        with tarfile.open(fileobj=self, mode="r|") as archive:  # type: ignore[call-overload]  # it has what is needed
            for member in archive:
                if member.name in names and (file := archive.extractfile(member)) is not None:
                    found[member.name] = file.read()
                if len(found) == len(names):
                    break
        return [found[name] for name in names]


def _read_pickle(content: bytes, layout: Layout, refuse: Refuse) -> tuple[np.ndarray, np.ndarray]:
    try:
        batch = read_pickled(content)
        entries = {key.decode() if isinstance(key, bytes) else key: value for key, value in batch.items()}
        images, labels = entries["data"], entries[layout.label_key]
    except ForbiddenError as error:
        raise refuse(f"is refused: {error}") from None
    except (ValueError, KeyError):
        raise refuse(f"is damaged or holds no data and {layout.label_key}") from None
    if isinstance(labels, list) and all(is_int(label) for label in labels):
        labels = np.asarray(labels)
    return _checked(images, labels, layout, refuse)


def _read_binary(content: bytes, layout: Layout, refuse: Refuse) -> tuple[np.ndarray, np.ndarray]:
    row = layout.labels_before + PIXELS
    if not content or len(content) % row:
        raise refuse(f"has {len(content)} bytes, which is not a multiple of {row}: it is damaged or incomplete")
    rows = np.frombuffer(content, np.uint8).reshape(-1, row)
    return _checked(rows[:, layout.labels_before :], rows[:, layout.labels_before - 1], layout, refuse)


def _checked(images: Any, labels: Any, layout: Layout, refuse: Refuse) -> tuple[np.ndarray, np.ndarray]:
    shape: Any = getattr(images, "shape", None)
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.ndim != 2 or shape[1] != PIXELS:
        raise refuse(f"must hold uint8 images of {PIXELS} values, not shape {shape}")
    if not isinstance(labels, np.ndarray) or labels.shape != shape[:1] or labels.dtype.kind not in "iu":
        raise refuse(f"must hold one whole number per image as {layout.label_key}")
    if not len(labels) or labels.min() < 0 or labels.max() >= layout.classes:
        raise refuse(f"must hold labels from 0 to {layout.classes - 1}")
    return images, labels.astype(np.int32)
