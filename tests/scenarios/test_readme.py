"""The commands of README and docs: every flag is there, every file and target too, and the quick ones run."""

import json
import re
import shlex
import tomllib

import pytest

from rscfed_jax.cli import commands
from rscfed_jax.cli.parser import _parser, method_files
from rscfed_jax.cli.settings import file_of, flags_of, settings_of_grid
from rscfed_jax.config import Config
from rscfed_jax.config.files import write_json
from rscfed_jax.config.registry import METHODS as METHOD_FILES
from rscfed_jax.methods.registry import METHODS
from rscfed_jax.paper.tables import TABLES
from rscfed_jax.runner.grid import parse_axes, points_of
from tests.helpers import ROOT, run, samples_of

README = ROOT / "README.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("[a-z]*.md"))]
SHORTER = 20  # factor by which rounds are reduced when the commands really run
PARSERS = next(iter(_parser()._subparsers._group_actions)).choices


def blocks(path):
    return re.findall(r"^```bash\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)


def ours(path):
    """The arguments of the command line's own lines in a page's bash blocks."""
    whole = [line for block in blocks(path) for line in block.replace("\\\n", "").splitlines()]
    return [words[1:] for line in whole if (words := shlex.split(line, comments=True))[:1] == ["rscfed-jax"]]


OURS = [arguments for page in PAGES for arguments in ours(page)]


def write_files(here):
    """The files that readers save from the pages, and the settings of the run that the pages begin with."""
    for page in PAGES:
        tables = re.findall(r"^<!-- file: (\S+) -->\n```toml\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
        for name, text in (*samples_of(page)[0].items(), *tables):
            (here / name).write_text(text)
    (here / "runs" / "first").mkdir(parents=True)
    write_json(here / "runs" / "first" / "config.json", Config(warmup_rounds=7, rounds=40).to_dict())


def test_the_pages_show_every_command():
    assert {arguments[0] for arguments in OURS} >= set(PARSERS)
    assert {arguments[0] for arguments in ours(README)} >= {"train", "reproduce"}


@pytest.mark.parametrize("arguments", OURS, ids=" ".join)
def test_every_flag_is_there_and_every_value_is_allowed(tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path)
    files = method_files(arguments)
    parsed = _parser([setting for file in files for setting in METHOD_FILES.find(file).settings]).parse_args(arguments)
    parsed.methods = files
    parsed.config_file = file_of(parsed)
    settings = commands.settings_of(parsed)
    if parsed.command == "reproduce":
        assert parsed.table in TABLES
    elif parsed.command == "grid":
        settings, axes = settings_of_grid(parsed, parse_axes(parsed.set or [], flags_of(parsed)))
        points_of(settings, axes, seeds=1, out=None)
    elif parsed.command not in ("export", "report"):
        Config(**settings)


@pytest.mark.parametrize(
    "arguments", [each for each in OURS if "--dry-run" in each and "--target" not in each], ids=" ".join
)
def test_dry_runs_run(arguments, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert run(*arguments) == 0
    assert "programs; about" in capsys.readouterr().out
    assert sorted(tmp_path.rglob("*")) == before


def test_every_flag_in_the_text_is_there():
    everywhere = {option for parser in PARSERS.values() for option in parser._option_string_actions}
    for page in PAGES:
        for flag in re.findall(r"`(--[a-z][a-z-]+)", page.read_text()):
            assert flag in everywhere or flag.startswith("--my-"), f"{page.name}: {flag}"


def test_every_table_and_every_method_is_named():
    for name in METHODS:
        assert f"`{name}`" in README.read_text()
    everything = "".join(page.read_text() for page in PAGES)
    for name in TABLES:
        assert f"`{name}`" in everything


def test_every_target_script_and_extra_is_there():
    makefile = (ROOT / "Makefile").read_text()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for page in PAGES:
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
    everything = "".join(page.read_text() for page in PAGES)
    told = [float(number) for number in re.findall(r"^\| .* \| ([\d.]+) \|$", everything, re.MULTILINE)]
    for name in ("ratio_torch", "ratio_published_pipeline", "ratio_plain_vmap"):
        assert round(measured[name], 1) in told


@pytest.mark.slow
def test_the_training_commands_run_in_their_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    block = next(block for page in PAGES for block in blocks(page) if "rscfed-jax evaluate" in block)
    for line in block.splitlines():
        arguments = shlex.split(line, comments=True)[1:]
        if "--rounds" in arguments:
            place = arguments.index("--rounds") + 1
            arguments[place] = str(int(arguments[place]) // SHORTER)
        assert run(*arguments) == 0, line
    assert {"runs", "model.safetensors"} <= {path.name for path in tmp_path.iterdir()}
