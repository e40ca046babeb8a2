"""What methods, networks and data sets declare: read as text, and the same as when their files are run."""

import ast
import re

import pytest

from rscfed_jax.config import SETTINGS, Config, SettingError
from rscfed_jax.config.registry import DATASETS, METHODS, NETWORKS, PACKAGE, is_path, literals_of

ROOMS = {room.setting: room for room in (METHODS, NETWORKS, DATASETS)}
FILES = [(room.setting, name) for room in ROOMS.values() for name in room.declarations]
GOOD = """
raise RuntimeError("this file was run")
NUMBERS = {"number": (0.5, "0..1", "a number")}

def method(config):
    return None
"""


@pytest.mark.parametrize(("setting", "name"), FILES)
def test_what_is_read_as_text_is_what_the_module_holds(setting, name):
    room = ROOMS[setting]
    file = room.find(name)
    module = file.load()
    assert callable(getattr(module, room.function))
    assert file.literals == {literal: getattr(module, literal) for literal in file.literals}
    for literal in ("SAMPLES", "DEFAULTS", "PRESETS", "NUMBERS", "CHOICES", "REFUSES", "NAME"):
        assert hasattr(module, literal) == (literal in file.literals), f"{literal} is computed, so nobody reads it"
    assert file.hash is None


@pytest.mark.parametrize(("setting", "name"), FILES)
def test_what_a_file_of_the_package_says_about_settings_names_settings(setting, name):
    file = ROOMS[setting].find(name)
    told = [file.get("DEFAULTS", {}), file.get("REFUSES", {}), *file.get("PRESETS", {}).values()]
    for settings in told:
        assert set(settings) <= set(SETTINGS)


def test_every_file_of_a_room_is_found_by_its_name():
    networks = {"simple-cnn", "resnet18", "resnet18-linear", "resnet8", "wrn28-2", "wrn28-8"}
    assert set(NETWORKS.declarations) == networks
    assert set(DATASETS.declarations) >= {"fashion", "svhn", "cifar10", "cifar100", "isic2018", "npz", "folder"}
    assert METHODS.find("rscfed").path == PACKAGE / "methods/rscfed.py"
    with pytest.raises(SettingError, match=r"--method fedprox: must be one of .*rscfed.*, or the path"):
        METHODS.find("fedprox")


def test_a_methods_numbers_become_settings_with_its_name_in_front():
    settings = {setting.name: setting for setting in METHODS.find("fedirm").numbers}
    temperature = settings["fedirm_temperature"]
    assert (temperature.default, temperature.flag) == (2.0, "--fedirm-temperature")
    assert temperature.group == "method fedirm"
    assert temperature.read("3") == 3.0
    with pytest.raises(SettingError, match="--fedirm-temperature -1: must be a number above 0"):
        temperature.checked(-1)


@pytest.mark.parametrize(("name", "expected"), [("a.py", True), ("./mine", True), ("rscfed", False), (None, False)])
def test_a_path_is_told_from_a_name(name, expected):
    assert is_path(name) is expected


def test_literals_are_names_in_capitals_at_the_top_level_with_values_that_need_no_running():
    source = b"""
A = 1
B: dict = {"x": (1.5, "0..1", "text")}
C = 3 * D
lower = 4
E, F = 5, 6
def function():
    G = 7
"""
    assert literals_of(ast.parse(source)) == {"A": 1, "B": {"x": (1.5, "0..1", "text")}}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("def method", "def mehtod"), "holds no method: it must define a function method"),
        (("def method(", "def method"), "is not a valid Python file: line 5"),
        (('(0.5, "0..1", "a number")', "0.5"), "number must be (default, range, help)"),
        (('"0..1"', '"between"'), "number has the range 'between', which must be like 0..1"),
        (("0.5", "1.5"), "number has the default 1.5, which must be a number from 0 to 1"),
        (("0.5", "None"), "number has no default"),
        (('"number"', '"Number"'), "the name 'Number' must be lower-case letters"),
        (("NUMBERS = {", "NUMBERS = ["), "is not a valid Python file"),
        (('NUMBERS = {"number": (0.5, "0..1", "a number")}', "NUMBERS = [1]"), "NUMBERS must be a dictionary"),
        (("NUMBERS", 'SAMPLES = "some"\nNUMBERS'), "SAMPLES 'some' must be one of subsets, all, labeled"),
        (("NUMBERS", "DEFAULTS = 3\nNUMBERS"), "DEFAULTS must be a dictionary"),
        (("NUMBERS", 'NAME = "rscfed"\nNUMBERS'), "rscfed is the name of a built-in method; rename the file"),
        (("NUMBERS", 'NAME = "My method"\nNUMBERS'), "its name 'My method' must be lower-case letters"),
    ],
)
def test_a_users_file_that_declares_nonsense_is_refused_in_one_line_without_running_it(tmp_path, change, said):
    path = tmp_path / "mine.py"
    path.write_text(GOOD)
    assert METHODS.find(str(path)).hash is not None
    path.write_text(GOOD.replace(*change))
    with pytest.raises(SettingError) as error:
        METHODS.find(str(path))
    assert str(error.value).startswith(f"--method {path}: ")
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_there_is_named():
    with pytest.raises(SettingError, match=r"--model nowhere.py: cannot be read: No such file or directory"):
        NETWORKS.find("nowhere.py")


def own_file(folder, content, name="mine.py"):
    file = folder / name
    file.write_text(f"{content}\n\n\ndef method(config):\n    raise SystemExit\n")
    return file


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('NUMBERS = {"x": (1 / 2, "0..1", "half")}', "line 1: NUMBERS must be a literal"),
        ("DEFAULTS = dict(ema=0.5)", "DEFAULTS must be a literal"),
        ('NUMBERS = {"x": ("own", "own|global", "whose")}', "mine_x takes words, not numbers: put it into CHOICES"),
        ("PRESETS = 5", "PRESETS must be a dictionary"),
        ('PRESETS = {"paper": 5}', "PRESETS must hold a dictionary for each preset"),
        ('REFUSES = {"bet": "no"}', "REFUSES name bet, which is not a setting"),
    ],
)
def test_a_declaration_that_is_none_is_refused(tmp_path, content, reason):
    with pytest.raises(SettingError, match=re.escape(reason)):
        Config(method=own_file(tmp_path, content))


def test_a_number_called_hash_cannot_overwrite_the_hash(tmp_path):
    file = own_file(tmp_path, 'NUMBERS = {"hash": (0.5, "0..1", "a number")}', name="method.py")
    with pytest.raises(SettingError, match="method_hash has the name of a setting"):
        Config(method=file)


def test_a_method_refuses_what_is_given_by_hand_not_what_is_resolved(tmp_path):
    file = own_file(tmp_path, 'REFUSES = {"flip": "does not flip"}')
    assert not Config(method=file).flip
    assert Config(method=file, preset="published").flip
    assert not Config(method=file, flip=False).flip
    with pytest.raises(SettingError, match="does not flip"):
        Config(method=file, flip=True)


def test_a_file_that_ends_the_process_is_refused(tmp_path):
    config = Config(method=own_file(tmp_path, ""))
    with pytest.raises(SettingError, match="fails with SystemExit"):
        config.method_file.call(METHODS, config)
