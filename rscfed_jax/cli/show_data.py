"""Prints and draws a data set and its partition."""

from collections.abc import Sequence

import numpy as np

from rscfed_jax.config import Config
from rscfed_jax.data.dataset import Dataset, pixel_statistics
from rscfed_jax.data.federation import Federation
from rscfed_jax.data.partition import save_partition

MOST_CLASSES = 20  # that a table shows
MOST_CLIENTS = 10_000


def draw_partition(federation: Federation, path: str) -> None:
    """Draws who holds what into a file."""
    from rscfed_jax.report.plots import plot_partition

    plot_partition(federation.class_counts, federation.labeled, path, server=federation.server)


def export_partition(federation: Federation, path: str) -> None:
    """Writes the clients' partition as `--partition-file` reads it; the server's samples are drawn by the seed."""
    save_partition(path, federation.samples[: federation.server])


def print_dataset(config: Config, dataset: Dataset) -> None:
    """Prints where a data set is from, its sizes, statistics and classes."""
    shape = "x".join(map(str, dataset.train_images.shape[1:]))
    print(f"{config.dataset}: {dataset.origin or 'drawn at random'}")
    print(f"{len(dataset.train_images)} training and {len(dataset.test_images)} test images, {shape}")
    mean, std = pixel_statistics(dataset.train_images)
    for name, own, constants in (("mean", mean, dataset.mean), ("standard deviation", std, dataset.std)):
        in_use = "these are in use" if constants is None else f"in use: {_numbers(constants)}"
        print(f"{name} of the training images: {_numbers(own / 255)}; {in_use}")
    counts = [np.bincount(dataset.train_labels, minlength=dataset.classes), dataset.test_counts]
    names = dataset.class_names or [""] * dataset.classes
    shown = min(dataset.classes, MOST_CLASSES)
    print(f"{'class':>6} {'train':>7} {'test':>7}")
    for label in range(shown):
        print(f"{label:>6} {counts[0][label]:>7} {counts[1][label]:>7}  {names[label]}".rstrip())
    if dataset.classes > shown:
        print(f"(classes {shown} to {dataset.classes - 1} not shown)")


def _numbers(values: Sequence[float] | np.ndarray) -> str:
    return " ".join(f"{value:.4f}" for value in values)


def print_partition(federation: Federation) -> None:
    """Prints what each client holds, and the server; of very many clients what they hold together."""
    if len(federation.samples) > MOST_CLIENTS:
        sizes, labeled = federation.sizes, int(federation.labeled.sum())
        print(f"{len(sizes):,} holders of {sizes.min()} to {sizes.max()} samples; {labeled:,} of them hold labels")
        return
    counts = federation.class_counts
    width = max(5, len(str(counts.max())) + 1)
    shown = range(min(federation.dataset.classes, MOST_CLASSES))
    print(f"{'client':>6} {'labels':>6} {'size':>6}  " + "".join(f"{label:>{width}}" for label in shown))
    called = [*federation.client_names, *[""] * (len(counts) - len(federation.client_names))]
    for name, visible, count, own in zip(federation.names, federation.label_visible, counts, called, strict=True):
        row = "".join(f"{count[label]:>{width}}" for label in shown)
        print(f"{name:>6} {visible.sum():>6} {len(visible):>6}  {row}  {own}".rstrip())
