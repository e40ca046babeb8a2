"""The pages of docs/ and the README: their samples run, their names are public, and Sphinx has no complaint."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import rscfed_jax as rj
from tests.test_notebooks import PUBLIC, names_used

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("[a-z]*.md"))]
SAMPLED = [path for path in PAGES if "```python" in path.read_text()]


def samples(path):
    """The Python of a page, which its reader types in one session."""
    return "\n".join(re.findall(r"^```python\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize("path", SAMPLED, ids=lambda path: path.stem)
def test_samples_use_public_names_and_the_functions_have_such_parameters(path):
    source = samples(path)
    assert names_used(source) <= PUBLIC
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "rj.Config":
            rj.Config(**{keyword.arg: ast.literal_eval(keyword.value) for keyword in node.keywords})


def test_every_link_between_pages_and_every_picture_is_there():
    for path in PAGES:
        text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
        for target in re.findall(r"\]\(([^)#\s]+)", text):
            if not target.startswith("http"):
                assert (path.parent / target).exists(), f"{path.name}: {target}"


def test_the_model_of_the_guide_fits_the_simulator(x64):
    space = {"rj": rj, "jnp": jnp}
    exec(
        "import flax.linen as nn" + samples(ROOT / "docs" / "extending.md").partition("import flax.linen as nn")[2],
        space,
    )
    network = space["Perceptron"](classes=4)
    images = jnp.zeros((3, 8, 8, 5))
    assert network.apply(network.init(jax.random.key(0), images, train=False), images, train=True).shape == (5, 4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["how_it_works", "extending"])
def test_samples_run(name):
    exec(samples(ROOT / "docs" / f"{name}.md"), {})


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
    for name in rj.Config.__dataclass_fields__:
        assert "--" + name.replace("_", "-") in settings
