"""What `of=` can compare besides a metric, with the words for it."""

from __future__ import annotations

from typing import NamedTuple

from kit import stats
from kit.trial import Trial

SPEED = "items_per_second"


class Quantity(NamedTuple):
    """How a quantity is said: two verdicts, a sentence, a unit."""

    above: str
    below: str
    sentence: str
    unit: str


QUANTITIES = {
    SPEED: Quantity(
        "faster", "slower", "{a} is {ratio} as fast as {b}", "items per second"
    ),
    "run_seconds": Quantity(
        "more", "less", "{a} takes {ratio} the time of {b}", "seconds per run"
    ),
    "setup_seconds": Quantity(
        "more", "less", "{a} takes {ratio} the set-up time of {b}", "seconds of set-up"
    ),
    "peak_memory_bytes": Quantity(
        "more", "less", "{a} adds {ratio} the memory of {b}", "bytes of peak memory"
    ),
}


def unit_of(of: str) -> str:
    """Return the unit in words; a metric is its own."""
    return QUANTITIES[of].unit if of in QUANTITIES else of


def quantity_of(trial: Trial, of: str) -> tuple[float, float, float]:
    """Return a quantity of one trial with its 95 % interval."""
    if of == SPEED:
        return (trial.items_per_second, *trial.interval)
    if of == "peak_memory_bytes":
        values = [float(m) for m in trial.start_memory_bytes if m is not None]
    elif of == "setup_seconds":
        values = trial.setup_seconds
    elif of == "run_seconds":
        values = trial.block_seconds
    else:
        values = trial.last_values(of)
    later = of in ("setup_seconds", "peak_memory_bytes") and len(values) > 1
    return tuple(stats.student_interval(values[1:] if later else values))
