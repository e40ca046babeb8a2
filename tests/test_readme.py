"""The commands of README and docs: every flag is there, every file and target too, and the quick ones run."""

import json
import re
import shlex
import tomllib

import pytest

from rscfed_jax import cli, commands
from rscfed_jax.config import METHODS, Config
from rscfed_jax.runner.grid import cells_of, parse_axes
from rscfed_jax.paper.tables import TABLES
from tests.test_docs import PAGES, ROOT

README = ROOT / "README.md"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
SHORTER = 20  # so many times fewer rounds when the commands really run


def blocks(path):
    return re.findall(r"^```bash\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)


def lines(path):
    """The commands of a page's bash blocks as words, comments left out."""
    whole = [line for block in blocks(path) for line in block.replace("\\\n", "").splitlines()]
    return [words for line in whole if (words := shlex.split(line, comments=True))]


def ours(path):
    """The arguments of the command line's own lines."""
    return [words[1:] for words in lines(path) if words[0] == "rscfed-jax"]


OURS = [arguments for page in [*PAGES, CONTRIBUTING] for arguments in ours(page)]


def test_the_readme_shows_commands_of_every_kind():
    assert {"train", "evaluate", "export", "data", "reproduce", "grid", "plan"} <= {
        arguments[0] for arguments in ours(README)
    }


@pytest.mark.parametrize("arguments", OURS, ids=" ".join)
def test_every_flag_is_there_and_every_value_is_allowed(arguments):
    parsed = cli._parser().parse_args(arguments)
    settings = commands.settings_of(parsed)
    if parsed.command == "reproduce":
        assert parsed.table in TABLES
    elif parsed.command == "grid":
        cells_of(settings, parse_axes(parsed.set, settings), seeds=1, out=None)
    elif parsed.command != "export":
        Config(**settings | ({"subset_size": 1} if parsed.command == "data" else {}))


@pytest.mark.parametrize("arguments", [a for a in OURS if "--dry-run" in a], ids=" ".join)
def test_dry_runs_run(arguments, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(arguments) == 0
    assert "programs; about" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_every_flag_in_the_text_is_there():
    everywhere = {option for parser in _parsers() for option in parser._option_string_actions}
    for page in [*PAGES, CONTRIBUTING]:
        for flag in re.findall(r"`(--[a-z][a-z-]+)", page.read_text()):
            assert flag in everywhere, f"{page.name}: {flag}"


def _parsers():
    return next(iter(cli._parser()._subparsers._group_actions)).choices.values()


def test_every_table_and_every_method_is_named():
    text = README.read_text()
    for name in [*TABLES, *METHODS]:
        assert f"`{name}`" in text


def test_every_target_script_and_extra_is_there():
    makefile = (ROOT / "Makefile").read_text()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for page in [*PAGES, CONTRIBUTING]:
        text = page.read_text()
        for target in re.findall(r"(?:^|`)make ([a-z-]+)", text, re.MULTILINE):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{page.name}: make {target}"
        for script in re.findall(r"python (benchmarks/\w+\.py)", text):
            assert (ROOT / script).exists(), f"{page.name}: {script}"
        for kept in re.findall(r"`(benchmarks/results/[\w./]+)`", text):
            assert (ROOT / kept).exists(), f"{page.name}: {kept}"
        for extra in re.findall(r"'\.\[(\w+)\]'", text):
            assert extra in extras, f"{page.name}: {extra}"


def test_the_speeds_are_those_of_the_kept_measurement():
    measured = json.loads((ROOT / "benchmarks/results/round_time.json").read_text())["result"]
    told = [float(number) for number in re.findall(r"^\| .* \| ([\d.]+) \|$", README.read_text(), re.MULTILINE)]
    for name in ("ratio_torch", "ratio_published_pipeline", "ratio_plain_vmap"):
        assert round(measured[name], 1) in told


@pytest.mark.slow
def test_the_training_commands_run_in_their_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    block = next(block for block in blocks(README) if "rscfed-jax evaluate" in block)
    for line in block.splitlines():
        arguments = shlex.split(line, comments=True)[1:]
        if "--rounds" in arguments:
            place = arguments.index("--rounds") + 1
            arguments[place] = str(int(arguments[place]) // SHORTER)
        assert cli.main(arguments) == 0, line
    assert {"runs", "model.safetensors", "partition.png"} <= {path.name for path in tmp_path.iterdir()}
