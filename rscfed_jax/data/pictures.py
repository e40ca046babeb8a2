"""Picture files of any size: decoded in parallel, resized once, kept as array files; and folders of them."""

import hashlib
import json
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image
from rich.console import Console
from rich.progress import track

from rscfed_jax.config import Config, SettingError
from rscfed_jax.data.dataset import Dataset, Refuse, hold_out, refuse_file

DECODER = 2  # rises when the same file gives other pixels
ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".webp")


def cache_folder() -> Path:
    """Where decoded pictures are kept."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "rscfed_jax" / "pictures"


def load_pictures(files: Sequence[Path], sizes: Sequence[int], config: Config) -> list[np.ndarray]:
    """For each of the sizes, all files as uint8 [S, size, size, 3], mapped from array files that are made once.

    The array files are named after what they were made from: paths, lengths and times of the picture files.
    """
    made_from = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    key = hashlib.sha256(json.dumps([DECODER, made_from]).encode()).hexdigest()[:24]
    paths = [cache_folder() / f"{key}-{size}.npy" for size in sizes]
    shapes = [(len(files), size, size, 3) for size in sizes]
    kept = [_kept(path, shape) for path, shape in zip(paths, shapes, strict=True)]
    arrays = [array for array in kept if array is not None]
    if len(arrays) < len(kept):
        try:
            _decode(files, dict(zip(paths, sizes, strict=True)), config)
        except OSError as error:
            raise SettingError(
                "dataset", config.dataset, f"{cache_folder()}: cannot be written ({error.strerror}); set XDG_CACHE_HOME"
            ) from None
        arrays = [np.load(path, mmap_mode="r", allow_pickle=False) for path in paths]
    return arrays


def _kept(path: Path, shape: tuple[int, ...]) -> np.ndarray | None:
    """The array file if it is there and whole; a power loss may have cut it."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return array if getattr(array, "shape", None) == shape and array.dtype == np.uint8 else None


def _decode(files: Sequence[Path], wanted: dict[Path, int], config: Config) -> None:
    """Writes one array file for each size; a failure leaves none behind."""
    cache_folder().mkdir(parents=True, exist_ok=True)
    half_written = {path.with_suffix(f".{os.getpid()}.tmp"): size for path, size in wanted.items()}
    try:
        arrays = [
            np.lib.format.open_memmap(path, "w+", np.uint8, (len(files), size, size, 3))
            for path, size in half_written.items()
        ]
        for path in half_written:
            _take_room(path)

        def decode(number: int) -> None:
            pictures = _read_picture(files[number], list(wanted.values()), refuse_file(config, files[number]))
            for array, picture in zip(arrays, pictures, strict=True):
                array[number] = picture

        console = Console(stderr=True)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            done = pool.map(decode, range(len(files)))
            shown = track(done, "decoding pictures", total=len(files), console=console, disable=not sys.stderr.isatty())
            try:
                for _ in shown:
                    pass
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        for array in arrays:
            array.flush()
        for half, path in zip(half_written, wanted, strict=True):
            half.replace(path)
    finally:
        for half in half_written:
            half.unlink(missing_ok=True)


def _take_room(path: Path) -> None:
    """Takes the disk's room for a file: writing to a mapped file on a full disk would end the process."""
    if hasattr(os, "posix_fallocate"):
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)


def _read_picture(file: Path, sizes: Sequence[int], refuse: Refuse) -> list[np.ndarray]:
    try:
        with Image.open(file) as opened:
            mode = opened.mode
            # Of 16 bits Pillow would cut all above 255.
            deep = mode.startswith("I;16")
            eight_bits = Image.fromarray((np.asarray(opened) // 257).astype(np.uint8)) if deep else opened
            picture = eight_bits.convert("RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise refuse(f"does not decode as a picture ({type(error).__name__})") from None
    if mode in ("I", "F"):
        raise refuse(f"has pixels of 32 bits (mode {mode}), whose range is not known; must have 8 or 16")
    return [np.asarray(picture.resize((size, size), Image.Resampling.BILINEAR)) for size in sizes]


def from_folder(config: Config) -> Dataset:
    """One directory of pictures per class, in PATH itself or in PATH/train and PATH/test."""
    root = Path(config.data_dir or ".") / config.dataset.removeprefix("folder:")
    refuse = refuse_file(config, root)
    if not root.is_dir():
        raise refuse("no such folder")
    if (root / "train").is_dir() and (root / "test").is_dir():
        names = _class_names(root / "train", refuse)
        strangers = set(_class_names(root / "test", refuse)) - set(names)
        if strangers:
            raise refuse(f"test holds the class {min(strangers)!r}, which train has not")
        train, test = _files(root / "train", names, refuse), _files(root / "test", names, refuse)
        split = np.arange(len(train)), len(train) + np.arange(len(test))
        listed = train + test
    else:
        names = _class_names(root, refuse)
        listed = _files(root, names, refuse)
        split = hold_out(len(listed), config.seed)
    files, labels = [file for file, _ in listed], np.array([label for _, label in listed], np.int32)
    return pictures_dataset(config, files, labels, split, names, origin=f"{len(files)} pictures in {root}")


def pictures_dataset(
    config: Config,
    files: Sequence[Path],
    labels: np.ndarray,
    split: tuple[np.ndarray, np.ndarray],
    names: Sequence[str],
    *,
    origin: str,
) -> Dataset:
    """A data set of picture files: training pictures at the size crops are taken of, test pictures at the model's."""
    large, small = load_pictures(files, (config.resize, config.image_size), config)
    train, test = split
    return Dataset(
        large[train], labels[train], small[test], labels[test], len(names), origin=origin, class_names=tuple(names)
    )


def _class_names(folder: Path, refuse: Refuse) -> list[str]:
    names = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if len(names) < 2:
        raise refuse(
            f"{folder} must hold a folder of pictures for each of at least two classes, but holds {len(names)}"
        )
    return names


def _files(folder: Path, names: Sequence[str], refuse: Refuse) -> list[tuple[Path, int]]:
    """Each picture with the number of its class."""
    listed = []
    for label, name in enumerate(names):
        found = sorted(path for path in (folder / name).rglob("*") if path.suffix.lower() in ENDINGS)
        if not found and (folder / name).is_dir():
            raise refuse(f"the class {name!r} holds no picture ({', '.join(ENDINGS)})")
        listed += [(path, label) for path in found]
    return listed
