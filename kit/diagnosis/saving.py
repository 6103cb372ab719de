"""What leaving a cause out, or a repair, saves of the time of a step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kit.figures import format_saving
from kit.measuring.verdict import student_interval

#: A saving counts where the lower end of its interval is above this fraction.
LEAST_SAVING = 0.03
#: An interval that is wider tells nothing.
_TELLS_NOTHING = 1.0


@dataclass(frozen=True)
class Saving:
    """The fraction of a step's time that something saves; negative: it costs.

    Measured ones have a 95 % interval, within the run. Others are the most that can be
    saved, from a share of the profile. `value` is NaN where it is not known; `reason`
    says why, or how it was found.
    """

    value: float
    low: float = math.nan
    high: float = math.nan
    measured: bool = True
    reason: str = ""

    @property
    def is_known(self) -> bool:
        """Whether it is a number that says something."""
        return not math.isnan(self.value)

    @property
    def is_sure(self) -> bool:
        """Whether something is saved beyond doubt."""
        if not self.is_known:
            return False
        return self.low > LEAST_SAVING if self.measured else self.value > LEAST_SAVING

    @property
    def costs(self) -> bool:
        """Whether a step surely takes longer."""
        return self.measured and self.high < -LEAST_SAVING

    def __str__(self) -> str:
        if not self.is_known:
            return "not known"
        if self.measured and self.value < -1:
            return f"makes a step {1 - self.value:.2g} × as long"
        if self.measured:
            return format_saving(self.value, self.low, self.high)
        return f"at most {self.value:.0%}".replace("%", " %")


def unknown(reason: str) -> Saving:
    """Return the saving of what nobody can tell, and why."""
    return Saving(math.nan, reason=reason, measured=False)


def from_share(share: float, reason: str = "") -> Saving:
    """Return the most that is saved by what takes this share of a step.

    >>> str(from_share(0.5))
    'at most 50 %'
    """
    return Saving(share, measured=False, reason=reason)


def from_groups(log_ratios: Sequence[float]) -> Saving:
    """Return what was saved, given the log-ratio of times of each group.

    The 95 % interval is Student's t over the groups of one run. What is too wide to
    say anything is not known.

    >>> print(from_groups([math.log(0.4), math.log(0.41), math.log(0.39)]))
    60 % [57, 62]
    """
    mean, low, high = student_interval(log_ratios)
    ends = [1 - math.exp(end) for end in (mean, high, low)]
    value, low, high = (round(end, 3) for end in ends)
    surely_costs = high < 0
    if not (surely_costs or high - low < _TELLS_NOTHING):
        return unknown("repeated measurements vary too much")
    return Saving(value, low, high)
