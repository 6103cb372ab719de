"""What `of=` can compare besides a metric, with the words for it."""

from __future__ import annotations

from typing import NamedTuple

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
