"""The tables of the paper as lists of rows: a row is its name, its settings and the paper's numbers.

Choices where the paper is silent: Table 6 sends 8, 9 and 10 models a round as 2x4, 3x3 and 2x5 subsets; Table 4 keeps
3x5 for every number of clients; the labeled share is searched with Fed-Consist, for which the paper describes it.
"""

import json
from collections.abc import Callable
from importlib import resources
from typing import Any, NamedTuple

from rscfed_jax.config import SettingError

UPPER_BOUND = "fedavg_upper"
PAPER_DATASETS = ("svhn", "cifar100", "isic2018")
ORIGINAL = {"labeled_share": "off", "labeled_multiplier": 1.0}
CLIENT_COUNTS = (5, 10, 15, 25, 35, 50)
BY_MODELS = {8: (2, 4), 9: (3, 3), 10: (2, 5), 15: (3, 5)}
LABELED_SHARES = (0.2, 0.3, 0.5, 0.7)


class Row(NamedTuple):
    """A line of a table."""

    name: str  # plain ASCII; also a directory's name
    settings: dict[str, Any]
    paper: dict[str, float]  # the paper's metrics as fractions; empty where it gives none


class Table(NamedTuple):
    """A table of the paper."""

    title: str
    rows: Callable[[str, dict[str, Any]], list[Row]]  # of a data set, given the paper's numbers
    datasets: tuple[str, ...] = ("svhn",)  # for which the paper has numbers


def paper_results() -> dict[str, Any]:
    """Every number of the paper's tables, in percent."""
    return json.loads(resources.files("rscfed_jax.paper").joinpath("results.json").read_text())


def _metrics(columns: list[str], values: list[float] | None) -> dict[str, float]:
    return {name: value / 100 for name, value in zip(columns, values or [], strict=False)}


def _table1(dataset: str, numbers: dict[str, Any]) -> list[Row]:
    part = numbers["table1_leaderboard"]
    settings_by_row: dict[str, dict[str, Any]] = {
        UPPER_BOUND: {"method": "fedavg", "labeled_clients": 10},
        "fedavg_lower": {"method": "fedavg"},
        "fedirm": {"method": "fedirm"},
        "fed_consist": {"method": "fed_consist"},
        "rscfed": {"method": "rscfed"},
    }
    known = part.get(dataset, {})
    return [
        Row(name, settings, _metrics(part["columns"], known.get(name, {}).get("values")))
        for name, settings in settings_by_row.items()
    ]


def _table2(dataset: str, numbers: dict[str, Any]) -> list[Row]:
    part = numbers["table2_components"]
    methods = {"basic": "fed_consist", "basic_sso": "sso", "rscfed": "rscfed"}
    known = part.get(dataset, {})
    return [
        Row(name, {"method": method}, _metrics(part["columns"], known.get(name))) for name, method in methods.items()
    ]


def _table3(dataset: str, numbers: dict[str, Any]) -> list[Row]:
    part = numbers["table3_two_labeled"]
    settings_by_row: dict[str, dict[str, Any]] = {
        "fedirm_original": {"method": "fedirm", **ORIGINAL},
        "fedirm_adjusted": {"method": "fedirm"},
        "fed_consist": {"method": "fed_consist"},
        "rscfed": {"method": "rscfed"},
    }
    return [
        Row(name, {**settings, "labeled_clients": 2}, _of(part, dataset, part[name]))
        for name, settings in settings_by_row.items()
    ]


def _table4(dataset: str, numbers: dict[str, Any]) -> list[Row]:
    part = numbers["table4_client_count"]
    return [
        Row(f"{method}_{count}", {"method": method, "clients": count}, _of(part, dataset, part[str(count)][method]))
        for count in CLIENT_COUNTS
        for method in ("fed_consist", "rscfed")
    ]


def _table5(dataset: str, numbers: dict[str, Any]) -> list[Row]:
    part = numbers["table5_partially_labeled"]
    settings = {"labeled_fraction": part["labeled_fraction"], **ORIGINAL}
    return [
        Row(method, {"method": method, **settings}, _of(part, dataset, part[method]))
        for method in ("fed_consist", "rscfed")
    ]


def _table6(dataset: str, numbers: dict[str, Any]) -> list[Row]:
    part = numbers["table6_communication"]
    columns = part["columns"][2:]
    known = {row[0]: row[2:] for row in part["rscfed"]} if dataset == part["dataset"] else {}
    basic = _metrics(columns, part["fed_consist"][0][2:] if dataset == part["dataset"] else None)
    return [
        Row("fed_consist_10_models", {"method": "fed_consist"}, basic),
        *(
            Row(
                f"rscfed_{models}_models_{subsets}x{size}",
                {"method": "rscfed", "subsets": subsets, "subset_size": size},
                _metrics(columns, known.get(models)),
            )
            for models, (subsets, size) in BY_MODELS.items()
        ),
    ]


def _table7(dataset: str, numbers: dict[str, Any]) -> list[Row]:
    part = numbers["table7_subsets"]
    rows = []
    for name in ("3x5", "5x3", "2x7", "4x4"):
        subsets, size = map(int, name.split("x"))
        settings = {"method": "rscfed", "subsets": subsets, "subset_size": size}
        rows.append(Row(name, settings, _of(part, dataset, part[name])))
    return rows


def _figure2(dataset: str, numbers: dict[str, Any]) -> list[Row]:
    del dataset, numbers
    return [
        Row("fedirm_original", {"method": "fedirm", **ORIGINAL}, {}),
        Row("fedirm_adjusted", {"method": "fedirm"}, {}),
        Row("fed_consist_original", {"method": "fed_consist", **ORIGINAL}, {}),
        Row("fed_consist_adjusted", {"method": "fed_consist"}, {}),
        Row("rscfed", {"method": "rscfed"}, {}),
    ]


def _labeled_share(dataset: str, numbers: dict[str, Any]) -> list[Row]:
    del dataset, numbers
    return [
        Row(f"share_{share:.0%}".replace("%", ""), {"method": "fed_consist", "labeled_share": share}, {})
        for share in LABELED_SHARES
    ]


def _of(part: dict[str, Any], dataset: str, values: list[float]) -> dict[str, float]:
    return _metrics(part["columns"], values if dataset == part["dataset"] else None)


TABLES: dict[str, Table] = {
    "table1": Table("Table 1: all methods, one labeled client of ten", _table1, PAPER_DATASETS),
    "table2": Table("Table 2: what each component brings", _table2, PAPER_DATASETS),
    "table3": Table("Table 3: two labeled clients of ten", _table3),
    "table4": Table("Table 4: the number of clients, one of them labeled", _table4),
    "table5": Table("Table 5: every client holds 10% of its labels", _table5),
    "table6": Table("Table 6: models sent to the server in a round", _table6),
    "table7": Table("Table 7: subsets M x clients K", _table7),
    "figure2": Table("Figure 2: test accuracy against round", _figure2),
    "labeled_share": Table("The labeled clients' share of the weight", _labeled_share),
}
# What the rows decide; the rest of a config is the user's.
DECIDED = (
    *("method", "clients", "labeled_clients", "labeled_fraction", "labeled_share", "labeled_multiplier"),
    *("labels_at", "server_labels", "labeled_gamma"),
    *("subsets", "subset_size", "seed"),
)


def rows_of(table: str, dataset: str) -> list[Row]:
    """The rows of a table for a data set."""
    if table not in TABLES:
        raise SettingError("TABLE", table, f"must be one of {', '.join(TABLES)}")
    return TABLES[table].rows(dataset, paper_results())
