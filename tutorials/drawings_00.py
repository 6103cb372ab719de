"""The drawings of chapter 00: stopwatches beside a queue, turns, twenty intervals."""

from __future__ import annotations

import logging

import numpy
from scipy import stats

from kit.figures import Drawing

# torch.utils.benchmark loads it, and it says on some machines that there is no CUDA.
logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)


def draw_stopwatches() -> Drawing:
    """Draw what Python and a device do, and from where to where stopwatches run."""
    drawing = Drawing(
        "Three mistakes, and a stopwatch that is right",
        columns=12,
        rows=6.2,
        alt=(
            "Python sets up until 3, queues two steps, waits until 6.2, queues five "
            "more until 7.2, and waits until 11.4. The device makes one step from "
            "3.2 to 5.2, which takes twice as long as others, and five from 6.4 to "
            "11.4. Not waiting: from 6.2 to 7.2. No warm-up: from 3 to 5.2. Set-up "
            "counted: from 0 to 11.4. Right: from 6.2 to 11.4"
        ),
    )
    python = [(0, 3, "set up", "input"), (3, 3.4, "", "forward")]
    python += [(3.4, 6.2, "wait", "zone"), (6.2, 7.2, "queue", "forward")]
    python.append((7.2, 11.4, "wait", "zone"))
    drawing.lane(0, "Python", python)
    steps = [(3.2, 5.2, "first step", "baseline"), (5.2, 6.2, "step", "measured")]
    for number in range(5):
        start = 6.4 + number
        steps.append((start, start + 1, "step", "measured"))
    drawing.lane(1, "device", steps)
    drawing.arrow((6.2, 2.9), (7.2, 2.9), "not waiting")
    drawing.arrow((3, 3.9), (5.2, 3.9), "no warm-up")
    drawing.arrow((0, 4.9), (11.4, 4.9), "set-up counted")
    drawing.arrow((6.2, 5.9), (11.4, 5.9), "right: warm, and waits at both ends")
    return drawing


def draw_turns() -> Drawing:
    """Draw two orders of A and B, and a slow moment that meets both."""
    drawing = Drawing(
        "A slow moment hits B alone, or both alike",
        columns=12,
        rows=3.2,
        alt=(
            "One after the other: four blocks of A, then four of B; a slow time covers "
            "those of B. In turns: A B B A A B B A; the same time covers two of each"
        ),
    )
    drawing.box(6.1, 0, 5.3, 2.1, "", "zone")
    roles = {"A": "baseline", "B": "measured"}
    for row, name, order in (
        (0, "one after\nthe other", "AAAABBBB"),
        (1.1, "in turns", "ABBAABBA"),
    ):
        blocks = []
        for number, letter in enumerate(order):
            start = 1 + 1.3 * number
            blocks.append((start, start + 1.2, letter, roles[letter]))
        drawing.lane(row, name, blocks)
    drawing.arrow(
        (1, 3.1), (11.2, 3.1), "time; framed: something slows the machine down"
    )
    return drawing


def simulate_intervals(count: int = 20, values: int = 5) -> list[tuple[float, float]]:
    """Return 95 % intervals of a mean that is 1, each of some random values."""
    random = numpy.random.default_rng(5)
    intervals = []
    for _ in range(count):
        drawn = random.normal(1.0, 0.05, values)
        half = stats.t.ppf(0.975, values - 1) * stats.sem(drawn)
        intervals.append((drawn.mean() - half, drawn.mean() + half))
    return intervals


def draw_intervals(intervals: list[tuple[float, float]]) -> Drawing:
    """Draw intervals below each other, and the truth, which is 1, as a line."""
    missing = []
    for number, (low, high) in enumerate(intervals):
        if not low < 1 < high:
            missing.append(number)
    drawing = Drawing(
        f"{len(intervals) - len(missing)} of {len(intervals)} intervals hold the truth",
        columns=12,
        rows=5.6,
        alt=(
            f"{len(intervals)} horizontal intervals around a vertical line, the truth; "
            f"{len(missing)} of them lie beside it"
        ),
    )
    for number, (low, high) in enumerate(intervals):
        start, stop = (6 + 40 * (end - 1) for end in (low, high))
        role = "baseline" if number in missing else "measured"
        drawing.box(start, 0.25 * number, stop - start, 0.14, "", role)
    for number in missing:
        left = 6 + 40 * (intervals[number][0] - 1)
        row = 0.25 * number + 0.07
        drawing.arrow((left - 1.4, row), (left - 0.2, row), "misses")
    drawing.arrow((6, 5.1), (6, 0))
    drawing.box(5, 5.1, 2, 0.4, "the truth")
    return drawing
