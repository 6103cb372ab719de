"""Colours, hatches, one look for every card, and numbers in words."""

from __future__ import annotations

import functools
import inspect
import math
import re
import textwrap
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, darkened until text in them has a contrast of 4.5 on a card.
COLOURS = {
    "measured": "#0072B2",
    "baseline": "#7A828A",
    "predicted": "#B84700",
    "recorded": "#A5427A",
    "zone": "#E4E8EC",
    "ink": "#1F2328",
    "muted": "#57606A",
    "grid": "#E9ECEF",
    "border": "#D0D7DE",
    "card": "#FDFDFC",
}
LINES = [("#0072B2", "o"), ("#00755A", "s"), ("#855600", "^"), ("#5B4FA8", "D")]
HATCH = "////"  # of the baseline, so that colour is not all
# What a step's time goes to, in the order of drawing: words for readers, the fill, the
# text on it, the hatch; "" is anything else. The fills stay apart for the colour-blind,
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
WIDTH = 7.6  # inches; shown at 100 pixels an inch, the width of a notebook's text
EDGE = 0.25  # inches between a card's edge and what is on it
FONT = "DejaVu Sans"  # comes with matplotlib: every machine draws the same
DPI = 200
#: What a text, a line and a legend look like unless something else is said. Whatever is
#: not said, matplotlib takes from the reader's settings.
TEXT = {"size": 10, "color": COLOURS["ink"]}
MUTED = {"size": 10, "color": COLOURS["muted"]}
LINE = {"solid_capstyle": "projecting", "dash_capstyle": "butt"}
LEGEND = {
    "fontsize": 10,
    "labelcolor": COLOURS["ink"],
    "frameon": False,
    "borderpad": 0.4,
    "labelspacing": 0.5,
    "handlelength": 2.0,
    "handleheight": 0.7,
    "handletextpad": 0.8,
    "columnspacing": 2.0,
    "borderaxespad": 1.5,
    "numpoints": 1,
    "markerscale": 1.0,
}
_LOCK = threading.RLock()
P = ParamSpec("P")
R = TypeVar("R")


def one_at_a_time(draw: Callable[P, R]) -> Callable[P, R]:
    """Let one thread draw at a time: matplotlib shares its fonts between threads."""

    @functools.wraps(draw)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        with _LOCK:
            return draw(*args, **kwargs)

    return wrapper


def make_card(title: str, height: float, width: float = WIDTH) -> Figure:
    """Make a card with a title of four lines at most; lengths are in inches.

    `height` is that of what is drawn below the title.
    """
    from matplotlib.figure import Figure
    from matplotlib.gridspec import SubplotParams
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    heading = wrap(title, width - 2 * EDGE, 14, lines=4)  # of 12 points, but bold
    pads = {"w_pad": EDGE, "h_pad": 0.12, "wspace": 0.02, "hspace": 0.02}
    figure = Figure(
        (width, height + 0.3 + 0.21 * (heading.count("\n") + 1)),
        dpi=DPI,
        facecolor=COLOURS["card"],
        edgecolor=COLOURS["card"],
        linewidth=0,
        subplotpars=SubplotParams(0.125, 0.11, 0.9, 0.88, 0.2, 0.2),
        layout=ConstrainedLayoutEngine(compress=False, **pads),
    )
    figure.suptitle(
        heading,
        x=EDGE / width,
        ha="left",
        linespacing=1.3,
        size=12,
        weight="bold",
        color=COLOURS["ink"],
    )
    return figure


def add_axes(card: Any, **limits: Any) -> Axes:
    """Add axes to a card in the kit's look; `limits` and the like are `Axes.set`'s."""
    from matplotlib.ticker import MaxNLocator

    axes = card.add_subplot(facecolor="none")
    axes.set_axisbelow(True)
    axes.grid(visible=False, which="both")
    for side, spine in axes.spines.items():
        spine.set(visible=side == "bottom", color=COLOURS["ink"], linewidth=0.8)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 2.5, 5, 10]))
        axis.set_label_text("", **MUTED)
        axis.labelpad = 4.0
    ticks = {"direction": "out", "width": 0.8, "pad": 3.5, "color": COLOURS["ink"]}
    labels = {"labelsize": 10, "labelcolor": COLOURS["muted"], "labelfontfamily": FONT}
    axes.tick_params(which="both", **ticks, **labels, labelrotation=0)
    axes.tick_params("x", length=3.5, bottom=True, top=False)
    axes.tick_params("x", labelbottom=True, labeltop=False)
    axes.tick_params("y", length=0, left=True, right=False)
    axes.tick_params("y", labelleft=True, labelright=False)
    axes.set(**limits)
    return axes


def draw_grid(axes: Axes, axis: str) -> None:
    """Draw pale lines across the axes at the ticks of one axis."""
    look = {"color": COLOURS["grid"], "linewidth": 0.8, "linestyle": "-", "alpha": 1.0}
    axes.grid(visible=True, axis=axis, which="major", **look)
    axes.minorticks_off()


def settle(figure: Figure) -> None:
    """Give all texts the kit's font, and all hatches its lines.

    A reader's settings may ask for another font or weight, or for TeX: here texts mean
    what they say, "$5" is a price.
    """
    from matplotlib.text import Text

    title = figure._suptitle  # type: ignore[attr-defined]
    for text in figure.findobj(Text):
        text.set(family=FONT, style="normal", variant="normal", stretch="normal")
        text.set(weight="bold" if text is title else "normal")
        text.set(parse_math=False, usetex=False)
    # Bands can be told so since matplotlib 3.11, and keys in a legend are copies.
    for artist in figure.findobj(lambda artist: hasattr(artist, "set_hatch_linewidth")):
        artist.set_hatch_linewidth(1.0)  # type: ignore[attr-defined]


def paint(patch: Any, phase: str) -> None:
    """Fill a patch or a band in a phase's colour and hatch."""
    fill, words, hatch = PHASE_LOOKS[phase]
    patch.set(facecolor=fill, edgecolor=(words, 0.4), hatch=hatch or None, linewidth=0)


def list_keys(labels: Mapping[str, str]) -> list[Any]:
    """Return what a legend shows of phases: their looks and these labels."""
    from matplotlib.patches import Patch

    keys = [Patch(label=label) for label in labels.values()]
    for key, phase in zip(keys, labels, strict=True):
        paint(key, phase)
    return keys


def write_on(axes: Axes, phase: str, text: str, place: tuple[float, float]) -> None:
    """Write in the middle of a block; behind the words its hatch is left out."""
    fill, colour, _ = PHASE_LOOKS[phase]
    box = {"facecolor": fill, "edgecolor": "none", "pad": 1.5}
    box["linewidth"] = 0
    look = {"ha": "center", "va": "center", "bbox": box, "size": 9.5}
    axes.text(*place, text, color=colour, **look)


def measure(text: str, size: float = 10) -> float:
    """Return about how wide a text's longest line is, in inches."""
    return max(map(len, text.split("\n"))) * 0.56 * size / 72


def wrap(text: str, inches: float, size: float = 10, lines: int = 6) -> str:
    """Break a text into lines about as wide as this; what needs more lines is cut.

    >>> wrap("amd-epyc-2-cores-avx512 of today", 1.5)
    'amd-epyc-2-cores-\\navx512 of today'
    """
    letters = max(6, int(inches / measure("x", size)))
    return textwrap.fill(text, letters, max_lines=lines, placeholder="…")


def is_known(value: Any) -> bool:
    """Return whether this is a finite number."""
    return value is not None and math.isfinite(value)


def is_wide(xs: Sequence[float]) -> bool:
    """Return whether numbers span so much that a logarithmic axis shows them better.

    >>> is_wide([1, 2, 4]), is_wide([1, 64]), is_wide([0, 64])
    (False, True, False)
    """
    return bool(xs) and min(xs) > 0 and max(xs) > 10 * min(xs)


def write_tick(value: float, _: Any = None) -> str:
    """Write a number on an axis: in full, a huge one with a word.

    >>> write_tick(0.25), write_tick(2**20), write_tick(4e9), write_tick(-1e-7)
    ('0.25', '1,048,576', '4 billion', '−1e−07')
    """
    text = f"{value:,.9g}"
    for unit, word in ((1e6, "million"), (1e9, "billion"), (1e12, "trillion")):
        if abs(value) >= max(unit, 1e8):
            text = f"{value / unit:,.4g} {word}"
    return text.replace("-", "−")


def format_number(value: float | None) -> str:
    """Write a number with three significant digits and every digit before the point.

    From a trillion on, digits are no longer counted.

    >>> format_number(1523.4), format_number(0.98), format_number(None)
    ('1,523', '0.980', 'unknown')
    >>> format_number(5.6e21)
    '5.60e+21'
    """
    if not is_known(value):
        return "unknown"
    rounded = float(f"{value:.3g}")
    if rounded == 0:
        return "0"
    decimals = max(0, 2 - math.floor(math.log10(abs(rounded))))
    plain = decimals < 6 and abs(value) < 1e12
    return (f"{value:,.{decimals}f}" if plain else f"{value:.2e}").replace("-", "−")


def format_seconds(value: float | None) -> str:
    """Write a time in the unit that suits it, from nanoseconds to hours.

    >>> format_seconds(0.0123), format_seconds(150), format_seconds(7500)
    ('12.3 ms', '2 min 30 s', '2 h 5 min')
    """
    if not is_known(value):
        return "unknown"
    sign, value = "−" if value < 0 else "", float(f"{abs(value):.3g}")
    if (minutes := round(value / 60)) >= 60:
        return f"{sign}{minutes // 60:,} h {minutes % 60} min"
    if value >= 120:
        return f"{sign}{round(value) // 60} min {round(value) % 60} s"
    units = (("s", 1), ("ms", 1e3), ("µs", 1e6), ("ns", 1e9))
    unit, per_second = next((u for u in units if value * u[1] >= 1), units[-1])
    return f"{sign}{format_number(value * per_second)} {unit}" if value else "0 s"


def format_bytes(value: float | None, _: Any = None) -> str:
    """Write an amount of memory in decimal units: 1 GB is 10⁹ bytes.

    >>> format_bytes(1.5e9), format_bytes(64_000_000), format_bytes(512)
    ('1.5 GB', '64 MB', '512 B')
    """
    if not is_known(value):
        return "unknown"
    value, units = float(f"{value:.3g}"), ["PB", "TB", "GB", "MB", "kB", "B"]
    while abs(value) >= 1000 and len(units) > 1:
        value /= 1000
        units.pop()
    return f"{round(value, 2):,.10g} {units[-1]}".replace("-", "−")


def format_amount(value: float | None, unit: str) -> str:
    """Write a value without its unit; bytes, of which there are many, as memory.

    >>> format_amount(167_945_694, "bytes of peak memory"), format_amount(8.25, "ms")
    ('168 MB', '8.25')
    """
    return format_bytes(value) if is_bytes(unit) else format_number(value)


def is_bytes(unit: str) -> bool:
    """Return whether values are bytes, as the name of their axis says."""
    return unit.startswith("bytes")


def format_value(value: object, width: int = 40) -> str:
    """Write any value on one line of at most `width` characters.

    >>> format_value("a\\nb"), format_value(list(range(99)), width=12)
    ("'a\\\\nb'", '[0, 1, 2, 3…')
    >>> format_value(len)
    'len'
    """
    is_named = inspect.isroutine(value) or inspect.isclass(value)
    text = value.__name__ if is_named else " ".join(repr(value).split())
    text = re.sub(r" at 0x[0-9a-f]+", "", text)
    return text if len(text) <= width else f"{text[: width - 1]}…"


def format_share(value: float | None, like: float | None = None) -> str:
    """Write a fraction in per cent, with a decimal where it, or `like`, is below 10 %.

    >>> format_share(0.61), format_share(0.0234), format_share(-0.004, like=0.61)
    ('61 %', '2.3 %', '0 %')
    """
    if not is_known(value):
        return "unknown"
    decimals = int(abs(value if like is None else like) < 0.0995)
    return f"{100 * value:z,.{decimals}f} %".replace("-", "−")


def format_saving(value: float | None, low: float | None, high: float | None) -> str:
    """Write a fraction that is saved, with its interval, which may not be known.

    >>> format_saving(0.61, 0.58, 0.64)
    '61 % [58, 64]'
    """
    if not (is_known(value) and is_known(low) and is_known(high)):
        return format_share(value)
    ends = (format_share(end, value).removesuffix(" %") for end in (low, high))
    return f"{format_share(value)} [{', '.join(ends)}]"
