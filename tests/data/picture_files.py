"""Picture files of noise for the tests of folders and of ISIC."""

from pathlib import Path

import numpy as np
from PIL import Image


def write_picture(path: Path, *, seed: int = 0, size: tuple[int, int] = (30, 20)) -> Path:
    """Writes one picture of that width and height."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (*size[::-1], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


def write_classes(folder: Path, *, count: int = 10) -> Path:
    """Writes `count` pictures of each of the classes cat and dog."""
    for label, name in enumerate(("cat", "dog")):
        for number in range(count):
            write_picture(folder / name / f"{number:02}.png", seed=100 * label + number)
    return folder
