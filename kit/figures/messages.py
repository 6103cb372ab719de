"""Who sends what when: a row per rank, a column per step, an arrow per message."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from kit.figures import cards, phases
from kit.figures.cards import EDGE
from kit.figures.phases import LINE
from kit.figures.pictures import alone, describe
from kit.figures.theme import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_RANKS, MOST_STEPS = 16, 64  # that can be read in one picture
_BARE, _WIDE = 0.62, 2.4  # inches of a column without labels, and of any at most
_GAP = 0.3  # inches between two lines of steps
_INSET = 0.14  # inches from a column's edge to where arrows begin and end
_HALF = 0.085  # inches, half the height of a label
_SAMPLE = 0.42  # inches of an arrow in the key
_HEAD = 0.1  # inches of an arrow's head
#: Where along its arrow a label may stand, the best place first.
_PLACES = sorted(
    (place / 100 for place in range(20, 77, 4)), key=lambda x: abs(x - 0.28)
)
_LOOKS: dict[bool, dict[str, Any]] = {
    True: {"color": COLOURS["measured"], "linestyle": "-"},
    False: {"color": COLOURS["predicted"], "linestyle": (0, (4, 2.2))},
}


class _Message(Protocol):
    """What is drawn of a message; `kit.costs.Message` is one."""

    @property
    def sender(self) -> int: ...
    @property
    def receiver(self) -> int: ...
    @property
    def part(self) -> int: ...
    @property
    def parts(self) -> int: ...
    @property
    def adds(self) -> bool: ...


class _Arrow(NamedTuple):
    """An arrow from (x0, y0) to (x1, y1) inches, and its label."""

    x0: float
    y0: float
    x1: float
    y1: float
    label: str
    adds: bool


class _Box(NamedTuple):
    """The place of a label around (x, y), in inches."""

    x: float
    y: float
    half_width: float

    def is_on(self, arrow: _Arrow) -> bool:
        """Return whether an arrow runs through it."""
        slope = (arrow.y1 - arrow.y0) / (arrow.x1 - arrow.x0)
        middle = arrow.y0 + slope * (self.x - arrow.x0)
        return abs(middle - self.y) < _HALF + abs(slope) * self.half_width

    def is_over(self, other: _Box) -> bool:
        """Return whether it covers some of another."""
        across = abs(self.x - other.x) < self.half_width + other.half_width + 0.03
        return across and abs(self.y - other.y) < 2 * _HALF


@alone()
def draw_messages(
    steps: Iterable[Sequence[_Message]],
    *,
    title: str | None = None,
    width: float = cards.WIDTH,
) -> Figure:
    """Draw a schedule's messages: a row per rank and, left to right, a column per step.

    A message has `sender`, `receiver`, `part`, `parts` and `adds`. Its arrow goes from
    its sender to its receiver. A solid one with a "+" is added to what the receiver
    has, a dashed one replaces it; where a tensor is sent in parts, the number is the
    part. Columns that have no room go on a line of their own. `title` is by default a
    sentence that counts; `width` is in inches. Raises ValueError for more than 16 ranks
    or 64 steps, for a schedule without messages, for a rank that sends to itself, and
    for ranks and parts that cannot be.

    >>> from types import SimpleNamespace
    >>> half = {"parts": 2, "adds": True}
    >>> step = [SimpleNamespace(sender=0, receiver=1, part=0, **half)]
    >>> step += [SimpleNamespace(sender=1, receiver=0, part=1, **half)]
    >>> figure = draw_messages([step], title="They swap halves")
    >>> [text.get_text() for text in figure.axes[0].texts[:5]]
    ['step 1', 'rank 0', 'rank 1', '+0', '+1']
    """
    read = _read(steps)
    messages = [message for step in read for message in step]
    ranks = 1 + max(max(m.sender, m.receiver) for m in messages)
    title = title or _write_title(read)
    names = [f"rank {rank}" for rank in range(ranks)]
    left = max(phases.measure(name) for name in names) + 0.12
    room = width - 2 * EDGE - left
    widest = max(phases.measure(_label(m, messages)) for m in messages)
    columns = min(len(read), max(1, int(room / (_BARE + 2 * widest))))
    wide = min(_WIDE, room / columns)
    row = 0.5 if ranks <= 8 else 0.42
    high = LINE + row * ranks + _GAP
    lines = -(-len(read) // columns)
    key = _list_key(messages)
    total = high * lines + LINE * len(key)
    figure, canvas = phases.make_canvas(title, total, width)
    for number, step in enumerate(read):
        line, column = divmod(number, columns)
        top, x = line * high, left + column * wide
        _draw_column(canvas, x, top, wide, row, ranks, number)
        if column == 0:
            for rank, name in enumerate(names):
                y = top + LINE + (rank + 0.5) * row
                phases.write(canvas, name, (left - 0.12, y), ha="right")
        _draw_step(canvas, step, x, top + LINE, wide, row, number, messages)
    for line, (adds, words) in enumerate(key):
        y = high * lines + LINE * (line + 0.5) - 0.06
        _draw_arrow(canvas, _Arrow(left, y, left + _SAMPLE, y, "", adds))
        phases.write(canvas, words, (left + _SAMPLE + 0.1, y), ha="left")
    told = (f"Step {i}: {_write_step(step)}" for i, step in enumerate(read, 1))
    return describe(figure, f"Messages between {ranks} ranks", title, *told)


def _read(steps: Iterable[Sequence[_Message]]) -> list[Sequence[_Message]]:
    """Read a schedule and refuse what cannot be drawn."""
    read: list[Sequence[_Message]] = []
    for step in steps:
        read.append(step)
        if len(read) > MOST_STEPS:
            raise ValueError(
                f"draw_messages: over {MOST_STEPS} steps cannot be read in a picture; "
                "draw the schedule for fewer ranks"
            )
        for message in step:
            _check(message)
    if not any(read):
        raise ValueError(
            "draw_messages: there is nothing to draw: no step has messages"
        )
    return read


def _check(message: _Message) -> None:
    highest = max(message.sender, message.receiver)
    if highest >= MOST_RANKS:
        raise ValueError(
            f"draw_messages: rank {highest} makes {highest + 1} ranks, and arrows "
            f"between over {MOST_RANKS} cannot be told apart; draw the schedule for "
            "fewer ranks"
        )
    if message.sender == message.receiver or min(message.sender, message.receiver) < 0:
        raise ValueError(
            f"draw_messages: no message goes from rank {message.sender} to rank "
            f"{message.receiver}"
        )
    if not 0 <= message.part < message.parts:
        raise ValueError(
            f"draw_messages: a tensor in {message.parts} parts has no part "
            f"{message.part}; they are counted from 0"
        )


def _write_title(steps: Sequence[Sequence[_Message]]) -> str:
    sent: dict[int, float] = {}
    for message in (message for step in steps for message in step):
        sent[message.sender] = sent.get(message.sender, 0.0) + 1 / message.parts
    number = sum(map(len, steps))
    counted = f"{number} message{'s' * (number > 1)} in {len(steps)} step"
    counted += "s" * (len(steps) > 1)
    return f"{counted}: no rank sends more than {max(sent.values()):.3g} × the tensor"


def _write_step(step: Sequence[_Message]) -> str:
    """Write a step in words."""
    words = []
    for message in step:
        part = f"part {message.part} of {message.parts}"
        what = part if message.parts > 1 else "the tensor"
        how = f"{what} is added" if message.adds else f"{what} replaces"
        words.append(f"rank {message.sender} to rank {message.receiver}, {how}")
    return "; ".join(words) or "nothing"


def _label(message: _Message, messages: Sequence[_Message]) -> str:
    """Return the words on an arrow: its part, out of how many where that differs."""
    sign = "+" if message.adds else ""
    if message.parts == 1:
        return sign
    if all(other.parts == message.parts for other in messages):
        return f"{sign}{message.part}"
    return f"{sign}{message.part}/{message.parts}"


def _list_key(messages: Sequence[_Message]) -> list[tuple[bool, str]]:
    """Return what arrows mean, for the kinds that there are."""
    key = []
    for adds, words in (
        (True, "the receiver adds {} to its own"),
        (False, "{} replaces the receiver's own"),
    ):
        of_kind = [message for message in messages if message.adds == adds]
        if not of_kind:
            continue
        example = next((m for m in of_kind if m.parts > 1), of_kind[0])
        label = _label(example, messages)
        part = f"part {example.part}" if example.parts > 1 else "the tensor"
        text = words.format(part)
        key.append((adds, f"{label}  {text}" if label else text))
    return key


def _draw_column(
    canvas: Axes, x: float, top: float, wide: float, row: float, ranks: int, number: int
) -> None:
    """Draw what is behind the arrows of a step: its number, and a line per rank."""
    from matplotlib.patches import Rectangle

    colour = COLOURS["card" if number % 2 else "zone"]
    size = (wide, LINE + row * ranks)
    canvas.add_patch(Rectangle((x, top), *size, facecolor=colour, lw=0, zorder=0))
    phases.write(
        canvas, f"step {number + 1}", (x + wide / 2, top + LINE / 2 + 0.02), ha="center"
    )
    heights = [top + LINE + (rank + 0.5) * row for rank in range(ranks)]
    canvas.hlines(heights, x, x + wide, color=COLOURS["border"], lw=1, zorder=1)


def _draw_step(
    canvas: Axes,
    step: Sequence[_Message],
    x: float,
    top: float,
    wide: float,
    row: float,
    number: int,
    messages: Sequence[_Message],
) -> None:
    """Draw a step's arrows, and each label where it hides least."""
    arrows = [
        _Arrow(
            x + _INSET,
            top + (message.sender + 0.5) * row,
            x + wide - _INSET,
            top + (message.receiver + 0.5) * row,
            _label(message, messages),
            message.adds,
        )
        for message in step
    ]
    colour = COLOURS["card" if number % 2 else "zone"]
    boxes: list[_Box] = []
    for arrow in arrows:
        _draw_arrow(canvas, arrow)
        if not arrow.label:
            continue
        others = [other for other in arrows if other is not arrow]
        box = min(
            _list_boxes(arrow),
            key=lambda box: (
                sum(box.is_over(other) for other in boxes),
                sum(box.is_on(other) for other in others),
            ),
        )
        boxes.append(box)
        look = {"boxstyle": "square,pad=0.12", "facecolor": colour, "edgecolor": "none"}
        role = _LOOKS[arrow.adds]["color"]
        place = (box.x, box.y)
        phases.write(
            canvas, arrow.label, place, role, ha="center", bbox=look, weight="bold"
        )


def _list_boxes(arrow: _Arrow) -> list[_Box]:
    """Return where a label may stand on its arrow, the best place first."""
    half = phases.measure(arrow.label) / 2 + 0.03
    return [
        _Box(
            arrow.x0 + place * (arrow.x1 - arrow.x0),
            arrow.y0 + place * (arrow.y1 - arrow.y0),
            half,
        )
        for place in _PLACES
    ]


def _draw_arrow(canvas: Axes, arrow: _Arrow) -> None:
    """Draw a dot, a line and a head; only the line is dashed."""
    from matplotlib.patches import FancyArrowPatch

    colour = _LOOKS[arrow.adds]["color"]
    start, end = (arrow.x0, arrow.y0), (arrow.x1, arrow.y1)
    share = 1 - _HEAD / math.dist(start, end)  # of the way: there the head begins
    neck = tuple(a + share * (b - a) for a, b in zip(start, end, strict=True))
    look = {"lw": 1.4, "solid_capstyle": "butt", "zorder": 3, "clip_on": False}
    canvas.plot(*zip(start, neck, strict=True), **look, **_LOOKS[arrow.adds])
    dot = {"marker": "o", "ms": 4, "color": colour, "zorder": 3, "clip_on": False}
    canvas.plot(*start, **dot)
    shape = f"-|>,head_length={72 * _HEAD},head_width={24 * _HEAD}"  # in points
    look = {"arrowstyle": shape, "mutation_scale": 1, "color": colour, "lw": 1}
    look |= {"shrinkA": 0, "shrinkB": 0, "zorder": 3, "clip_on": False}
    canvas.add_patch(FancyArrowPatch(neck, end, **look))
