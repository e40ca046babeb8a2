"""The tree shows the architecture: which rooms there are, what each may import, and what no room may do."""

import ast
import importlib.util
from pathlib import Path

import pytest

import rscfed_jax

PACKAGE = Path(rscfed_jax.__file__).parent
# What a room may import of the package, besides itself; at the top or inside functions.
ALLOWED = {
    "config": set(),
    "core": {"config"},
    "data": {"config"},
    "paper": {"config"},
    "storage": {"config"},
    "report": {"config", "storage"},
    "methods": {"config", "core"},
    "models": {"config", "core"},
    "runner": {"config", "core", "data", "methods", "models", "paper", "report", "storage"},
    "api": {"config", "core", "data", "models", "runner", "storage"},
    "cli": {"api", "config", "data", "paper", "report", "runner", "storage"},
}
WITHOUT_JAX = ("config", "data", "storage", "report", "paper")
OF_THE_PACKAGE = {"__version__"}  # what any room may ask the package itself for


def modules(room: str) -> list[Path]:
    place = PACKAGE / room
    return sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]


def imports(path: Path) -> set[str]:
    """The names of the modules that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == "rscfed_jax":
            found |= {f"rscfed_jax.{alias.name}" for alias in node.names if alias.name not in OF_THE_PACKAGE}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def rooms_imported(path: Path) -> set[str]:
    return {name.split(".")[1] for name in imports(path) if name.startswith("rscfed_jax.")}


def test_every_module_is_in_a_room():
    places = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in PACKAGE.rglob("*.py")}
    assert places == {*ALLOWED, "__init__", "__main__"}


@pytest.mark.parametrize("room", ALLOWED)
def test_imports_go_one_way(room):
    wrong = {
        str(path.relative_to(PACKAGE)): sorted(rooms_imported(path) - ALLOWED[room] - {room})
        for path in modules(room)
        if rooms_imported(path) - ALLOWED[room] - {room}
    }
    assert wrong == {}


def test_the_import_rule_can_fail(tmp_path):
    file = tmp_path / "wrong.py"
    file.write_text("def f():\n    from rscfed_jax.runner.loop import Loop\n")
    assert rooms_imported(file) - ALLOWED["core"] == {"runner"}


@pytest.mark.parametrize("room", WITHOUT_JAX)
def test_rooms_of_the_host_do_without_jax(room):
    for path in modules(room):
        assert not {name.split(".")[0] for name in imports(path)} & {"jax", "flax", "optax"}, path


def test_no_module_outside_methods_and_the_papers_tables_names_a_method():
    names = {path.stem for path in (PACKAGE / "methods").glob("*.py")} - {"__init__", "registry"}
    for path in PACKAGE.rglob("*.py"):
        if path.parent.name in ("methods", "paper") or path.name == "__init__.py":
            continue
        texts = {
            node.value
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        named = texts & names
        # The default of --method has to be named somewhere.
        assert named <= ({"rscfed"} if path.name == "settings.py" else set()), path


def test_few_modules_know_of_devices():
    """The client axis spreads work over them; the host starts them, measures on them, or describes absent ones."""
    words = ("jax.devices", "local_devices", "Mesh", "shard_map")
    knowing = {path for path in PACKAGE.rglob("*.py") if any(word in path.read_text() for word in words)}
    names = ("start", "choice", "population", "described")
    assert knowing == {PACKAGE / "core" / "client_axis.py", *(PACKAGE / "runner" / f"{name}.py" for name in names)}


def test_no_test_file_imports_another():
    tests = Path(__file__).parent
    for path in tests.rglob("test_*.py"):
        wrong = {
            name for name in imports(path) if name.startswith("tests.") and name.split(".")[-1].startswith("test_")
        }
        assert not wrong, path


@pytest.mark.parametrize("path", sorted(Path(__file__).parents[1].glob("benchmarks/*.py")), ids=lambda path: path.stem)
def test_what_a_benchmark_imports_of_the_package_is_there(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rscfed_jax"):
            module = importlib.import_module(node.module)
            missing = [name.name for name in node.names if not hasattr(module, name.name)]
            missing = [name for name in missing if importlib.util.find_spec(f"{node.module}.{name}") is None]
            assert not missing, f"{node.module} has no {missing[0]}"
