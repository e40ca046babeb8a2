"""The pages of docs/ and the README: their samples run, their names are public, and Sphinx has no complaint."""

import ast
import importlib
import re
import subprocess
import sys
from functools import partial

import jax
import numpy as np
import pytest

import rscfed_jax as rj
from rscfed_jax.config import SETTINGS
from rscfed_jax.core.program import round_of_cells
from rscfed_jax.runner import loop
from tests.helpers import ROOT, SMALL, names_used, samples_of

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("[a-z]*.md"))]
SAMPLED = [path for path in PAGES if "```python" in path.read_text()]


@pytest.mark.parametrize("path", SAMPLED, ids=lambda path: path.stem)
def test_samples_use_public_names_and_the_functions_have_such_parameters(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    files, session = samples_of(path)
    for file, text in files.items():
        (tmp_path / file).write_text(text)
    source = "\n".join([*files.values(), session])
    assert names_used(source) <= {*rj.__all__, "__version__"}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("rscfed_jax"):
            module = importlib.import_module(node.module)  # inside the package, where a loader or a metric lives
            assert all(hasattr(module, name.name) for name in node.names), ast.unparse(node)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "rj.Config":
            literals = [keyword for keyword in node.keywords if isinstance(keyword.value, ast.Constant)]
            rj.Config(**{keyword.arg: keyword.value.value for keyword in literals})


def test_every_link_between_pages_and_every_picture_is_there():
    for path in PAGES:
        text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
        for target in re.findall(r"\]\(([^)#\s]+)", text):
            if not target.startswith("http"):
                assert (path.parent / target).exists(), f"{path.name}: {target}"


@pytest.mark.parametrize(
    "name", ["how_it_works", "settings", "config_files", pytest.param("extending", marks=pytest.mark.slow)]
)
def test_samples_run(tmp_path, monkeypatch, name):
    run_samples(tmp_path, monkeypatch, name)


def test_samples_trace(tmp_path, monkeypatch):
    """The same for many trainings: every part of their methods and networks is called, but nothing is compiled."""

    def traced(algorithm, simulation, *, capacity):
        arguments = (simulation.state, simulation.data, simulation.hyper)
        _, report = jax.eval_shape(partial(round_of_cells, algorithm), *arguments)
        reports = jax.tree.map(lambda leaf: np.ones((capacity, *leaf.shape), leaf.dtype), report)
        programs.append(algorithm)
        return lambda state, *_: (state, reports), True

    programs = []
    monkeypatch.setattr(loop, "compiled", traced)
    run_samples(tmp_path, monkeypatch, "extending")
    assert {algorithm.method.name for algorithm in programs} >= {"my_fixmatch", "median", "rscfed"}


def run_samples(here, monkeypatch, name):
    """Saves the files of a page and types its session, with a network that compiles quickly."""
    monkeypatch.chdir(here)
    monkeypatch.syspath_prepend(here)
    files, session = samples_of(ROOT / "docs" / f"{name}.md")
    for file, text in files.items():
        (here / file).write_text(text)
    if name == "how_it_works":
        session = session.replace("rj.Config(", f"rj.Config(model={SMALL['model']!r}, ")
    exec(session, {})


@pytest.mark.slow
def test_the_pages_build_without_a_warning_and_hold_every_public_name(tmp_path):
    pytest.importorskip("sphinx")
    pytest.importorskip("furo")
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--quiet", "docs", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    api = (tmp_path / "api.html").read_text()
    for name in rj.__all__:
        assert f'id="rscfed_jax.{name}"' in api
    settings = (tmp_path / "settings.html").read_text()
    for setting in SETTINGS.values():
        assert setting.flag in settings
