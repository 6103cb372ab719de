"""How a rate is shown: items per second, or in the unit that a reader thinks in."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kit.errors import ExperimentError
from kit.figures import format_value

_TIMES = {"s": 1.0, "ms": 1e3, "µs": 1e6, "us": 1e6, "ns": 1e9}
_PREFIXES = {"": 1.0, "k": 1e-3, "M": 1e-6, "G": 1e-9, "T": 1e-12}
_ITEMS = "items per second"
_EXAMPLES = '"ms per step", "µs per image", "images/s", "GB/s" where items are bytes'


@dataclass(frozen=True)
class Unit:
    """A unit of rates; `factor` turns a rate (or its inverse, a time) into it.

    A time is that of a step where `is_of_steps`, else that of an item.
    """

    text: str = _ITEMS
    factor: float = 1.0
    is_time: bool = False
    is_of_steps: bool = False

    def convert(self, rate: float) -> float:
        """Return a rate in this unit; it is a rate of steps where `is_of_steps`."""
        return self.factor / rate if self.is_time else self.factor * rate

    def show(
        self, rates: tuple[float, float, float], items_per_step: float
    ) -> tuple[float, float, float]:
        """Return items per second with the ends of their interval in this unit."""
        if self.is_of_steps:
            rates = tuple(rate / items_per_step for rate in rates)  # type: ignore[assignment]
        value, low, high = map(self.convert, rates)
        return (value, high, low) if self.is_time else (value, low, high)


def read_unit(text: str | None) -> Unit:
    """Return the unit that a text names; raises ExperimentError for what is none.

    >>> read_unit("ms per step").convert(50.0)
    20.0
    >>> read_unit("GB/s").convert(2.5e9)
    2.5
    >>> read_unit("images/s").convert(64.0)
    64.0
    """
    if text is None:
        return Unit()
    if isinstance(text, str):
        if text == _ITEMS:
            return Unit()
        if time := re.fullmatch(r"(s|ms|µs|us|ns) per ([a-z][a-z -]*)", text):
            is_of_steps = time[2] == "step"
            return Unit(text, _TIMES[time[1]], is_time=True, is_of_steps=is_of_steps)
        if scaled := re.fullmatch(r"([kMGT]?)(B|FLOP|bit)/s", text):
            return Unit(text, _PREFIXES[scaled[1]])
        if re.fullmatch(r"[a-z][a-z -]*/s", text):
            return Unit(text, is_of_steps=text == "steps/s")
    raise ExperimentError(
        f"unit={format_value(text)} is no unit of a rate.\nWrite it as in {_EXAMPLES}."
    )
