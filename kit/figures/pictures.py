"""Figures as the static images with alt text that a notebook shows."""

from __future__ import annotations

import base64
import html
import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kit.figures.theme import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LOCK = threading.RLock()


@contextmanager
def alone() -> Iterator[None]:
    """Let one thread draw at a time, because matplotlib shares its fonts."""
    with _LOCK:
        yield


@alone()
def to_png(figure: Figure) -> bytes:
    """Render a figure as PNG bytes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    pixels = bytes(canvas.buffer_rgba())
    picture = Image.frombytes("RGBA", canvas.get_width_height(), pixels).convert("RGB")
    # 128 colours show a chart as well as 16 million, in a third of the bytes. Chosen
    # so, they are found in half the time that others take, and none is far off.
    farthest = Image.Quantize.MAXCOVERAGE
    picture = picture.quantize(128, method=farthest, dither=Image.Dither.NONE)
    file = io.BytesIO()
    picture.save(file, "PNG", optimize=True)
    return file.getvalue()


def to_html(figure: Figure, alt: str) -> str:
    """Render a figure as an HTML image that holds its bytes and its alt text."""
    source = base64.b64encode(to_png(figure)).decode()
    border = f"border:1px solid {COLOURS['border']};border-radius:8px"
    return (
        f'<img alt="{html.escape(alt)}" width="{round(figure.get_figwidth() * 100)}" '
        f'style="max-width:100%;height:auto;box-sizing:border-box;{border}" '
        f'src="data:image/png;base64,{source}">'
    )


class Picture:
    """A figure that a notebook shows as a static image with alt text."""

    def __init__(self, figure: Figure, alt: str) -> None:
        self.figure, self.axes, self.alt = figure, figure.axes, alt

    def __repr__(self) -> str:
        return self.alt

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"text/html": to_html(self.figure, self.alt), "text/plain": self.alt}


def show(drawn: Axes | Figure, alt: str | None = None) -> Picture:
    """Make a figure, or the figure of these axes, the picture of a notebook cell.

    What the kit draws describes and shows itself; any other figure needs this and an
    `alt`. Raises ValueError where there is no alt text.
    """
    figure = drawn.get_figure(root=True)
    alt = alt or getattr(figure, "alt", "")
    if not alt:
        raise ValueError("a picture needs alt text: show(figure, 'what it shows')")
    return Picture(figure, alt)


def describe(figure: Figure, *sentences: str) -> Figure:
    """Give a figure its alt text; it and its axes then show themselves."""
    figure.alt = " ".join(f"{s.rstrip('.')}." for s in sentences if s)
    # IPython shows a bare Figure or Axes as text, unless pyplot has been set up.
    for drawn in (figure, *figure.axes):
        drawn._repr_mimebundle_ = show(figure)._repr_mimebundle_
    return figure
