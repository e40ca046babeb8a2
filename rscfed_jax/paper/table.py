"""What a published table is: rows of settings, with the published numbers beside them."""

from collections.abc import Callable
from typing import Any, NamedTuple


class Row(NamedTuple):
    """A line of a table."""

    name: str  # plain ASCII; also a directory's name
    settings: dict[str, Any]
    paper: dict[str, float]  # the published metrics as fractions; empty where there are none
    defaults: dict[str, Any] = {}  # noqa: RUF012 - never changed; settings that the user may change


def rounds_of_rscfed(common: dict[str, Any]) -> dict[str, Any]:
    """The defaults of RSCFed's tables."""
    del common
    return {"rounds": 1000}


class Table(NamedTuple):
    """A published table. Its rows and defaults may follow what the user chose, `common`, which names a data set."""

    title: str
    rows: Callable[[dict[str, Any], dict[str, Any]], list[Row]]  # of `common`, given the numbers of the file
    datasets: tuple[str, ...] = ("svhn",)  # for which there are published numbers
    numbers: str = "results.json"  # the file that holds them
    defaults: Callable[[dict[str, Any]], dict[str, Any]] = rounds_of_rscfed  # of `common`; the user may change them
    columns: tuple[str, ...] = ()  # settings besides the data set that choose among the published numbers
    offers: tuple[str, ...] = ()  # settings that the user may choose although rows have them
    protocol: str = "The paper has 1000 rounds on all samples and measures on the test set."
    notes: dict[str, str] = {}  # noqa: RUF012 - never changed; what to know of a data set
