"""The drawing of chapter 00: twenty intervals."""

from __future__ import annotations

import logging

import numpy
from drawing import Drawing
from scipy import stats

# torch.utils.benchmark loads it, and it says on some machines that there is no CUDA.
logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)


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
