"""The federation as the host sees it: data set and partition for a config, NumPy only.

Mistakes in a user's data are found here, before JAX is imported.
"""

from typing import Any, NamedTuple

import numpy as np

from rscfed_jax.config import Config, SettingError
from rscfed_jax.data import partition
from rscfed_jax.data.dataset import Dataset, checked, with_validation
from rscfed_jax.data.load import dataset_of


class Federation(NamedTuple):
    """A data set and how it is split over N clients."""

    dataset: Dataset
    samples: list[np.ndarray]  # N arrays of indices into the training samples
    label_visible: list[np.ndarray]  # N boolean arrays of the same lengths: may training see the label?

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

    def to_json(self) -> dict[str, Any]:
        """The content of partition.json: each client's samples by class and number of labels, and the test set's."""
        return {
            "class_names": self.dataset.names,
            "class_counts": self.class_counts.tolist(),
            "labels": self.label_counts.sum(axis=1).tolist(),
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
    labels = dataset.train_labels
    # One stream per decision, so that a change of one setting does not shift the others.
    split_rng, choice_rng, keep_rng, label_rng = (np.random.default_rng([config.seed, n]) for n in range(4))
    if config.partition_file is not None:
        samples = partition.load_partition(config.partition_file, config.clients, len(labels))
    elif config.gamma == "iid":
        samples = partition.iid_partition(labels, config.clients, min_size=config.min_client_size, rng=split_rng)
    else:
        samples = partition.dirichlet_partition(
            labels, config.clients, gamma=float(config.gamma), min_size=config.min_client_size, rng=split_rng
        )
    counts = partition.class_counts(samples, labels, dataset.classes)
    if dataset.held_out is not None:
        samples = [part[~np.isin(part, dataset.held_out)] for part in samples]
        if not all(map(len, samples)):
            raise SettingError("validation", config.validation, "would leave a client without samples; must be smaller")
    if config.train_fraction < 1:
        samples = partition.keep_fraction(samples, config.train_fraction, keep_rng)
    if config.labeled_fraction is not None:
        visible = [_some_true(len(part), config.labeled_fraction, label_rng) for part in samples]
    else:
        assert config.labeled_clients is not None  # Config sets it if there is no fraction
        chosen = partition.choose_labeled(counts, config.labeled_clients, config.labeled_choice, choice_rng)
        visible = [np.full(len(part), client in chosen) for client, part in enumerate(samples)]
    return Federation(dataset, samples, visible)


def _some_true(count: int, fraction: float, rng: np.random.Generator) -> np.ndarray:
    """[count] booleans, `fraction` of them true, at least one."""
    return rng.permutation(count) < max(1, round(count * fraction))
