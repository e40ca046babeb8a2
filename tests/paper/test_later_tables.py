"""The tables of later papers as lists of rows."""

import json
from importlib import resources

import pytest

from rscfed_jax.config import SETTINGS, Config, SettingError
from rscfed_jax.config.registry import METHODS
from rscfed_jax.paper.later import LATER_TABLES
from rscfed_jax.paper.tables import DECIDED, decided_by, rows_of

PUBLISHED = json.loads(resources.files("rscfed_jax.paper").joinpath("published.json").read_text())
BESIDE = ("source", "protocol", "columns")
EVERYWHERE = ["svhn", "cifar10", "cifar100", "isic2018", "fashion", "synthetic:classes=3"]
RESIDUAL_OFF = {"balanced": False, "tail": False, "server_residual": False, "local_residual": False}


def configs(table, dataset, **settings) -> dict[str, Config]:
    """The rows of a table as the configs that would run."""
    common = LATER_TABLES[table].defaults({"dataset": dataset} | settings)
    rows = rows_of(table, dataset, settings)
    chosen = {"dataset": dataset} | settings
    return {row.name: Config(**common | row.defaults | chosen | row.settings) for row in rows}


@pytest.mark.parametrize("table", LATER_TABLES)
@pytest.mark.parametrize("dataset", EVERYWHERE)
def test_every_row_is_a_config_and_has_a_published_accuracy_where_there_is_one(table, dataset):
    rows = rows_of(table, dataset)
    assert len({row.name for row in rows}) == len(rows) == len(configs(table, dataset))
    for row in rows:
        assert row.name.isascii()
        assert " " not in row.name
        assert set(row.paper) == ({"accuracy"} if dataset in LATER_TABLES[table].datasets else set())
        assert not set(row.settings) & set(row.defaults)


@pytest.mark.parametrize("table", LATER_TABLES)
def test_a_table_runs_the_paper_it_is_named_after_last_and_with_other_networks_and_rounds(table):
    last = list(configs(table, "fashion").values())[-1]
    assert last.method == table.partition("-")[0]
    small = configs(table, "fashion", model="simple-cnn", rounds=30, train_fraction=0.1)
    assert {(config.model, config.rounds) for config in small.values()} == {("simple-cnn", 30)}


def test_published_accuracies_are_percentages_of_known_columns():
    for table in LATER_TABLES:
        part = PUBLISHED[table]
        for name, row in part.items():
            if name in BESIDE:
                continue
            values = {dataset: value for dataset, value in row.items() if dataset != "what"}
            assert set(LATER_TABLES[table].datasets) <= set(values)
            for value in values.values():
                numbers = value if isinstance(value, list) else [value]
                assert len(numbers) == {"sage": 3, "semifl": 2}.get(table, 1)
                assert all(10 < number < 100 for number in numbers)


@pytest.mark.parametrize("table", LATER_TABLES)
def test_the_papers_own_method_is_above_rscfed_and_its_lower_bound(table):
    rows = {row.name: row.paper["accuracy"] for row in rows_of(table, "svhn")}
    assert list(rows.values())[-1] > max(rows.get(name, 0) for name in ("rscfed", "fedavg_lower", "labels_only"))


@pytest.mark.parametrize(
    ("table", "dataset", "settings", "name", "accuracy"),
    [
        ("cbafed-table1", "svhn", {}, "cbafed", 88.07),
        ("cbafed-table1", "fashion", {}, "fedavg_plus", 78.26),
        ("semianagg", "cifar100", {}, "semianagg", 49.23),
        ("sage", "cifar10", {}, "sage", 87.05),
        ("sage", "cifar10", {"gamma": 1}, "sage", 89.08),
        ("sage", "svhn", {"gamma": 0.5}, "fixmatch_gpl", 91.94),
        ("semifl", "cifar10", {}, "semifl_2_classes", 60.0),
        ("semifl", "cifar10", {"server_labels": 400}, "labels_only", 76.9),
        ("semifl", "svhn", {"server_labels": 100}, "fedrgd_dir0.1", 23.8),
    ],
)
def test_a_setting_chooses_the_published_column(table, dataset, settings, name, accuracy):
    row = next(row for row in rows_of(table, dataset, settings) if row.name == name)
    assert row.paper == {"accuracy": pytest.approx(accuracy / 100)}


@pytest.mark.parametrize(("table", "settings"), [("sage", {"gamma": 0.3}), ("semifl", {"server_labels": 30})])
def test_a_column_that_was_not_published_has_no_numbers(table, settings):
    assert not any(row.paper for row in rows_of(table, "svhn", settings))


def test_rows_of_cbafed_and_semianagg_mean_what_their_names_say():
    svhn = configs("cbafed-table1", "svhn")
    assert {(config.model, config.stem, config.rounds) for config in svhn.values()} == {
        ("resnet18-linear", "imagenet", 500)
    }
    assert (svhn["fedavg_upper"].labeled_clients, svhn["fedavg_lower"].labeled_clients) == (10, 1)
    plus = svhn["fedavg_plus"]
    assert (plus.samples, plus.warmup_rounds, plus.own["labeled_epochs"], plus.own["server_keep"]) == (
        *("labeled", 0),
        *(1, 0.8),
    )
    assert RESIDUAL_OFF.items() <= svhn["fed_consist_plus"].own.items()
    assert svhn["fed_consist_plus"].labeled_share == svhn["cbafed"].labeled_share == "off"
    assert svhn["fed_consist"].labeled_share == svhn["fedirm"].labeled_share == 0.5
    assert (svhn["cbafed"].own["cap"], svhn["cbafed"].warmup_rounds) == (0.9, 45)
    hundred = configs("cbafed-table1", "cifar100")["cbafed"]
    assert (hundred.rounds, hundred.own["cap"], hundred.warmup_rounds) == (1000, 0.95, 91)
    isic = configs("cbafed-table1", "isic2018")["cbafed"]
    assert (isic.batch_size, isic.lr_labeled, isic.labeled_multiplier) == (12, 0.002, 10.0)
    stems = {dataset: configs("semianagg", dataset)["rscfed"].stem for dataset in ("svhn", "isic2018")}
    assert stems == {"svhn": "cifar", "isic2018": "imagenet"}


def test_rows_of_sage_and_semifl_mean_what_their_names_say():
    sage = configs("sage", "cifar10", gamma=0.5, train_fraction=0.2)
    assert {(config.clients, config.subsets, config.subset_size) for config in sage.values()} == {(20, 1, 8)}
    assert {config.samples for config in sage.values()} == {"subsets"}
    assert {config.labeled_gamma for config in sage.values()} == {None, 0.5}
    fractions = [(config.labeled_fraction, config.train_fraction) for config in sage.values()]
    assert fractions == [(1.0, 0.02), (1.0, 0.2), *[(0.1, 0.2)] * 5]
    assert (sage["sage"].labeled_batch_size, sage["sage"].batch_size, sage["sage"].lr_labeled) == (128, 256, 0.1)
    assert (sage["fixmatch_lpl"].own["labels"], sage["fixmatch_gpl"].own["labels"]) == ("own", "global")
    assert sage["fedprox_fixmatch"].prox_mu == 0.001
    assert configs("sage", "svhn")["sage"].rounds == 150
    semifl = configs("semifl", "cifar100", rounds=50)
    assert {(config.model, config.cosine_rounds, config.server_labels) for config in semifl.values()} == {
        ("wrn28-8", 50, 25)
    }
    assert {config.labels_at for config in semifl.values()} == {"server"}
    split = [(config.gamma, config.classes_per_client) for config in semifl.values()]
    assert split == [("iid", None), (0.1, None), (0.1, None), (0.3, None), (None, 2), ("iid", None)]


@pytest.mark.parametrize("table", LATER_TABLES)
def test_rows_decide_known_settings_and_leave_the_rest_to_the_user(table):
    rows = rows_of(table, "svhn")
    decided = decided_by(table, rows)
    own = {setting.name for method in METHODS.declarations.values() for setting in method.settings}
    assert set(DECIDED) - {"server_labels"} <= decided <= {*SETTINGS, *own}
    assert not decided & {"rounds", "model", "stem", "train_fraction", "dataset", "batch_size", "warmup_rounds"}
    assert ("gamma" in decided) == (table == "semifl")
    assert ("server_labels" in decided) == (table != "semifl")


def test_a_wrong_value_that_rows_follow_is_refused():
    with pytest.raises(SettingError, match="--train-fraction much: must be a number"):
        rows_of("sage", "svhn", {"train_fraction": "much"})
