"""Tables as text: for a terminal, a Markdown file and a spreadsheet."""

import csv
import io
from collections.abc import Sequence
from typing import Any

import numpy as np


def as_console(lines: Sequence[Sequence[str]]) -> str:
    """Columns under their names, which are the first line; ASCII only."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *(text.rjust(w) for text, w in zip(line[1:], widths[1:], strict=True))])
        for line in lines
    )


def as_markdown(lines: Sequence[Sequence[str]]) -> str:
    """The same for a Markdown file."""
    ruler = ["---", *["---:"] * (len(lines[0]) - 1)]
    return "\n".join("| " + " | ".join(line) + " |" for line in [lines[0], ruler, *lines[1:]]) + "\n"


def as_csv(rows: Sequence[dict[str, Any]]) -> str:
    """Rows of full numbers under their names."""
    file = io.StringIO()
    writer = csv.DictWriter(file, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def spread(values: Sequence[float]) -> float:
    """Standard deviation over seeds; zero for one."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def seeds_as_text(seeds: int, diverged: int) -> str:
    """How many seeds a line is of, and how many of them are left out."""
    return f"{seeds} ({diverged} diverged)" if diverged else str(seeds)
