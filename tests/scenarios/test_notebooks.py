"""The notebooks: kept as they are generated, public names only, and they run from top to bottom."""

import re
import sys

import nbformat
import pytest

import rscfed_jax as rj
from tests.helpers import ROOT, names_used

FOLDER = ROOT / "notebooks"
sys.path.insert(0, str(FOLDER))
import refresh  # noqa: E402

NAMES = refresh.names()
LARGEST = 2**20


def read(name):
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_there_are_notebooks():
    assert {"quickstart", "paper_tables", "your_own_method", "ablation_grid"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_valid_small_and_as_generated(name):
    notebook = read(name)
    nbformat.validate(notebook)
    assert (FOLDER / f"{name}.ipynb").stat().st_size < LARGEST
    as_kept = [cell.source for cell in notebook.cells]
    refresh.fill(notebook, name)
    assert [cell.source for cell in notebook.cells] == as_kept, "run python notebooks/refresh.py"
    assert notebook.cells[0].source.startswith("[![Open in Colab]")
    assert "\n# " in notebook.cells[0].source


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_uses_public_names_only(name):
    sources = [cell.source for cell in code_cells(read(name))]
    assert not any("from rscfed_jax" in source for source in sources)
    used = set().union(*map(names_used, sources))
    assert used <= {*rj.__all__, "__version__"}
    assert "use_all_cores" in used


@pytest.mark.parametrize("name", NAMES)
def test_the_outputs_are_kept_without_errors_and_without_paths_of_a_machine(name):
    notebook = read(name)
    outputs = [output for cell in code_cells(notebook) for output in cell.outputs]
    assert all(cell.execution_count == number for number, cell in enumerate(code_cells(notebook), 1))
    assert all(output.output_type != "error" for output in outputs)
    assert any("image/png" in output.get("data", {}) for output in outputs)
    texts = [output.get("text", "") + output.get("data", {}).get("text/plain", "") for output in outputs]
    for text in [*texts, *(cell.source for cell in notebook.cells)]:
        assert not re.search(r"(?<![\w:/.])/(home|root|work|tmp|Users|content)/", text), text


def test_one_address_changes_badge_and_installation(monkeypatch):
    assert refresh.badge("quickstart").endswith(f"({refresh.COLAB})")
    assert 'else "rscfed-jax"\n' in refresh.first_cell()
    monkeypatch.setattr(refresh, "REPOSITORY", "https://github.com/someone/something")
    target = "https://colab.research.google.com/github/someone/something/blob/main/notebooks/quickstart.ipynb"
    assert refresh.badge("quickstart").endswith(f"({target})")
    assert 'else "git+https://github.com/someone/something@main"\n' in refresh.first_cell()
    notebook = read("quickstart")
    refresh.fill(notebook, "quickstart")
    refresh.fill(notebook, "quickstart")
    assert notebook.cells[0].source.count("Open in Colab") == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs_from_top_to_bottom(tmp_path, monkeypatch, name):
    monkeypatch.delenv("XLA_FLAGS", raising=False)  # a kernel is a user's process, and long enough to be optimised
    notebook = read(name)
    refresh.execute(notebook, tmp_path)
    assert all(cell.execution_count for cell in code_cells(notebook))
