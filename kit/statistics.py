"""Intervals and verdicts: numbers in, numbers out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

#: Two speeds within 2 % of each other are "the same" for every practical purpose.
SAME = 1.02


class Estimate(NamedTuple):
    """A value and its 95 % interval; an unknown bound is nan."""

    value: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Half the width of the interval; nan where a bound is unknown."""
        return (self.high - self.low) / 2


def load_libraries() -> None:
    """Import what intervals need: between two runs, it would change what they find."""
    import scipy.special  # noqa: F401


def student_interval(values: Sequence[float], confidence: float = 0.95) -> Estimate:
    """Estimate the mean of independent values with Student's t.

    One value has no interval, and no values have no mean: those are nan.

    >>> student_interval([1.0, 2.0, 3.0]).value
    2.0
    """
    import numpy as np
    from scipy.special import stdtrit

    sample = np.asarray(values, dtype=float)
    if not len(sample):
        return Estimate(math.nan, math.nan, math.nan)
    mean = float(sample.mean())
    if len(sample) < 2:
        return Estimate(mean, math.nan, math.nan)
    error = float(sample.std(ddof=1)) / math.sqrt(len(sample))
    half = float(stdtrit(len(sample) - 1, (1 + confidence) / 2)) * error
    return Estimate(mean, mean - half, mean + half)


def hold_together(count: int, confidence: float = 0.95) -> float:
    """Return the confidence of each of so many intervals, so that all hold together.

    Each challenger has baseline runs of its own, so their intervals are independent,
    and Šidák's level is exact (Šidák 1967).

    >>> hold_together(1), round(hold_together(5), 4)
    (0.95, 0.9898)
    """
    return confidence ** (1 / max(1, count))


def exp(log: float) -> float:
    """Return the exponential: of two values, an interval may be wider than floats.

    >>> exp(1e9) > exp(-1e9) > 0
    True
    """
    return math.exp(min(max(log, -700.0), 700.0))


def rate_interval(
    items: Sequence[float], seconds: Sequence[float], groups: int = 8
) -> Estimate:
    """Estimate items per second over consecutive blocks, rare slow blocks included.

    The value is total items over total seconds. Neighbouring blocks resemble each
    other, so they are first joined into at most `groups` consecutive groups; the
    interval is the jackknife's over the groups, on the log scale, with Student's t
    (batch means: Law & Kelton, "Simulation Modeling and Analysis", chapter 9).

    >>> rate_interval([10, 10], [1.0, 1.0])
    Estimate(value=10.0, low=10.0, high=10.0)
    """
    import numpy as np

    total_items, total_seconds = math.fsum(items), math.fsum(seconds)
    value = total_items / total_seconds
    parts = np.array_split(np.arange(len(items)), min(len(items), groups))
    if len(parts) < 2:
        return Estimate(value, math.nan, math.nan)
    group_items = np.array([np.asarray(items, dtype=float)[p].sum() for p in parts])
    group_seconds = np.array([np.asarray(seconds)[p].sum() for p in parts])
    left_out = (total_items - group_items) / (total_seconds - group_seconds)
    count = len(parts)
    pseudo = count * math.log(value) - (count - 1) * np.log(left_out)
    spread = student_interval(pseudo.tolist())
    half = spread.high - spread.value
    return Estimate(value, value * math.exp(-half), value * math.exp(half))


def judge_ratio(
    low: float, high: float, *, above: str = "faster", below: str = "slower"
) -> str:
    """Return the verdict on a ratio's interval.

    >>> judge_ratio(1.5, 1.6), judge_ratio(0.99, 1.01), judge_ratio(0.9, 1.3)
    ('faster', 'same', 'cannot tell')
    """
    return _judge(low, high, 1 / SAME, SAME, above, below)


def judge_difference(low: float, high: float, within: float) -> str:
    """Return the verdict on a difference's interval, given what counts as the same.

    >>> judge_difference(-0.001, 0.002, within=0.01)
    'same'
    """
    return _judge(low, high, -within, within, "more", "less")


def _judge(
    low: float, high: float, least: float, most: float, above: str, below: str
) -> str:
    if least <= low and high <= most:
        return "same"
    if low > most:
        return above
    return below if high < least else "cannot tell"


def has_rare_slow_steps(items: Sequence[float], seconds: Sequence[float]) -> bool:
    """Return whether total time per item is over 2 % above the median block's.

    >>> has_rare_slow_steps([1] * 10, [1.0] * 9 + [5.0])
    True

    So few blocks that each of them weighs much tell nothing:

    >>> has_rare_slow_steps([1] * 4, [1.0] * 3 + [5.0])
    False
    """
    import numpy as np

    if len(seconds) < 5 or not all(items):
        return False
    typical = float(np.median(np.asarray(seconds) / np.asarray(items, dtype=float)))
    return math.fsum(seconds) / math.fsum(items) > SAME * typical


def find_agreement(times: Sequence[float], within: float) -> float | None:
    """Return the time on which the latest windows agree, or None.

    One with one, two with two, or four with four: steps of a loader come in gushes.
    `within` is how far the logarithms of two means may be apart.

    >>> find_agreement([3.0, 1.0, 1.05], within=0.1)
    1.05
    """
    for count in (1, 2, 4):
        if len(times) >= 2 * count:
            now = max(math.fsum(times[-count:]) / count, 1e-12)
            before = max(math.fsum(times[-2 * count : -count]) / count, 1e-12)
            if abs(math.log(now / before)) < within:
                return now
    return None
