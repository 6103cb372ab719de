"""Units in which rates are shown: "ms per step", "images/s", "GB/s"."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kit.errors import ExperimentError
from kit.figures import format_value
from kit.measuring.verdict import QUANTITIES, SPEED

#: A value and both ends of its interval.
Quantity = tuple[float, float, float]


@dataclass(frozen=True)
class Unit:
    """A unit of rates; `factor` turns a rate (or its inverse, a time) into it.

    A time, or a rate, is that of a step where `is_of_steps`, else that of an item.
    """

    text: str = QUANTITIES[SPEED]
    factor: float = 1.0
    is_time: bool = False
    is_of_steps: bool = False

    def show(self, rates: Quantity, items_per_step: float) -> Quantity:
        """Return items per second with the ends of their interval in this unit."""
        scale = 1 / items_per_step if self.is_of_steps else 1.0
        value, low, high = (rate * scale for rate in rates)
        if self.is_time:
            return self.factor / value, self.factor / high, self.factor / low
        return self.factor * value, self.factor * low, self.factor * high


_TIMES = {"s": 1.0, "ms": 1e3, "µs": 1e6, "us": 1e6, "ns": 1e9}
_PREFIXES = {"": 1.0, "k": 1e-3, "M": 1e-6, "G": 1e-9, "T": 1e-12}
#: What readers say for a step; only "step" is known to be one.
_STEPS = re.compile(r"(steps?|batch(es)?|its?|iters?|iterations?|updates?|epochs?)")
#: Of items there are no thousands: their values would be shown as they are.
_THOUSANDS = re.compile(r"k(items?|tokens?|images?|photos?|samples?|words?)")


def read_unit(text: str | None) -> Unit:
    """Return the unit that a text names; raises ExperimentError for what is none.

    >>> read_unit("ms per step").show((50.0, 40.0, 80.0), items_per_step=1.0)
    (20.0, 12.5, 25.0)
    >>> read_unit("GB/s").show((2.5e9, 2e9, 3e9), items_per_step=1.0)[0]
    2.5
    """
    if text is None or text == QUANTITIES[SPEED]:
        return Unit()
    if isinstance(text, str):
        time = re.fullmatch(r"(s|ms|µs|us|ns) per ([a-z]+)", text)
        if time and time[2] == "step":
            return Unit(text, _TIMES[time[1]], is_time=True, is_of_steps=True)
        if time and not _STEPS.fullmatch(time[2]):
            return Unit(text, _TIMES[time[1]], is_time=True)
        if scaled := re.fullmatch(r"([kMGT]?)(B|FLOP|bit)/s", text):
            return Unit(text, _PREFIXES[scaled[1]])
        if text == "steps/s":
            return Unit(text, is_of_steps=True)
        rate = re.fullmatch(r"([a-z]+)/s", text)
        if rate and not (_STEPS.fullmatch(rate[1]) or _THOUSANDS.fullmatch(rate[1])):
            return Unit(text)
    raise ExperimentError(
        f"unit={format_value(text)} is not a unit of a rate.\nWrite it as in "
        '"ms per step", "steps/s", "µs per image", "images/s", or "GB/s" where items '
        "are bytes."
    )
