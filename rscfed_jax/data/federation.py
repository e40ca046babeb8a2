"""The federation as the host sees it: data set and partition for a config, NumPy only.

Mistakes in a user's data are found here, before JAX is imported.
"""

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from rscfed_jax.config import Config, SettingError
from rscfed_jax.config.checks import no_unlabeled_samples, wrong_clients
from rscfed_jax.data import partition
from rscfed_jax.data.dataset import Dataset, checked, with_validation
from rscfed_jax.data.labeled_samples import draw_for_server, draw_pool, share_pool
from rscfed_jax.data.load import dataset_of
from rscfed_jax.data.ragged import Ragged
from rscfed_jax.data.shards import shard_partition

MOST_LISTED = 10_000  # holders that partition.json lists one by one


class Federation(NamedTuple):
    """A data set and how it is split over N holders: the clients, and the server where it holds the labels."""

    dataset: Dataset
    samples: Sequence[np.ndarray]  # N arrays of indices into the training samples
    label_visible: Sequence[np.ndarray]  # N boolean arrays of the same lengths: may training see the label?
    server: int | None = None  # its place, the last; None: all holders are clients
    client_names: tuple[str, ...] = ()  # of clients that the data set names, in their order

    @property
    def sizes(self) -> np.ndarray:
        """[N] samples of each client."""
        return Ragged.of(self.samples).sizes

    @property
    def labeled(self) -> np.ndarray:
        """[N] whether a client holds any label."""
        return self.labels > 0

    @property
    def unlabeled(self) -> np.ndarray:
        """[N] whether a client holds any sample without a label."""
        return self.labels < self.sizes

    @property
    def labels(self) -> np.ndarray:
        """[N] visible labels of each client."""
        visible = Ragged.of(self.label_visible)
        return visible.how_many(visible.values)

    @property
    def class_counts(self) -> np.ndarray:
        """[N, classes] samples of each class that each client holds, hidden labels included."""
        return partition.class_counts(self.samples, self.dataset.train_labels, self.dataset.classes)

    @property
    def label_counts(self) -> np.ndarray:
        """[N, classes] visible labels of each class that each client holds."""
        visible = Ragged.of(self.samples).where(Ragged.of(self.label_visible).values)
        return partition.class_counts(visible, self.dataset.train_labels, self.dataset.classes)

    @property
    def names(self) -> list[str]:
        """[N] the number of each client, and `server`."""
        return ["server" if holder == self.server else str(holder) for holder in range(len(self.samples))]

    def to_json(self) -> dict[str, Any]:
        """The content of partition.json: each holder's samples by class and number of labels, and the test set's.

        `server` is the server's place among the holders, null where it holds nothing. Clients that the data set names
        have `client_names`. Of very many holders there are totals, and a checksum of who holds what.
        """
        if len(self.samples) > MOST_LISTED:
            return self._totals()
        named = {"client_names": list(self.client_names)} if self.client_names else {}
        return named | {
            "class_names": self.dataset.names,
            "class_counts": self.class_counts.tolist(),
            "labels": self.labels.tolist(),
            "server": self.server,
            "test_counts": self.dataset.test_counts.tolist(),
        }

    def _totals(self) -> dict[str, Any]:
        samples, visible = Ragged.of(self.samples), Ragged.of(self.label_visible)
        own = self.dataset.train_labels[samples.values]
        checksum = hashlib.sha256()
        for facts in (samples.sizes, samples.values, own):
            checksum.update(np.ascontiguousarray(facts, np.int64).data)
        checksum.update(np.packbits(visible.values).data)
        return {
            "holders": len(samples),
            "class_names": self.dataset.names,
            "class_totals": np.bincount(own, minlength=self.dataset.classes).tolist(),
            "labels_total": int(visible.values.sum()),
            "labeled_holders": int(self.labeled.sum()),
            "checksum": checksum.hexdigest(),
            "server": self.server,
            "test_counts": self.dataset.test_counts.tolist(),
        }


def build_federation(config: Config, *, dataset: Dataset | None = None) -> Federation:
    """Loads the data, unless a data set is given, and splits it over the clients as the config says."""
    if dataset is None:
        dataset = dataset_of(config)
    else:
        dataset = checked(dataset, lambda reason: SettingError("dataset", "of your own", reason))
        if config.validation and dataset.held_out is None:
            dataset = with_validation(dataset, config.validation)
    _check_clients(config, dataset)
    labels = dataset.train_labels
    # One stream per decision, so that a change of one setting does not shift the others.
    split_rng, choice_rng, keep_rng, label_rng, server_rng, pool_rng, share_rng = (
        np.random.default_rng([config.seed, n]) for n in range(7)
    )
    taken = np.zeros(0, np.int64)  # samples that are labeled before the clients get the rest
    free = _all_but(taken if dataset.held_out is None else dataset.held_out, len(labels))
    if config.server is not None:
        assert config.server_labels is not None  # Config sets it
        taken = draw_for_server(labels, config.server_labels, free, server_rng)
    elif config.labeled_gamma is not None:
        assert config.labeled_fraction is not None  # Config checks it
        taken = draw_pool(labels, config.labeled_fraction, free, pool_rng)
    dealt, client_names = _split(config, dataset, taken, split_rng)
    samples: Sequence[np.ndarray] = dealt
    if dataset.held_out is not None:
        samples = _without(samples, dataset.held_out)
        if not Ragged.of(samples).sizes.all():
            raise SettingError("validation", config.validation, "would leave a client without samples; must be smaller")
    if config.train_fraction < 1:
        samples = partition.keep_fraction(samples, config.train_fraction, keep_rng)
    if config.server is not None:
        parts = Ragged.of(samples)
        held = Ragged(np.append(parts.values, taken), np.append(parts.sizes, len(taken)))
        at_server = held.like(np.arange(len(held.values)) >= len(parts.values))
        return Federation(dataset, held, at_server, config.server, client_names)
    if config.labeled_gamma is not None:
        shares: Sequence[np.ndarray] = share_pool(
            labels, taken, config.clients, gamma=config.labeled_gamma, rng=share_rng
        )
        if config.train_fraction < 1:
            shares = partition.keep_fraction(shares, config.train_fraction, keep_rng)
        visible: Sequence[np.ndarray] = [
            np.arange(len(own) + len(part)) < len(own) for own, part in zip(shares, samples, strict=True)
        ]
        samples = [np.concatenate(parts) for parts in zip(shares, samples, strict=True)]
    elif config.labeled_fraction is not None:
        visible = partition.some_of_each(samples, config.labeled_fraction, label_rng)
    else:
        assert config.labeled_clients is not None  # Config sets it if there is no fraction
        counts = partition.class_counts(dealt, labels, dataset.classes)
        chosen = partition.choose_labeled(counts, config.labeled_clients, config.labeled_choice, choice_rng)
        parts = Ragged.of(samples)
        visible = parts.like(np.repeat(np.isin(np.arange(len(parts)), chosen), parts.sizes))
    federation = Federation(dataset, samples, visible, client_names=client_names)
    if config.samples == "unlabeled" and not federation.unlabeled.any():  # a fraction of few samples, rounded
        raise no_unlabeled_samples(config)
    return federation


def _check_clients(config: Config, dataset: Dataset) -> None:
    """Refuses a data set and a config that disagree on the clients: the data set may be of the caller's own."""
    named = None if dataset.train_clients is None else len(np.unique(dataset.train_clients))
    if config.partition == "natural":
        if named is None:
            raise SettingError("partition", "natural", f"{config.dataset} does not name its clients; must be drawn")
        if named != config.clients:
            raise SettingError("clients", config.clients, wrong_clients("the data set", named))
    elif named is not None and "partition" not in config.given():
        reason = f"the data set names {named} clients; give natural with --clients {named}, or drawn, by hand"
        raise SettingError("partition", "drawn", reason)


def _split(
    config: Config, dataset: Dataset, taken: np.ndarray, rng: np.random.Generator
) -> tuple[Ragged, tuple[str, ...]]:
    """The samples of each client, without those that were taken before, and the names of clients that have some."""
    labels = dataset.train_labels
    names: tuple[str, ...] = ()
    parts: Sequence[np.ndarray]
    if config.partition == "natural" or config.partition_file is not None:
        if config.partition_file is None:
            assert dataset.train_clients is not None  # _check_clients
            parts, names = partition.natural_partition(dataset.train_clients)
        else:
            parts = partition.load_partition(config.partition_file, config.clients, len(labels))
        samples = _without(parts, taken)
        if len(empty := np.flatnonzero(samples.sizes == 0)):
            reason = f"would take all samples of client {names[empty[0]] if names else empty[0]}; must be smaller"
            raise SettingError("server_labels", config.server_labels, reason)
        return samples, names
    rest = _all_but(taken, len(labels))
    least = config.min_client_size
    if config.classes_per_client is not None:
        number = config.classes_per_client
        parts = shard_partition(labels[rest], config.clients, classes_per_client=number, min_size=least, rng=rng)
    elif config.gamma == "iid":
        parts = partition.iid_partition(labels[rest], config.clients, min_size=least, rng=rng)
    else:
        assert config.gamma is not None  # Config sets it
        gamma = float(config.gamma)
        parts = partition.dirichlet_partition(labels[rest], config.clients, gamma=gamma, min_size=least, rng=rng)
    dealt = Ragged.of(parts)
    return dealt.like(rest[dealt.values]), ()


def _all_but(taken: np.ndarray, count: int) -> np.ndarray:
    """The numbers below `count` that were not taken; in 32 bits, as there may be very many."""
    left = np.ones(count, bool)
    left[taken] = False
    return np.flatnonzero(left).astype(np.int32)


def _without(samples: Sequence[np.ndarray], others: np.ndarray) -> Ragged:
    """The samples of each client that are not among `others`."""
    parts = Ragged.of(samples)
    return parts.where(~np.isin(parts.values, others)) if len(others) else parts
