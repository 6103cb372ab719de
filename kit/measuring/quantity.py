"""What can be compared, in which unit, and what a trial has of it."""

from __future__ import annotations

import math
from statistics import fmean

from kit.records import FIRST, Trial

SPEED, RUN_SECONDS, MEMORY = "items_per_second", "run_seconds", "peak_memory_bytes"
#: What can be compared as a ratio, and the unit that it is told in.
QUANTITIES = {
    SPEED: "items per second",
    RUN_SECONDS: "seconds per run",
    MEMORY: "bytes of peak memory",
}


def unit_of(of: str) -> str:
    """Return a quantity's unit in words; a metric is its own."""
    return QUANTITIES.get(of, of)


def write_ratio(value: float, digits: int = 3) -> str:
    """Write a ratio with three significant digits, or with all up to a million.

    >>> write_ratio(0.98765), write_ratio(1312.4), write_ratio(2.5e17)
    ('0.988', '1,312', '2.5e+17')
    """
    return f"{value:,.0f}" if 999.5 <= value < 1e6 else f"{value:.{digits}g}"


def write_ratios(low: float, high: float) -> str:
    """Write the ends of an interval, with as many digits as tell them apart.

    They also tell an end from 1, which is on the other side of "no difference".

    >>> write_ratios(0.988, 1.0123), write_ratios(0.9996, 1.0032)
    ('[0.988, 1.01]', '[0.9996, 1.003]')
    >>> write_ratios(0.9997, 1.07), write_ratios(0.506223, 0.506223)
    ('[0.9997, 1.07]', '[0.506, 0.506]')
    """
    # Where six digits tell nothing, such as bytes that never vary, three say as much.
    clear = (n for n in range(3, 7) if not _is_blurred(low, high, n))
    digits = next(clear, 3)
    return f"[{write_ratio(low, digits)}, {write_ratio(high, digits)}]"


def _is_blurred(low: float, high: float, digits: int) -> bool:
    """Return whether so few digits make two numbers equal that are not."""
    one, first, last = (write_ratio(value, digits) for value in (1.0, low, high))
    return first == last or (first == one and low != 1) or (last == one and high != 1)


def read_values(trial: Trial, of: str) -> dict[int, float]:
    """Return a quantity of each run by its round, first runs included."""
    values: dict[int, float | None] = {}
    for run in trial.runs:
        if of == MEMORY:
            values[run.round] = run.memory_bytes
        elif of not in QUANTITIES:
            values[run.round] = run.last_value(of)
        elif run.blocks:
            is_rate = of == SPEED
            values[run.round] = run.items_per_second if is_rate else run.seconds
    return {round: float(v) for round, v in values.items() if v is not None}


def quantity_of(trial: Trial, of: str) -> tuple[float, float, float]:
    """Return a quantity of one trial with its range: the least and the largest run."""
    if of == SPEED:
        return trial.items_per_second, *trial.spread
    values = read_values(trial, of)
    later = [value for round, value in values.items() if round != FIRST]
    known = later or [*values.values()]
    if not known:
        return math.nan, math.nan, math.nan
    return fmean(known), min(known), max(known)
