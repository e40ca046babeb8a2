"""The tables of the RSCFed paper.

Choices where the paper is silent: Table 6 sends 8, 9 and 10 models a round as 2x4, 3x3 and 2x5 subsets; Table 4 keeps
3x5 for every number of clients; the labeled share is searched with Fed-Consist, for which the paper describes it.
"""

from typing import Any

from rscfed_jax.paper.table import Row, Table

UPPER_BOUND = "fedavg_upper"
PAPER_DATASETS = ("svhn", "cifar100", "isic2018")
ORIGINAL = {"labeled_share": "off", "labeled_multiplier": 1.0}
CLIENT_COUNTS = (5, 10, 15, 25, 35, 50)
BY_MODELS = {8: (2, 4), 9: (3, 3), 10: (2, 5), 15: (3, 5)}
LABELED_SHARES = (0.2, 0.3, 0.5, 0.7)


def _metrics(columns: list[str], values: list[float] | None) -> dict[str, float]:
    return {name: value / 100 for name, value in zip(columns, values or [], strict=False)}


def _table1(common: dict[str, Any], numbers: dict[str, Any]) -> list[Row]:
    part = numbers["table1_leaderboard"]
    settings_by_row: dict[str, dict[str, Any]] = {
        UPPER_BOUND: {"method": "fedavg", "labeled_clients": 10},
        "fedavg_lower": {"method": "fedavg"},
        "fedirm": {"method": "fedirm"},
        "fed_consist": {"method": "fed_consist"},
        "rscfed": {"method": "rscfed"},
    }
    known = part.get(common["dataset"], {})
    return [
        Row(name, settings, _metrics(part["columns"], known.get(name, {}).get("values")))
        for name, settings in settings_by_row.items()
    ]


def _table2(common: dict[str, Any], numbers: dict[str, Any]) -> list[Row]:
    part = numbers["table2_components"]
    methods = {"basic": "fed_consist", "basic_sso": "sso", "rscfed": "rscfed"}
    known = part.get(common["dataset"], {})
    return [
        Row(name, {"method": method}, _metrics(part["columns"], known.get(name))) for name, method in methods.items()
    ]


def _table3(common: dict[str, Any], numbers: dict[str, Any]) -> list[Row]:
    part = numbers["table3_two_labeled"]
    settings_by_row: dict[str, dict[str, Any]] = {
        "fedirm_original": {"method": "fedirm", **ORIGINAL},
        "fedirm_adjusted": {"method": "fedirm"},
        "fed_consist": {"method": "fed_consist"},
        "rscfed": {"method": "rscfed"},
    }
    return [
        Row(name, {**settings, "labeled_clients": 2}, _of(part, common, part[name]))
        for name, settings in settings_by_row.items()
    ]


def _table4(common: dict[str, Any], numbers: dict[str, Any]) -> list[Row]:
    part = numbers["table4_client_count"]
    return [
        Row(f"{method}_{count}", {"method": method, "clients": count}, _of(part, common, part[str(count)][method]))
        for count in CLIENT_COUNTS
        for method in ("fed_consist", "rscfed")
    ]


def _table5(common: dict[str, Any], numbers: dict[str, Any]) -> list[Row]:
    part = numbers["table5_partially_labeled"]
    settings = {"labeled_fraction": part["labeled_fraction"], **ORIGINAL}
    return [
        Row(method, {"method": method, **settings}, _of(part, common, part[method]))
        for method in ("fed_consist", "rscfed")
    ]


def _table6(common: dict[str, Any], numbers: dict[str, Any]) -> list[Row]:
    part = numbers["table6_communication"]
    columns = part["columns"][2:]
    known = {row[0]: row[2:] for row in part["rscfed"]} if common["dataset"] == part["dataset"] else {}
    basic = _metrics(columns, part["fed_consist"][0][2:] if common["dataset"] == part["dataset"] else None)
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


def _table7(common: dict[str, Any], numbers: dict[str, Any]) -> list[Row]:
    part = numbers["table7_subsets"]
    rows = []
    for name in ("3x5", "5x3", "2x7", "4x4"):
        subsets, size = map(int, name.split("x"))
        settings = {"method": "rscfed", "subsets": subsets, "subset_size": size}
        rows.append(Row(name, settings, _of(part, common, part[name])))
    return rows


def _figure2(common: dict[str, Any], numbers: dict[str, Any]) -> list[Row]:
    del common, numbers
    return [
        Row("fedirm_original", {"method": "fedirm", **ORIGINAL}, {}),
        Row("fedirm_adjusted", {"method": "fedirm"}, {}),
        Row("fed_consist_original", {"method": "fed_consist", **ORIGINAL}, {}),
        Row("fed_consist_adjusted", {"method": "fed_consist"}, {}),
        Row("rscfed", {"method": "rscfed"}, {}),
    ]


def _labeled_share(common: dict[str, Any], numbers: dict[str, Any]) -> list[Row]:
    del common, numbers
    return [
        Row(f"share_{share:.0%}".replace("%", ""), {"method": "fed_consist", "labeled_share": share}, {})
        for share in LABELED_SHARES
    ]


def _of(part: dict[str, Any], common: dict[str, Any], values: list[float]) -> dict[str, float]:
    return _metrics(part["columns"], values if common["dataset"] == part["dataset"] else None)


RSCFED_TABLES: dict[str, Table] = {
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
