"""Charts: bars of values, a quantity over a knob, the times of steps."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kit.figures import cards
from kit.figures.cards import EDGE, Numbers
from kit.figures.numbers import format_number, format_seconds, is_known
from kit.figures.pictures import alone, describe
from kit.figures.theme import COLOURS, HATCH, MARKERS, SERIES_COLOURS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Series = tuple[Numbers, Numbers, Numbers | None, Numbers | None, str]

_DOTTED = {"color": COLOURS["ink"], "lw": 0.8, "ls": (0, (2, 3)), "zorder": 1}
#: From this factor between the ends on, an axis is logarithmic.
_WIDE = 15
_MARK = {"color": COLOURS["predicted"], "lw": 2, "ls": (0, (2, 1))}
_LOOKS: dict[str, dict[str, Any]] = {
    "measured": {"ms": 6.5, "lw": 1.8},
    "predicted": {"ls": (0, (5, 2)), "lw": 1.8},
    "recorded": {"ms": 7, "mfc": COLOURS["card"], "mew": 1.6, "lw": 1.1},
}


@alone()
def draw_bars(
    labels: Sequence[str],
    values: Numbers,
    lows: Numbers | None = None,
    highs: Numbers | None = None,
    *,
    title: str,
    unit: str,
    baseline: int | None = None,
    recorded: Sequence[int] = (),
    predicted: Numbers = (),
    width: float = cards.WIDTH,
    format: Callable[[float], str] = format_number,
) -> Figure:
    """Draw one horizontal bar per label, with its 95 % interval and its value in words.

    `lows` and `highs` are the intervals' ends. A value that is None or nan is written
    as unknown. `baseline` is the number of a row, from 0, `recorded` those of rows that
    were measured elsewhere; both are hatched. `predicted` are values of the first rows,
    each drawn as a dashed mark. `width` is in inches; `format` writes the values.
    Raises ValueError where the sequences' lengths differ.

    >>> figure = draw_bars(["0", "2"], [770, 1578], title="Two are faster", unit="1/s")
    >>> [int(bar.get_width()) for bar in figure.axes[0].patches]
    [770, 1578]
    """
    rows = cards.join_rows(labels, values, lows, highs)
    texts = [format(value) if is_known(value) else "unknown" for value in values]
    names = [cards.wrap(label, width / 3) for label in labels]
    left = EDGE + cards.measure_widest(names) + 0.15
    height = 0.46 * max(1, len(rows)) + 0.1
    figure, axes = cards.make_card(title, height, left, EDGE, width)
    marks = [value for value in predicted if is_known(value)]
    low, high = reach = cards.find_reach(rows, marks)
    across = width - left - EDGE
    room = max(0.3, 1 - (cards.measure_widest(texts) + 0.25) / across)
    axes.set_xlim(low * 1.05, low + ((high - low) or 1) / room)
    axes.axvline(0, color=COLOURS["ink"], lw=1)
    for y, row in enumerate(rows):
        _, value, low, high = row
        role = "recorded" if y in recorded else "measured"
        role = "baseline" if y == baseline else role
        if is_known(value):
            hatch = HATCH if role != "measured" else None
            look = {"facecolor": COLOURS[role], "edgecolor": COLOURS["card"], "lw": 0}
            axes.barh(y, value, 0.62, hatch=hatch, **look)
            if y == baseline:
                axes.axvline(value, **_DOTTED)
        cards.draw_interval(axes, "x", y, low, high, COLOURS["ink"], reach)
        role, end = (
            "ink" if is_known(value) else "muted",
            min(reach[1], max([0, *cards.list_known([row])])),
        )
        cards.write(axes, texts[y], (end, y), (7, 0), role=role)
    for y, value in enumerate(predicted):
        if is_known(value):
            axes.plot([value] * 2, [y - 0.42, y + 0.42], zorder=5, **_MARK)
    axes.set_ylim(max(1, len(names)) - 0.45, -0.6)  # the first row at the top
    axes.set_yticks(range(len(names)), names, **cards.style_text(10, "ink"))
    said = cards.write_rows(rows, format)
    if marks:
        pairs = zip(labels, predicted, strict=False)
        told = "; ".join(f"{label}: {format(value)}" for label, value in pairs)
        said = f"{said}. Predicted: {told}"
    cards.label_axes(axes, unit + " (dashed: predicted)" * bool(marks), "", grid="x")
    return describe(figure, f"Bars, {unit}", title, said)


@alone()
def draw_lines(
    series: Mapping[str, Series],
    *,
    title: str,
    xlabel: str,
    ylabel: str,
    logx: bool = False,
    width: float = cards.WIDTH,
) -> Figure:
    """Draw named lines, each with its name at its end.

    A series is (xs, ys, lows or None, highs or None, style): "measured" has markers and
    95 % intervals, "predicted" is dashed, "recorded" has hollow markers. The vertical
    axis begins at zero; `width` is in inches. Raises ValueError for another style, and
    for x ≤ 0 if `logx`.

    >>> series = {"here": ([1, 2], [5, 9], None, None, "measured")}
    >>> figure = draw_lines(series, title="It grows", xlabel="workers", ylabel="1/s")
    >>> figure.axes[0].lines[0].get_ydata().tolist()
    [5, 9]
    """
    names = [cards.wrap(name, width / 4.5) for name in series]
    right = EDGE + cards.measure_widest(names) + 0.2
    figure, axes = cards.make_card(title, 3.3, 1.05, right, width)
    axes.set_xscale("log" if logx else "linear")
    if len(places := {x for xs, *_ in series.values() for x in xs}) == 1:
        (x,) = places  # has no width that a margin could be a share of
        axes.set_xlim((x / 2, 2 * x) if logx and x > 0 else (x - 1, x + 1))
    drawn = dict.fromkeys(_LOOKS, 0)
    everything: list[cards.Row] = []
    ends, words, whiskers = [], [], []
    for name, (xs, ys, lows, highs, style) in series.items():
        if style not in drawn:
            raise ValueError(f"{name}: no style {style!r}; there are {list(drawn)}")
        if logx and any(x <= 0 for x in xs):
            raise ValueError(f"{name}: a logarithmic axis cannot show x ≤ 0")
        number, drawn[style] = drawn[style], drawn[style] + 1
        colour, look = COLOURS[style], _LOOKS[style]
        if style == "measured":
            colour = SERIES_COLOURS[number % len(SERIES_COLOURS)]
        if style != "predicted":
            look = look | {"marker": MARKERS[number % len(MARKERS)]}
        rows = cards.join_rows(xs, ys, lows, highs)
        heights = [y if is_known(y) else math.nan for y in ys]
        axes.plot(xs, heights, color=colour, zorder=4, label=name, **look)
        whiskers += [(x, low, high, colour) for x, _, low, high in rows]
        last = [row[:2] for row in rows if is_known(row[1])][-1:] or [(None, None)]
        ends.append((*last[0], colour))
        shown = [(cards.write_tick(x), *rest) for x, *rest in rows]
        words.append(f"{name}: {cards.write_rows(shown, format_number)}")
        everything += rows
    low, high = reach = cards.find_reach(everything)
    for whisker in whiskers:
        cards.draw_interval(axes, "y", *whisker, reach)
    axes.set_ylim(low * 1.1, high * 1.1 or 1)
    axes.margins(x=0.05)
    if 0 < len({row[0] for row in everything}) <= 12:
        cards.set_ticks(axes, [row[0] for row in everything])
    cards.label_ends(axes, names, ends)
    cards.label_axes(axes, xlabel, ylabel, grid="y")
    return describe(figure, f"{ylabel} over {xlabel}", title, ". ".join(words))


def is_wide(xs: Numbers) -> bool:
    """Return whether so wide a range is better shown on a logarithmic axis.

    >>> is_wide([1, 2, 4]), is_wide([1, 64]), is_wide([0, 64])
    (False, True, False)
    """
    low, high = min(xs), max(xs)
    return low > 0 and high > _WIDE * low


@alone()
def draw_steps(
    times_seconds: Numbers,
    *,
    title: str,
    xlabel: str = "step",
    ylabel: str = "milliseconds per step",
    regions: Sequence[tuple[int, int, str]] = (),
) -> Figure:
    """Draw the times of consecutive steps in milliseconds, beside their median.

    Steps count from 1; `xlabel` is the word for what is counted. A region (first step,
    last step, text) is shaded. Steps over twice the median have another mark; if one is
    over 30 medians the axis is logarithmic.

    >>> figure = draw_steps([0.2, 0.01, 0.01], title="The first step is slow")
    >>> figure.axes[0].lines[0].get_ydata().tolist()
    [200.0, 10.0, 10.0]
    """
    ms = [t * 1000 if is_known(t) else math.nan for t in times_seconds]
    known = sorted(t for t in ms if is_known(t)) or [0.0]
    median, most = known[len(known) // 2], known[-1]
    text = f"median\n{format_seconds(median / 1000)}"
    right = EDGE + cards.measure_widest([text]) + 0.2
    figure, axes = cards.make_card(title, 2.9, 1.05, right)
    look = {"ls": "", "ms": 2.5} if len(ms) > 100 else {"ls": "-", "ms": 5}
    look |= {"color": COLOURS["measured"], "marker": "o", "lw": 0.8}
    axes.plot(range(1, len(ms) + 1), ms, **look)
    slow = {step: t for step, t in enumerate(ms, 1) if t > 2 * median}
    look = {"color": COLOURS["slow"], "marker": "D", "ls": "", "ms": 5}
    axes.plot(list(slow), list(slow.values()), **look)
    axes.set_xlim(0.4 - 0.01 * len(ms), 0.6 + 1.01 * len(ms))
    axes.set_ylim(0, most * 1.2 or 1)
    if most > 30 * median > 0:
        axes.set(yscale="log", ylim=(known[0] / 1.6, most * 2.5))
        ylabel += " (logarithmic)"
    many = f"{xlabel}es" if xlabel.endswith(("s", "x", "ch", "sh")) else f"{xlabel}s"
    said = [f"{len(ms)} {many}, {text}".replace("\n", " ")]
    for start, stop, words in regions:
        axes.axvspan(start - 0.5, stop + 0.5, color=COLOURS["zone"], lw=0, zorder=0)
        late = start + stop > len(ms)
        x, side, shift = (stop, "right", -8) if late else (start, "left", 5)
        look = {"xycoords": ("data", "axes fraction"), "ha": side, "va": "top"}
        cards.write(axes, words, (x, 1), (shift, -5), role="muted", **look)
        said.append(f"{many} {start} to {stop}: {words}")
    axes.axhline(median, **_DOTTED)
    cards.set_ticks(axes, [1, *(x for x in axes.get_xticks() if x > 1 and x % 1 == 0)])
    cards.label_ends(axes, [text], [(None, median, COLOURS["ink"])])
    cards.label_axes(axes, xlabel, ylabel, grid="y")
    for step in sorted(slow, key=slow.__getitem__, reverse=True)[:5]:
        said.append(f"{xlabel} {step} took {format_seconds(slow[step] / 1000)}")
    return describe(figure, f"Times of {many}", title, "; ".join(said))


def _count(ms: Sequence[float], is_log: bool) -> tuple[list[float], list[int]]:
    """Count sorted times in equal bins, of their logarithms if `is_log`.

    They span 10 % of the median or more, so that times which are alike look alike.
    """
    median = ms[len(ms) // 2]
    low, high = min(ms[0], 0.95 * median), max(ms[-1], 1.05 * median)
    bins = max(10, min(60, round(2 * math.sqrt(len(ms)))))
    steps = [i / bins for i in range(bins + 1)]
    if is_log:
        edges = [low * (high / low) ** step for step in steps]
    else:
        edges = [low + (high - low) * step for step in steps]
    ends = [*(bisect.bisect_left(ms, edge) for edge in edges[1:-1]), len(ms)]
    return edges, [b - a for a, b in itertools.pairwise([0, *ends])]
