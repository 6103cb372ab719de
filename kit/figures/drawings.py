"""Drawings of what has a shape: boxes, arrows, and lanes over time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kit.figures import style
from kit.figures.html import describe, to_html, to_png
from kit.figures.style import COLOURS, PHASE_LOOKS, one_at_a_time

#: Inches that one row takes.
_ROW = 0.46
#: How boxes look that are no phase of a step: fill, text.
_ROLES = {
    "": (COLOURS["card"], COLOURS["ink"]),
    "zone": (COLOURS["zone"], COLOURS["ink"]),
    "measured": (COLOURS["measured"], COLOURS["card"]),
    "baseline": (COLOURS["muted"], COLOURS["card"]),
    "predicted": (COLOURS["predicted"], COLOURS["card"]),
    "recorded": (COLOURS["recorded"], COLOURS["card"]),
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

    @one_at_a_time
    def __init__(self, title: str, *, columns: float, rows: float, alt: str) -> None:
        figure = style.make_card(title, rows * _ROW + 0.2)
        self._axes = style.add_axes(figure, xlim=(0, columns), ylim=(rows, 0))
        self._axes.tick_params(length=0, labelbottom=False, pad=8)
        self._axes.spines["bottom"].set_visible(False)
        self._axes.set_yticks([])
        self._lanes: dict[float, str] = {}
        self.figure: Any = describe(figure, title, alt)

    @one_at_a_time
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
        edge = COLOURS["ink"] if role in ("", "zone") else COLOURS["card"]
        look = {"facecolor": fill, "edgecolor": edge, "linewidth": 1.0}
        look |= {"clip_on": False}
        self._axes.add_patch(Rectangle((column, row), width, height, **look))
        middle = column + width / 2, row + height / 2
        self._write(text, middle, color)

    @one_at_a_time
    def arrow(
        self, start: tuple[float, float], end: tuple[float, float], text: str = ""
    ) -> None:
        """Draw an arrow from one (column, row) to another, a text above its middle."""
        look = {
            "arrowstyle": "-|>",
            "facecolor": COLOURS["ink"],
            "edgecolor": COLOURS["ink"],
            "linewidth": 1.2,
            "mutation_scale": 12,
            "shrinkA": 0,
            "shrinkB": 0,
        }
        self._axes.annotate("", end, start, arrowprops=look, zorder=5, size=10)
        middle = (start[0] + end[0]) / 2, (start[1] + end[1]) / 2 - 0.08
        self._write(text, middle, COLOURS["muted"], va="bottom")

    def lane(
        self,
        row: float,
        name: str,
        blocks: Sequence[tuple[float, float, str, str]],
    ) -> None:
        """Draw blocks (start, stop, text, role) in one row, its name on the left."""
        for start, stop, text, role in blocks:
            self.box(start, row + 0.1, stop - start, 0.8, text, role)
        self._lanes[row + 0.5] = style.wrap(name, style.WIDTH / 4)
        self._axes.set_yticks(
            list(self._lanes), list(self._lanes.values()), color=COLOURS["ink"]
        )

    def save(self, path: str | Path) -> Path:
        """Write it as a PNG file; return the path."""
        style.settle(self.figure)
        Path(path).write_bytes(to_png(self.figure))
        return Path(path)

    def _find_look(self, role: str) -> tuple[str, str]:
        """Return a role's fill and the color of a text on it."""
        if role in _ROLES:
            return _ROLES[role]
        if role in PHASE_LOOKS:
            fill, color, _ = PHASE_LOOKS[role]
            return fill, color
        known = [repr(name) for name in (*_ROLES, *PHASE_LOOKS) if name]
        raise ValueError(f"Drawing: no role {role!r}; there are {', '.join(known)}")

    def _write(
        self, text: str, place: tuple[float, float], color: str, va: str = "center"
    ) -> None:
        look = {"ha": "center", "va": va, "size": 9.5, "color": color, "zorder": 6}
        self._axes.text(*place, text, **look)

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        style.settle(self.figure)
        page = to_html(self.figure, self.figure.alt)
        return {"text/html": page, "text/plain": self.figure.alt}
