"""`Ratio`: how a variant compares with the baseline, from the runs of both.

Also why there is no verdict, and what helps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from kit import statistics
from kit.records import FIRST, Block, Run, Trial
from kit.statistics import Estimate

SPEED, RUN_SECONDS, MEMORY = "items_per_second", "run_seconds", "peak_memory_bytes"
#: What can be compared as a ratio, and the unit that it is told in.
QUANTITIES = {
    SPEED: "items per second",
    RUN_SECONDS: "seconds per run",
    MEMORY: "bytes of peak memory",
}
#: A pair of rounds is one value; below so many pairs each round is one.
LEAST_PAIRS = 5
#: How much the ratio in first, longer runs may differ from that in later ones.
_CHANGED = 1.2
#: Cores that other programs used, our cores per driving thread above which an
#: experiment computes with several threads, and threads of ours that waited.
_BUSY, _SEVERAL, _WAITING = 0.1, 1.2, 0.05
#: The share of the time that a quota stopped us, and blocks too short to tell whom.
_THROTTLED, _SHORT_BLOCK_SECONDS = 0.05, 0.2
#: What was so interrupted says nothing.
_BROKEN = {
    "disturbed": "other cells ran meanwhile: run it again alone",
    "stopped": "it was stopped before the end: run it again",
}
#: What makes an interval wide: a condition, from where on, and what helps.
_WIDENED = (
    ("others_cores", _BUSY, "Other programs used {:.1f} cores: close them."),
    ("stolen", 0.02, "The host gave time to other guests: measure at another time."),
    ("throttled", _THROTTLED, "A quota stopped this process: use fewer threads."),
)
_BOTH = "The interval holds both a gain and a loss."
_SMALL = (
    "There is a difference, but it may be below 2 %. "
    "Measure longer (seconds=…) if that matters."
)
_CHANGES = (
    "its speed changes on the way, or a start leaves something behind. Measure much "
    "longer, or compare runs that end (a loop over range(n), seconds=None)"
)


def unit_of(of: str) -> str:
    """Return a quantity's unit in words; a metric is its own."""
    return QUANTITIES.get(of, of)


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
        """The interval in words."""
        if self.unit == "×":
            return f"[{write_ratio(self.low)}, {write_ratio(self.high)}]"
        return f"[{self.low:+.3g}, {self.high:+.3g}]"

    def __str__(self) -> str:
        return f"{self.amount} {self.interval}"


def write_ratio(value: float) -> str:
    """Write a ratio with three significant digits, or with all up to a million.

    >>> write_ratio(0.98765), write_ratio(1312.4), write_ratio(2.5e17)
    ('0.988', '1,312', '2.5e+17')
    """
    return f"{value:,.0f}" if 999.5 <= value < 1e6 else f"{value:.3g}"


# The quantity of each run


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


# The ratio


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
        return _unknown("Nothing was measured in both. Run it again for longer.")
    if of not in QUANTITIES:
        estimate = statistics.student_interval([y - x for x, y in pairs], confidence)
        return _judge_difference(estimate, of, within or 0.0)
    if not all(x > 0 and y > 0 for x, y in pairs):
        return _unknown(
            f"{of} is zero in at least one run, so there is no ratio. Compare "
            "experiments that add some."
        )
    logs = [math.log(y / x) for x, y in pairs]
    estimate = statistics.student_interval(logs, confidence)
    return _conclude(baseline, variant, of, estimate)


@dataclass(frozen=True)
class Rates:
    """The log-ratio of two variants' rates, by the typical block and by all time."""

    typical: Estimate
    total: Estimate

    @property
    def has_rare_slow_steps(self) -> bool:
        """Whether slow steps move the ratio that the typical block does not show."""
        return abs(self.total.value - self.typical.value) > math.log(statistics.SAME)

    @property
    def estimate(self) -> Estimate:
        """All time counts where slow steps matter; else the steadier typical block."""
        return self.total if self.has_rare_slow_steps else self.typical


def estimate_rates(
    baseline: Sequence[Run], variant: Sequence[Run], confidence: float
) -> Rates:
    """Estimate the log-ratio of two variants' rates.

    The typical one is the median over neighbouring blocks of interleaved runs; runs
    that follow each other have no neighbours, only totals.
    """
    partners = {run.round: run for run in baseline if run.blocks}
    typical: dict[int, list[float]] = {}
    total: dict[int, list[float]] = {}
    for run in variant:
        partner = partners.get(run.round)
        if run.round == FIRST or partner is None or not run.blocks:
            continue
        if not partner.items or not run.items:  # ranks may have steps without items
            continue
        ratio = math.log(run.items_per_second / partner.items_per_second)
        total[run.round] = [ratio]
        neighbours = _compare_neighbours(partner, run) if run.interleaved else []
        typical[run.round] = neighbours or [ratio]
    groups = _group_rounds(total)
    return Rates(
        _estimate_groups(typical, groups, confidence),
        _estimate_groups(total, groups, confidence),
    )


def _compare_neighbours(baseline: Run, variant: Run) -> list[float]:
    """Return the log-ratios of neighbouring blocks."""
    return [
        math.log(own.items / own.seconds * other.seconds / other.items)
        for other, own in zip(baseline.blocks, variant.blocks, strict=False)
        if other.items and own.items
    ]


def _group_rounds(rounds: Collection[int]) -> list[list[int]]:
    """Return the pairs of rounds, or, of few pairs, single rounds.

    An even round and the next one have opposite orders.
    """
    pairs = [[r, r + 1] for r in sorted(rounds) if r % 2 == 0 and r + 1 in rounds]
    return pairs if len(pairs) >= LEAST_PAIRS else [[r] for r in sorted(rounds)]


def _estimate_groups(
    logs: Mapping[int, Sequence[float]],
    groups: Sequence[Sequence[int]],
    confidence: float,
) -> Estimate:
    """Estimate the mean of the groups' medians."""
    medians = [median([x for round in group for x in logs[round]]) for group in groups]
    return statistics.student_interval(medians, confidence)


def _compare_rates(baseline: Trial, variant: Trial, confidence: float) -> Ratio:
    """Compute the ratio of rates; first runs may tell another story."""
    rates = estimate_rates(baseline.runs, variant.runs, confidence)
    estimate = rates.estimate
    notes = []
    if rates.has_rare_slow_steps:
        alone = write_ratio(statistics.exp(rates.typical.value))
        notes.append(f"Rare slow steps decide it: typical ones would give {alone} ×.")
    change = _find_change(baseline, variant, rates)
    if change is None:
        return _conclude(baseline, variant, SPEED, estimate, " ".join(notes))
    if _judge(change.reach, SPEED)[0] == "cannot tell":
        doubt = f"{change.text}, so the kit does not trust it: {_CHANGES}"
        return _conclude(baseline, variant, SPEED, estimate, doubt=doubt)
    notes.append(f"{_capitalize(change.text)}: a long run may differ.")
    return _conclude(baseline, variant, SPEED, estimate, " ".join(notes))


def _capitalize(text: str) -> str:
    return text[0].upper() + text[1:]


def _unknown(reason: str) -> Ratio:
    return Ratio(math.nan, math.nan, math.nan, "cannot tell", reason)


def _judge_difference(estimate: Estimate, metric: str, within: float) -> Ratio:
    """Return a metric's difference with its verdict."""
    verdict = statistics.judge_difference(estimate.low, estimate.high, within)
    reason = ""
    if any(map(math.isnan, estimate)):
        reason = f"{metric} has no interval: it needs two runs or more with values."
    elif verdict == "cannot tell":
        reason = f"The interval is wider than ±{within:g}. Ask for more repeats."
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
    doubts = [find_doubt(baseline, of), find_doubt(variant, of), doubt]
    if doubt := next(filter(None, doubts), ""):
        start = f"The interval says *{verdict}*. But " if not reason else ""
        sentence = start + doubt if start else _capitalize(doubt)
        verdict, reason = "cannot tell", f"{sentence}."
    value, low, high = map(statistics.exp, estimate)
    return Ratio(value, low, high, verdict, reason or note)


def _judge(estimate: Estimate, of: str) -> tuple[str, str]:
    """Return the verdict on a ratio's interval, and why there is none."""
    low, high = statistics.exp(estimate.low), statistics.exp(estimate.high)
    if math.isnan(low):
        return "cannot tell", "One pair has no interval. Give more seconds or repeats."
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


# Why there is no verdict


def find_doubt(trial: Trial, of: str) -> str:
    """Return why no verdict may rest on this trial, or nothing."""
    if trial.outcome in _BROKEN:
        return _BROKEN[trial.outcome]
    if of != SPEED or trial.complete_runs:
        return ""
    if trial.outcome == "not settled":
        return f"{trial.heading()} never settled, its speed changed: measure longer"
    conditions = trial.conditions
    others, waiting = (
        conditions.get("others_cores", 0.0),
        conditions.get("waiting", 0.0),
    )
    has_several_threads = conditions.get("cores_per_thread", 1.0) > _SEVERAL
    if has_several_threads and others > _BUSY and waiting > _WAITING:
        busy = f"other programs used {others:.1f} cores while several"
        if any(block.rank_seconds for block in trial.blocks):
            return f"{busy} ranks were measured: close them"
        advice = "close them, or set torch.set_num_threads(1)"
        return f"{busy} threads were measured: {advice}"
    walls = [b.wall_seconds for r in trial.runs if r.round != FIRST for b in r.blocks]
    are_short = min(walls, default=math.inf) < _SHORT_BLOCK_SECONDS
    throttled = conditions.get("throttled", 0.0)
    if are_short and throttled > _THROTTLED:
        return (
            f"a quota stopped this process {throttled:.0%} of the time, in blocks too "
            "short to tell whom it hit: use fewer threads or workers"
        )
    return ""


@dataclass(frozen=True)
class _Change:
    """That first runs tell another ratio: in words, and how far that may reach."""

    text: str
    reach: Estimate


def _find_change(baseline: Trial, variant: Trial, rates: Rates) -> _Change | None:
    """Return whether first runs tell another ratio than later ones.

    They are longer than the others. Where all of them, or their last thirds, tell a
    ratio that is off by over a fifth, and by more than runs differ anyway, then speed
    changes on the way (a queue that starts full, a step that grows, rare slow steps),
    or later starts find what the first one left behind. A longer run may be off by
    more: the interval is stretched by twice as much, towards that ratio.
    """
    estimate = rates.estimate
    shared = baseline.rounds & variant.rounds
    if math.isnan(estimate.high) or not shared:
        return None
    parts = [("the first, longer runs", _whole_rate, estimate)]
    blocks, others = _blocks_of(variant, shared), _blocks_of(baseline, shared)
    if ratio := _typical_rate(blocks) / (_typical_rate(others) or math.nan):
        half = rates.typical.half_width
        typical = Estimate(math.log(ratio), math.log(ratio) - half, math.log(ratio) + half)
        parts.append(("the ends of the first, longer runs", _end_rate, typical))
    text, largest, ends = "", 0.0, [estimate.low, estimate.high]
    for where, rate, expected in parts:
        off = _find_offset(baseline, variant, rate, expected.value)
        # One run beside the mean of so many pairs of runs.
        scatter = expected.half_width * math.sqrt(len(shared) + 2)
        if abs(off) > max(math.log(_CHANGED), scatter):
            ends += [estimate.low + 2 * off, estimate.high + 2 * off]
            if abs(off) > largest:
                largest = abs(off)
                early = write_ratio(statistics.exp(expected.value + off))
                text = f"{where} told {early} ×"
    if not text:
        return None
    return _Change(text, Estimate(estimate.value, min(ends), max(ends)))


def _find_offset(
    baseline: Trial,
    variant: Trial,
    rate: Callable[[Run], float],
    expected: float,
) -> float:
    """Return by how much the log-ratio of first runs differs from the expected one.

    The baseline's first run comes before and after the others. Of several differences
    the smallest counts, and none of opposite ones: then the machine's speed changed.
    """
    rates = [
        [rate(run) for run in trial.runs if run.round == FIRST and run.blocks]
        for trial in (baseline, variant)
    ]
    offsets = [
        math.log(own / other) - expected
        for other in rates[0]
        for own in rates[1]
        if own > 0 and other > 0
    ]
    if not offsets or min(offsets) * max(offsets) < 0:
        return 0.0
    return min(offsets, key=abs)


def _blocks_of(trial: Trial, rounds: set[int]) -> list[Block]:
    return [block for run in trial.runs if run.round in rounds for block in run.blocks]


def _whole_rate(run: Run) -> float:
    return run.items_per_second


def _end_rate(run: Run) -> float:
    """Return the rate of the typical block in the last third of a run."""
    return _typical_rate(run.blocks[-max(1, len(run.blocks) // 3) :])


def _typical_rate(blocks: Sequence[Block]) -> float:
    """Return the median rate of blocks; 0 where one has no items."""
    return median(block.items / block.seconds for block in blocks)


def explain_width(trials: Sequence[Trial]) -> str:
    """Return what made an interval wide and what helps, as far as it was seen."""
    for name, limit, sentence in _WIDENED:
        seen = max(trial.conditions.get(name, 0.0) for trial in trials)
        if seen > limit:
            return sentence.format(seen)
    return ""
