"""Tables of the page: readable as tables on a desk and as cards on a phone, and without the script that sorts them."""

import re
from collections.abc import Collection, Iterable, Sequence
from html import escape
from typing import NamedTuple

COLOURS = 10  # of lines, before they are dashed; as in lines.js
LONG = 40  # characters of a text before it is folded


class Entry(NamedTuple):
    """What a field of a table shows, and the number behind it to the last digit."""

    text: str
    value: float | None = None
    is_text: bool = False  # aligned to the left, and folded if it is long
    line: int | None = None  # number of the report's line, whose colour is shown beside the text
    is_best: bool = False  # in its column


def html_table(
    name: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[Entry]],
    *,
    sortable: bool = True,
    sorted_by: str | None = None,
    lowest_first: Collection[str] = (),
) -> str:
    """A table whose entries carry their column's name, for narrow screens, and their number.

    Rows stay in their order, which is that of the column `sorted_by`, highest first. If `sortable`, the script lets
    readers choose another: texts and the columns `lowest_first` then begin with the lowest.
    """
    rows = list(rows)
    left = [not column or any(row[number].is_text for row in rows) for number, column in enumerate(columns)]
    heads = []
    for number, (column, is_left) in enumerate(zip(columns, left, strict=True)):
        first = ' data-first="ascending"' if number == 0 or is_left or column in lowest_first else ""
        sort = ' aria-sort="descending"' if column == sorted_by else ""
        heads.append(f'<th scope="col"{_kind(is_left)}{first if sortable else ""}{sort}>{escape(column)}</th>')
    return (
        f'<div class="scroll"><table id="{name}"{" data-sortable" if sortable else ""}>'
        f"<thead><tr>{''.join(heads)}</tr></thead>"
        f"<tbody>{''.join(_row(columns, row) for row in rows)}</tbody></table></div>"
    )


def _row(columns: Sequence[str], row: Sequence[Entry]) -> str:
    parts = [f'<tr><th scope="row">{_swatch(row[0].line)}{_breakable(row[0].text)}</th>']
    for column, entry in zip(columns[1:], row[1:], strict=True):
        value = "" if entry.value is None else f' data-value="{entry.value!r}"'
        label = f' data-label="{escape(column)}"'
        parts.append(f"<td{label}{_kind(entry.is_text)}{value}>{_content(entry)}</td>")
    return "".join(parts) + "</tr>"


def _content(entry: Entry) -> str:
    if entry.is_text and len(entry.text) > LONG:
        # Paths, the longest of settings, are told apart by their ends.
        start = f"{entry.text[: LONG // 4]}…{entry.text[-LONG // 2 :]}"
        return f"<details><summary>{_breakable(start)}</summary><span>{_breakable(entry.text)}</span></details>"
    tag = "strong" if entry.is_best else "span"
    mean, plus_minus, deviation = entry.text.partition(" ± ")
    small = f" <small>± {escape(deviation)}</small>" if plus_minus else ""
    return f"<{tag}>{_breakable(mean)}{small}</{tag}>"


def _breakable(text: str) -> str:
    """Names and paths may break between their parts."""
    return re.sub("([_/-])(?=.)", r"\1<wbr>", escape(text))


def _kind(is_left: bool) -> str:
    return ' class="text"' if is_left else ""


def _swatch(line: int | None) -> str:
    if line is None:
        return ""
    return f'<span class="swatch dash{line // COLOURS % 3}" style="color: var(--line{line % COLOURS})"></span>'
