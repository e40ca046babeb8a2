"""Runs in which the server holds the labels: resumed, planned, in a grid, and as a reader sees them."""

import json

import pytest

import rscfed_jax as rj
from rscfed_jax.data.federation import build_federation
from rscfed_jax.runner.build import build_simulation, tree_bytes
from rscfed_jax.runner.estimate import as_lines
from rscfed_jax.runner.sweep import cells_of, programs_of
from tests.helpers import SMALL, StopAfter, assert_same_run, flags_of, run

SETTINGS = SMALL | {"labels_at": "server", "server_labels": 6, "clients": 5, "subset_size": 3, "checkpoint_every": 2}
CONFIG = rj.Config(**SETTINGS)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "run"
    rj.train(CONFIG.replace(eval_every=2), out=out)
    return out


def test_a_stopped_run_resumes_bit_for_bit(tmp_path, whole):
    config = CONFIG.replace(eval_every=2)
    with pytest.raises(rj.Stopped):
        rj.train(config, out=tmp_path / "run", stop=StopAfter(1))
    rj.train(config, out=tmp_path / "run", resume=True)
    assert_same_run(tmp_path / "run", whole)


def test_a_run_counts_what_clients_sent_and_names_the_server(tmp_path, whole, capsys):
    summary = json.loads((whole / "summary.json").read_text())
    assert summary["models_up"] == 4 * 3 * 3  # rounds, subsets, clients in a subset
    partition = json.loads((whole / "partition.json").read_text())
    assert (partition["server"], partition["labels"]) == (5, [0] * 5 + [18])
    weights = json.loads((whole / "metrics.jsonl").read_text().splitlines()[-1])["client_weights"]
    assert weights["5"] > 0
    assert run("report", whole, "--out", tmp_path / "page.html") == 0
    assert '"server":5' in (tmp_path / "page.html").read_text().replace(" ", "")


def test_the_table_of_the_data_names_the_server(capsys):
    flags = flags_of({name: SETTINGS[name] for name in ("labels_at", "server_labels", "clients", "gamma")})
    assert run("data", SMALL["dataset"], *flags) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.split() == ["server", "18", "18", "6", "6", "6"]


def test_the_plan_counts_the_servers_work_and_not_its_models():
    federation = build_federation(CONFIG)
    told = json.loads([*as_lines(CONFIG, federation, memory=2**34, flops=None)][-1])
    steps = -(-federation.sizes // 16)
    simulation = build_simulation(CONFIG, federation)
    [own, *others] = told["clients"]
    model = tree_bytes(simulation.state.model)
    assert (own["clients"], own["models_per_round"], own["bytes_up"], own["bytes_down"]) == (5, 9, 9 * model, 5 * model)
    assert own["steps_per_round"] == pytest.approx(9 * steps[:5].mean() + 3 * steps[5])
    assert own["state_bytes"] == tree_bytes(simulation.state.clients)
    assert [row["clients"] for row in others] == [10, 50, 500, 10_000]
    assert all(row["models_per_round"] == 9 for row in others)
    for method, models in [("fedavg", 0), ("fed_consist", 5)]:
        config = CONFIG.replace(method=method)
        told = json.loads([*as_lines(config, federation, memory=2**34, flops=None)][-1])
        assert told["clients"][0]["models_per_round"] == models


def test_cells_that_differ_in_the_servers_labels_share_a_program_and_those_without_do_not():
    held = [cell for n in (4, 6) for cell in cells_of(f"{n}", SETTINGS | {"server_labels": n}, seeds=[0], out=None)]
    at_clients = {name: value for name, value in SETTINGS.items() if name not in ("labels_at", "server_labels")}
    programs = programs_of([*held, *cells_of("c", at_clients, seeds=[0], out=None)])
    assert [len(program.cells) for program in programs] == [2, 1]


def test_a_federation_of_the_other_setting_is_refused():
    other = rj.Config(**{name: value for name, value in SETTINGS.items() if "label" not in name})
    with pytest.raises(rj.SettingError, match="--labels-at server: must be clients, as in the federation"):
        build_simulation(CONFIG, build_federation(other))
    with pytest.raises(rj.SettingError, match="--labels-at clients: must be server, as in the federation"):
        build_simulation(other, build_federation(CONFIG))
