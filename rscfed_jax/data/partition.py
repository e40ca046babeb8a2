"""Which client holds which samples, and who holds labels: NumPy, seeded.

A partition is a sequence of N index arrays into the training samples, one per client.
"""

import io
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rscfed_jax.config import SettingError
from rscfed_jax.config.files import read_bounded, write_whole
from rscfed_jax.config.kinds import is_int
from rscfed_jax.config.limits import OverLimitError
from rscfed_jax.config.npzfile import check_packed
from rscfed_jax.data.dataset import Refuse
from rscfed_jax.data.npzfile import read_npz
from rscfed_jax.data.ragged import Ragged

MAX_DRAWS = 1_000
MOST_ONE_BY_ONE = 65_536  # clients whose samples are shuffled one client after the other


def draw_class_counts(totals: np.ndarray, clients: int, gamma: float, rng: np.random.Generator) -> np.ndarray:
    """One draw of [N, classes] counts: per class, Dirichlet proportions over clients below their fair share.

    `totals` [classes] is the number of samples of each class.
    """
    fair_share = totals.sum() / clients
    counts = np.zeros((clients, len(totals)), dtype=int)
    for label, total in enumerate(totals):
        proportions = capped_proportions(rng.dirichlet(np.full(clients, gamma)), counts.sum(axis=1), fair_share)
        # A sum of proportions may miss 1 by a rounding error, which must not give a sample to a full client.
        cuts = (np.cumsum(proportions) * total + 1e-6).astype(int)
        cuts[-1] = total
        counts[:, label] = np.diff(cuts, prepend=0)
    return counts


def capped_proportions(proportions: np.ndarray, sizes: np.ndarray, fair_share: float) -> np.ndarray:
    """[N] proportions that sum to one, with none for clients that hold their fair share already."""
    open_to_more = sizes < fair_share
    capped = proportions * open_to_more
    total = capped.sum()
    return capped / total if total > 0 else open_to_more / open_to_more.sum()


def dirichlet_partition(
    labels: np.ndarray, clients: int, *, gamma: float, min_size: int, rng: np.random.Generator
) -> list[np.ndarray]:
    """Repeats the whole draw until the smallest client has `min_size` samples."""
    _check_enough(labels, clients, min_size)
    samples, largest_minimum = draw_until(labels, clients, gamma=gamma, min_size=min_size, rng=rng)
    if samples is not None:
        return samples
    raise SettingError(
        "min_client_size",
        min_size,
        f"no partition of {len(labels)} samples over {clients} clients with --gamma {gamma:g} gave each that many "
        f"in {MAX_DRAWS} draws (best: {largest_minimum}); lower it, use fewer --clients or a larger --gamma",
    )


def draw_until(
    labels: np.ndarray, clients: int, *, gamma: float, min_size: int, rng: np.random.Generator
) -> tuple[list[np.ndarray] | None, int]:
    """A Dirichlet partition whose smallest client has `min_size` samples; None and the largest minimum seen if none."""
    largest_minimum = 0
    for _ in range(MAX_DRAWS):
        counts = draw_class_counts(np.bincount(labels), clients, gamma, rng)
        smallest = int(counts.sum(axis=1).min())
        if smallest >= min_size:
            return _deal(labels, counts, rng), smallest
        largest_minimum = max(largest_minimum, smallest)
    return None, largest_minimum


def _deal(labels: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Gives every client random samples of each class, as many as `counts` [N, classes] says."""
    parts = []
    for label, column in enumerate(counts.T):
        of_class = rng.permutation(np.flatnonzero(labels == label))
        parts.append(np.split(of_class, np.cumsum(column)[:-1]))
    return [rng.permutation(np.concatenate(part)) for part in zip(*parts, strict=True)]


def _check_enough(labels: np.ndarray, clients: int, min_size: int) -> None:
    if len(labels) // clients < min_size:
        most = len(labels) // clients
        raise SettingError(
            "min_client_size", min_size, f"{len(labels)} samples for {clients} clients are at most {most} each"
        )


def iid_partition(labels: np.ndarray, clients: int, *, min_size: int, rng: np.random.Generator) -> Ragged:
    """Deals the shuffled samples out evenly."""
    _check_enough(labels, clients, min_size)
    least, more = divmod(len(labels), clients)
    return Ragged(rng.permutation(len(labels)), least + (np.arange(clients) < more))


def natural_partition(clients: np.ndarray) -> tuple[Ragged, tuple[str, ...]]:
    """The samples of each client and its name, given [S] ids of clients; clients are in the order of their ids.

    Names are left out where there are very many.
    """
    names, numbers, sizes = np.unique(clients, return_inverse=True, return_counts=True)
    samples = Ragged(np.argsort(numbers, kind="stable"), sizes)
    if len(names) > MOST_ONE_BY_ONE:
        return samples, ()
    return samples, tuple(name.decode(errors="replace") if isinstance(name, bytes) else str(name) for name in names)


def load_partition(path: str, clients: int, total: int) -> list[np.ndarray]:
    """Reads the index arrays of N clients from an npz or a published .pth file, and checks them.

    `total` is the number of training samples.
    """

    def refuse(reason: str) -> SettingError:
        return SettingError("partition_file", path, reason)

    arrays = _read_published(Path(path), refuse) if Path(path).suffix == ".pth" else read_npz(Path(path), refuse)
    if len(arrays) != clients or any(f"client_{client}" not in arrays for client in range(clients)):
        raise refuse(
            f"must hold the {clients} arrays client_0 to client_{clients - 1} of --clients, but holds {len(arrays)}"
        )
    samples = [arrays[f"client_{client}"] for client in range(clients)]
    for client, part in enumerate(samples):
        if part.ndim != 1 or part.dtype.kind not in "iu" or not len(part):
            raise refuse(f"client_{client} must be a non-empty list of sample indices")
        if part.min() < 0 or part.max() >= total:
            wrong = part.min() if part.min() < 0 else part.max()
            raise refuse(f"client_{client} holds index {wrong}, allowed are 0 to {total - 1}")
    used, counts = np.unique(np.concatenate(samples), return_counts=True)
    if counts.max() > 1:
        raise refuse(f"index {used[counts.argmax()]} is used {counts.max()} times, allowed is once")
    return [part.astype(np.int64) for part in samples]


def _read_published(path: Path, refuse: Refuse) -> dict[str, np.ndarray]:
    """The published code's partitions: a PyTorch file of {"data_partition": {client: indices}}."""
    try:
        import torch
    except ImportError:
        raise refuse("PyTorch is needed to read it: pip install 'rscfed-jax[torch]'") from None
    try:
        packed = read_bounded(path, "bytes")
        check_packed(packed)
        with warnings.catch_warnings(action="ignore"):  # the refusal is one line
            content = torch.load(io.BytesIO(packed), map_location="cpu", weights_only=True)["data_partition"]
        return {f"client_{int(client)}": _indices(indices) for client, indices in content.items()}
    except FileNotFoundError:
        raise refuse("no such file") from None
    except OverLimitError as error:
        raise refuse(str(error)) from None
    except Exception as error:
        # torch raises errors of many types; `weights_only` refuses all but plain containers and tensors.
        raise refuse(
            f"is not a partition file {{'data_partition': {{client: indices}}}} ({type(error).__name__})"
        ) from None


def _indices(listed: Any) -> np.ndarray:
    """Indices as an array, if they are a list of numbers or an array: lists in lists could hold each other."""
    if isinstance(listed, list | tuple) and not all(is_int(index) for index in listed):
        raise TypeError("not a list of numbers")
    return np.asarray(listed)


def save_partition(path: str, samples: Sequence[np.ndarray]) -> None:
    """Writes what `load_partition` reads: an npz file with the arrays client_0, client_1, ..."""
    arrays = {f"client_{client}": part for client, part in enumerate(samples)}
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)  # type: ignore[arg-type]  # NumPy's stubs see allow_pickle in it
    write_whole(path, content.getvalue())


def class_counts(samples: Sequence[np.ndarray], labels: np.ndarray, classes: int) -> np.ndarray:
    """[N, classes] samples of each class that each client holds."""
    parts = Ragged.of(samples)
    return parts.like(labels[parts.values]).histogram(classes)


def choose_labeled(counts: np.ndarray, number: int, choice: str, rng: np.random.Generator) -> np.ndarray:
    """[number] ids of the clients that hold labels, given the [N, classes] class counts.

    `most-classes`: most classes present, then the largest smallest class, then the lowest id. A labeled client that
    lacks classes caps what any method can reach.
    """
    if choice == "first":
        return np.arange(number)
    if choice == "random":
        return np.sort(rng.choice(len(counts), number, replace=False))
    present = (counts > 0).sum(axis=1)
    smallest = np.where(counts > 0, counts, counts.max() + 1).min(axis=1)
    return np.sort(np.lexsort((np.arange(len(counts)), -smallest, -present))[:number])


def keep_fraction(samples: Sequence[np.ndarray], fraction: float, rng: np.random.Generator) -> Sequence[np.ndarray]:
    """A random part of every client's samples, at least one each."""
    if len(samples) > MOST_ONE_BY_ONE:
        return Ragged.of(samples).where(some_of_each(samples, fraction, rng).values)
    return [rng.permutation(part)[: max(1, round(len(part) * fraction))] for part in samples]


def some_of_each(samples: Sequence[np.ndarray], fraction: float, rng: np.random.Generator) -> Ragged:
    """Booleans in the place of each client's samples, this fraction of them true, at least one."""
    parts = Ragged.of(samples)
    wanted = np.maximum(1, np.rint(parts.sizes * fraction)).astype(int)
    if len(parts) > MOST_ONE_BY_ONE:
        return parts.like(parts.ranks(rng) < np.repeat(wanted, parts.sizes))
    return Ragged.of([rng.permutation(size) < number for size, number in zip(parts.sizes, wanted, strict=True)])
