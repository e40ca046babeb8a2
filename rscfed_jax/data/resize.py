"""Bilinear resizing with Pillow's antialias rules: a triangle filter that widens when an image shrinks."""

import numpy as np


def filter_matrix(size: int, new_size: int) -> np.ndarray:
    """[new_size, size] weights; each row sums to one."""
    scale = size / new_size
    support = max(scale, 1.0)
    centers = (np.arange(new_size) + 0.5) * scale
    distance = np.abs(np.arange(size) + 0.5 - centers[:, None]) / support
    weights = np.clip(1 - distance, 0, None)
    return (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)


def resize(images: np.ndarray, new_size: int, *, batch: int = 1024) -> np.ndarray:
    """[S, H, W, C] uint8 images as [S, new_size, new_size, C] uint8, first along the width as Pillow does."""
    samples, height, width, channels = images.shape
    if height == width == new_size:
        return images
    across, down = filter_matrix(width, new_size), filter_matrix(height, new_size)
    out = np.empty((samples, new_size, new_size, channels), np.uint8)
    for start in range(0, samples, batch):
        part = images[start : start + batch].astype(np.float32)
        part = _rounded(np.matmul(across, part))
        part = _rounded(np.tensordot(part, down, axes=(1, 1)))  # [b, new_size, C, new_size]
        out[start : start + batch] = part.transpose(0, 3, 1, 2)
    return out


def _rounded(values: np.ndarray) -> np.ndarray:
    return np.clip(np.floor(values + 0.5), 0, 255)
