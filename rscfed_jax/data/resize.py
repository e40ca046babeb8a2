"""Bilinear resizing equal to Pillow's: a triangle filter that widens when an image shrinks, in fixed-point numbers."""

from typing import Any

import numpy as np

PRECISION = 22  # bits behind the point, Pillow's choice: sums of 255 times the weights fit 32 bits


def filter_taps(size: int, new_size: int) -> tuple[np.ndarray, np.ndarray]:
    """[new_size, taps] source positions of each new pixel, and their weights as multiples of 2^-22."""
    scale = size / new_size
    support = max(scale, 1.0)
    centers = (np.arange(new_size) + 0.5) * scale
    weights = np.clip(1 - np.abs(np.arange(size) + 0.5 - centers[:, None]) / support, 0, None)
    weights = np.floor(weights / weights.sum(axis=1, keepdims=True) * 2**PRECISION + 0.5).astype(np.int32)
    taps = (weights > 0).sum(axis=1).max()
    first = np.minimum((weights > 0).argmax(axis=1), size - taps)
    positions = first[:, None] + np.arange(taps)
    return positions, np.take_along_axis(weights, positions, axis=1)


def resize(images: np.ndarray, new_size: int, *, batch: int = 256) -> np.ndarray:
    """[S, H, W, C] uint8 images as [S, new_size, new_size, C] uint8, first along the width as Pillow does."""
    samples, height, width, channels = images.shape
    if height == width == new_size:
        return images
    across, down = filter_taps(width, new_size), filter_taps(height, new_size)
    out = np.empty((samples, new_size, new_size, channels), np.uint8)
    for start in range(0, samples, batch):
        part = images[start : start + batch]
        out[start : start + batch] = _resize_axis(_resize_axis(part, 2, *across), 1, *down)
    return out


def _resize_axis(images: np.ndarray, axis: int, positions: np.ndarray, weights: np.ndarray) -> np.ndarray:
    shape = [1] * images.ndim
    shape[axis] = -1
    total: Any = np.int32(1 << (PRECISION - 1))  # one half, to round
    for tap in range(positions.shape[1]):
        total = total + images.take(positions[:, tap], axis) * weights[:, tap].reshape(shape)
    return (total >> PRECISION).astype(np.uint8)
