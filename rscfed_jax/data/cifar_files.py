"""The files of CIFAR-10 and CIFAR-100: official python or binary archives, packed or unpacked, or TFDS."""

import io
import pickle
import tarfile
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rscfed_jax.config import Config
from rscfed_jax.data.dataset import Dataset, Refuse, folders, not_found, refuse_file
from rscfed_jax.data.download import Published, fetch, may_download
from rscfed_jax.data.prepared import from_tfds

SOURCE = "https://www.cs.toronto.edu/~kriz"
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
            return [(path / name).read_bytes() for name in names]
        with tarfile.open(path) as archive:
            # A member that is not a file gives None, whose AttributeError is caught below.
            return [archive.extractfile(f"{folder}/{name}").read() for name in names]  # type: ignore[union-attr]
    except FileNotFoundError as error:
        raise refuse(f"{Path(error.filename).name} is missing") from None
    except (KeyError, AttributeError):
        raise refuse(f"must hold {', '.join(f'{folder}/{name}' for name in names)}") from None
    except (tarfile.TarError, EOFError, OSError, zlib.error):
        raise refuse("is damaged or incomplete; remove it and fetch it again (--download)") from None


class _OnlyArrays(pickle.Unpickler):
    """Unpickles lists, texts, numbers and NumPy arrays; anything else is refused before it is created."""

    ALLOWED = (
        *(("numpy._core.multiarray", "_reconstruct"), ("numpy.core.multiarray", "_reconstruct")),
        *(("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")),
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.ALLOWED:
            raise pickle.UnpicklingError(f"asks for {module}.{name}, which is never loaded")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def _read_pickle(content: bytes, layout: Layout, refuse: Refuse) -> tuple[np.ndarray, np.ndarray]:
    try:
        batch = _OnlyArrays(io.BytesIO(content), encoding="bytes").load()
        entries = {key.decode() if isinstance(key, bytes) else key: value for key, value in batch.items()}
        images, labels = entries["data"], np.asarray(entries[layout.label_key])
    except pickle.UnpicklingError as error:
        raise refuse(f"is refused: {error}" if "asks for" in str(error) else "is damaged") from None
    except Exception as error:
        # A damaged pickle can fail in any way.
        raise refuse(f"is damaged or holds no data and {layout.label_key} ({type(error).__name__})") from None
    return _checked(images, labels, layout, refuse)


def _read_binary(content: bytes, layout: Layout, refuse: Refuse) -> tuple[np.ndarray, np.ndarray]:
    row = layout.labels_before + PIXELS
    if not content or len(content) % row:
        raise refuse(f"has {len(content)} bytes, which is not a multiple of {row}: it is damaged or incomplete")
    rows = np.frombuffer(content, np.uint8).reshape(-1, row)
    return _checked(rows[:, layout.labels_before :], rows[:, layout.labels_before - 1], layout, refuse)


def _checked(images: Any, labels: np.ndarray, layout: Layout, refuse: Refuse) -> tuple[np.ndarray, np.ndarray]:
    shape: Any = getattr(images, "shape", None)
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.ndim != 2 or shape[1] != PIXELS:
        raise refuse(f"must hold uint8 images of {PIXELS} values, not shape {shape}")
    if labels.shape != shape[:1] or labels.dtype.kind not in "iu":
        raise refuse(f"must hold one whole number per image as {layout.label_key}")
    if not len(labels) or labels.min() < 0 or labels.max() >= layout.classes:
        raise refuse(f"must hold labels from 0 to {layout.classes - 1}")
    return images, labels.astype(np.int32)
