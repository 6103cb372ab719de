"""`Ratio`: how a variant compares with the baseline, from the runs of both.

Also why there is no verdict, and what helps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kit import statistics
from kit.measuring.doubt import explain_width, find_change, find_doubt
from kit.measuring.quantity import (
    QUANTITIES,
    SPEED,
    read_values,
    write_ratio,
    write_ratios,
)
from kit.measuring.rates import estimate_rates
from kit.records import FIRST, Trial
from kit.statistics import Estimate

_NOTHING = "Nothing was measured in both. Run it again for longer."
_BOTH = "The interval holds both a gain and a loss."
_SMALL = (
    "There is a difference, but it may be below 2 %. "
    "Measure longer (seconds=…) if that matters."
)
_CHANGES = (
    "a speed changes on the way, or a start leaves something behind. Measure much "
    "longer, or compare runs that end (a loop over range(n), seconds=None)"
)


@dataclass(frozen=True)
class Ratio:
    """Variant over baseline of the compared quantity, or a metric's difference.

    `low` and `high` bound the 95 % interval. `verdict` is faster, slower (more, less),
    same or cannot tell; `reason` says in sentences why it cannot tell and what to do,
    or what to know about the figure. `unit` is "×", or the metric's name.
    """

    value: float
    low: float
    high: float
    verdict: str
    reason: str = ""
    unit: str = "×"

    @property
    def middle(self) -> float:
        """The logarithm of a ratio, a difference as it is: what is symmetric."""
        return self._scaled(self.value)

    @property
    def half_width(self) -> float:
        """Half the width of the interval, on the scale of `middle`."""
        return (self._scaled(self.high) - self._scaled(self.low)) / 2

    def _scaled(self, value: float) -> float:
        if self.unit != "×":
            return value
        return math.log(value) if value > 0 else math.nan

    @property
    def amount(self) -> str:
        """The value in words, without its interval."""
        if self.unit == "×":
            return f"{write_ratio(self.value)} ×"
        return f"{self.value:+.3g}"

    @property
    def interval(self) -> str:
        """The interval in words, none where it is unknown."""
        if math.isnan(self.low):
            return ""
        if self.unit == "×":
            return write_ratios(self.low, self.high)
        return f"[{self.low:+.3g}, {self.high:+.3g}]"

    @property
    def is_known(self) -> bool:
        """Whether anything was measured of both."""
        return not math.isnan(self.value)

    @property
    def is_small(self) -> bool:
        """Whether there is a difference, and only its being over 2 % is open."""
        return self.verdict == "cannot tell" and self.reason.startswith(_SMALL)

    def __str__(self) -> str:
        return f"{self.amount} {self.interval}".rstrip()


def compare_trials(
    baseline: Trial,
    variant: Trial,
    of: str = SPEED,
    within: float | None = None,
    *,
    confidence: float = 0.95,
) -> Ratio:
    """Compute the ratio of two trials that were measured in rounds.

    Runs of equal rounds belong together. Rates: Student's t over one value for each
    pair of rounds of opposite orders (below five pairs, for each round): the median
    log-ratio of neighbouring blocks; the log-ratio of totals where runs are sequential,
    or where rare slow steps matter. Complete runs and memory: one value for each round,
    on the log scale. Metrics: the same over differences.
    """
    if of == SPEED and not baseline.complete_runs:
        return _compare_rates(baseline, variant, confidence)
    a, b = read_values(baseline, of), read_values(variant, of)
    pairs = [(a[r], b[r]) for r in sorted(a.keys() & b.keys()) if r != FIRST]
    if not pairs:
        return _unknown(_NOTHING)
    if of not in QUANTITIES:
        estimate = statistics.student_interval([y - x for x, y in pairs], confidence)
        return _judge_difference(baseline, variant, estimate, of, within or 0.0)
    if not all(x > 0 and y > 0 for x, y in pairs):
        return _unknown(
            f"{of} is zero in at least one run, so there is no ratio. Compare "
            "experiments that add some."
        )
    logs = [math.log(y / x) for x, y in pairs]
    estimate = statistics.student_interval(logs, confidence)
    return _conclude(baseline, variant, of, estimate)


def _compare_rates(baseline: Trial, variant: Trial, confidence: float) -> Ratio:
    """Compute the ratio of rates; first runs may tell another story."""
    rates = estimate_rates(baseline.runs, variant.runs, confidence)
    estimate = rates.estimate
    notes = []
    if rates.has_rare_slow_steps:
        alone = write_ratio(statistics.exp(rates.typical.value))
        notes.append(f"Rare slow steps move it by over 2 %: without them, {alone} ×.")
    change = find_change(baseline, variant, rates)
    if change is None:
        return _conclude(baseline, variant, SPEED, estimate, " ".join(notes))
    if _judge(change.reach, SPEED)[0] == "cannot tell":
        doubt = f"{change.text}, so the interval is not to be trusted: {_CHANGES}"
        return _conclude(baseline, variant, SPEED, estimate, " ".join(notes), doubt)
    notes.append(f"{_capitalize(change.text)}: a long run may differ.")
    return _conclude(baseline, variant, SPEED, estimate, " ".join(notes))


def _capitalize(text: str) -> str:
    return text[0].upper() + text[1:]


def _unknown(reason: str) -> Ratio:
    return Ratio(math.nan, math.nan, math.nan, "cannot tell", reason)


def _judge_difference(
    baseline: Trial, variant: Trial, estimate: Estimate, metric: str, within: float
) -> Ratio:
    """Return a metric's difference with its verdict."""
    verdict = statistics.judge_difference(estimate.low, estimate.high, within)
    reason = ""
    if any(map(math.isnan, estimate)):
        reason = f"{metric} has no interval: it needs two runs or more with values."
    elif verdict == "cannot tell":
        reason = f"The interval is wider than ±{within:g}. Ask for more repeats."
    doubt = find_doubt(baseline, metric) or find_doubt(variant, metric)
    if doubt:
        verdict, reason = "cannot tell", _withhold(verdict, doubt)
    return Ratio(*estimate, verdict, reason, metric)


def _conclude(
    baseline: Trial,
    variant: Trial,
    of: str,
    estimate: Estimate,
    note: str = "",
    doubt: str = "",
) -> Ratio:
    """Make a ratio of its logarithm's estimate; no verdict where there is doubt."""
    verdict, reason = _judge(estimate, of)
    if verdict == "cannot tell" and (cause := explain_width([baseline, variant])):
        reason += f" {cause}"
    doubt = find_doubt(baseline, of) or find_doubt(variant, of) or doubt
    if doubt:
        verdict, reason = "cannot tell", _withhold(verdict, doubt)
    value, low, high = map(statistics.exp, estimate)
    sentences = " ".join(filter(None, (reason, note)))
    return Ratio(value, low, high, verdict, sentences)


def _withhold(verdict: str, doubt: str) -> str:
    """Return why a verdict is withheld, as a sentence."""
    if verdict == "cannot tell":
        return f"{_capitalize(doubt)}."
    return f"The interval says *{verdict}*. But {doubt}."


def _judge(estimate: Estimate, of: str) -> tuple[str, str]:
    """Return the verdict on a ratio's interval, and why there is none."""
    low, high = statistics.exp(estimate.low), statistics.exp(estimate.high)
    if math.isnan(estimate.value):
        return "cannot tell", _NOTHING
    if math.isnan(low):
        return "cannot tell", "One value has no interval. Give more seconds or repeats."
    words = {} if of == SPEED else {"above": "more", "below": "less"}
    verdict = statistics.judge_ratio(low, high, **words)
    if verdict != "cannot tell":
        return verdict, ""
    if low > 1 or high < 1:
        return verdict, _SMALL
    # An interval shrinks with the square root of time.
    width = (estimate.high - estimate.low) / (2 * math.log(statistics.SAME))
    longer = max(2, math.ceil(width**2))
    advice = "Quiet the machine, or look for what changes from step to step."
    if longer <= 50:
        advice = f"Measure about {longer} times as long (seconds=…)."
    return verdict, f"{_BOTH} {advice}"
