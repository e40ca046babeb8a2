"""Builds the method of a config: runs the file that it names, and fills in the parts that the file leaves out."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rscfed_jax.config import Config, SettingError
from rscfed_jax.config.registry import METHODS as FILES
from rscfed_jax.config.registry import Declaration
from rscfed_jax.core.aggregation import DISTANCES, SubConsensus, by_data_amount
from rscfed_jax.core.method import Aggregate, Labeled, Method, Separate
from rscfed_jax.core.robust import geometric_median, krum, median, multi_krum, trimmed_mean
from rscfed_jax.core.sampling import sampler_of


def method_of(config: Config) -> Method:
    """The method of a config that names one by name or file."""
    if config.method_file is None:
        raise SettingError("method", config.method, "is not built in: give the file it came from, or method= in Python")
    return _build(config.method_file, config)


def _build(file: Declaration, config: Config) -> Method:
    method = file.call(FILES, config)
    if not isinstance(method, Method):
        raise SettingError("method", file.path, f"its function `method` returns {type(method).__name__}, not a Method")
    sample = method.sample or sampler_of(config, second_phase=method.finish is not None)
    return with_settings(dataclasses.replace(method, name=file.name, sample=sample), config)


def with_settings(method: Method, config: Config) -> Method:
    """The method as the settings that all methods share change it: who takes part, who averages, which batches."""
    changes: dict[str, Any] = {}
    if config.sampling != "own":
        changes["sample"] = sampler_of(config, second_phase=method.finish is not None)
    if config.aggregator != "own":
        changes["aggregate"] = AGGREGATORS[config.aggregator](config)
    if config.labeled_batch_size is not None and not isinstance(method.batches, Labeled):
        changes["batches"] = Separate(config.labeled_batch_size, config.batch_size)
    return dataclasses.replace(method, **changes) if changes else method


# What `--aggregator` takes.
AGGREGATORS: dict[str, Callable[[Config], Aggregate]] = {
    "mean": lambda config: by_data_amount,
    "dma": lambda config: SubConsensus(DISTANCES[config.distance]),
    "median": lambda config: median,
    "trimmed_mean": lambda config: trimmed_mean,
    "krum": lambda config: krum,
    "multi_krum": lambda config: multi_krum,
    "geometric_median": lambda config: geometric_median,
}


class _Methods(Mapping[str, Callable[[Config], Method]]):
    """The methods of the package by name, each a function of a config; a file is run when it is asked for."""

    def __getitem__(self, name: str) -> Callable[[Config], Method]:
        file = FILES.declarations[name]

        def build(config: Config) -> Method:
            return _build(file, config if config.method == name else config.replace(method=name))

        return build

    def __iter__(self) -> Iterator[str]:
        return iter(FILES.declarations)

    def __len__(self) -> int:
        return len(FILES.declarations)


METHODS = _Methods()
