"""The command line: its flags, its help and its exit codes."""

import pytest

from rscfed_jax import cli
from rscfed_jax.cli import commands, parser
from rscfed_jax.cli.parser import method_files
from tests.helpers import MINE, run

COMMANDS = ["train", "evaluate", "reproduce", "grid", "plan", "export", "report", "data"]


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)], ids=" ".join)
def test_help_everywhere(capsys, command):
    assert run(*command, "--help") == 0
    usage = capsys.readouterr().out.partition("\n\n")[0]
    assert usage.startswith("usage: rscfed-jax")
    assert "\n" not in usage  # not a list of all flags


def test_help_names_the_settings_of_a_users_method(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(MINE)
    for command in ("train", "grid", "plan"):
        assert run(command, "--method", tmp_path / "mine.py", "--help") == 0
        text = " ".join(capsys.readouterr().out.split())
        assert "--mine-threshold F factor of the loss (default 0.9)" in text


@pytest.mark.parametrize(
    ("argv", "files"),
    [
        (["train", "--method", "./mine.py"], ["./mine.py"]),
        (["train", "--method=a/b.py", "--rounds", "3"], ["a/b.py"]),
        (["grid", "--set", "method=sso, a.py,b.py", "--method", "a.py"], ["a.py", "b.py"]),
        (["grid", "--set=method=a.py", "--set", "model=net.py"], ["a.py"]),
        (["train", "--method", "rscfed", "--model", "net.py"], []),
        (["train", "--method"], []),
    ],
)
def test_files_of_methods_are_found_before_the_flags_are_known(argv, files):
    assert method_files(argv) == files


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (KeyboardInterrupt(), 130, "rscfed-jax train: stopped\n"),
        (ZeroDivisionError("no"), 1, "ZeroDivisionError: no\n"),
        (None, 0, ""),
    ],
)
def test_the_exit_code_tells_how_a_command_ended(monkeypatch, capsys, error, code, said):
    def end(arguments):
        if error is not None:
            raise error
        return 0

    monkeypatch.setattr(commands, "train", end)
    assert run("train") == code
    assert capsys.readouterr().err.endswith(said)


def test_abbreviations_are_not_guessed(capsys):
    assert run("train", "--round", "3") == 2
    assert "unrecognized arguments: --round 3" in capsys.readouterr().err


def test_the_version_is_told(capsys):
    assert run("--version") == 0
    assert capsys.readouterr().out.strip()[0].isdigit()
    assert cli.main is parser.main
