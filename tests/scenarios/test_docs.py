"""The pages of docs/ and the README: their samples run, their names are public, and Sphinx has no complaint."""

import ast
import importlib
import re
import subprocess
import sys

import pytest

import rscfed_jax as rj
from rscfed_jax.config import SETTINGS
from tests.helpers import ROOT, names_used, samples_of

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


@pytest.mark.parametrize("name", ["how_it_works", "extending", "settings", "config_files"])
def test_samples_run(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    files, session = samples_of(ROOT / "docs" / f"{name}.md")
    for file, text in files.items():
        (tmp_path / file).write_text(text)
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
