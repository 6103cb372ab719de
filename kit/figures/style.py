"""One look for all pictures, and how a picture shows itself in a notebook."""

from __future__ import annotations

import base64
import contextlib
import html
import io
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STYLE = Path(__file__).with_name("kit.mplstyle")
COLORS = {
    "measured": "#0072B2",
    "baseline": "#7A828A",
    "predicted": "#B84700",
    "recorded": "#A5427A",
    "zone": "#E4E8EC",
    "ink": "#1F2328",
    "muted": "#57606A",
    "card": "#FDFDFC",
}
HATCH = "////"  # of the baseline, so that color is not all
# What a step's time goes to, in the order of drawing: words for readers, the fill, the
# text on it, the hatch; "" is anything else. The fills stay apart for the color-blind,
# and in grey the hatches tell them apart.
_PHASES = {
    "input": ("waiting for data", "#B84700", "#FFFFFF", "///"),
    "copies": ("copies to the device", "#F0A830", "#1F2328", "..."),
    "forward": ("forward", "#6CB8E6", "#1F2328", ""),
    "backward": ("backward", "#2B4C9B", "#FFFFFF", "\\\\\\"),
    "optimizer": ("optimizer", "#3FA887", "#1F2328", "xxx"),
    "communication": ("other ranks", "#A5427A", "#FFFFFF", "---"),
    "sync": ("waiting for the device", "#EFE07A", "#1F2328", "|||"),
    "python": ("your own code", "#5F5446", "#FFFFFF", "++"),
    "": ("other", "#C4CBD2", "#1F2328", "//"),
}
PHASE_LOOKS = {phase: look for phase, (_, *look) in _PHASES.items()}
NAMES = {phase: words for phase, (words, *_) in _PHASES.items()}
PHASES = {phase: words for phase, words in NAMES.items() if phase}
#: Inches: of a picture, and of one row of bars.
WIDTH, ROW = 7.6, 0.46
_FRAME = "border:1px solid #D0D7DE;border-radius:8px;max-width:100%;height:auto"


@contextlib.contextmanager
def kit_look() -> Iterator[None]:
    """Draw in the kit's look, whatever the reader's settings of matplotlib are."""
    import matplotlib.style

    with matplotlib.style.context(["default", STYLE]):
        yield


def new_figure(title: str, height: float) -> Figure:
    """Return a figure with a title, `height` inches high below it."""
    from matplotlib.figure import Figure

    heading = textwrap.fill(title, 72)
    lines = heading.count("\n") + 1
    figure = Figure((WIDTH, height + 0.2 * lines))
    figure.suptitle(heading, x=0.02, ha="left")
    return figure


def paint(patch: Any, phase: str) -> None:
    """Fill a patch or a band in a phase's color and hatch."""
    fill, words, hatch = PHASE_LOOKS[phase]
    patch.set(facecolor=fill, edgecolor=(words, 0.4), hatch=hatch or None, linewidth=0)


def measure_text(text: str) -> float:
    """Return about how wide a text is, in inches."""
    return max(map(len, text.split("\n"))) * 0.078


# How a picture shows itself


def to_png(figure: Figure) -> bytes:
    """Render a figure as PNG bytes."""
    from PIL import Image

    drawn, file = io.BytesIO(), io.BytesIO()
    with kit_look():
        figure.savefig(drawn, format="png")
    picture = Image.open(drawn).convert("RGB")
    # 128 colors show a chart as well as 16 million, in a third of the bytes.
    picture.quantize(128, dither=Image.Dither.NONE).save(file, "PNG", optimize=True)
    return file.getvalue()


def to_html(figure: Figure, alt: str) -> str:
    """Render a figure as an HTML image that holds its bytes and its alt text."""
    source = base64.b64encode(to_png(figure)).decode()
    return (
        f'<img alt="{html.escape(alt)}" width="{round(figure.get_figwidth() * 100)}" '
        f'style="{_FRAME}" src="data:image/png;base64,{source}">'
    )


def show(drawn: Axes | Figure, alt: str | None = None) -> Figure:
    """Let a figure, or the figure of these axes, show itself in a notebook cell.

    It is shown as a static image with alt text, and so are its axes. What the kit draws
    has such a text; any other figure needs this and an `alt`. Raises ValueError where
    there is none.
    """
    figure: Any = drawn.get_figure(root=True)
    figure.alt = alt or getattr(figure, "alt", "")
    if not figure.alt:
        raise ValueError("a picture needs alt text: show(figure, 'what it shows')")

    def as_image(**_: Any) -> dict[str, str]:
        return {"text/html": to_html(figure, figure.alt), "text/plain": figure.alt}

    # IPython shows a bare Figure or Axes as text, unless pyplot has been set up.
    for shown in (figure, *figure.axes):
        shown._repr_mimebundle_ = as_image
    return figure


def describe(figure: Figure, *sentences: str) -> Figure:
    """Give a figure these sentences as its alt text, and let it show itself."""
    ended = [s if s.endswith("?") else f"{s.rstrip('.')}." for s in sentences if s]
    return show(figure, " ".join(ended))
