"""Stacked bands: what a whole consists of, from place to place."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from kit.figures import cards
from kit.figures.cards import EDGE
from kit.figures.numbers import format_number, is_known
from kit.figures.pictures import alone, describe
from kit.figures.theme import COLOURS, PHASE_LOOKS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: The bands' fills, the words on them and their hatches, from the lowest band on: looks
#: that the colour-blind tell apart, borrowed from the phases of a step.
_LOOKS = [
    PHASE_LOOKS[phase]
    for phase in ("forward", "copies", "optimizer", "backward", "sync", "communication")
]
_LINE = 0.19  # inches that a label needs
#: Behind words, so that no line runs through them.
_PAPER = {"facecolor": COLOURS["card"], "edgecolor": "none", "pad": 1}


@alone()
def draw_stack(
    positions: Sequence[float],
    values: Mapping[str, Sequence[float]],
    *,
    title: str,
    xlabel: str,
    ylabel: str,
    regions: Sequence[tuple[float, float, str]] = (),
    marks: Mapping[str, float] | None = None,
    width: float = cards.WIDTH,
    format: Callable[[float], str] = format_number,
) -> Figure:
    """Draw named amounts as bands on top of each other, and mark where all are most.

    `values` are the bands from the lowest on, each an amount of 0 or more for every
    position; positions ascend. A band has its name on it, or beside it where it is too
    thin. A region (first position, last position, text) is named above and told from
    its neighbours by a line. `marks` are named totals, a predicted one say, drawn as
    dashed lines across. `width` is in inches; `format` writes amounts. Raises
    ValueError for sequences of unequal lengths, for positions that do not ascend, for
    fewer than two, for amounts that are negative or unknown, and for more than six
    bands.

    >>> bands = {"parameters": [4, 4, 4], "activations": [0, 6, 0]}
    >>> figure = draw_stack([0, 1, 2], bands, title="T", xlabel="place", ylabel="MB")
    >>> figure.alt[18:63]
    'At most 10.0, at 1: parameters 4.00; activati'
    """
    _check(positions, values)
    totals = [sum(column) for column in zip(*values.values(), strict=True)]
    top = max(range(len(totals)), key=totals.__getitem__)
    marks = {name: mark for name, mark in (marks or {}).items() if is_known(mark)}
    beside = [cards.wrap(name, width / 5) for name in [*values, *marks]]
    right = EDGE + cards.measure_widest(beside) + 0.2
    figure, axes = cards.make_card(title, 3.3, 1.05, right, width)
    most = max([totals[top], *marks.values()]) or 1
    axes.set(xlim=(positions[0], positions[-1]), ylim=(0, most * 1.28))
    _draw_regions(axes, regions)
    names, ends = [], []
    floor = [0.0] * len(positions)
    for (name, amounts), look in zip(values.items(), _LOOKS, strict=False):
        ceiling = [low + amount for low, amount in zip(floor, amounts, strict=True)]
        _draw_band(axes, positions, floor, ceiling, look)
        if not _write_on(axes, name, positions, floor, ceiling, look):
            names.append(cards.wrap(name, width / 5))
            last = positions[-1], (floor[-1] + ceiling[-1]) / 2
            ends.append((*last, COLOURS["ink"]))
        floor = ceiling
    axes.plot(positions, totals, color=COLOURS["ink"], lw=1.6, zorder=4, label="total")
    _mark_peak(axes, positions[top], totals[top], format(totals[top]))
    for name, mark in marks.items():
        look = {"color": COLOURS["predicted"], "lw": 2, "ls": (0, (5, 2)), "zorder": 4}
        axes.axhline(mark, **look)
        names.append(cards.wrap(f"{name} {format(mark)}", width / 5))
        ends.append((None, mark, COLOURS["predicted"]))
    cards.label_ends(axes, names, ends)
    cards.label_axes(axes, xlabel, ylabel, grid="y")
    parts = "; ".join(f"{name} {format(x[top])}" for name, x in values.items())
    said = [f"At most {format(totals[top])}, at {positions[top]:g}: {parts}"]
    said += [f"{name}: {format(mark)}" for name, mark in marks.items()]
    said += [f"From {a:g} to {b:g}: {text}" for a, b, text in regions]
    said += [_tell(name, positions, x, format) for name, x in values.items()]
    return describe(figure, f"{ylabel} over {xlabel}", title, *said)


def _check(positions: Sequence[float], values: Mapping[str, Sequence[float]]) -> None:
    if len(positions) < 2 or any(not b > a for a, b in itertools.pairwise(positions)):
        raise ValueError("positions are two or more, and each is beyond the one before")
    if not 0 < len(values) <= len(_LOOKS):
        raise ValueError(f"{len(values)} bands: give one to {len(_LOOKS)} of them")
    for name, amounts in values.items():
        if len(amounts) != len(positions):
            raise ValueError(
                f"{name}: {len(amounts)} amounts at {len(positions)} positions"
            )
        if not all(is_known(amount) and amount >= 0 for amount in amounts):
            raise ValueError(f"{name}: an amount is negative or unknown")


def _draw_regions(axes: Axes, regions: Sequence[tuple[float, float, str]]) -> None:
    """Name stretches of the step above the bands, with a line between two."""
    for start, stop, text in regions:
        look = {"xycoords": ("data", "axes fraction"), "ha": "center", "va": "top"}
        place = ((start + stop) / 2, 1)
        cards.write(axes, text, place, (0, -4), role="muted", bbox=_PAPER, **look)
        if start > axes.get_xlim()[0]:
            axes.axvline(start, color=COLOURS["muted"], lw=0.8, ls=(0, (2, 3)))


def _draw_band(
    axes: Axes,
    xs: Sequence[float],
    floor: Sequence[float],
    ceiling: Sequence[float],
    look: tuple[str, str, str],
) -> None:
    fill, words, hatch = look
    band = axes.fill_between(xs, floor, ceiling, facecolor=fill, lw=0, zorder=2)
    band.set(hatch=hatch or None, edgecolor=(words, 0.4))
    band.set_hatch_linewidth(1)
    # A thin light line, so that bands end where they end in grey, too.
    axes.plot(xs, ceiling, color=COLOURS["card"], lw=1, zorder=3, label="_edge")


def _write_on(
    axes: Axes,
    name: str,
    xs: Sequence[float],
    floor: Sequence[float],
    ceiling: Sequence[float],
    look: tuple[str, str, str],
) -> bool:
    """Write a name where its band leaves most room; return whether that is enough."""
    box, dpi = axes.get_window_extent(), axes.get_figure().dpi
    across = (xs[-1] - xs[0]) / (box.width / dpi)  # of an inch
    half = (cards.measure_widest([name]) / 2 + 0.08) * across
    room, x, y = 0.0, xs[0], 0.0
    for step in range(65):
        at = xs[0] + half + (xs[-1] - xs[0] - 2 * half) * step / 64
        under = [at - half, *(x for x in xs if abs(x - at) < half), at + half]
        low = max(_interpolate(x, xs, floor) for x in under)
        high = min(_interpolate(x, xs, ceiling) for x in under)
        if high - low > room * (1 + 1e-9):
            room, x, y = high - low, at, (low + high) / 2
    if room / axes.get_ylim()[1] * box.height / dpi < _LINE:
        return False
    fill, words, _ = look
    behind = {"facecolor": fill, "edgecolor": "none", "pad": 1.5}
    cards.write(axes, name, (x, y), role=words, ha="center", bbox=behind)
    return True


def _interpolate(x: float, xs: Sequence[float], ys: Sequence[float]) -> float:
    place = min(max(bisect.bisect_right(xs, x) - 1, 0), len(xs) - 2)
    share = (x - xs[place]) / (xs[place + 1] - xs[place])
    return ys[place] + share * (ys[place + 1] - ys[place])


def _mark_peak(axes: Axes, x: float, total: float, text: str) -> None:
    """Mark where all is most, with the amount above, inside the axes."""
    axes.plot([x], [total], marker="v", ms=7, color=COLOURS["ink"], zorder=5)
    low, high = axes.get_xlim()
    share = (x - low) / (high - low)
    side = "left" if share < 0.15 else "right" if share > 0.85 else "center"
    cards.write(axes, f"peak {text}", (x, total), (0, 13), ha=side, bbox=_PAPER)


def _tell(
    name: str,
    xs: Sequence[float],
    amounts: Sequence[float],
    format: Callable[[float], str],
) -> str:
    """Tell a band's start, largest amount and end, for who cannot see it."""
    most = max(range(len(amounts)), key=amounts.__getitem__)
    first, last = format(amounts[0]), format(amounts[-1])
    return (
        f"{name}: {first} first, {format(amounts[most])} at {xs[most]:g}, {last} last"
    )
