"""`Ratio`: how a variant compares with the baseline, from the raw blocks of both."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from kit import stats
from kit.comparison.doubts import (
    explain_width,
    find_change,
    find_doubt,
)
from kit.comparison.quantities import QUANTITIES, SPEED
from kit.trial import COLD, Trial

_LEAST_PAIRS = 5


@dataclass(frozen=True)
class Ratio:
    """Variant over baseline of the compared quantity, or a metric's difference.

    `low` and `high` bound the 95 % interval. `verdict` is faster, slower (more, less),
    same or cannot tell; `reason` says why it cannot tell and what to do, or what to
    know about the figure.
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

    def __str__(self) -> str:
        if self.unit == "×":
            return (
                f"{write_ratio(self.value)} × "
                f"[{write_ratio(self.low)}, {write_ratio(self.high)}]"
            )
        return f"{self.value:+.3g} [{self.low:+.3g}, {self.high:+.3g}]"


def write_ratio(value: float) -> str:
    """Write a ratio with three significant digits, or with all up to a million.

    >>> write_ratio(0.98765), write_ratio(1312.4), write_ratio(2.5e17)
    ('0.988', '1,312', '2.5e+17')
    """
    return f"{value:,.0f}" if 999.5 <= value < 1e6 else f"{value:.3g}"


def compare_trials(
    baseline: Trial,
    variant: Trial,
    of: str = SPEED,
    within: float | None = None,
    *,
    confidence: float = 0.95,
) -> Ratio:
    """Compute the ratio of two trials that were measured side by side.

    Blocks with equal set-up and round belong together. Speeds: the pseudo-median of
    the log-ratios of neighbouring blocks in each pair of set-ups, one of either order
    of creation, and Student's t over the pairs (over set-ups where there are fewer
    than five pairs); totals instead of blocks where rare slow steps make a difference.
    Whole runs, set-ups, memory: Student's t over pairs, on the log scale. Metrics:
    Student's t over differences.
    """
    if of not in QUANTITIES:
        return _difference(baseline, variant, of, within or 0.0, confidence)
    note = ""
    if of == SPEED and not baseline.whole_runs:
        estimate, note = _speed(baseline, variant, confidence)
    else:
        pairs = _paired(baseline, variant, of)
        if not pairs:
            return _unknown("nothing was measured in both; run it again for longer")
        if any(not (a > 0 and b > 0) for a, b in pairs):
            return _unknown(
                f"{of} is zero in at least one run, so there is no ratio; compare "
                "experiments that add some"
            )
        logs = [math.log(b / a) for a, b in pairs]
        estimate = stats.student_interval(logs, confidence)
    value, low, high = (math.exp(x) for x in estimate)
    above, below, *_ = QUANTITIES[of]
    verdict, reason = _verdict(low, high, above, below)
    if verdict == "cannot tell" and (cause := explain_width((baseline, variant))):
        reason += f"; {cause}"
    doubts = [find_doubt(trial, of) for trial in (baseline, variant)]
    if of == SPEED and not baseline.whole_runs:
        change, reach = find_change(baseline, variant, estimate)
        reached, _ = _verdict(*map(math.exp, reach[1:]), above, below)
        if change and reached == "cannot tell":
            doubts.insert(
                0,
                f"{change}: its speed changes on the way, or starts leave something "
                "behind; compare whole runs (seconds=None), or measure much longer",
            )
        elif change:
            note = "; ".join(filter(None, (note, f"{change}: a long run may differ")))
    for doubt in filter(None, doubts):
        verdict, reason = "cannot tell", doubt
    return Ratio(value, low, high, verdict, reason or note)


def _verdict(low: float, high: float, above: str, below: str) -> tuple[str, str]:
    if math.isnan(low) or math.isnan(high):
        reason = "one pair has no interval; ask for more seconds or repeats"
        return "cannot tell", reason
    verdict = stats.judge_ratio(low, high, above=above, below=below)
    if verdict != "cannot tell":
        return verdict, ""
    width = math.log(high / low)
    if low > 1 or high < 1:
        return verdict, (
            "there is a difference, but it may be below 2 %; measure longer "
            "(seconds=…) if that matters"
        )
    # An interval shrinks with the square root of time.
    longer = max(2, math.ceil((width / (2 * math.log(stats.SAME))) ** 2))
    advice = (
        f"measure about {longer} times as long (seconds=…)"
        if longer <= 50
        else "quiet the machine, or look for what changes from step to step"
    )
    return verdict, f"the interval holds both a gain and a loss; {advice}"


def _unknown(reason: str) -> Ratio:
    return Ratio(math.nan, math.nan, math.nan, "cannot tell", reason)


def _speed(
    baseline: Trial, variant: Trial, confidence: float
) -> tuple[stats.Estimate, str]:
    """Estimate the log-ratio of speeds, and note what should be known about it."""
    setups = _side_by_side(baseline, variant)
    if not setups:
        return stats.Estimate(math.nan, math.nan, math.nan), ""
    # A pair of set-ups, one of each order of creation, counts as one; few pairs as two.
    paired = [s for s in setups if s % 2 == 0 and s + 1 in setups]
    groups = [[s, s + 1] for s in paired]
    note = ""
    if len(groups) < _LEAST_PAIRS:
        groups, note = [[s] for s in setups], f"from {len(setups)} set-ups of each"
    typical = [
        stats.pseudo_median([x for s in group for x in setups[s].log_ratios])
        for group in groups
    ]
    total = [math.fsum(setups[s].total for s in group) / len(group) for group in groups]
    by_step = stats.student_interval(typical, confidence)
    by_total = stats.student_interval(total, confidence)
    gap = stats.student_interval(
        [t - m for t, m in zip(total, typical, strict=True)], confidence
    )
    if abs(gap.value) <= math.log(stats.SAME):
        return by_step, note
    alone = f"the typical step alone would give {math.exp(by_step.value):.3g} ×"
    if gap.low > 0 or gap.high < 0:
        return by_total, f"rare slow steps decide it: {alone}"
    # A stumble of the machine, or steps that are slow so seldom that few were seen.
    either = stats.Estimate(
        by_step.value,
        min(by_step.low, by_total.low),
        max(by_step.high, by_total.high),
    )
    return either, "a few slow steps may decide it: measure longer to see more of them"


class _SetUp(NamedTuple):
    """Two variants side by side: log-ratios of neighbouring blocks, and of totals."""

    log_ratios: list[float]
    total: float


def _side_by_side(baseline: Trial, variant: Trial) -> dict[int, _SetUp]:
    """Return what both did in each set-up: blocks of equal round, in order."""
    places_a, places_b = _places(baseline), _places(variant)
    pairs: dict[int, list[tuple[int, int]]] = {}
    for key in sorted(places_a.keys() & places_b.keys()):
        both = zip(places_a[key], places_b[key], strict=False)
        pairs.setdefault(key[0], []).extend(both)
    made = {}
    pairs.pop(COLD, None)  # alone, not side by side
    for setup, blocks in pairs.items():
        sides = [
            [(trial.block_items[i], trial.block_seconds[i]) for i in numbers]
            for trial, numbers in zip(
                (baseline, variant), zip(*blocks, strict=True), strict=True
            )
        ]
        logs = [
            math.log(nb / tb * ta / na)
            for (na, ta), (nb, tb) in zip(*sides, strict=True)
        ]
        a, b = (
            math.fsum(n for n, _ in side) / math.fsum(t for _, t in side)
            for side in sides
        )
        made[setup] = _SetUp(logs, math.log(b / a))
    return made


def _places(trial: Trial) -> dict[tuple[int, int], list[int]]:
    """Return the numbers of the blocks of each (set-up, round)."""
    places: dict[tuple[int, int], list[int]] = {}
    keys = zip(trial.block_setups, trial.block_rounds, strict=True)
    for number, key in enumerate(keys):
        places.setdefault(key, []).append(number)
    return places


def _rounds(trial: Trial) -> dict[tuple[int, int], tuple[float, float]]:
    """Return (seconds, items) of each (set-up, round)."""
    sums: dict[tuple[int, int], tuple[float, float]] = {}
    for setup, number, seconds, items in zip(
        trial.block_setups,
        trial.block_rounds,
        trial.block_seconds,
        trial.block_items,
        strict=True,
    ):
        before = sums.get((setup, number), (0.0, 0.0))
        sums[setup, number] = before[0] + seconds, before[1] + items
    return sums


def _paired(baseline: Trial, variant: Trial, of: str) -> list[tuple[float, float]]:
    """Return (baseline, variant) of the quantity, run by run or start by start."""
    if of in ("setup_seconds", "peak_memory_bytes"):
        a, b = (_by_start(trial, of) for trial in (baseline, variant))
    else:
        a, b = (
            {
                setup: (items / seconds if of == SPEED else seconds)
                for (setup, _), (seconds, items) in _rounds(t).items()
            }
            for t in (baseline, variant)
        )
    return [(a[key], b[key]) for key in sorted(a.keys() & b.keys())]


def _by_start(trial: Trial, of: str) -> dict[int, float]:
    """Return the quantity of each start but the cold one, which loads libraries."""
    name = "setup_seconds" if of == "setup_seconds" else "start_memory_bytes"
    values = zip(trial.start_setups, getattr(trial, name), strict=True)
    return {setup: value for setup, value in list(values)[1:] if value is not None}


def _difference(
    baseline: Trial, variant: Trial, metric: str, within: float, confidence: float
) -> Ratio:
    a, b = (
        dict(zip(t.block_setups, t.last_values(metric), strict=True))
        for t in (baseline, variant)
    )
    differences = [b[key] - a[key] for key in sorted(a.keys() & b.keys())]
    if not differences:
        return _unknown("nothing was measured in both; run it again")
    value, low, high = stats.student_interval(differences, confidence)
    if any(math.isnan(x) for x in (value, low, high)):
        reason = f"{metric} has no interval here: it needs two runs or more with values"
        return Ratio(value, low, high, "cannot tell", reason, unit=metric)
    verdict = stats.judge_difference(low, high, within)
    reason = ""
    if verdict == "cannot tell":
        reason = f"the interval is wider than ±{within:g}; ask for more repeats"
    return Ratio(value, low, high, verdict, reason, unit=metric)
