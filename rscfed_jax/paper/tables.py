"""Every table that `reproduce` knows, and which settings its rows decide."""

import json
from collections.abc import Iterable
from importlib import resources
from typing import Any

from rscfed_jax.config import SettingError
from rscfed_jax.paper.later import LATER_TABLES
from rscfed_jax.paper.rscfed import RSCFED_TABLES
from rscfed_jax.paper.table import Row, Table

TABLES: dict[str, Table] = RSCFED_TABLES | LATER_TABLES
# What the rows of every table decide, unless a table offers it; the rest of a config is the user's.
DECIDED = (
    *("method", "clients", "labeled_clients", "labeled_fraction", "labeled_share", "labeled_multiplier"),
    *("labels_at", "server_labels", "labeled_gamma"),
    *("subsets", "subset_size", "seed"),
)


def find(table: str) -> Table:
    """The table of this name."""
    if table not in TABLES:
        raise SettingError("TABLE", table, f"must be one of {', '.join(TABLES)}")
    return TABLES[table]


def rows_of(table: str, dataset: str, settings: dict[str, Any] | None = None) -> list[Row]:
    """The rows of a table for a data set; `settings` are the user's, which the rows of some tables follow."""
    found = find(table)
    numbers = json.loads(resources.files("rscfed_jax.paper").joinpath(found.numbers).read_text())
    return found.rows((settings or {}) | {"dataset": dataset}, numbers)


def decided_by(table: str, rows: Iterable[Row]) -> set[str]:
    """The settings that the user cannot give for a table."""
    return {*DECIDED, *(name for row in rows for name in row.settings)} - set(find(table).offers)
