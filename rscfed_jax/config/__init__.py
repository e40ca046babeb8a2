"""Settings: their kinds, presets and values, and what methods, networks and data sets declare. No JAX."""

from rscfed_jax.config.changes import HASHES, RECORD, changed
from rscfed_jax.config.config import Config
from rscfed_jax.config.hyper import Hyper
from rscfed_jax.config.kinds import MAX_INT, Kind, Setting, SettingError, plain, read_size
from rscfed_jax.config.presets import PRESETS
from rscfed_jax.config.settings import SETTINGS

__all__ = [
    "HASHES",
    "MAX_INT",
    "PRESETS",
    "RECORD",
    "SETTINGS",
    "Config",
    "Hyper",
    "Kind",
    "Setting",
    "SettingError",
    "changed",
    "plain",
    "read_size",
]
