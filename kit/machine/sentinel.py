"""A fixed little piece of work: when its time changes, the machine's speed did."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kit.machine import ticks

#: Turns of the loop; about a millisecond on today's processors.
_TURNS = 25_000
_LEAST_READINGS = 3


def time_sentinel() -> float:
    """Time the fixed piece of work; return its run seconds, about 0.001.

    It is plain Python on small whole numbers: no library, no random numbers, nothing
    that anybody else could see. Waiting for a core that others used is taken off, so
    a neighbour alone does not change it; heat, battery and shared caches do.

    >>> time_sentinel() > 0
    True
    """
    _work(_TURNS // 10)  # what ran before has left other things in the caches
    start = ticks.CLOCK.begin()
    _work(_TURNS)
    return ticks.run_seconds(start, ticks.CLOCK.end())


def _work(turns: int) -> int:
    state = 1
    for turn in range(turns):
        state = (state * 75 + turn) & 0xFFFF
    return state


def compute_unsteadiness(times: Sequence[float]) -> float:
    """Return by how much the machine's own speed changed: 0.1 stands for ±10 %.

    Half the distance of the readings on the log scale, after a tenth of them, at
    least one, was left out at either end. 0.0 where a reading is not a positive
    number, and for fewer than three.

    >>> round(compute_unsteadiness([1.0, 1.0, 1.2, 1.2, 1.0, 1.2]), 3)
    0.091
    """
    # A change of speed is a factor, hence logarithms: twice as fast weighs as much as
    # half as fast, and the unit of time falls out. One interrupt that lands in a
    # millisecond of work says nothing about speed, hence the ends are left out; a
    # machine that is slow for a third of the time has changed, which a quartile or
    # the median's deviation would not see, hence no more than a tenth.
    known = all(0 < time < math.inf for time in times)
    if not known or len(times) < _LEAST_READINGS:
        return 0.0
    ordered = sorted(times)
    outside = max(1, len(ordered) // 10)
    return math.log(ordered[-1 - outside] / ordered[outside]) / 2
