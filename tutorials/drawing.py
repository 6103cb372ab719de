"""Drawings of what has a shape: boxes, arrows, and lanes over time."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kit.figures.style import (
    COLORS,
    PHASE_LOOKS,
    ROW,
    describe,
    kit_look,
    new_figure,
    to_html,
)

#: How boxes look that are no phase of a step: fill, text.
_ROLES = {
    "": (COLORS["card"], COLORS["ink"]),
    "zone": (COLORS["zone"], COLORS["ink"]),
    "measured": (COLORS["measured"], COLORS["card"]),
    "baseline": (COLORS["muted"], COLORS["card"]),
    "predicted": (COLORS["predicted"], COLORS["card"]),
    "recorded": (COLORS["recorded"], COLORS["card"]),
}


class Drawing:
    """A card to draw on, which shows itself in a notebook.

    `columns` is how wide it is, in a unit of your choice (a step, a millisecond, a
    megabyte), and `rows` how high. Columns count from the left, rows from the top. A
    role is one of "", "zone", "measured", "baseline", "predicted" and "recorded", or a
    phase of a step, a key of `PHASES`. Texts tell boxes apart; colors only help. `alt`
    says what it shows to those who cannot see it.

    >>> drawing = Drawing("One waits", columns=4, rows=1, alt="A, then B")
    >>> drawing.lane(0, "worker", [(0, 1, "A", "input"), (1, 4, "B", "forward")])
    >>> drawing.arrow((1, 0), (1, 1), "now")
    >>> drawing.figure.alt
    'One waits. A, then B.'
    """

    def __init__(self, title: str, *, columns: float, rows: float, alt: str) -> None:
        self._lanes: dict[float, str] = {}
        with kit_look():
            figure = new_figure(title, rows * ROW + 0.2)
            self.axes: Any = figure.subplots()
            self.axes.set(xlim=(0, columns), ylim=(rows, 0), xticks=[], yticks=[])
            self.axes.grid(visible=False)
            self.axes.spines["bottom"].set_visible(False)
        self.figure: Any = describe(figure, title, alt)

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
        from matplotlib.patches import Rectangle

        fill, color = self._find_look(role)
        edge = COLORS["ink"] if role in ("", "zone") else COLORS["card"]
        place = (column, row), width, height
        look = {"facecolor": fill, "edgecolor": edge, "linewidth": 1.0}
        self.axes.add_patch(Rectangle(*place, clip_on=False, **look))
        self.write(text, (column + width / 2, row + height / 2), color)

    def arrow(
        self, start: tuple[float, float], end: tuple[float, float], text: str = ""
    ) -> None:
        """Draw an arrow from one (column, row) to another, a text above its middle."""
        look = {"arrowstyle": "-|>", "color": COLORS["ink"], "linewidth": 1.2}
        look |= {"mutation_scale": 12, "shrinkA": 0, "shrinkB": 0}
        self.axes.annotate("", end, start, arrowprops=look, zorder=5)
        middle = (start[0] + end[0]) / 2, (start[1] + end[1]) / 2 - 0.08
        self.write(text, middle, COLORS["muted"], va="bottom")

    def lane(
        self,
        row: float,
        name: str,
        blocks: Sequence[tuple[float, float, str, str]],
    ) -> None:
        """Draw blocks (start, stop, text, role) in one row, its name on the left."""
        for start, stop, text, role in blocks:
            self.box(start, row + 0.1, stop - start, 0.8, text, role)
        self._lanes[row + 0.5] = textwrap.fill(name, 24)
        with kit_look():
            names = list(self._lanes.values())
            self.axes.set_yticks(list(self._lanes), names, color=COLORS["ink"])

    def write(
        self,
        text: str,
        place: tuple[float, float],
        color: str = COLORS["ink"],
        va: str = "center",
        ha: str = "center",
    ) -> None:
        """Write a text at (column, row)."""
        look = {"ha": ha, "va": va, "size": 9.5, "color": color, "zorder": 6}
        with kit_look():
            self.axes.text(*place, text, **look)

    def save(self, path: str | Path) -> None:
        """Write it as an SVG file, whose bytes do not depend on the day."""
        import matplotlib

        with kit_look():
            matplotlib.rcParams["svg.hashsalt"] = "kit"
            self.figure.savefig(path, format="svg", metadata={"Date": None})

    def _find_look(self, role: str) -> tuple[str, str]:
        """Return a role's fill and the color of a text on it."""
        if role in _ROLES:
            return _ROLES[role]
        if role in PHASE_LOOKS:
            fill, color, _ = PHASE_LOOKS[role]
            return fill, color
        known = [repr(name) for name in (*_ROLES, *PHASE_LOOKS) if name]
        raise ValueError(f"Drawing: no role {role!r}; there are {', '.join(known)}")

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        page = to_html(self.figure, self.figure.alt)
        return {"text/html": page, "text/plain": self.figure.alt}
