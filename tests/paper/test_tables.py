"""RSCFed's tables as lists of rows."""

import pytest

from rscfed_jax.config import Config, SettingError
from rscfed_jax.paper.rscfed import RSCFED_TABLES
from rscfed_jax.paper.tables import DECIDED, TABLES, rows_of


@pytest.mark.parametrize("table", RSCFED_TABLES)
@pytest.mark.parametrize("dataset", ["svhn", "cifar100", "isic2018", "fashion"])
def test_every_row_is_a_config_with_a_name_of_its_own(table, dataset):
    rows = rows_of(table, dataset)
    assert len({row.name for row in rows}) == len(rows) > 1
    for row in rows:
        assert row.name.isascii()
        assert " " not in row.name
        assert set(row.settings) <= set(DECIDED)
        Config(dataset=dataset, **row.settings)
        assert bool(row.paper) == (dataset in TABLES[table].datasets and table not in ("figure2", "labeled_share"))


@pytest.mark.parametrize(
    ("table", "dataset", "name", "accuracy", "auc"),
    [
        ("table1", "svhn", "fedavg_upper", 82.05, 97.82),
        ("table1", "cifar100", "rscfed", 15.82, 81.41),
        ("table1", "isic2018", "fedirm", 68.1, 84.11),
        ("table2", "svhn", "basic_sso", 69.15, 95.2),
        ("table3", "svhn", "fedirm_original", 59.75, 87.4),
        ("table4", "svhn", "rscfed_50", 60.18, 91.5),
        ("table5", "svhn", "fed_consist", 77.54, 96.63),
        ("table6", "svhn", "rscfed_9_models_3x3", 69.25, 95.0),
        ("table6", "svhn", "fed_consist_10_models", 66.94, 94.2),
        ("table7", "svhn", "2x7", 70.13, 95.4),
    ],
)
def test_the_papers_numbers_stand_beside_their_rows(table, dataset, name, accuracy, auc):
    row = next(row for row in rows_of(table, dataset) if row.name == name)
    assert row.paper["accuracy"] == pytest.approx(accuracy / 100)
    assert row.paper["auc"] == pytest.approx(auc / 100)


def test_rows_mean_what_their_names_say():
    seven = {row.name: Config(**row.settings) for row in rows_of("table7", "svhn")}
    assert {name: (config.subsets, config.subset_size) for name, config in seven.items()} == {
        "3x5": (3, 5),
        "5x3": (5, 3),
        "2x7": (2, 7),
        "4x4": (4, 4),
    }
    three = {row.name: Config(**row.settings) for row in rows_of("table3", "svhn")}
    assert (three["fedirm_original"].labeled_share, three["fedirm_adjusted"].labeled_share) == ("off", 0.5)
    assert {config.labeled_clients for config in three.values()} == {2}
    one = {row.name: Config(**row.settings) for row in rows_of("table1", "svhn")}
    assert (one["fedavg_upper"].labeled_clients, one["fedavg_lower"].labeled_clients) == (10, 1)
    five = [Config(**row.settings) for row in rows_of("table5", "svhn")]
    assert {(config.labeled_fraction, config.labeled_share) for config in five} == {(0.1, "off")}


def test_an_unknown_table_is_refused():
    with pytest.raises(SettingError, match="TABLE table8: must be one of table1, "):
        rows_of("table8", "svhn")
