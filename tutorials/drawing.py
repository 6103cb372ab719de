"""Boxes, arrows and lanes: drawings of what has a shape, and data in it.

A drawing without data is an SVG file in `images/`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.patches import Rectangle

from kit.figures.style import COLORS, ROW, describe, kit_look, new_figure

#: How boxes look, by role: the fill, and the color of the text on it.
ROLES = {
    "": (COLORS["card"], COLORS["ink"]),
    "zone": (COLORS["zone"], COLORS["ink"]),
    "measured": (COLORS["measured"], COLORS["card"]),
    "baseline": (COLORS["muted"], COLORS["card"]),
    "predicted": (COLORS["predicted"], COLORS["card"]),
}


class Drawing:
    """A card to draw on, which shows itself in a notebook.

    `columns` is how wide it is, in a unit of your choice (a step, a millisecond, a
    megabyte), and `rows` how high. Columns count from the left, rows from the top. A
    role is a key of `ROLES`. `alt` says what it shows to those who cannot see it.

    >>> drawing = Drawing("One waits", columns=4, rows=1, alt="A, then B")
    >>> drawing.lane(0, "worker", [(0, 1, "A", "zone"), (1, 4, "B", "measured")])
    >>> drawing.arrow((1, 0), (1, 1))
    >>> drawing.figure.alt
    'One waits. A, then B.'
    """

    @kit_look()
    def __init__(self, title: str, *, columns: float, rows: float, alt: str) -> None:
        figure = new_figure(title, rows * ROW + 0.2)
        self.axes: Any = figure.subplots()
        self.axes.set(xlim=(0, columns), ylim=(rows, 0), xticks=[], yticks=[])
        self.axes.grid(visible=False)
        self.axes.spines["bottom"].set_visible(False)
        self.figure: Any = describe(figure, title, alt)
        self._names: dict[float, str] = {}

    @kit_look()
    def box(
        self,
        column: float,
        row: float,
        width: float,
        height: float,
        text: str = "",
        role: str = "",
    ) -> None:
        """Draw a box whose upper left corner is at (column, row)."""
        fill, color = ROLES[role]
        edge = COLORS["ink" if role in ("", "zone") else "card"]
        look = {"facecolor": fill, "edgecolor": edge, "clip_on": False}
        self.axes.add_patch(Rectangle((column, row), width, height, **look))
        middle = column + width / 2, row + height / 2
        look = {"ha": "center", "va": "center", "size": 9.5, "color": color}
        self.axes.text(*middle, text, **look)

    def arrow(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Draw an arrow from one (column, row) to another."""
        look = {"arrowstyle": "-|>", "color": COLORS["ink"], "linewidth": 1.2}
        look |= {"mutation_scale": 12, "shrinkA": 0, "shrinkB": 0}
        self.axes.annotate("", end, start, arrowprops=look)

    @kit_look()
    def lane(
        self, row: float, name: str, blocks: Sequence[tuple[float, float, str, str]]
    ) -> None:
        """Draw blocks (start, stop, text, role) in one row, its name on the left."""
        for start, stop, text, role in blocks:
            self.box(start, row + 0.1, stop - start, 0.8, text, role)
        self._names[row + 0.5] = name
        places, names = list(self._names), list(self._names.values())
        self.axes.set_yticks(places, names, color=COLORS["ink"])

    def _repr_mimebundle_(self, **options: object) -> dict[str, str]:
        return self.figure._repr_mimebundle_(**options)
