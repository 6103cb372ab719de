"""The drawings of chapter 13: plans of messages, who holds which sum, and links.

A plan is what the chapter makes it: a function of the number of ranks that yields
steps, each a list of messages. Figures of links and of GPUs are published ones, and the
chapter's text has their sources.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from costs import LINKS
from drawing import Drawing
from matplotlib.figure import Figure

from kit.figures import COLORS, draw_bars, draw_lines

Plan = Callable[[int], Iterable[list[Any]]]
Sums = list[list[set[int]]]  # by rank, by part: whose values are in it

_MIDDLE = 0.5  # of a row
#: What one gets of each link, in GB/s, one way.
_PUBLISHED = {
    "Ethernet, 1 Gbit/s": 0.125 * 1448 / 1538,
    "Ethernet, 100 Gbit/s": 6.0,
    "PCIe 5 x16": 55.43,
    "InfiniBand NDR": 48.0,
    "NVLink 4": 367.61,
    "NVLink 5": 682.2,
}
#: An all-reduce on eight H200: the tensor's KiB, and its bytes over seconds in GB/s.
_H200 = {
    32: 0.82,
    1024: 22.82,
    8 * 1024: 88.87,
    64 * 1024: 198.01,
    1024**2: 264.90,
    16 * 1024**2: 275.58,
}


def draw_plans(plans: Sequence[Plan], n: int = 4) -> Drawing:
    """Draw plans beside each other: ranks are rows, steps go to the right.

    An arrow is a message. Those that carry the tensor's first part have a color.
    """
    heads = [_describe(plan, n) for plan in plans]
    widths = [len(list(plan(n))) + 1 for plan in plans]
    drawing = Drawing(
        f"Three plans for {n} ranks: fewer steps, or smaller messages",
        columns=sum(widths) + 0.8 * (len(plans) - 1),
        rows=n + 1.6,
        alt=". ".join(_tell(plan, n) for plan in plans),
    )
    axes = drawing.axes
    ticks = [row + 1 + _MIDDLE for row in range(n)]
    axes.set_yticks(ticks, [f"rank {rank}" for rank in range(n)])
    left = 0.0
    for plan, head, width in zip(plans, heads, widths, strict=True):
        drawing.write(head, (left + 0.2, 0.5), ha="left")
        _draw_plan(axes, plan, n, left)
        left += width + 0.8
    key = "blue: is added · orange: replaces · gray: other parts of the tensor"
    key += " · filled: has the sum"
    drawing.write(key, (0.2, n + 1.3), ha="left")
    return drawing


def draw_part(plan: Plan, n: int = 4, part: int = 0) -> Drawing:
    """Draw who holds which sum of one part, after each step of a plan."""
    steps = list(plan(n))
    history = _carry_out(steps, n)
    half = len(steps) // 2
    drawing = Drawing(
        f"Part {part} in the ring: summed up on its way, then handed round",
        columns=len(steps) + 1,
        rows=n + 1,
        alt=_tell_part(history, part),
    )
    drawing.box(1.05, 0.15, half - 0.1, 0.7, "reduce-scatter", "zone")
    drawing.box(1.05 + half, 0.15, half - 0.1, 0.7, "all-gather", "zone")
    for rank in range(n):
        blocks = []
        for column, sums in enumerate(history):
            held = sums[rank][part]
            text = "sum of all" if len(held) == n else "+".join(map(str, sorted(held)))
            blocks.append((column + 0.05, column + 0.95, text, _find_role(held, n)))
        drawing.lane(rank + 1, f"rank {rank}", blocks)
    return drawing


def draw_links() -> Figure:
    """Draw what one gets of each link, beside what is promised for it."""
    labels, shares = [], []
    for name, link in LINKS.items():
        shares.append(1e11 * _PUBLISHED[name] / link.bytes_per_second)
        labels.append(f"{name}: {shares[-1]:.0f} %")
    return draw_bars(
        labels,
        [_PUBLISHED[name] for name in LINKS],
        title=f"One gets {min(shares):.0f} to {max(shares):.0f} % of what is promised",
        unit="GB/s one way, published",
    )


def draw_h200(predict: Callable[[float], float]) -> Figure:
    """Draw the published times of eight H200 over a prediction in seconds."""
    sizes = [1024 * kibibytes for kibibytes in _H200]
    speeds = list(_H200.values())
    times = [size / speed / 1000 for size, speed in zip(sizes, speeds, strict=True)]
    predicted = [1e6 * predict(size) for size in sizes]
    shares = [time / wanted for time, wanted in zip(times, predicted, strict=True)]
    title = f"A floor of {times[0]:.0f} µs, then a slope: {min(shares):.2f} to "
    return draw_lines(
        {
            "8 × H200": (sizes, times, None, None, "recorded"),
            "predicted": (sizes, predicted, None, None, "predicted"),
        },
        title=f"{title}{max(shares):.1f} times the formula",
        xlabel="bytes in the tensor",
        ylabel="µs",
        logx=True,
    )


def _describe(plan: Plan, n: int) -> str:
    """Say a plan's steps, and how much the busiest rank sends."""
    steps = list(plan(n))
    sent = [0.0] * n
    for step in steps:
        for message in step:
            sent[message.sender] += 1 / message.parts
    return f"{plan.__name__}: {len(steps)} steps,\nrank 0 sends {max(sent):g} tensors"


def _tell(plan: Plan, n: int) -> str:
    """Tell a plan's messages in words."""
    head = _describe(plan, n).replace("\n", " ")
    told = []
    for number, step in enumerate(plan(n), 1):
        sent = [f"{m.sender} to {m.receiver}" for m in step]
        told.append(f"step {number}, {'+' if step[0].adds else '='}: {', '.join(sent)}")
    return f"{head}. {'; '.join(told)}"


def _draw_plan(axes: Any, plan: Plan, n: int, left: float) -> None:
    """Draw a plan's ranks as dots, before and after each step, and its messages."""
    steps = list(plan(n))
    for column, sums in enumerate(_carry_out(steps, n)):
        for rank in range(n):
            done = all(len(held) == n for held in sums[rank])
            color = COLORS["ink"] if done else COLORS["card"]
            look = {"ms": 7, "mfc": color, "mec": COLORS["ink"], "zorder": 6}
            axes.plot(left + column + 0.5, rank + 1 + _MIDDLE, "o", **look)
    for column, step in enumerate(steps):
        for message in step:
            color = COLORS["measured" if message.adds else "predicted"]
            if message.part != 0:
                color = COLORS["zone"]
            look = {"arrowstyle": "-|>", "color": color, "linewidth": 1.6}
            look |= {"shrinkA": 4, "shrinkB": 4, "mutation_scale": 10}
            look |= {} if message.adds else {"linestyle": (0, (3, 1.5))}
            start = left + column + 0.5, message.sender + 1 + _MIDDLE
            end = left + column + 1.5, message.receiver + 1 + _MIDDLE
            order = 5 if message.part == 0 else 3
            axes.annotate("", end, start, arrowprops=look, zorder=order)


def _carry_out(steps: Sequence[Sequence[Any]], n: int) -> list[Sums]:
    """Return whose values are in which part of which rank, before and after each step.

    Messages of whole tensors count as messages of all n parts.
    """
    sums: Sums = [[{rank} for _ in range(n)] for rank in range(n)]
    history = [sums]
    for step in steps:
        later = [[set(held) for held in own] for own in sums]
        for message in step:
            size = n // message.parts
            for part in range(message.part * size, (message.part + 1) * size):
                sent = sums[message.sender][part]
                before = later[message.receiver][part] if message.adds else set()
                later[message.receiver][part] = sent | before
        sums = later
        history.append(sums)
    return history


def _tell_part(history: Sequence[Sums], part: int) -> str:
    """Tell after which step which ranks hold which sum of a part."""
    told = []
    for number, sums in enumerate(history):
        held = ["+".join(map(str, sorted(own[part]))) for own in sums]
        rows = [f"rank {rank} holds {text}" for rank, text in enumerate(held)]
        told.append(f"After step {number}: {', '.join(rows)}")
    return ". ".join(told)


def _find_role(held: set[int], n: int) -> str:
    """Return the look of a box: the whole sum, some of it, or one rank's own values."""
    if len(held) == n:
        return "measured"
    return "predicted" if len(held) > 1 else "zone"
