"""Picture files of any size: decoded in parallel, resized once, and cached as array files."""

import contextlib
import hashlib
import json
import logging
import os
import socket
import sys
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image
from rich.console import Console
from rich.progress import track

from rscfed_jax.config import Config, SettingError
from rscfed_jax.config.files import cache_folder, open_regular
from rscfed_jax.config.limits import OverLimitError, check_limit
from rscfed_jax.data.dataset import Dataset, Refuse, refuse_file
from rscfed_jax.data.images import picked

DECODER = 2  # version of the pixels: raised when the same file gives others
FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "GIF", "TIFF")  # whatever the name says; others may start programs


def load_pictures(files: Sequence[Path], sizes: Sequence[int], config: Config) -> list[np.ndarray]:
    """For each size, all pictures as uint8 [S, size, size, 3], mapped from array files in the cache.

    The name of an array file is a hash of the paths, lengths and times of the picture files.
    """
    folder = cache_folder("pictures")
    key = hashlib.sha256(json.dumps([DECODER, [_state_of(file) for file in files]]).encode()).hexdigest()[:24]
    paths = [folder / f"{key}-{size}.npy" for size in sizes]
    shapes = [(len(files), size, size, 3) for size in sizes]
    cached = [_cached(path, shape) for path, shape in zip(paths, shapes, strict=True)]
    arrays = [array for array in cached if array is not None]
    if len(arrays) < len(cached):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _remove_stale(folder)
            _decode(files, dict(zip(paths, sizes, strict=True)), config)
        except OSError as error:
            raise SettingError(
                "dataset", config.dataset, f"{folder}: cannot be written ({error.strerror}); set XDG_CACHE_HOME"
            ) from None
        arrays = [np.load(path, mmap_mode="r", allow_pickle=False) for path in paths]
    return arrays


def _state_of(file: Path) -> tuple[str, int, int]:
    """Path, length and time of a file."""
    state = file.stat()
    return str(file.resolve()), state.st_size, state.st_mtime_ns


def _cached(path: Path, shape: tuple[int, ...]) -> np.ndarray | None:
    """The array file if it exists and is complete: a power loss may have truncated it."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return array if getattr(array, "shape", None) == shape and array.dtype == np.uint8 else None


def _decode(files: Sequence[Path], wanted: dict[Path, int], config: Config) -> None:
    """Writes one array file for each size; if it fails, it removes them."""
    half_written = {
        path.with_suffix(f".{socket.gethostname()}.{os.getpid()}.tmp"): size for path, size in wanted.items()
    }
    try:
        arrays = [
            np.lib.format.open_memmap(path, "w+", np.uint8, (len(files), size, size, 3))
            for path, size in half_written.items()
        ]
        for path in half_written:
            _reserve_space(path)

        def decode(number: int) -> None:
            pictures = _read_picture(files[number], list(wanted.values()), refuse_file(config, files[number]))
            for array, picture in zip(arrays, pictures, strict=True):
                array[number] = picture

        console = Console(stderr=True)
        with _quiet_pillow(), ThreadPoolExecutor(os.cpu_count()) as pool:
            done = pool.map(decode, range(len(files)))
            shown = iter(done)
            if sys.stderr.isatty():  # a disabled bar would print an empty line before rich 15
                shown = iter(track(done, "decoding pictures", total=len(files), console=console))
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


@contextlib.contextmanager
def _quiet_pillow() -> Iterator[None]:
    """Our limit of pixels instead of Pillow's, which no user can raise, and none of its warnings and messages."""
    before = Image.MAX_IMAGE_PIXELS
    Image.MAX_IMAGE_PIXELS = None
    # Python prints the messages of a logger that has no handler. A refusal is one line.
    logger, silence = logging.getLogger("PIL"), logging.NullHandler()
    logger.addHandler(silence)
    try:
        with warnings.catch_warnings(action="ignore"):  # as of an odd EXIF block
            yield
    finally:
        logger.removeHandler(silence)
        Image.MAX_IMAGE_PIXELS = before


def _remove_stale(folder: Path) -> None:
    """Removes temporary files of processes of this machine that were killed while decoding."""
    for path in folder.glob("*.tmp"):
        rest, _, pid = path.stem.rpartition(".")
        host = rest.partition(".")[2]
        if host in ("", socket.gethostname()) and pid.isdecimal() and not _is_alive(int(pid)):
            with contextlib.suppress(OSError):  # another user's, in a shared cache
                path.unlink()


def _is_alive(pid: int) -> bool:
    try:
        if os.name == "posix":  # elsewhere signal 0 would be sent
            os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # another user's
    return True


def _reserve_space(path: Path) -> None:
    """Reserves the file's disk space: writing to a mapped file on a full disk would end the process."""
    if hasattr(os, "posix_fallocate"):
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)


def _read_picture(file: Path, sizes: Sequence[int], refuse: Refuse) -> list[np.ndarray]:
    try:
        with open_regular(file) as content, Image.open(content, formats=FORMATS) as opened:
            check_limit("pixels", opened.width * opened.height)
            mode = opened.mode
            # Pillow would clip 16-bit values at 255.
            deep = mode.startswith("I;16")
            eight_bits = Image.fromarray((np.asarray(opened) // 257).astype(np.uint8)) if deep else opened
            picture = eight_bits.convert("RGB")
    except OverLimitError as error:
        raise refuse(str(error)) from None
    except Exception as error:  # Pillow raises errors of many types
        raise refuse(f"does not decode as a picture ({type(error).__name__})") from None
    if mode in ("I", "F"):
        raise refuse(f"has pixels of 32 bits (mode {mode}), whose range is not known; must have 8 or 16")
    return [np.asarray(picture.resize((size, size), Image.Resampling.BILINEAR)) for size in sizes]


def pictures_dataset(
    config: Config,
    files: Sequence[Path],
    labels: np.ndarray,
    split: tuple[np.ndarray, np.ndarray],
    names: Sequence[str],
    *,
    origin: str,
) -> Dataset:
    """A data set of picture files: training pictures at the size that is cropped, test pictures at the model's."""
    large, small = load_pictures(files, (config.resize, config.image_size), config)
    train, test = split
    return Dataset(
        picked(large, train),
        labels[train],
        small[test],
        labels[test],
        len(names),
        origin=origin,
        class_names=tuple(names),
    )
