"""Which experiments share a program, and which resume together."""

import pytest

from rscfed_jax.config import SETTINGS, Config, Hyper, SettingError
from rscfed_jax.config.registry import METHODS as METHOD_FILES
from rscfed_jax.core.method import Method
from rscfed_jax.data.federation import build_federation
from rscfed_jax.methods.registry import METHODS
from rscfed_jax.runner.build import Objects
from rscfed_jax.runner.sweep import (
    Cell,
    cells_of,
    describe,
    federations,
    program_key,
    programs_of,
    settings_by_method,
)
from tests.helpers import SMALL

BASE = SMALL | {"gamma": 5.0, "min_client_size": 4, "drop_rate": 0.1, "byzantine": 1, "prox_mu": 0.1}


def key(own=None, **changes):
    config = Config(**BASE | changes)
    return program_key(Cell("", config, None, own), build_federation(config))


# A value of each setting that is a number of the program, other than in BASE.
NUMERIC = {
    **{name: 0.25 for name in Hyper._fields if name in SETTINGS and SETTINGS[name].kind.accepts(0.25)},
    "ema_warmup": True,
    "flip": True,
    "teacher_init": "first-selected",
    "byzantine": 2,
    "cosine_rounds": 5,
    "assumed_attackers": 2,
}


def test_experiments_share_a_program_whatever_the_numbers_of_hyper():
    changed = set()
    for name, value in NUMERIC.items():
        assert key(**{name: value}) == key(), name
        before, after = Hyper.of(Config(**BASE)), Hyper.of(Config(**BASE | {name: value}))
        changed |= {field for field in Hyper._fields if getattr(before, field) != getattr(after, field)}
    assert changed == {*Hyper._fields} - {"own", "warmup_rounds"}  # a warm-up has rounds of its own


@pytest.mark.parametrize("method", METHODS)
def test_experiments_share_a_program_whatever_the_methods_own_numbers(method):
    for setting in METHOD_FILES.declarations[method].numbers:
        other = next(
            value for value in (0.25, 2, True, False) if setting.kind.accepts(value) and value != setting.default
        )
        assert key(method=method, **{setting.name: other}) == key(method=method), setting.name
    assert key(method=method) != key(method="rscfed" if method == "sso" else "sso")


def test_seeds_and_partitions_share_a_program_too():
    fashion = {"dataset": "fashion", "train_fraction": 0.02}
    for changes in ({"seed": 1}, {"train_fraction": 0.03}):
        assert key(**fashion | changes) == key(**fashion)
    for changes in ({"gamma": 0.9}, {"labeled_choice": "first"}, {"min_client_size": 3}):
        assert key(**changes) == key()
    assert key(seed=1) != key()  # its data are others


STATIC = {
    "clients": 9,
    "subsets": 2,
    "subset_size": 4,
    "distance": "sum",
    "repeat": "share",
    "client_state": "fresh",
    "rounds": 3,
    "eval_every": 2,
    "checkpoint_every": 5,
    "warmup_rounds": 1,
    "local_epochs": 2,
    "batch_size": 8,
    "labeled_clients": 2,
    "labeled_fraction": 0.5,
    "drop_rate": 0.0,
    "prox_mu": 0.0,
    "byzantine": 0,
    "attack": "noise",
    "attackers": "largest-first",
    "aggregator": "median",
    "image_size": 20,
    "resize": 24,
    "dtype": "bfloat16",
    "conv": "plain",
    "chunk": 2,
    "devices": 2,
    "preset": "published",
    "model": "simple-cnn",
    "validation": 0.1,
    "init_from": "elsewhere",
}


@pytest.mark.parametrize("name", STATIC)
def test_what_shapes_the_program_is_not_shared(name):
    assert key(**{name: STATIC[name]}) != key()


def test_objects_share_a_program_with_equal_ones_alone():
    mine = Objects(Method(name="mine", teacher="none"))
    assert key(mine) == key(Objects(Method(name="mine", teacher="none")))
    assert key(mine) != key(Objects(Method(name="mine")))
    assert key(mine) != key()


def test_seeds_of_a_data_set_that_does_not_depend_on_them_run_together():
    cells = [Cell(f"seed {seed}", Config(seed=seed, train_fraction=0.01), None) for seed in range(3)]
    [program] = programs_of(cells)
    assert program.cells == cells
    assert program.federations[0].dataset is program.federations[2].dataset
    assert [len(part.cells) for part in programs_of(cells, most=2)] == [2, 1]


@pytest.mark.parametrize(
    ("saved", "programs"),
    [
        ({"a": [], "b": [], "c": []}, ["abc"]),
        ({"a": [20, 30, 40], "b": [20, 30], "c": []}, ["ab", "c"]),  # killed while it saved; a new one begins apart
        ({"a": [20, 30, 40], "b": [10], "c": [10]}, ["a", "bc"]),  # nothing in common
        ({"a": [10, 90, 100], "b": [10], "c": [90, 100]}, ["ac", "b"]),  # in common, but long ago
        ({"a": [-3, -2], "b": [-3], "c": [0]}, ["ab", "c"]),  # in the warm-up
        ({"a": None, "b": [10], "c": [10]}, ["bc"]),  # finished
    ],
)
def test_cells_resume_together_where_that_costs_no_more_than_a_kill(saved, programs):
    cells = [Cell(name, Config(train_fraction=0.01), None) for name in "abc"]
    found = programs_of(cells, saved=saved)
    assert ["".join(cell.name for cell in program.cells) for program in found] == programs


def test_cells_of_other_image_sizes_do_not_share_pictures():
    cells = [Cell(str(size), Config(train_fraction=0.01, image_size=size), None) for size in (16, 32)]
    first, second = federations(cells)
    assert first.dataset is not second.dataset


def test_a_cell_has_a_directory_for_each_seed_and_nothing_is_written(tmp_path):
    cells = cells_of("name", {"rounds": 3}, seeds=[4, 5], out=tmp_path / "new")
    assert [cell.name for cell in cells] == ["name, seed 4", "name, seed 5"]
    assert [cell.directory.path.name for cell in cells] == ["name-seed4", "name-seed5"]
    assert [cell.config.seed for cell in cells] == [4, 5]
    assert (cells[0].finished, cells[0].saved_rounds) == (False, [])
    assert not (tmp_path / "new").exists()


def test_the_own_settings_of_a_method_reach_its_cells_alone():
    of_method = settings_by_method({"rounds": 3, "fedirm_factor": 2.0}, ["fedirm", "sso"])
    assert of_method("fedirm") == {"rounds": 3, "fedirm_factor": 2.0}
    assert of_method("sso") == {"rounds": 3}
    with pytest.raises(
        SettingError, match=r"--fedirm-factor 2.0: is a setting of the method fedirm, which no cell has"
    ):
        settings_by_method({"fedirm_factor": 2.0}, ["sso"])


def test_a_description_tells_programs_memory_and_time():
    settings = {"train_fraction": 0.1, "rounds": 100}
    cells = [
        cell
        for method in ("sso", "fedavg")
        for cell in cells_of(method, settings | {"method": method}, seeds=(0, 1), out=None)
    ]
    *lines, last = describe(programs_of(cells), 5)
    assert lines[0].startswith("program 1: 2 cells, 0.0")
    assert lines[1:3] == ["    sso, seed 0", "    sso, seed 1"]
    assert last.startswith("5 runs, 1 of them finished; 2 programs; about 0.")
