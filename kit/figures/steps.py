"""Where the time of a step goes, and what removing a cause would save."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kit.figures import cards, phases
from kit.figures.cards import EDGE, Row
from kit.figures.numbers import format_seconds, is_known
from kit.figures.phases import LINE, format_saving, write_share
from kit.figures.pictures import alone, describe
from kit.figures.theme import COLOURS, HATCH, PHASES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BAR = 0.76  # inches, the height of the bar of a step
_LEAST = 0.005  # of a step; a phase below it has no label
_THIN = {"color": COLOURS["muted"], "lw": 0.8, "solid_capstyle": "butt", "zorder": 1}
_GAP = {"color": COLOURS["card"], "lw": 1, "zorder": 3, "clip_on": False}


class _Block(NamedTuple):
    """A phase from `start` to `stop` inches, with its words inside or beside it."""

    phase: str
    start: float
    stop: float
    inside: str
    beside: str
    said: str

    @property
    def middle(self) -> float:
        """Where its words or its leader stand."""
        return (self.start + self.stop) / 2


class _Flag(NamedTuple):
    """A label beside a leader at `x`, which covers `low` to `high` of its row."""

    x: float
    low: float
    high: float
    row: int


@alone()
def draw_step(
    shares: Mapping[str, float],
    savings: Sequence[Row] = (),
    *,
    title: str,
    step_seconds: float,
    overhead: float | None = None,
    width: float = cards.WIDTH,
) -> Figure:
    """Draw a step as a bar of its phases, above what removing a cause would save.

    `shares` are fractions of the step by phase (keys of `PHASES`) that add up to 1.
    `overhead`, a fraction too, cuts across the phases: a bracket below the bar.
    `savings` are (label, value, low, high), fractions of the step's time with their
    95 % intervals; one that does not lie wholly above 0 is grey. `width` is in inches.
    Raises ValueError for an unknown phase, for shares or an overhead that are no
    fractions, for shares that miss 1 by over 1 %, and for a step that takes no time.

    >>> shares = {"input": 0.61, "forward": 0.39}
    >>> figure = draw_step(shares, title="It waits for data", step_seconds=0.1)
    >>> [text.get_text() for text in figure.axes[0].texts]
    ['waiting for data\\n61 % · 61.0 ms', 'forward\\n39 % · 39.0 ms']
    """
    _check(shares, step_seconds, overhead)
    across = width - 2 * EDGE
    blocks = _plan(shares, step_seconds, across)
    spots, flags = _place_labels([block for block in blocks if block.beside], across)
    lines = phases.count_lines(spots)
    top = LINE * lines + 0.05 * bool(lines)
    end = top + _BAR + (0.38 if overhead is not None else 0)
    names = [cards.wrap(str(label), width / 3) for label, *_ in savings]
    one = 0.25 + 0.17 * (1 + max((name.count("\n") for name in names), default=0))
    below = 0.3 + one * len(names) + 0.38 if names else 0
    figure, canvas = phases.make_canvas(title, end + below, width)
    for block in blocks:
        _draw_block(canvas, block, top)
    beside = [block for block in blocks if block.beside]
    if flags:
        _draw_flags(canvas, beside, flags, top)
    else:
        items = [(block.phase, block.beside) for block in beside]
        phases.draw_key(canvas, items, spots, 0)
    said = ["; ".join(block.said for block in blocks)]
    if overhead is not None:
        starts = [block.start for block in blocks if block.phase == "forward"]
        words = f"of which eager overhead: {write_share(overhead)}"
        _draw_overhead(canvas, words, starts, overhead * across, top + _BAR)
        said.append(f"Eager overhead, across the phases: {write_share(overhead)}")
    if names:
        _draw_savings(canvas, savings, names, end + 0.3, one)
        told = cards.write_rows(savings, write_share)
        said.append(f"What removing a cause would save of the step: {told}")
    first = f"Where the {format_seconds(step_seconds)} of a step go"
    return describe(figure, first, title, *said)


def _check(
    shares: Mapping[str, float], step_seconds: float, overhead: float | None
) -> None:
    for phase, share in shares.items():
        phases.check_phase(phase or repr(phase), "draw_step")
        if not is_known(share) or share < 0:
            raise ValueError(f"draw_step: {phase} has no share: {share}")
    if not math.isclose(total := sum(shares.values()), 1, abs_tol=0.01):
        raise ValueError(f"draw_step: shares add up to {total:.4g}, not to 1")
    if not is_known(step_seconds) or step_seconds <= 0:
        raise ValueError(f"draw_step: a step takes time, not {step_seconds} s")
    if overhead is not None and not 0 <= overhead <= 1:
        raise ValueError(f"draw_step: overhead={overhead} is no fraction of a step")


def _plan(
    shares: Mapping[str, float], step_seconds: float, across: float
) -> list[_Block]:
    """Return the blocks of the bar, in the order of PHASES."""
    blocks: list[_Block] = []
    start, total = 0.0, sum(shares.values())
    for phase in (phase for phase in PHASES if shares.get(phase)):
        name, share = PHASES[phase], write_share(shares[phase])
        time = format_seconds(shares[phase] * step_seconds)
        stop = start + across * shares[phase] / total
        inside = _fit(name, share, time, stop - start)
        is_beside = not inside and shares[phase] >= _LEAST
        beside = f"{name}  {share} · {time}" if is_beside else ""
        said = f"{name}: {share}, {time}"
        blocks.append(_Block(phase, start, stop, inside, beside, said))
        start = stop
    return blocks


def _fit(name: str, share: str, time: str, inches: float) -> str:
    """Return a phase's label in as few lines as fit into its block, or nothing."""
    choices = [f"{name}\n{share} · {time}"]
    broken = cards.wrap(name, (inches - 0.14) / phases.SIZE * 10)
    choices += [f"{broken}\n{share} · {time}", f"{broken}\n{share}\n{time}"]
    for text in choices:
        high = 0.08 + (text.count("\n") + 1) * phases.SIZE * 1.25 / 72
        fits = phases.measure(text) + 0.14 <= inches and high <= _BAR
        if fits and "…" not in text:
            return text
    return ""


def _place_labels(
    blocks: Sequence[_Block], across: float
) -> tuple[list[phases.Spot], list[_Flag]]:
    """Place the labels above the bar as flags, or as a key where flags would cross."""
    wants = [(block.middle, 0.06 + phases.measure(block.beside)) for block in blocks]
    if flags := _raise_flags(wants, across):
        return [(flag.x, flag.row) for flag in flags], flags
    return phases.place_key([block.beside for block in blocks], across), []


def _raise_flags(
    wants: Sequence[tuple[float, float]], across: float
) -> list[_Flag] | None:
    """Find rows above the bar for (x, width) labels, in as few rows as can be.

    The labels up to some place stand right of their leaders, the others left, so that
    the stairs of both climb outwards. Returns None where leaders would cross words.
    """
    best: list[_Flag] | None = None
    for split in range(len(wants), -1, -1):
        placed: dict[int, _Flag] = {}
        for i in (*reversed(range(split)), *range(split, len(wants))):
            x, wide = wants[i]
            low, high = (x, x + wide) if i < split else (x - wide, x)
            flags = (_Flag(x, low, high, row) for row in range(len(wants)))
            free = (f for f in flags if not any(_meet(f, g) for g in placed.values()))
            flag = next(free, None)
            if low < 0 or high > across or flag is None:
                break
            placed[i] = flag
        else:
            found = [placed[i] for i in range(len(wants))]
            if best is None or sum(f.row for f in found) < sum(f.row for f in best):
                best = found
    return best


def _meet(a: _Flag, b: _Flag) -> bool:
    """Return whether two labels overlap, or the leader of one crosses the other."""
    if a.row == b.row:
        return a.low < b.high + 0.12 and b.low < a.high + 0.12
    high, low = (a, b) if a.row > b.row else (b, a)
    return low.low - 0.02 < high.x < low.high + 0.04


def _draw_block(canvas: Axes, block: _Block, top: float) -> None:
    phases.draw_blocks(canvas, block.phase, [block[1:3]], top + _BAR / 2, _BAR)
    if block.start:
        canvas.plot([block.start] * 2, [top, top + _BAR], **_GAP)
    if block.inside:
        place = (block.middle, top + _BAR / 2)
        phases.write_on(canvas, block.phase, block.inside, place)


def _draw_flags(
    canvas: Axes, blocks: Sequence[_Block], flags: Sequence[_Flag], top: float
) -> None:
    for block, flag in zip(blocks, flags, strict=True):
        y = top - 0.05 - LINE * (flag.row + 0.5)
        canvas.plot([flag.x] * 2, [y - 0.08, top], **_THIN)
        side = 1 if flag.low == flag.x else -1
        place = (flag.x + 0.06 * side, y)
        phases.write(canvas, block.beside, place, ha="left" if side > 0 else "right")


def _draw_overhead(
    canvas: Axes, words: str, starts: Sequence[float], length: float, top: float
) -> None:
    """Draw a bracket, from where the model begins to compute if there is room."""
    across = canvas.get_xlim()[1]
    start = min([*starts, 0.0][0], across - length)
    xs, ys = [start] * 2 + [start + length] * 2, [top + 0.07, *[top + 0.15] * 2]
    look = {"color": COLOURS["ink"], "lw": 1.2, "clip_on": False}
    if length > 0.02:  # else its two ends could not be told apart
        canvas.plot(xs, [*ys, top + 0.07], **look)
    place = (max(0, min(start, across - phases.measure(words))), top + 0.27)
    phases.write(canvas, words, place, ha="left")


def _draw_savings(
    canvas: Axes, rows: Sequence[Row], names: Sequence[str], top: float, one: float
) -> None:
    """Draw a bar per row from 0, as wide as its value, with its interval and words."""
    left = cards.measure_widest(names) + 0.18
    axes = phases.add_axes(canvas, left, top, one * len(rows))
    texts = [format_saving(*ends) for _, *ends in rows]
    across = canvas.get_xlim()[1] - left
    values = [100 * row[1] for row in rows if is_known(row[1])]
    ends = [100 * x for x in cards.list_known(rows)]
    # An interval that is much wider than the bars would hide them: it is cut.
    first = max(min([0, *ends]), min([0, *values]) - 50)
    last = min(max([0, *ends]), max([0, *values]) + 50)
    room = max(0.3, 1 - (cards.measure_widest(texts) + 0.25) / across)
    axes.set_xlim(first * 1.05, first + ((last - first) or 1) / room)
    axes.axvline(0, color=COLOURS["ink"], lw=1)
    for y, (_, value, low, high) in enumerate(rows):
        saves = is_known(low) and low > 0
        colour = COLOURS["measured" if saves else "baseline"]
        look = {"facecolor": colour, "edgecolor": COLOURS["card"], "lw": 0}
        end = 0.0
        if is_known(value):
            axes.barh(y, 100 * value, 0.5, hatch=None if saves else HATCH, **look)
            end = max(0, 100 * value)
        if is_known(low) and is_known(high):
            shown = [min(max(100 * x, first), last) for x in (low, high)]
            cards.draw_interval(axes, "x", y, *shown, COLOURS["ink"])
            for mark, x, whole in zip("<>", shown, (low, high), strict=True):
                if x != 100 * whole:
                    axes.plot(x, y, mark, color=COLOURS["ink"], ms=5, clip_on=False)
            end = max(end, shown[1])
        role = "ink" if is_known(value) else "muted"
        box = {"facecolor": COLOURS["card"], "edgecolor": "none", "pad": 1}
        cards.write(axes, texts[y], (end, y), (9, 0), role=role, bbox=box)
    axes.set_ylim(len(names) - 0.5, -0.5)  # the first row at the top
    axes.set_yticks(range(len(names)), names, **cards.style_text(10, "ink"))
    words = "% of the step's time that removing the cause would save"
    fits = cards.measure_widest([words]) < across
    cards.label_axes(axes, words if fits else "% of the step saved", "", grid="x")
    cards.set_ticks(axes, [x for x in axes.get_xticks() if first <= x <= max(last, 5)])
