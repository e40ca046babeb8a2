"""What is published: metadata that agree with each other, distributions that hold everything, and an image."""

import fnmatch
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

import rscfed_jax as rj
from tests.helpers import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text())
MIB = 2**20
LARGEST_WHEEL, LARGEST_SDIST = 8 * MIB, 14 * MIB  # 6 MiB are the embedded images
DATA = {
    "data/fashion_mnist_14k.npz",
    "data/fashion_mnist_LICENSE.txt",
    "paper/published.json",
    *(f"runner/gpus/{name}.textproto" for name in ("a100", "h100", "t4")),
    "paper/results.json",
    *(f"report/static/{name}.js" for name in ("axes", "cells", "compare", "lines", "page", "sort")),
    *(f"report/static/{name}" for name in ("page.css", "page.html")),
}
UNWANTED = (
    "__pycache__",
    ".venv",
    ".git/",
    ".hypothesis",
    "_cache/",
    "/runs/",
    "docs/_build",
    ".pyc",
    "docs/api.rst",
    ".part",
)
# Those that our Dockerfile may have, and whether they take a JSON list.
INSTRUCTIONS = {"FROM": False, "COPY": False, "RUN": False, "WORKDIR": False, "ENTRYPOINT": True, "CMD": True}


def instructions():
    """The instructions of the Dockerfile with their arguments."""
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if not line.startswith("#")]
    return [tuple(line.split(" ", 1)) for line in "\n".join(lines).replace("\\\n", "").splitlines() if line]


def in_context(path):
    """Whether .dockerignore lets a path into the build: the last pattern that fits it or a parent decides."""
    let_in = True
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = line.removeprefix("!").removeprefix("**/")
        parts = [Path(path), *Path(path).parents][:-1]
        names = [part.name if "**/" in line else str(part) for part in parts]
        if line and not line.startswith("#") and any(fnmatch.fnmatch(name, pattern) for name in names):
            let_in = line.startswith("!")
    return let_in


def test_the_version_is_the_same_everywhere():
    assert CITATION["version"] == rj.__version__
    assert re.search(rf"^## {re.escape(rj.__version__)} ", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)


def test_the_metadata_agree():
    assert CITATION["license"] == PROJECT["license"]
    assert [author["name"] for author in CITATION["authors"]] == [author["name"] for author in PROJECT["authors"]]
    assert all((ROOT / file).exists() for file in PROJECT["license-files"])


def test_the_repository_has_one_address_everywhere_or_none():
    [address] = re.findall(r'^REPOSITORY = "(.*)"$', (ROOT / "notebooks/refresh.py").read_text(), re.MULTILINE)
    named = {PROJECT["urls"].get("Repository", ""), CITATION.get("repository-code", "")}
    assert named == {address}


def test_the_citation_has_what_its_format_asks_for_and_names_the_paper_as_the_readme_does():
    assert CITATION["cff-version"] == "1.2.0"
    assert {"message", "title", "authors", "type"} <= set(CITATION)
    [paper] = CITATION["references"]
    readme = (ROOT / "README.md").read_text()
    named = " and ".join(f"{author['family-names']}, {author['given-names']}" for author in paper["authors"])
    assert f"author    = {{{named}}}" in readme
    assert paper["title"] in readme.replace("{RSCFed}", "RSCFed")
    assert paper["url"] == PROJECT["urls"]["Paper"]
    assert f"year      = {{{paper['year']}}}" in readme


def test_every_file_of_the_package_that_is_no_code_is_known():
    package = ROOT / "rscfed_jax"
    files = {str(path.relative_to(package)) for path in package.rglob("*") if path.is_file()}
    assert {name for name in files if not name.endswith((".py", ".pyc"))} == DATA


def test_the_dockerfile_is_one():
    found = instructions()
    assert found[0][0] == "FROM"
    assert {name for name, _ in found} <= set(INSTRUCTIONS)
    for name, arguments in found:
        assert not INSTRUCTIONS[name] or all(isinstance(word, str) for word in json.loads(arguments))
    assert re.fullmatch(r"python:(\d+\.\d+)-slim", found[0][1])
    [entry] = [json.loads(arguments) for name, arguments in found if name == "ENTRYPOINT"]
    assert set(entry) <= set(PROJECT["scripts"])


def test_the_image_gets_what_the_package_is_made_of_and_no_more():
    sources = [source for name, text in instructions() if name == "COPY" for source in text.split()[:-1]]
    assert {PROJECT["readme"], "pyproject.toml", "LICENSE", "rscfed_jax"} == set(sources)
    assert all((ROOT / source).exists() and in_context(source) for source in sources)
    assert in_context("rscfed_jax/data/fashion_mnist_14k.npz")
    for path in (
        ".venv/bin/python",
        "runs/first",
        "tests/helpers.py",
        ".git/HEAD",
        "rscfed_jax/core/__pycache__/a.pyc",
    ):
        assert not in_context(path), path


def test_the_image_installs_an_extra_that_is_there():
    [command] = [text for name, text in instructions() if name == "RUN"]
    [extra] = re.findall(r"'/src\[(\w+)\]'", command)
    assert PROJECT["optional-dependencies"][extra] == [f"jax[{extra}]"]


def test_each_optional_package_of_a_log_is_an_extra():
    from rscfed_jax.cli.commands import LOGS

    for log in LOGS:
        [needed] = PROJECT["optional-dependencies"][log.name]
        assert re.match(r"\w+", needed)[0] == log.package


def done(*command, **more):
    """Runs a command to its end."""
    finished = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=1200, **more)
    assert finished.returncode == 0, finished.stdout[-2000:] + finished.stderr[-4000:]
    return finished.stdout


@pytest.fixture(scope="module")
def distributions(tmp_path_factory):
    """A wheel and a source distribution, built as for publishing."""
    pytest.importorskip("build")
    out = tmp_path_factory.mktemp("dist")
    index = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(out / "index"), "hatchling"]
    if subprocess.run(index, capture_output=True, timeout=600).returncode:
        pytest.skip("needs a package index")
    shutil.rmtree(out / "index")
    done(sys.executable, "-m", "build", "--outdir", out, ROOT)
    [wheel], [source] = out.glob("*.whl"), out.glob("*.tar.gz")
    return wheel, source


@pytest.mark.slow
def test_the_distributions_hold_everything_and_nothing_else(distributions):
    pytest.importorskip("twine")
    done(sys.executable, "-m", "twine", "check", "--strict", *distributions)
    wheel, source = distributions
    assert wheel.name == f"rscfed_jax-{rj.__version__}-py3-none-any.whl"
    assert wheel.stat().st_size < LARGEST_WHEEL
    assert source.stat().st_size < LARGEST_SDIST
    in_wheel = set(zipfile.ZipFile(wheel).namelist())
    with tarfile.open(source) as archive:
        in_source = {name.partition("/")[2] for name in archive.getnames()}
    code = {str(path.relative_to(ROOT)) for path in (ROOT / "rscfed_jax").rglob("*.py")}
    package = code | {f"rscfed_jax/{name}" for name in DATA}
    assert {name for name in in_wheel if ".dist-info/" not in name} == package
    others = {"README.md", "CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "Dockerfile", ".dockerignore", "LICENSE"}
    tests = {str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("*.py")}
    assert package | tests | others | {"pyproject.toml", "Makefile", "docs/conf.py"} <= in_source
    assert not [name for name in in_wheel | in_source for part in UNWANTED if part in f"/{name}"]


@pytest.fixture(scope="module")
def empty(tmp_path_factory):
    """A new environment, and how to run its commands: without anything of this one."""
    place = tmp_path_factory.mktemp("empty")
    done(sys.executable, "-m", "venv", place / "venv")
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "XLA_FLAGS")}

    def inside(command, *arguments):
        return done(place / "venv" / "bin" / command, *arguments, cwd=place, env=variables)

    return place, inside


@pytest.mark.slow
def test_the_wheel_runs_the_demo_in_an_empty_environment(distributions, empty):
    place, inside = empty
    inside("pip", "install", "--quiet", distributions[0])
    makefile = (ROOT / "Makefile").read_text().replace("$(RUN)", "runs/demo")
    train, report = re.findall(r"^\t\$\(BIN\)/(rscfed-jax .*)$", makefile, re.MULTILINE)
    words = shlex.split(train)
    for flag, value in {"--rounds": "2", "--warmup-rounds": "1"}.items():
        words[words.index(flag) + 1] = value
    inside(*words)
    summary = json.loads((place / "runs/demo/cells/method-rscfed-seed0/summary.json").read_text())
    assert summary["versions"]["rscfed-jax"] == rj.__version__
    assert "accuracy by round" in inside(*shlex.split(report))
    assert "<!doctype html>" in (place / "runs/demo/report.html").read_text()
    assert "programs; about" in inside("rscfed-jax", "reproduce", "cbafed-table1", "--dry-run", "--dataset", "fashion")
    where = inside("python", "-c", "import rscfed_jax; print(rscfed_jax.__file__)")
    assert where.startswith(str(place))


@pytest.mark.slow
def test_the_images_files_install_and_its_command_runs(distributions, empty):
    place, inside = empty
    context = place / "src"
    context.mkdir()
    for source in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / source, context)
    shutil.copytree(ROOT / "rscfed_jax", context / "rscfed_jax", ignore=shutil.ignore_patterns("__pycache__"))
    inside("pip", "install", "--quiet", "--force-reinstall", "--no-deps", context)  # CUDA's gigabytes aside
    shutil.rmtree(context)
    entry, default = (json.loads(text) for name, text in instructions() if name in ("ENTRYPOINT", "CMD"))
    assert "usage: rscfed-jax" in inside(*entry, *default)
    assert "ankle boot" in inside(*entry, "data", "fashion")
