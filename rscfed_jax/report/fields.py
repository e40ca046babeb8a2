"""Heat maps: coloured fields with their numbers, and names beside rows and columns as far as there is room."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from rscfed_jax.config.documents import cut

MOST_NUMBERS = 400  # that are written into the fields
SMALL = 7.0  # size of these numbers, in points
MOST_LETTERS = 20  # of a name beside an axis


def draw_fields(
    axes: Axes,
    values: np.ndarray,
    *,
    label: str,
    cmap: str = "Blues",
    least: float | None = 0,
    most: float | None = None,
    aspect: Literal["auto", "equal"] = "auto",
    as_percent: bool = False,
) -> None:
    """A heat map with its colour bar; grey where the value is NaN."""
    axes.set_facecolor("0.85")
    image = axes.imshow(values, cmap=cmap, vmin=least, vmax=most, aspect=aspect, interpolation="nearest")
    bar = axes.figure.colorbar(image, ax=axes, label=label)
    if as_percent:
        bar.ax.yaxis.set_major_formatter(PercentFormatter(1.0))


def _room(axes: Axes) -> tuple[float, float]:
    """About how many points wide and high the axes will be, beside their colour bar and labels."""
    box, whole = axes.get_position(), axes.figure.bbox
    points = 72 / axes.figure.dpi
    return 0.85 * box.width * whole.width * points, 0.9 * box.height * whole.height * points


def write_fields(axes: Axes, contents: np.ndarray, *, dark: np.ndarray, size: float = SMALL) -> None:
    """Writes into the fields of a heat map, white on dark ones, if there is room for it."""
    (rows, columns), (width, height) = contents.shape, _room(axes)
    longest = max(len(str(content)) for content in contents.ravel())
    if contents.size > MOST_NUMBERS or width < 0.64 * size * longest * columns or height < 1.1 * size * rows:
        return
    for (row, column), content in np.ndenumerate(contents):
        colour = "white" if dark[row, column] else "black"
        axes.text(column, row, str(content), ha="center", va="center", fontsize=size, color=colour)


def name_rows(axes: Axes, names: Sequence[str]) -> None:
    """Names beside the rows, as many as there is room for."""
    shown = _thinned(names, room=_room(axes)[1], needed=9)
    axes.set_yticks(list(shown), list(shown.values()), fontsize=8, parse_math=False)


def name_columns(axes: Axes, names: Sequence[str], *, slanted: bool = False) -> None:
    """Names below the columns, as many as there is room for."""
    needed = 9 if slanted else 5 * max(map(len, names), default=0) + 6
    shown = _thinned(names, room=_room(axes)[0], needed=needed)
    turned: dict[str, Any] = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if slanted else {}
    axes.set_xticks(list(shown), list(shown.values()), fontsize=8, parse_math=False, **turned)


def _thinned(names: Sequence[str], *, room: float, needed: float) -> dict[int, str]:
    """Every name, or every second, fifth, tenth, ... by its place, so that each has `needed` points of the room."""
    steps = (nice * 10**power for power in range(9) for nice in (1, 2, 5))
    step = next(step for step in steps if step * room >= needed * len(names))
    return {place: cut(names[place], MOST_LETTERS) for place in range(0, len(names), step)}
