"""Data that say which client holds each sample: refused settings, runs, grids, and what a reader sees."""

import json

import numpy as np
import pytest

import rscfed_jax as rj
from rscfed_jax.data.federation import build_federation
from rscfed_jax.data.loaders.synthetic import synthetic
from rscfed_jax.runner.sweep import cells_of, programs_of
from rscfed_jax.storage.run_directory import load_config
from tests.helpers import SMALL, StopAfter, assert_same_run, flags_of, run

SIZES = (30, 12, 7, 1)
IDS = np.repeat(["w0047", "w0012", "w0102", "w0003"], SIZES)
OF_RUNS = {name: value for name, value in SMALL.items() if name not in ("dataset", "gamma")} | {"subset_size": 2}
DATA = synthetic(train=50, test=40, classes=3, size=16, channels=3, seed=0)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """An npz of four clients, whose samples are not in the order of their names."""
    path = tmp_path_factory.mktemp("natural") / "writers.npz"
    arrays = {name: getattr(DATA, name) for name in ("train_images", "train_labels", "test_images", "test_labels")}
    np.savez(path, **arrays, train_clients=IDS)
    return path


@pytest.fixture
def settings(file):
    return {"dataset": f"npz:{file}"} | OF_RUNS


def test_clients_hold_their_own_samples_in_the_order_of_their_names(settings):
    federation = build_federation(rj.Config(**settings))
    assert federation.client_names == ("w0003", "w0012", "w0047", "w0102")
    assert [set(IDS[part]) for part in federation.samples] == [{name} for name in federation.client_names]
    assert federation.sizes.tolist() == [1, 12, 30, 7]
    assert sorted(np.concatenate(federation.samples)) == list(range(50))


@pytest.mark.parametrize(
    ("more", "labeled"),
    [
        ({}, [False, False, True, False]),  # most classes, and most samples of its smallest
        ({"labeled_choice": "first", "labeled_clients": 2}, [True, True, False, False]),
        ({"labeled_clients": 4}, [True] * 4),
        ({"labeled_fraction": 0.5}, [True] * 4),
        ({"labels_at": "server", "server_labels": 1}, [False] * 4 + [True]),
    ],
)
def test_who_holds_labels_is_chosen_as_ever(settings, more, labeled):
    federation = build_federation(rj.Config(**settings | {"seed": 2} | more))
    assert federation.labeled.tolist() == labeled
    assert federation.client_names == ("w0003", "w0012", "w0047", "w0102")


REFUSED = [
    (
        "--gamma 0.5",
        "--gamma 0.5: npz:writers.npz says which client holds each sample; leave it out, or give --partition",
    ),
    ("--gamma iid", "--gamma iid: npz:writers.npz says which client holds each sample"),
    ("--classes-per-client 2", "--classes-per-client 2: npz:writers.npz says which client"),
    ("--partition-file p.npz", "--partition-file p.npz: npz:writers.npz says which client"),
    ("--labeled-fraction 0.5 --labeled-gamma 1", "--labeled-gamma 1.0: npz:writers.npz says which client"),
    ("--min-client-size 3", "--min-client-size 3: npz:writers.npz says which client"),
    ("--clients 5", "--clients 5: npz:writers.npz says which of 4 clients holds each sample; must be 4, or give"),
    (
        "--clients 5 --partition natural",
        "--clients 5: the data set says which of 4 clients holds each sample; must be 4",
    ),
    ("--labeled-clients 5", "--labeled-clients 5: must be from 1 to --clients 4"),
    ("--partition mine", "--partition mine: must be one of drawn, natural"),
    ("--labels-at server --server-labels 16", "--server-labels 16: would take all samples of client w0003"),
]


@pytest.mark.parametrize(("flags", "said"), REFUSED, ids=[flags for flags, _ in REFUSED])
def test_settings_of_a_drawn_partition_are_refused_in_one_line(file, monkeypatch, capsys, flags, said):
    monkeypatch.chdir(file.parent)
    assert run("data", "npz:writers.npz", *flags.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert said in err


def test_data_that_do_not_name_clients_are_refused_as_natural(capsys):
    assert run("data", "fashion", "--partition", "natural") == 2
    assert "--partition natural: fashion does not name its clients; must be drawn" in capsys.readouterr().err


def test_a_partition_may_be_drawn_instead(settings):
    config = rj.Config(**settings, partition="drawn", clients=3, gamma="iid")
    federation = build_federation(config)
    assert (federation.sizes.tolist(), federation.client_names) == ([17, 17, 16], ())


def test_the_right_number_of_clients_may_be_given(settings):
    assert rj.Config(**settings, clients=4).partition == "natural"


def test_validation_takes_a_part_of_each_client_and_never_all(settings):
    federation = build_federation(rj.Config(**settings, validation=0.9))
    assert federation.sizes.tolist() == [1, 1, 3, 1]
    assert len(federation.dataset.test_labels) == 44


def test_a_data_set_made_in_python_names_its_clients():
    dataset = DATA._replace(train_clients=IDS)
    config = rj.Config(partition="natural", clients=4, subset_size=2)
    assert build_federation(config, dataset=dataset).sizes.tolist() == [1, 12, 30, 7]
    drawn = rj.Config(partition="drawn", clients=2, gamma="iid")
    assert build_federation(drawn, dataset=dataset).sizes.tolist() == [25, 25]
    with pytest.raises(rj.SettingError, match="the data set names 4 clients; give natural with --clients 4, or drawn"):
        build_federation(rj.Config(), dataset=dataset)
    with pytest.raises(rj.SettingError, match="--clients 10: the data set says which of 4 clients"):
        build_federation(rj.Config(partition="natural"), dataset=dataset)
    with pytest.raises(rj.SettingError, match=r"train_clients must be one client per image \(50\)"):
        build_federation(config, dataset=DATA._replace(train_clients=IDS[:3]))


def test_the_data_command_shows_names_and_sizes(file, capsys):
    assert run("data", f"npz:{file}") == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[-4:]]
    assert [(row[0], row[2], row[-1]) for row in rows] == [
        ("0", "1", "w0003"),
        ("1", "12", "w0012"),
        ("2", "30", "w0047"),
        ("3", "7", "w0102"),
    ]


def test_a_run_is_trained_resumed_evaluated_and_reported(tmp_path, settings, capsys):
    flags = flags_of(settings)
    assert run("train", *flags, "--out", tmp_path / "whole") == 0
    stored = json.loads((tmp_path / "whole" / "config.json").read_text())
    assert (stored["clients"], stored["partition"], stored["gamma"]) == (4, "natural", None)
    partition = json.loads((tmp_path / "whole" / "partition.json").read_text())
    assert partition["client_names"] == ["w0003", "w0012", "w0047", "w0102"]
    assert load_config(tmp_path / "whole", setting="PATH").to_dict() == stored
    config = rj.Config(**settings)
    with pytest.raises(rj.Stopped):
        rj.train(config.replace(checkpoint_every=2), out=tmp_path / "run", stop=StopAfter(1))
    rj.train(config, out=tmp_path / "run", resume=True)
    assert_same_run(tmp_path / "run", tmp_path / "whole")
    assert run("evaluate", tmp_path / "whole", "--model", settings["model"]) == 0
    assert run("report", tmp_path / "whole", tmp_path / "run", "--out", tmp_path / "page.html") == 0


def test_a_grid_of_natural_and_drawn_partitions_of_as_many_clients_is_one_program(settings):
    common = settings | {"clients": 4, "min_client_size": 10, "gamma": "iid"}
    cells = [
        *cells_of("natural", settings, seeds=[0], out=None),
        *cells_of("drawn", common | {"partition": "drawn"}, seeds=[0], out=None),
    ]
    assert [len(program.cells) for program in programs_of(cells)] == [2]
