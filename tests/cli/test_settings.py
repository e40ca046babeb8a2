"""What a command line means: flags win over a config file, that over defaults."""

import json

import pytest

from rscfed_jax.cli import commands
from rscfed_jax.cli.parser import _parser, method_files
from rscfed_jax.cli.settings import file_of, settings_of, settings_of_grid, settings_of_table
from rscfed_jax.config import PRESETS, RECORD, Config, SettingError
from rscfed_jax.config.files import write_json
from rscfed_jax.config.registry import METHODS
from rscfed_jax.runner.grid import parse_axes, points_of
from rscfed_jax.runner.table import plan
from tests.helpers import MINE, run


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working directory with the file of a method."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path


def store(**settings):
    """A run's config.json, and its config."""
    config = Config(**settings)
    write_json("config.json", config.to_dict())
    return config


def parsed(line):
    """The arguments of a command, its config file read."""
    argv = line.split()
    files = method_files(argv)
    arguments = _parser([own for file in files for own in METHODS.find(file).settings]).parse_args(argv)
    arguments.methods = files
    arguments.config_file = file_of(arguments)
    return arguments


def configs_of(line):
    """The config of every cell of a grid."""
    arguments = parsed(f"grid {line}")
    settings, axes = settings_of_grid(arguments, parse_axes(arguments.set or [], {}))
    return [cell.config for point in points_of(settings, axes, seeds=1, out=None) for cell in point.cells]


@pytest.mark.parametrize("method", METHODS.declarations)
@pytest.mark.parametrize("preset", PRESETS)
def test_train_repeats_the_run_of_every_method_exactly(here, monkeypatch, method, preset):
    begun = []

    def note(config):
        begun.append(config)
        raise SettingError("dataset", config.dataset, "is not loaded in this test")

    monkeypatch.setattr(commands, "build_federation", note)
    flags = ["--method", method, "--preset", preset, "--rounds", "7", "--clients", "20"]
    assert run("train", *flags) == 2
    write_json("config.json", begun[0].to_dict())
    for command in ("train", "plan"):
        assert run(command, "--config", "config.json") == 2
        assert begun[-1] == begun[0]
        assert begun[-1].to_dict() == begun[0].to_dict()
    assert run("train", "--config", "config.json", "--seed", "1") == 2
    assert begun[-1] == begun[0].replace(seed=1)
    assert run("train", "--config", "config.json", "--method", "fedavg", "--preset", "paper") == 2
    assert begun[-1] == Config(method="fedavg", rounds=7, clients=20)


def test_flags_win_over_the_file_and_that_over_defaults(here):
    (here / "a.toml").write_text('method = "fedirm"\nema = 0.5\nflip = true\nrounds = 7\n')
    config = Config(**settings_of(parsed("train --config a.toml --rounds 8 --no-flip")))
    assert (config.method, config.ema, config.flip, config.rounds, config.warmup_rounds) == (
        "fedirm",
        0.5,
        False,
        8,
        21,
    )
    assert set(config.given()) == {"method", "ema", "flip", "rounds"}


def test_the_file_of_a_method_is_named_again(here):
    config = store(method="mine.py", mine_threshold=0.5)
    with pytest.raises(SettingError, match="give it as --method PATH"):
        settings_of(parsed("train --config config.json"))
    assert Config(**settings_of(parsed("train --config config.json --method mine.py"))) == config
    assert Config(**settings_of(parsed("plan --config config.json --method sso"))) == Config(method="sso")


def test_a_grid_of_a_run_varies_what_flags_say(here):
    store(rounds=7, beta=5.0)
    assert configs_of("--config config.json --set beta=1,2 --tau 0.25") == [
        Config(rounds=7, beta=beta, tau=0.25) for beta in (1.0, 2.0)
    ]
    varied = configs_of("--config config.json --set clients=3,20 --seed 4")
    assert varied == [Config(rounds=7, beta=5.0, clients=clients, seed=4) for clients in (3, 20)]
    assert [config.to_dict()[RECORD] for config in varied] == [["clients", "beta", "rounds", "seed"]] * 2


def test_the_cells_of_other_methods_have_their_own_defaults(here):
    store(method="fedirm", fedirm_factor=3.0, rounds=7)
    fedirm, rscfed = configs_of("--config config.json --set method=fedirm,rscfed")
    assert fedirm == Config(method="fedirm", fedirm_factor=3.0, rounds=7)
    assert rscfed == Config(rounds=7)
    assert configs_of("--config config.json --set method=sso,mine.py") == [
        Config(method=method, rounds=7) for method in ("sso", "mine.py")
    ]
    assert [config.own for config in configs_of("--config config.json --set fedirm_factor=1,2")] == [
        Config(method="fedirm", fedirm_factor=factor).own for factor in (1.0, 2.0)
    ]


def test_a_toml_file_holds_a_whole_grid(here, capsys):
    (here / "grid.toml").write_text('rounds = 7\n[grid]\nmethod = ["rscfed", "sso"]\nbeta = [0, 100]\nseeds = 2\n')
    cells = configs_of("--config grid.toml")
    assert [(cell.method, cell.beta, cell.rounds) for cell in cells] == [
        (method, beta, 7) for method in ("rscfed", "sso") for beta in (0.0, 100.0)
    ]
    assert [cell.beta for cell in configs_of("--config grid.toml --set beta=3 --method sso")] == [3.0]
    assert [cell.method for cell in configs_of("--config grid.toml --beta 5")] == ["rscfed", "sso"]
    assert run("grid", "--config", "grid.toml", "--dry-run", "--train-fraction", "0.1") == 0
    assert "8 runs, 0 of them finished" in capsys.readouterr().out
    assert run("grid", "--config", "grid.toml", "--dry-run", "--train-fraction", "0.1", "--seeds", "1") == 0
    assert "4 runs, 0 of them finished" in capsys.readouterr().out


def test_a_table_takes_what_was_given_by_hand_for_a_run_but_not_what_its_rows_decide(here):
    store(method="fedirm", fedirm_factor=3.0, dataset="svhn", rounds=7, clients=20, seed=3, gamma="iid")
    settings = settings_of_table(parsed("reproduce table1 --config config.json --tau 0.25"))
    assert settings == {"dataset": "svhn", "rounds": 7, "gamma": "iid", "fedirm_factor": 3.0, "tau": 0.25}
    rows = plan("table1", settings, seeds=1, out="runs")
    fedirm = next(row.cells[0].config for row in rows if row.row.name == "fedirm")
    assert fedirm == Config(method="fedirm", **settings)
    assert "fedirm_factor" not in settings_of_table(parsed("reproduce table2 --config config.json"))
    guest = settings_of_table(parsed("reproduce table1 --config config.json --method mine.py"))
    assert (guest["method"], guest["rounds"]) == ("mine.py", 7)


def test_a_table_takes_every_setting_of_a_toml_file(here):
    (here / "a.toml").write_text('method = "sso"\nrounds = 7\n')
    assert settings_of_table(parsed("reproduce table1 --config a.toml")) == {"method": "sso", "rounds": 7}


def test_a_run_begun_elsewhere_does_not_decide_where_to_write(here, capsys):
    store(seed=3)
    assert "out" not in json.loads((here / "config.json").read_text())
    (here / "runs" / "fashion-rscfed-seed3").mkdir(parents=True)
    (here / "config.json").rename(here / "runs" / "fashion-rscfed-seed3" / "config.json")
    assert run("train", "--config", "runs/fashion-rscfed-seed3/config.json") == 2
    assert "--out runs/fashion-rscfed-seed3: already holds a run; add --resume" in capsys.readouterr().err
