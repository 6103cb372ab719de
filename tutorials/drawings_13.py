"""The drawings of chapter 13: plans of messages, who holds which sum, eight GPUs.

A plan is what the chapter makes it: a function of the number of ranks that yields
steps, each a list of messages. Figures of links and of GPUs are published ones, and the
chapter's text has their sources.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from costs import LINKS, Link
from drawing import Drawing
from matplotlib.figure import Figure

from kit.figures import COLORS, draw_lines, kit_look
from kit.figures.style import describe, new_figure

Plan = Callable[[int], Iterable[list[Any]]]
Sums = list[list[set[int]]]  # by rank, by part: whose values are in it

#: What one gets of each link, in bytes per second, one way.
_PUBLISHED = {
    "Ethernet, 1 Gbit/s": 0.125e9 * 1448 / 1538,
    "Ethernet, 100 Gbit/s": 6e9,
    "PCIe 5 x16": 55.43e9,
    "InfiniBand NDR": 48e9,
    "NVLink 4": 367.61e9,
    "NVLink 5": 682.2e9,
}
DELIVERED = {
    name: Link(LINKS[name].latency_seconds, speed) for name, speed in _PUBLISHED.items()
}
#: An all-reduce on eight H200: the tensor's bytes, and those over seconds in GB/s.
_H200 = {
    2**15: 0.82,
    2**20: 22.82,
    2**23: 88.87,
    2**26: 198.01,
    2**30: 264.90,
    2**34: 275.58,
}


@kit_look()
def draw_plans(plans: Sequence[Plan], n: int = 4) -> Figure:
    """Draw plans beside each other: ranks are rows, steps go to the right.

    An arrow is a message. Those that carry the tensor's first part have a color.
    """
    title = f"Three plans for {n} ranks: fewer steps, or smaller messages"
    figure = new_figure(title, 2.8)
    axes = figure.subplots()
    left = 0.0
    for plan in plans:
        axes.text(left, -0.7, _describe(plan, n), size=9.5)
        history = _carry_out(plan, n)
        for column, sums in enumerate(history):
            for rank in range(n):
                is_done = all(len(held) == n for held in sums[rank])
                color = COLORS["ink" if is_done else "card"]
                look = {"ms": 7, "mfc": color, "mec": COLORS["ink"], "zorder": 6}
                axes.plot(left + column, rank, "o", **look)
        for column, step in enumerate(plan(n)):
            for message in step:
                _draw_message(axes, message, left + column)
        left += len(history) + 0.8
    axes.set(xlim=(-0.5, left - 1.3), ylim=(n - 0.5, -1.4), xticks=[])
    axes.set_yticks(range(n), [f"rank {rank}" for rank in range(n)])
    axes.grid(visible=False)
    axes.spines["bottom"].set_visible(False)
    axes.set_xlabel(
        "blue: is added · orange: replaces · gray: other parts of the tensor"
        " · filled: has the sum"
    )
    return describe(figure, title, ". ".join(_tell(plan, n) for plan in plans))


def _draw_message(axes: Any, message: Any, x: float) -> None:
    """Draw a message as an arrow; it is dashed where what it carries is not added."""
    start, end = (x, message.sender), (x + 1, message.receiver)
    color = COLORS["measured" if message.adds else "predicted"]
    if message.part != 0:
        color = COLORS["zone"]
    look = {"arrowstyle": "-|>", "color": color, "linewidth": 1.6}
    look |= {"shrinkA": 4, "shrinkB": 4, "mutation_scale": 10}
    if not message.adds:
        look["linestyle"] = (0, (3, 1.5))
    axes.annotate("", end, start, arrowprops=look, zorder=5 if message.part == 0 else 3)


def draw_part(plan: Plan, n: int = 4) -> Drawing:
    """Draw who holds which sum of the first part, after each step of a plan."""
    history = _carry_out(plan, n)
    half = len(history) // 2
    told = []
    for number, sums in enumerate(history):
        rows = [f"rank {r} holds {_join(own[0])}" for r, own in enumerate(sums)]
        told.append(f"After step {number}: {', '.join(rows)}")
    drawing = Drawing(
        "Part 0 in the ring: summed up on its way, then passed around",
        columns=len(history),
        rows=n + 1,
        alt=". ".join(told),
    )
    drawing.box(1.05, 0.15, half - 0.1, 0.7, "reduce-scatter", "zone")
    drawing.box(1.05 + half, 0.15, half - 0.1, 0.7, "all-gather", "zone")
    for rank in range(n):
        blocks = []
        for column, sums in enumerate(history):
            held = sums[rank][0]
            text, role = _join(held), "predicted"
            if len(held) == n:
                text, role = "sum of all", "measured"
            elif len(held) == 1:
                role = "zone"
            blocks.append((column + 0.05, column + 0.95, text, role))
        drawing.lane(rank + 1, f"rank {rank}", blocks)
    return drawing


def draw_h200(predict: Callable[[float], float]) -> Figure:
    """Draw the published times of eight H200 over a prediction in seconds."""
    sizes = list(_H200)
    times = [size / speed / 1000 for size, speed in _H200.items()]
    predicted = [1e6 * predict(size) for size in sizes]
    shares = [time / wanted for time, wanted in zip(times, predicted, strict=True)]
    return draw_lines(
        {
            "8 × H200": (sizes, times, None, None, "recorded"),
            "predicted": (sizes, predicted, None, None, "predicted"),
        },
        title=f"A floor of {times[0]:.0f} µs, then a slope: {min(shares):.2f} to "
        f"{max(shares):.1f} times the formula",
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


def _join(held: set[int]) -> str:
    return "+".join(map(str, sorted(held)))


def _carry_out(plan: Plan, n: int) -> list[Sums]:
    """Return whose values are in which part of which rank, before and after each step.

    Messages of whole tensors count as messages of all n parts.
    """
    sums: Sums = [[{rank} for _ in range(n)] for rank in range(n)]
    history = [sums]
    for step in plan(n):
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
