"""Settings from a file: a run is repeated, a user's own settings count as given by hand, and no code is run."""

import json

import pytest

import rscfed_jax as rj
from rscfed_jax.config import HASHES, PRESETS, RECORD, Config, SettingError
from rscfed_jax.config.config_file import read_config_file
from rscfed_jax.config.files import write_json
from rscfed_jax.config.registry import METHODS
from tests.helpers import MINE, ROOT


def write(path, content):
    """A file of settings, as TOML text or as a config.json."""
    if isinstance(content, dict):
        write_json(path / "config.json", content)
        return path / "config.json"
    (path / "a.toml").write_text(content)
    return path / "a.toml"


def refused(path, *, methods=(), **changes):
    """Why a file is refused."""
    with pytest.raises(SettingError) as error:
        read_config_file(path, methods=methods).changed(changes)
    said = str(error.value)
    assert said.startswith(f"--config {path}: ")
    assert "\n" not in said
    return said.removeprefix(f"--config {path}: ")


@pytest.mark.parametrize("method", METHODS.declarations)
@pytest.mark.parametrize("preset", PRESETS)
def test_a_run_of_every_method_is_repeated_exactly(tmp_path, method, preset):
    config = Config(method=method, preset=preset, dataset="svhn", data_dir="data", rounds=7, lambda_u=0.5)
    path = write(tmp_path, config.to_dict())
    again = rj.Config.from_file(path)
    assert again == config
    assert again.to_dict() == config.to_dict()
    assert rj.Config.from_file(path, seed=1) == config.replace(seed=1)
    other = rj.Config.from_file(path, method="fedavg", preset="paper")
    assert other == Config(method="fedavg", dataset="svhn", data_dir="data", rounds=7, lambda_u=0.5)


def test_what_was_resolved_is_repeated_even_where_defaults_have_changed_since(tmp_path):
    path = write(tmp_path, Config(beta=5.0).to_dict() | {"ema": 0.5, "subset_size": 4})
    again = Config.from_file(path, seed=3)
    assert (again.ema, again.subset_size, again.beta) == (0.5, 4, 5.0)
    assert again.given() == {"beta": 5.0, "seed": 3}
    other = Config.from_file(path, method="fedirm")
    assert other == Config(beta=5.0, method="fedirm")


def test_a_toml_file_holds_settings_given_by_hand(tmp_path):
    path = write(tmp_path, 'method = "fedirm"\nfedirm_factor = 3\nrounds = 7\nflip = true\n')
    config = Config.from_file(path)
    assert config == Config(method="fedirm", fedirm_factor=3.0, rounds=7, flip=True)
    assert config.to_dict()[RECORD] == ["method", "flip", "rounds", "fedirm_factor"]
    assert Config.from_file(path, method="sso", rounds=8) == Config(method="sso", rounds=8, flip=True)


def test_a_json_file_of_a_few_settings_is_like_a_toml_file(tmp_path):
    path = write(tmp_path, {"rounds": 7, "ema": 0.999, "labeled_fraction": None})
    assert not read_config_file(path).of_run
    assert Config.from_file(path, method="fedirm") == Config(method="fedirm", rounds=7, ema=0.999)


def test_of_a_run_without_a_record_what_differs_from_the_defaults_counts_as_given_by_hand(tmp_path):
    config = Config(method="fedirm", fedirm_factor=3.0, rounds=7, batch_size=64)
    old = {name: value for name, value in config.to_dict().items() if name not in (*HASHES, RECORD, "strong")}
    path = write(tmp_path, old)
    assert Config.from_file(path) == config
    assert Config.from_file(path).given() == {"method": "fedirm", "rounds": 7, "fedirm_factor": 3.0}
    assert Config.from_file(path, method="rscfed") == Config(rounds=7)


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks" / "results").rglob("config.json")), ids=lambda p: p.parent)
def test_the_runs_of_version_0_1_that_are_kept_are_read(path):
    stored = json.loads(path.read_text())
    config = Config.from_file(path)
    read = {name: value for name, value in config.to_dict().items() if name in stored}
    assert read == stored | {"preset": stored["preset"].replace("tuned", "paper")}
    other = Config.from_file(path, method="fedirm", labeled_fraction=None, balanced_softmax=False)
    assert (other.ema, other.rounds) == (0.99, stored["rounds"])


REFUSED = [
    ("bata = 3", "bata is not a setting; did you mean beta?"),
    ("batch-size = 3", "batch-size is not a setting; did you mean batch_size?"),
    ("zzzzzz = 3", "zzzzzz is not a setting; settings are the flags of train --help, with underscores"),
    ('"a\\nb" = 3', "a\\nb is not a setting"),
    ('out = "runs/a"', "out belongs to one run, not to its settings: give --out on the command line"),
    ("resume = true", "resume belongs to one run, not to its settings: give --resume on the command line"),
    ("given = []", "given is not a setting"),
    ('method_hash = "abc"', "method_hash is not a setting"),
    ("[data]\nclients = 3", "data is not a setting"),
    ('rounds = "5"', 'rounds = "5": must be a whole number of at least 1'),
    ("rounds = 1.5", "rounds = 1.5: must be a whole number of at least 1"),
    ("rounds = true", "rounds = true: must be a whole number of at least 1"),
    ("rounds = [5]", "rounds = a list: must be a whole number of at least 1"),
    ("rounds.a.b = 5", "rounds = a table: must be a whole number of at least 1"),
    ("rounds = 2020-01-01", "rounds = 2020-01-01: must be a whole number of at least 1"),
    ("lr_labeled = nan", "lr_labeled = NaN: must be a number of at least 0"),
    ("lr_labeled = -inf", "lr_labeled = -Infinity: must be a number of at least 0"),
    ('repeat = "never"', 'repeat = "never": must be one of retrain, sequential, share'),
    ('flip = "yes"', 'flip = "yes": must be true or false'),
    ("data_dir = 3", "data_dir = 3: must be a path"),
    ('data_dir = "a\\u0000b"', 'data_dir = "a\\u0000b": must not contain control characters'),
    ('dataset = ""', 'dataset = "": must be a text'),
    ("fedirm_temperature = 0", "fedirm_temperature = 0: must be a number above 0"),
    ("grid = 3", "grid = 3: must be a table of lists, as in beta = [0, 100]"),
    ("[grid]\nbeta = 3", "beta = 3: must be a list of values in [grid], as in beta = [0, 100]"),
    ("[grid]\nbeta = []", "beta = a list: must be a list of values in [grid]"),
    ("[grid]\nbeta = [0, -1]", "beta = -1: must be a number of at least 0"),
    ("[grid]\nbeta = [1, 1.0]", "beta in [grid] holds a value twice"),
    ("[grid]\nbata = [1]", "bata is not a setting; did you mean beta?"),
    ("[grid]\nseed = [1, 2]", "seed in [grid]: to vary the seed, give seeds = N"),
    ("[grid]\nseeds = 0", "seeds = 0: must be a whole number from 1 to 9999"),
    ("beta = 3\n[grid]\nbeta = [1, 2]", "beta is both a setting and in [grid]; give only one"),
    (
        '[grid]\nmethod = ["sso", "./mine.py"]',
        'method = "./mine.py": a Python file is run only if the command names it',
    ),
    ({"rounds": 0}, "rounds = 0: must be a whole number of at least 1"),
    ({"bata": None}, "bata is not a setting; did you mean beta?"),
    ({"grid": {"beta": [1]}}, "grid is not a setting"),
    ({"given": 3}, "given = 3: must be a list of names of settings"),
    ({"given": ["bata"]}, "bata is not a setting; did you mean beta?"),
    ({"method_hash": 3}, "method_hash = 3: must be the hash of a file, none or null"),
    ({"method_hash": "../x"}, 'method_hash = "../x": must be the hash of a file'),
    ({"method": "mine", "method_hash": "abc", "mine_n": [1]}, "mine_n = a list: must be a number, a text, true or"),
    (Config().to_dict() | {"given": None, "method": "future"}, "--method future: must be one of"),
]


@pytest.mark.parametrize(("content", "said"), REFUSED)
def test_a_wrong_key_or_value_is_refused_by_name(tmp_path, content, said):
    assert said in refused(write(tmp_path, content))


def test_a_grid_is_read_as_flags_would_give_it(tmp_path):
    path = write(tmp_path, "rounds = 4\n[grid]\nbeta = [\n  0,\n  100,\n]\nflip = [true, false]\nseeds = 3\n")
    file = read_config_file(path)
    assert (file.settings, file.axes, file.seeds) == ({"rounds": 4}, {"beta": [0.0, 100.0], "flip": [True, False]}, 3)
    assert all(isinstance(value, float) for value in file.axes["beta"])
    with pytest.raises(SettingError, match=r"\[grid\] works only with the command grid"):
        Config.from_file(path)


@pytest.fixture
def mine(tmp_path):
    """The file of a method and of a network that must not be run."""
    (tmp_path / "mine.py").write_text(f"{MINE}\nraise SystemExit('the file was run')\n")
    (tmp_path / "net.py").write_text("def network(config):\n    pass\n\n\nraise SystemExit('the file was run')\n")
    return tmp_path / "mine.py"


@pytest.mark.parametrize("name", ["method", "model"])
@pytest.mark.parametrize("ending", ["toml", "json"])
def test_a_python_file_that_only_the_config_names_is_refused(tmp_path, mine, name, ending):
    file = tmp_path / {"method": "mine.py", "model": "net.py"}[name]
    path = write(tmp_path, f'{name} = "{file}"' if ending == "toml" else {name: str(file)})
    assert refused(path).endswith(f"a Python file is run only if the command names it; give it as --{name} PATH")
    assert getattr(Config.from_file(path, **{name: "fedavg" if name == "method" else "resnet8"}), name) != file.stem
    file.unlink()  # it is not even read
    assert "a Python file is run only if the command names it" in refused(path)


def test_the_method_of_a_run_that_came_from_a_file_must_be_named_again(tmp_path, mine):
    config = Config(method=str(mine), mine_threshold=0.5, model=str(tmp_path / "net.py"), rounds=7)
    path = write(tmp_path, config.to_dict())
    file = read_config_file(path)
    for named, missing in (({}, "method"), ({"method"}, "model"), ({"model"}, "method")):
        with pytest.raises(SettingError, match=rf"{missing} = .* names it; give it as --{missing} PATH"):
            file.check_built_in(named=named)
    file.check_built_in(named={"method", "model"})
    named = {"method": str(mine), "model": str(tmp_path / "net.py")}
    assert Config(**read_config_file(path, methods=[str(mine)]).changed(named)) == config
    stored = Config.from_file(path)  # in Python nothing is run either, until the file or an object is given
    assert (stored == config, stored.method_file) == (True, None)
    assert Config.from_file(path, **named).to_dict() == config.to_dict()
    assert Config.from_file(path, method="fedavg", model="simple-cnn") == Config(method="fedavg", rounds=7)


def test_a_run_of_objects_is_told_apart(tmp_path):
    path = write(tmp_path, Config(method="mine", method_hash="none", mine_n=3).to_dict())
    with pytest.raises(SettingError, match='method = "mine": was an object, which only Python can give again'):
        read_config_file(path).check_built_in(named=())
    assert Config.from_file(path).own == {"n": 3}


def test_the_own_settings_of_a_named_file_are_checked(tmp_path, mine):
    path = write(tmp_path, "mine_threshold = 0.5\n")
    assert refused(path).startswith("mine_threshold is not a setting")
    assert Config.from_file(path, method=mine).own == {"threshold": 0.5}
    assert "mine_threshold = 2: must be a number from 0 to 1" in refused(
        write(tmp_path, "mine_threshold = 2\n"), methods=[str(mine)]
    )
    stored = Config(method=str(mine)).to_dict() | {"mine_dropped_since": 1}
    assert "mine_dropped_since is not a setting" in refused(write(tmp_path, stored), methods=[str(mine)])
