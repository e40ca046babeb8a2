"""Fills in what all notebooks share: the Colab badge and the first cell. With `--execute`, also their outputs.

    python notebooks/refresh.py                        # after the address below has changed
    python notebooks/refresh.py --execute              # runs all of them from top to bottom and keeps what they show
    python notebooks/refresh.py --execute quickstart   # or one

The notebooks are edited as notebooks; their first two cells are written here and nowhere else.
"""

import argparse
import re
from pathlib import Path

import nbformat

# The public address of the repository, as https://github.com/OWNER/NAME. Badge and installation follow from it. While
# it is empty, notebooks outside a checkout install the package by its name, and the badge opens Colab's own first page.
REPOSITORY = ""
BRANCH = "main"

FOLDER = Path(__file__).parent
BADGE = "https://colab.research.google.com/assets/colab-badge.svg"
COLAB = "https://colab.research.google.com/"
SECONDS = 1800  # at most for one cell
MACHINE_PATH = re.compile(r"(?:/(?:home|root|work|tmp|Users|content)/)[^\s'\"<>]*")

FIRST_CELL = """\
# Installs rscfed_jax if it is missing, and prints the device.
import importlib.util
import pathlib
import subprocess
import sys

if importlib.util.find_spec("rscfed_jax") is None:
    source = ".." if pathlib.Path("../pyproject.toml").exists() else "{source}"
    if subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", source]).returncode:
        raise SystemExit(f"pip cannot install {{source}}: open this notebook inside a copy of the repository instead")

import rscfed_jax as rj

rj.use_all_cores()  # on CPU one client per core; before JAX is used
print(f"rscfed_jax {{rj.__version__}} on {{rj.device_line()}}")"""


def badge(name: str) -> str:
    """The badge of the notebook `name`, in Markdown."""
    there = REPOSITORY.replace("https://github.com/", f"{COLAB}github/")
    target = f"{there}/blob/{BRANCH}/notebooks/{name}.ipynb" if REPOSITORY else COLAB
    return f"[![Open in Colab]({BADGE})]({target})"


def first_cell() -> str:
    """The code that installs the package and prints the device."""
    return FIRST_CELL.format(source=f"git+{REPOSITORY}@{BRANCH}" if REPOSITORY else "rscfed-jax")


def fill(notebook: nbformat.NotebookNode, name: str) -> None:
    """Writes the badge above the title's cell and the first code cell."""
    title, code = notebook.cells[:2]
    text = re.sub(r"\A\[!\[Open in Colab\].*\n+", "", title.source)
    title.source = f"{badge(name)}\n\n{text}"
    code.source = first_cell()


def execute(notebook: nbformat.NotebookNode, folder: Path) -> None:
    """Runs a notebook from top to bottom in `folder`; an error in a cell is raised."""
    from nbclient import NotebookClient

    NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": str(folder)}}).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # the times of every cell
        for output in cell.get("outputs", []):
            if "text" in output:
                output.text = MACHINE_PATH.sub("PATH", output.text)


def names() -> list[str]:
    """All notebooks, by name."""
    return sorted(path.stem for path in FOLDER.glob("*.ipynb"))


def main() -> None:
    """Fills in the notebooks that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="notebooks without their ending (default: all)")
    parser.add_argument("--execute", action="store_true", help="run them and keep their outputs")
    arguments = parser.parse_args()
    for name in arguments.names or names():
        path = FOLDER / f"{name}.ipynb"
        notebook = nbformat.read(path, as_version=4)
        fill(notebook, name)
        if arguments.execute:
            execute(notebook, FOLDER)
        notebook.metadata.pop("language_info", None)
        nbformat.write(notebook, path)
        print(f"{path.name}: {path.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
