"""Sphinx: pages in Markdown, and two that are made of the code itself, the settings and the API reference."""

import importlib
import inspect
import re
from collections.abc import Mapping
from pathlib import Path

import rscfed_jax as rj
from rscfed_jax.config import SETTINGS
from rscfed_jax.config.registry import METHODS

HERE = Path(__file__).parent

project = "rscfed_jax"
author = "rscfed_jax contributors"
release = version = rj.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = f"rscfed_jax {release}"
exclude_patterns = ["_build"]
default_role = "code"  # a docstring's `name` is code
smartquotes = False  # they would join the two dashes of a flag
myst_heading_anchors = 3
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_type_aliases = {"Array": "Array", "Model": "Model"}


def write_settings() -> None:
    """_settings.md: every setting, by group; those of the methods come last."""
    of_methods = [setting for method in METHODS.declarations.values() for setting in method.settings]
    groups: dict[str, list[str]] = {}
    for setting in (*SETTINGS.values(), *of_methods):
        default = "" if setting.default is None else f", default `{setting.default}`"
        allowed, help_text = (text.replace("[", "\\[") for text in (setting.kind.allowed, setting.help))
        line = f"- `{setting.flag}`: {help_text} ({allowed}{default})"
        groups.setdefault(setting.group, []).append(line)
    _write("_settings.md", [text for group, lines in groups.items() for text in (f"## {title(group)}", "", *lines, "")])


def title(group: str) -> str:
    """The heading of a group of settings; the name of a method keeps its letters."""
    _, _, name = group.partition(" ")
    return f"Method `{name}`" if name in METHODS.declarations else group.capitalize()


def write_api() -> None:
    """api.rst: what `rscfed_jax` makes public, under the modules it lives in."""
    homes: dict[str, list[str]] = {}
    for name in rj.__all__:
        homes.setdefault(rj._HOMES[name], []).append(name)
    title = "API reference"
    lines = [
        title,
        "=" * len(title),
        "",
        "All of it is reached as ``rscfed_jax.NAME``; what is not listed may change.",
        "",
    ]
    for home, names in homes.items():
        module = importlib.import_module(f"rscfed_jax.{home}")
        summary = inspect.getdoc(module).splitlines()[0]
        lines += [home, "-" * len(home), "", summary, ""]
        for name in names:
            thing = getattr(rj, name)
            if isinstance(thing, Mapping):  # it has no docstring of its own
                lines += [f".. py:data:: rscfed_jax.{name}", "", f"   A dictionary with the keys {', '.join(thing)}."]
            elif inspect.isclass(thing):
                hidden = ", ".join(field_names(thing))
                lines += [f".. autoclass:: rscfed_jax.{name}", "   :members:"]
                lines += [f"   :exclude-members: {hidden}"] if hidden else []
            else:
                lines += [f".. autofunction:: rscfed_jax.{name}"]
            lines.append("")
    _write("api.rst", lines)


def field_names(cls: type) -> list[str]:
    """The fields of a named tuple or a dataclass."""
    return list(getattr(cls, "_fields", getattr(cls, "__dataclass_fields__", ())))


def describe_fields(app, what, name, thing, options, lines) -> None:
    """Lists a class's fields with the comments beside them in the source."""
    if what == "class" and name != "rscfed_jax.Config" and field_names(thing):
        try:
            source = inspect.getsource(thing)
        except OSError:  # a class that a function made has no source
            source = ""
        lines.append("")
        for field in field_names(thing):
            comment = re.search(rf"^    {field}: .*?  # (.*)$", source, re.MULTILINE)
            lines.append(f"- ``{field}``" + (f": {comment[1].replace('*', chr(92) + '*')}" if comment else ""))
        lines.append("")


def shorten_signature(app, what, name, thing, options, signature, returns) -> tuple[str, str | None] | None:
    """Names the fields of a class alone, and refers to the page of settings for those of a config."""
    if what != "class" or not field_names(thing):
        return None
    return ("(**settings)" if name == "rscfed_jax.Config" else f"({', '.join(field_names(thing))})"), None


def setup(app) -> None:
    """Connects the two above."""
    app.connect("autodoc-process-docstring", describe_fields)
    app.connect("autodoc-process-signature", shorten_signature)


def _write(name: str, lines: list[str]) -> None:
    """Leaves a file that would not change alone: a build then has nothing to do for it."""
    text = "\n".join(lines) + "\n"
    path = HERE / name
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


write_settings()
write_api()
exclude_patterns.append("_settings.md")  # included by settings.md
