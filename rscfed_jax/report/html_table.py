"""Tables of the page: readable as tables on a desk and as cards on a phone."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

COLOURS = 10  # of lines, before they are dashed; as in lines.js


class Cell(NamedTuple):
    """What a table shows, and the number behind it to the last digit."""

    text: str
    value: float | None = None
    is_text: bool = False  # aligned to the left
    line: int | None = None  # the group whose line in the figures is drawn beside the text


def html_table(name: str, columns: Sequence[str], lines: Iterable[Sequence[Cell]]) -> str:
    """A table whose cells carry their column's name, for narrow screens, and their number."""
    lines = list(lines)
    left = [not column or any(line[column].is_text for line in lines) for column in range(len(columns))]
    heads = [f"<th{_kind(is_left)}>{escape(column)}</th>" for column, is_left in zip(columns, left, strict=True)]
    rows = [_row(columns, line) for line in lines]
    return (
        f'<div class="scroll"><table id="{name}"><thead><tr>{"".join(heads)}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _row(columns: Sequence[str], line: Sequence[Cell]) -> str:
    parts = [f'<tr><th scope="row">{_swatch(line[0].line)}{escape(line[0].text)}</th>']
    for column, cell in zip(columns[1:], line[1:], strict=True):
        value = "" if cell.value is None else f' data-value="{cell.value!r}"'
        label = f' data-label="{escape(column)}"'
        parts.append(f"<td{label}{_kind(cell.is_text)}{value}><span>{escape(cell.text)}</span></td>")
    return "".join(parts) + "</tr>"


def _kind(is_left: bool) -> str:
    return ' class="text"' if is_left else ""


def _swatch(line: int | None) -> str:
    if line is None:
        return ""
    return f'<span class="swatch dash{line // COLOURS % 3}" style="color: var(--line{line % COLOURS})"></span>'
