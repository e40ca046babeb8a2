"""What a setting accepts, and how it is said."""

from pathlib import Path

import numpy as np
import pytest

from rscfed_jax.config import MAX_INT, SETTINGS, SettingError, plain, read_size
from rscfed_jax.config.kinds import SWITCH, kind_of


@pytest.mark.parametrize(
    ("text", "right", "wrong", "allowed"),
    [
        ("0..1", [0, 0.5, 1], [-0.1, 1.1, True, "1", float("nan")], "a number from 0 to 1"),
        ("0..", [0, 1e20], [-1, 1e31], "a number of at least 0"),
        ("-1..1", [-1, 1], [-2], "a number from -1 to 1"),
        (" 0 .. 1e-3 ", [0, 1e-4], [0.1], "a number from 0 to 0.001"),
        ("above 0", [1e-9, 5], [0, -1, 1e-40], "a number above 0"),
        ("above 0..1", [0.1, 1], [0, 1.1], "a number above 0 and of at most 1"),
        ("whole 1..9", [1, 9], [0, 10, 1.5, True], "a whole number from 1 to 9"),
        ("whole 0..", [0, MAX_INT], [-1, MAX_INT + 1], "a whole number of at least 0"),
        ("true|false", [True, False], [1, 0, "true"], "true or false"),
        ("a|b", ["a", "b"], ["c", None, 1], "one of a, b"),
        ("one | other", ["one", "other"], ["one "], "one of one, other"),
    ],
)
def test_a_range_says_what_it_accepts(text, right, wrong, allowed):
    kind = kind_of(text)
    assert [value for value in right if not kind.accepts(value)] == []
    assert [value for value in wrong if kind.accepts(value)] == []
    assert kind.allowed == allowed


@pytest.mark.parametrize("text", ["", "between", "5", "0-1", "below 3", "whole", "1..x", "0..1 or so"])
def test_a_range_that_says_nothing_is_refused(text):
    with pytest.raises(ValueError, match=r"must be|could not convert"):
        kind_of(text)


def test_a_switch_is_a_kind_of_its_own():
    assert kind_of("true|false") is SWITCH
    assert [SWITCH.read(text) for text in ("true", "False")] == [True, False]


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("rounds", "12", 12),
        ("gamma", "iid", "iid"),
        ("gamma", "0.5", 0.5),
        ("chunk", "auto", "auto"),
        ("chunk", "4", 4),
        ("flip", "true", True),
        ("distance", "sum", "sum"),
    ],
)
def test_text_is_read_by_kind(name, text, value):
    assert SETTINGS[name].read(text) == value


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("rounds", "many", "--rounds many: must be a whole number of at least 1"),
        ("flip", "yes", "--flip yes: must be true or false"),
        ("gamma", "flat", "--gamma flat: must be a number above 0, or iid"),
    ],
)
def test_text_that_cannot_be_read_is_refused_in_one_line(name, text, said):
    with pytest.raises(SettingError) as error:
        SETTINGS[name].read(text)
    assert str(error.value) == said
    assert error.value.setting == name


def test_a_whole_number_becomes_a_float_where_the_setting_is_one():
    assert type(SETTINGS["tau"].checked(1)) is float
    assert type(SETTINGS["rounds"].checked(1)) is int
    assert type(SETTINGS["gamma"].checked(1)) is float
    assert SETTINGS["gamma"].checked("iid") == "iid"


def test_plain_values_are_those_that_json_holds():
    assert [plain(np.float32(0.5)), plain(np.int64(3)), plain(Path("a/b")), plain("x")] == [0.5, 3, "a/b", "x"]


@pytest.mark.parametrize(
    ("text", "size"), [("16GiB", 2**34), ("16gb", 16e9), ("20T", 2e13), ("1.5e13", 1.5e13), ("4 k", 4000), ("7", 7)]
)
def test_sizes_have_units(text, size):
    assert read_size("memory", text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1", "0", "3 parsecs", "1e40", "nan"])
def test_a_size_that_is_none_is_refused(text):
    with pytest.raises(SettingError, match=r"--memory .*must be a number above 0, with an optional unit"):
        read_size("memory", text)
