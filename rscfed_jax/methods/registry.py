"""From a config to its method: the file that it names is run, and what the file leaves out is filled in."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping

from rscfed_jax.config import Config, SettingError
from rscfed_jax.config.registry import METHODS as FILES
from rscfed_jax.config.registry import SAMPLES, Declaration
from rscfed_jax.core.method import Method
from rscfed_jax.core.sampling import SAMPLERS


def method_of(config: Config) -> Method:
    """The method of a config that names one by name or file."""
    if config.method_file is None:
        raise SettingError("method", config.method, "is not built in: give the file it came from, or method= in Python")
    return _build(config.method_file, config)


def _build(file: Declaration, config: Config) -> Method:
    method = file.call(FILES, config)
    if not isinstance(method, Method):
        raise SettingError("method", file.path, f"its function `method` returns {type(method).__name__}, not a Method")
    sample = method.sample or SAMPLERS[file.get("SAMPLES", SAMPLES[0])](config)
    return dataclasses.replace(method, name=file.name, sample=sample)


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
