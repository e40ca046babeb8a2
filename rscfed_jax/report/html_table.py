"""Tables of the page: readable as tables on a desk and as cards on a phone."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

COLOURS = 10  # of lines, before they are dashed; as in lines.js


class Entry(NamedTuple):
    """What a field of a table shows, and the number behind it to the last digit."""

    text: str
    value: float | None = None
    is_text: bool = False  # aligned to the left
    line: int | None = None  # number of the report's line, whose colour is shown beside the text


def html_table(name: str, columns: Sequence[str], rows: Iterable[Sequence[Entry]]) -> str:
    """A table whose entries carry their column's name, for narrow screens, and their number."""
    rows = list(rows)
    left = [not column or any(row[column].is_text for row in rows) for column in range(len(columns))]
    heads = [f"<th{_kind(is_left)}>{escape(column)}</th>" for column, is_left in zip(columns, left, strict=True)]
    return (
        f'<div class="scroll"><table id="{name}"><thead><tr>{"".join(heads)}</tr></thead>'
        f"<tbody>{''.join(_row(columns, row) for row in rows)}</tbody></table></div>"
    )


def _row(columns: Sequence[str], row: Sequence[Entry]) -> str:
    parts = [f'<tr><th scope="row">{_swatch(row[0].line)}{escape(row[0].text)}</th>']
    for column, entry in zip(columns[1:], row[1:], strict=True):
        value = "" if entry.value is None else f' data-value="{entry.value!r}"'
        label = f' data-label="{escape(column)}"'
        parts.append(f"<td{label}{_kind(entry.is_text)}{value}><span>{escape(entry.text)}</span></td>")
    return "".join(parts) + "</tr>"


def _kind(is_left: bool) -> str:
    return ' class="text"' if is_left else ""


def _swatch(line: int | None) -> str:
    if line is None:
        return ""
    return f'<span class="swatch dash{line // COLOURS % 3}" style="color: var(--line{line % COLOURS})"></span>'
