"""Tables as text: for a terminal, a Markdown file and a spreadsheet. Every table of this package is written here."""

import csv
import io
from collections.abc import Sequence
from typing import Any, NamedTuple

from rscfed_jax.report.seeds import Moments

MISSING = "–"


class Unit(NamedTuple):
    """In which a column of bytes is written."""

    name: str
    size: float  # in bytes
    digits: int  # after the point


def as_console(lines: Sequence[Sequence[str]]) -> str:
    """Columns under their names, which are the first line."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *(text.rjust(w) for text, w in zip(line[1:], widths[1:], strict=True))])
        for line in lines
    )


def as_markdown(lines: Sequence[Sequence[str]], left: int = 1) -> str:
    """The same for a Markdown file; all columns but the first `left` are aligned to the right."""
    ruler = ["---" if number < left else "---:" for number in range(len(lines[0]))]
    return "".join("| " + " | ".join(map(in_markdown, line)) + " |\n" for line in [lines[0], ruler, *lines[1:]])


def in_markdown(content: str) -> str:
    """Text that neither ends its column nor becomes markup."""
    return " ".join(content.split()).replace("|", "\\|").replace("<", "&lt;")


def as_csv(rows: Sequence[dict[str, Any]]) -> str:
    """Rows of full numbers under their names; None is empty."""
    file = io.StringIO()
    writer = csv.DictWriter(file, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def percent(moments: Moments | None, *, plus_minus: str = "±", missing: str = MISSING) -> str:
    """A mean and its standard deviation, in percent; a console that may be ASCII only wants `plus_minus="+-"`."""
    if moments is None:
        return missing
    mean, deviation = moments
    return f"{100 * mean:.2f}" + ("" if deviation is None else f" {plus_minus} {100 * deviation:.2f}")


def unit_of(most: float) -> Unit:
    """The unit for a column of bytes up to `most`: short, but fine enough that smaller ones do not look like zero."""
    units = {"kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
    name = next((name for name in reversed(units) if most >= 10 * units[name]), "kB")
    return Unit(name, units[name], sum(most < bound * units[name] for bound in (100, 1000)))


def as_text(value: Any) -> str:
    """A setting's value as a reader writes it: 10000 instead of 10000.0, but with all its digits."""
    if value is None:
        return MISSING
    short = f"{value:g}" if isinstance(value, float) else str(value)
    return short if not isinstance(value, float) or float(short) == value else repr(value)


def seeds_as_text(seeds: int, diverged: int) -> str:
    """How many seeds a line is of, and how many of them are left out."""
    return f"{seeds} ({diverged} diverged)" if diverged else str(seeds)
