"""JSON and TOML that anyone may have written: what cannot be read is refused in a line, in no time."""

import os
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rscfed_jax.config import SettingError
from rscfed_jax.config.documents import LONGEST_LINE, cut, read_document, shown
from rscfed_jax.config.limits import LIMITS

MOST_BYTES = LIMITS["config"].default


def refuse(reason):
    """The error that a config file raises."""
    return SettingError("config", "FILE", reason)


def refused(path):
    """Why a file is refused."""
    with pytest.raises(SettingError) as error:
        read_document(path, refuse)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 300
    return str(error.value).removeprefix("--config FILE: ")


@pytest.mark.parametrize(
    ("name", "content"), [("a.json", b'{"a": 1, "b": {"c": []}}'), ("A.TOML", b"a = 1\r\nb = {c = []}\n")]
)
def test_the_name_says_what_it_is(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    assert read_document(tmp_path / name, refuse) == {"a": 1, "b": {"c": []}}


WRONG = {
    "cut.json": (b'{"rounds": 5', "is not valid JSON: Expecting ',' delimiter: line 1 column 13"),
    "nothing.json": (b"", "is not valid JSON: Expecting value"),
    "list.json": (b"[1]", "is not valid JSON: it must be an object of settings"),
    "twice.json": (b'{"a": 1, "b": 2, "a": 1}', "is not valid JSON: a appears twice"),
    "inside.json": (b'{"a": {"b": 2, "b": 2}}', "is not valid JSON: b appears twice"),
    "hundreds.json": (b'{"a":' * 300 + b"1" + b"}" * 300, "is nested in 300 levels, but at most 100 are allowed"),
    "deep.json": (b"[" * MOST_BYTES, "is nested too deeply for Python to read"),
    "deeper.json": (b'{"a":' * (MOST_BYTES // 5), "is nested too deeply for Python to read"),
    "digits.json": (b'{"a": ' + b"1" * 5000 + b"}", "is not valid JSON: Exceeds the limit"),
    "latin.json": ('{"dataset": "é"}'.encode("latin-1"), "is not UTF-8 text: byte 13"),
    "binary.json": (bytes(range(256)), "is not UTF-8 text: byte 128"),
    "large.json": (b'{"a": "' + b"a" * MOST_BYTES + b'"}', "has 100,009 bytes, but at most 100,000 are allowed"),
    "cut.toml": (b"rounds = ", "is not valid TOML: Invalid value (at end of document)"),
    "twice.toml": (b"a = 1\na = 1\n", "is not valid TOML: Cannot overwrite a value (at line 2"),
    "deep.toml": (b"a = " + b"[\n" * 20_000, "is not valid TOML: nested too deeply"),
    "dotted.toml": (b"a." * 20_000 + b"a = 1", f"line 1 is longer than {LONGEST_LINE:,} characters"),
    "latin.toml": ('a = "é"'.encode("latin-1"), "is not UTF-8 text: byte 5"),
    "large.toml": (b"#\n" * MOST_BYTES, "has 200,000 bytes, but at most 100,000 are allowed"),
    "config.yaml": (b"rounds: 5", "must be a file that ends in .json or .toml"),
    "config": (b"{}", "must be a file that ends in .json or .toml"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_read_is_refused(tmp_path, name):
    content, said = WRONG[name]
    (tmp_path / name).write_bytes(content)
    assert said in refused(tmp_path / name)


def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    assert refused(tmp_path / "pipe.json") == "must be a file that ends in .json or .toml"
    assert refused(tmp_path) == "is a directory; give a config.json or a TOML file"
    assert refused(tmp_path / "missing.json") == "cannot be read: No such file or directory"
    assert refused(tmp_path / ("x" * 300 + ".json")) == "cannot be read: File name too long"


def test_the_longest_keys_take_no_time(tmp_path):
    line = ("a." * LONGEST_LINE)[: LONGEST_LINE - 9]
    lines = [f"{line}b{number} = 1" for number in range(MOST_BYTES // LONGEST_LINE)]
    (tmp_path / "a.toml").write_text("\n".join(lines))
    begun = time.monotonic()
    assert shown(read_document(tmp_path / "a.toml", refuse)["a"]) == "a table"
    assert time.monotonic() - begun < 10  # a file of one such line takes most of a minute


@given(content=st.binary(max_size=60) | st.text(max_size=60).map(str.encode), ending=st.sampled_from(["json", "toml"]))
def test_any_bytes_are_a_document_or_refused(tmp_path_factory, content, ending):
    path = tmp_path_factory.mktemp("any") / f"a.{ending}"
    path.write_bytes(content)
    try:
        found = read_document(path, refuse)
    except SettingError as error:
        found = {"said": str(error)}
    assert "\n" not in found.get("said", "")


def test_values_are_shown_in_a_few_letters():
    assert [shown(value) for value in ("5", 5, True, None, [5], {})] == [
        '"5"',
        "5",
        "true",
        "null",
        "a list",
        "a table",
    ]
    assert shown("a\n\x00é") == '"a\\n\\u0000\\u00e9"'
    assert cut("x" * 99) == "x" * 60 + "..."
    assert cut("a\nb") == "a\\nb"
