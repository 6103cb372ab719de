"""From the runs of two trials to a verdict: interval, verdict, reason, advice.

A pair of rounds in opposite orders is one value; Student's t over the values gives the
interval; where the interval lies gives the verdict.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kit.measuring.experiment import describe
from kit.measuring.records import COLD, Run, Trial

SPEED, RUN_SECONDS, MEMORY = "items_per_second", "run_seconds", "peak_memory_bytes"
#: What is compared as a ratio, and its unit in words; a metric has a difference.
QUANTITIES = {
    SPEED: "items per second",
    RUN_SECONDS: "seconds per run",
    MEMORY: "bytes of peak memory",
}
#: Two speeds within 2 % of each other are "the same" for every practical purpose.
SAME = 1.02
#: So many pairs of rounds are made at least; of fewer, each round is a value.
LEAST_PAIRS = 3
#: A cold start whose ratio is off by over a fifth tells of a speed that changes.
CHANGED = 1.2


class Estimate(NamedTuple):
    """A value and its 95 % interval; an unknown bound is nan."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Ratio:
    """Variant over baseline of the compared quantity, or a metric's difference.

    `low` and `high` bound the 95 % interval. `verdict` is faster, slower (more, less),
    same or cannot tell; then `reason` says why it cannot tell, and what to do. `unit`
    is "×", or the metric's name.
    """

    value: float
    low: float
    high: float
    verdict: str
    reason: str = ""
    unit: str = "×"

    @property
    def is_known(self) -> bool:
        """Whether anything was measured of both."""
        return not math.isnan(self.value)

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
            return f"[{_write_end(self.low)}, {_write_end(self.high)}]"
        return f"[{self.low:+.3g}, {self.high:+.3g}]"

    def __str__(self) -> str:
        return f"{self.amount} {self.interval}".rstrip()


def write_ratio(value: float) -> str:
    """Write a ratio with three significant digits, or with all up to a million.

    >>> write_ratio(0.98765), write_ratio(1312.4), write_ratio(2.5e17)
    ('0.988', '1,312', '2.5e+17')
    """
    return f"{value:,.0f}" if 999.5 <= value < 1e6 else f"{value:.3g}"


def _write_end(value: float) -> str:
    """Write an end of an interval; one that is near 1 with a digit more.

    >>> _write_end(0.9996), _write_end(1.31)
    ('0.9996', '1.31')
    """
    text = write_ratio(value)
    return f"{value:.4g}" if text == "1" else text


# Intervals


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


def share_confidence(count: int, confidence: float = 0.95) -> float:
    """Return the confidence of each of so many intervals, so that all hold together.

    Šidák 1967; the inequality holds for intervals that share a baseline, too.

    >>> share_confidence(1), round(share_confidence(5), 4)
    (0.95, 0.9898)
    """
    return confidence ** (1 / max(1, count))


def judge(estimate: Estimate, same: float, above: str, below: str) -> str:
    """Return the verdict on an interval, given how far from zero is the same.

    >>> judge(Estimate(0.0, -0.01, 0.01), 0.02, "faster", "slower")
    'same'
    >>> judge(Estimate(0.3, 0.1, 0.5), 0.02, "faster", "slower")
    'faster'
    """
    if -same <= estimate.low and estimate.high <= same:
        return "same"
    if estimate.low > same:
        return above
    if estimate.high < -same:
        return below
    return "cannot tell"


# Values of rounds


def read_values(trial: Trial, of: str) -> dict[int, float]:
    """Return a quantity of each run by its round, cold starts left out."""
    values: dict[int, float | None] = {}
    for run in trial.runs:
        if run.round != COLD:
            values[run.round] = _read_value(run, of)
    return {round: value for round, value in values.items() if value is not None}


def _read_value(run: Run, of: str) -> float | None:
    if of == MEMORY:
        return run.memory_bytes
    if of not in QUANTITIES:
        return run.last_value(of)
    if not run.stretches:
        return None
    return run.items_per_second if of == SPEED else run.seconds


def list_rounds(baseline: Trial, variant: Trial, of: str) -> dict[int, float]:
    """Return a value for each round of both: a log-ratio, of metrics a difference.

    There are none where a quantity was zero in any round.
    """
    own, others = read_values(variant, of), read_values(baseline, of)
    both = sorted(own.keys() & others.keys())
    if of not in QUANTITIES:
        return {round: own[round] - others[round] for round in both}
    if any(own[round] <= 0 or others[round] <= 0 for round in both):
        return {}
    return {round: math.log(own[round] / others[round]) for round in both}


def join_pairs(rounds: dict[int, float]) -> list[float]:
    """Return the mean of each even round and the next one, whose order is opposite.

    What drifts adds to one what it takes from the other.

    >>> join_pairs({0: 1.0, 1: 3.0, 2: 5.0})
    [2.0]
    """
    return [
        (value + rounds[round + 1]) / 2
        for round, value in rounds.items()
        if round % 2 == 0 and round + 1 in rounds
    ]


# Verdicts


def compare_trials(
    baseline: Trial,
    variant: Trial,
    of: str = SPEED,
    within: float | None = None,
    *,
    confidence: float = 0.95,
    took_seconds: float | None = None,
) -> Ratio:
    """Compute the ratio of two trials that were measured in rounds.

    Rates have one value for each pair of rounds, all else one for each round. Of fewer
    than three pairs, as in a comparison that was stopped, each round is one.
    `took_seconds` is how long the comparison took, for the advice.
    """
    rounds = list_rounds(baseline, variant, of)
    is_rate = of == SPEED and not baseline.complete_runs
    pairs = join_pairs(rounds)
    values = pairs if is_rate and len(pairs) >= LEAST_PAIRS else [*rounds.values()]
    estimate = student_interval(values, confidence)
    is_ratio = of in QUANTITIES
    same = math.log(SAME) if is_ratio else within or 0.0
    above, below = ("faster", "slower") if of == SPEED else ("more", "less")
    verdict = judge(estimate, same, above, below)
    reason = ""
    trials = [baseline, variant]
    reach = _stretch_to_cold_start(estimate, trials, rounds) if is_rate else estimate
    changes = judge(reach, same, above, below) != verdict
    doubt = _find_doubt(trials, is_rate, values, changes)
    if doubt:
        verdict, reason = "cannot tell", doubt
    elif verdict == "cannot tell":
        reason = (
            "The interval contains both ratios that count as the same and ratios that "
            "do not."
        )
        reason += _advise(estimate, same, is_rate, len(values), took_seconds)
    if is_ratio:
        estimate = Estimate(*map(_exp, estimate))
    return Ratio(*estimate, verdict, reason, "×" if is_ratio else of)


def _exp(log: float) -> float:
    """Return the exponential: of two values, an interval may be wider than floats."""
    return math.exp(min(max(log, -700.0), 700.0))


def _find_doubt(
    trials: Sequence[Trial], is_rate: bool, values: Sequence[float], changes: bool
) -> str:
    """Return why no verdict may rest on these trials, and what to do; or nothing.

    `changes` says that the verdict is another one where the cold starts reach.
    """
    outcomes = [trial.outcome for trial in trials]
    if "quick" in outcomes:
        return "Quick mode: two steps say nothing. Run it without KIT_QUICK=1."
    if "stopped" in outcomes:
        return "It was stopped early: run it again."
    if is_rate:
        for trial in trials:
            settled = [run.settled for run in trial.runs]
            if 2 * sum(settled) < len(settled):
                return (
                    f"Most runs of {describe(trial.experiment, trial.knobs)} never "
                    "settled; the speed kept changing. Compare complete runs "
                    "(seconds=None)."
                )
    if not values:
        return "No round measured both variants, or one of them was zero."
    if not math.isfinite(math.fsum(values)):
        return "In at least one run it is not a finite number: it has diverged."
    if len(values) == 1:
        return "One value has no interval. Ask for more: repeats=6."
    if changes:
        return (
            "The cold starts showed a different ratio: the speed changes over time, or "
            "a start leaves something behind. Compare complete runs (seconds=None)."
        )
    return ""


def _stretch_to_cold_start(
    estimate: Estimate, trials: Sequence[Trial], rounds: dict[int, float]
) -> Estimate:
    """Return the interval, stretched where the cold starts tell another ratio.

    Cold runs are longer than most later ones. Where their ratio is over a fifth away
    from that of the nearest round, a still longer run may be off by twice as much.
    """
    cold = [
        [run.items_per_second for run in trial.runs if run.round == COLD and run.items]
        for trial in trials
    ]
    if not all(cold) or not rounds:
        return estimate
    ratio = math.log(cold[1][-1] / cold[0][-1])
    off = min((ratio - value for value in rounds.values()), key=abs)
    if abs(off) <= math.log(CHANGED):
        return estimate
    low = min(estimate.low, estimate.low + 2 * off)
    high = max(estimate.high, estimate.high + 2 * off)
    return Estimate(estimate.value, low, high)


def _advise(
    estimate: Estimate, same: float, is_rate: bool, count: int, took: float | None
) -> str:
    """Return how much more would tell: an interval shrinks with the root of time.

    It must become as narrow as the band of what counts as the same.
    """
    width = (estimate.high - estimate.low) / (2 * same) if same else math.inf
    longer = max(2, math.ceil(width**2)) if math.isfinite(width) else math.inf
    if longer > 50:
        return " It is far too wide: quiet the machine, or make the steps more alike."
    if not is_rate:
        return f" More rounds may tell: repeats={longer * count}."
    if took is None:
        return f" Measure about {longer} times as long (seconds=…)."
    return f" Measure longer: seconds={math.ceil(longer * took)}."
