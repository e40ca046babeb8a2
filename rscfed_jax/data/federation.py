"""The federation as the host sees it: data set and partition for a config, NumPy only.

Mistakes in a user's data are found here, before JAX is imported.
"""

from typing import Any, NamedTuple

import numpy as np

from rscfed_jax.config import Config, SettingError
from rscfed_jax.config.checks import wrong_clients
from rscfed_jax.data import partition
from rscfed_jax.data.dataset import Dataset, checked, with_validation
from rscfed_jax.data.labeled_samples import draw_for_server, draw_pool, share_pool
from rscfed_jax.data.load import dataset_of
from rscfed_jax.data.shards import shard_partition


class Federation(NamedTuple):
    """A data set and how it is split over N holders: the clients, and the server where it holds the labels."""

    dataset: Dataset
    samples: list[np.ndarray]  # N arrays of indices into the training samples
    label_visible: list[np.ndarray]  # N boolean arrays of the same lengths: may training see the label?
    server: int | None = None  # its place, the last; None: all holders are clients
    client_names: tuple[str, ...] = ()  # of clients that the data set names, in their order

    @property
    def sizes(self) -> np.ndarray:
        """[N] samples of each client."""
        return np.array([len(part) for part in self.samples])

    @property
    def labeled(self) -> np.ndarray:
        """[N] whether a client holds any label."""
        return np.array([visible.any() for visible in self.label_visible])

    @property
    def unlabeled(self) -> np.ndarray:
        """[N] whether a client holds any sample without a label."""
        return ~np.array([visible.all() for visible in self.label_visible])

    @property
    def class_counts(self) -> np.ndarray:
        """[N, classes] samples of each class that each client holds, hidden labels included."""
        return partition.class_counts(self.samples, self.dataset.train_labels, self.dataset.classes)

    @property
    def label_counts(self) -> np.ndarray:
        """[N, classes] visible labels of each class that each client holds."""
        labels, classes = self.dataset.train_labels, self.dataset.classes
        held = zip(self.samples, self.label_visible, strict=True)
        return np.stack([np.bincount(labels[part][visible], minlength=classes) for part, visible in held])

    @property
    def names(self) -> list[str]:
        """[N] the number of each client, and `server`."""
        return ["server" if holder == self.server else str(holder) for holder in range(len(self.samples))]

    def to_json(self) -> dict[str, Any]:
        """The content of partition.json: each holder's samples by class and number of labels, and the test set's.

        `server` is the server's place among the holders, null where it holds nothing. Clients that the data set names
        have `client_names`.
        """
        named = {"client_names": list(self.client_names)} if self.client_names else {}
        return named | {
            "class_names": self.dataset.names,
            "class_counts": self.class_counts.tolist(),
            "labels": self.label_counts.sum(axis=1).tolist(),
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
    free = np.setdiff1d(np.arange(len(labels)), [] if dataset.held_out is None else dataset.held_out)
    if config.server is not None:
        assert config.server_labels is not None  # Config sets it
        taken = draw_for_server(labels, config.server_labels, free, server_rng)
    elif config.labeled_gamma is not None:
        assert config.labeled_fraction is not None  # Config checks it
        taken = draw_pool(labels, config.labeled_fraction, free, pool_rng)
    samples, client_names = _split(config, dataset, taken, split_rng)
    counts = partition.class_counts(samples, labels, dataset.classes)
    if dataset.held_out is not None:
        samples = [part[~np.isin(part, dataset.held_out)] for part in samples]
        if not all(map(len, samples)):
            raise SettingError("validation", config.validation, "would leave a client without samples; must be smaller")
    if config.train_fraction < 1:
        samples = partition.keep_fraction(samples, config.train_fraction, keep_rng)
    if config.server is not None:
        hidden = [np.zeros(len(part), bool) for part in samples]
        visible = [*hidden, np.ones(len(taken), bool)]
        return Federation(dataset, [*samples, taken], visible, config.server, client_names)
    if config.labeled_gamma is not None:
        shares = share_pool(labels, taken, config.clients, gamma=config.labeled_gamma, rng=share_rng)
        if config.train_fraction < 1:
            shares = partition.keep_fraction(shares, config.train_fraction, keep_rng)
        visible = [np.arange(len(own) + len(part)) < len(own) for own, part in zip(shares, samples, strict=True)]
        samples = [np.concatenate(parts) for parts in zip(shares, samples, strict=True)]
    elif config.labeled_fraction is not None:
        visible = [_some_true(len(part), config.labeled_fraction, label_rng) for part in samples]
    else:
        assert config.labeled_clients is not None  # Config sets it if there is no fraction
        chosen = partition.choose_labeled(counts, config.labeled_clients, config.labeled_choice, choice_rng)
        visible = [np.full(len(part), client in chosen) for client, part in enumerate(samples)]
    return Federation(dataset, samples, visible, client_names=client_names)


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
) -> tuple[list[np.ndarray], tuple[str, ...]]:
    """The samples of each client, without those that were taken before, and the names of clients that have some."""
    labels = dataset.train_labels
    if config.partition == "natural" or config.partition_file is not None:
        if config.partition_file is None:
            assert dataset.train_clients is not None  # _check_clients
            samples, names = partition.natural_partition(dataset.train_clients)
        else:
            samples, names = partition.load_partition(config.partition_file, config.clients, len(labels)), ()
        samples = [part[~np.isin(part, taken)] for part in samples]
        if empty := [client for client, part in enumerate(samples) if not len(part)]:
            reason = f"would take all samples of client {names[empty[0]] if names else empty[0]}; must be smaller"
            raise SettingError("server_labels", config.server_labels, reason)
        return samples, names
    rest = np.setdiff1d(np.arange(len(labels)), taken)
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
    return [rest[part] for part in parts], ()


def _some_true(count: int, fraction: float, rng: np.random.Generator) -> np.ndarray:
    """[count] booleans, `fraction` of them true, at least one."""
    return rng.permutation(count) < max(1, round(count * fraction))
