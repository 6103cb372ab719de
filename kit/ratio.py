"""`Ratio`: how a variant compares with the baseline, from the blocks of both.

Or why there is no verdict, and what helps.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from kit import stats
from kit.life import COLD, Life
from kit.stats import Estimate
from kit.trial import Trial, rate

SPEED, SETUP, MEMORY = "items_per_second", "setup_seconds", "peak_memory_bytes"
#: Fewer pairs of turns count as single turns.
_LEAST_PAIRS = 5
#: Cores that other programs used, cores per driving thread above which an experiment
#: computes with several threads, waiting threads, seconds given to other guests, share
#: of the time that a quota stopped us and blocks too short to tell whom.
_BUSY, _SEVERAL, _WAITING, _STOLEN = 0.1, 1.2, 0.05, 0.02
_THROTTLED, _SHORT_BLOCK_SECONDS = 0.05, 0.2
#: What was so interrupted says nothing.
_BROKEN = {
    "disturbed": "other cells ran meanwhile; run it again alone",
    "stopped": "it was stopped before the end; run it again",
}
#: What made an interval wide, and what helps.
_CAUSES = (
    ("others_cores", _BUSY, "other programs used {:.1f} cores: close them"),
    ("stolen", _STOLEN, "the host gave time to other guests: measure at another time"),
    ("throttled", _THROTTLED, "a quota stopped this process: use fewer threads"),
)
#: How much the ratio in first, longer lives may differ from that in later ones.
_CHANGED = 1.2


#: How a ratio of each quantity is said, and what its unit is called.
QUANTITIES = {
    SPEED: ("is {} as fast as", "items per second"),
    "run_seconds": ("takes {} the time of", "seconds per run"),
    SETUP: ("takes {} the set-up time of", "seconds of set-up"),
    MEMORY: ("adds {} the memory of", "bytes of peak memory"),
}


def unit_of(of: str) -> str:
    """Return a quantity's unit in words; a metric is its own."""
    return QUANTITIES[of][1] if of in QUANTITIES else of


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
            low, high = write_ratio(self.low), write_ratio(self.high)
            return f"{write_ratio(self.value)} × [{low}, {high}]"
        return f"{self.value:+.3g} [{self.low:+.3g}, {self.high:+.3g}]"


def write_ratio(value: float) -> str:
    """Write a ratio with three significant digits, or with all up to a million.

    >>> write_ratio(0.98765), write_ratio(1312.4), write_ratio(2.5e17)
    ('0.988', '1,312', '2.5e+17')
    """
    return f"{value:,.0f}" if 999.5 <= value < 1e6 else f"{value:.3g}"


def read_values(trial: Trial, of: str) -> dict[int, float]:
    """Return a quantity of each life by its turn, the cold start's too."""
    if of == SETUP:
        return {life.turn: life.setup_seconds for life in trial.lives}
    if of == MEMORY:
        known = [life for life in trial.lives if life.memory_bytes is not None]
        return {life.turn: float(life.memory_bytes or 0) for life in known}
    if of not in QUANTITIES:
        given = {life.turn: life.last_value(of) for life in trial.lives}
        return {turn: value for turn, value in given.items() if value is not None}
    timed = [life for life in trial.lives if life.blocks]
    if of == SPEED:
        return {life.turn: rate(life) for life in timed}
    return {life.turn: sum(b.seconds for b in life.blocks) for life in timed}


def quantity_of(trial: Trial, of: str) -> tuple[float, float, float]:
    """Return a quantity of one trial with its 95 % interval."""
    if of == SPEED:
        return (trial.items_per_second, *trial.interval)
    values = read_values(trial, of)
    later = [value for turn, value in values.items() if turn != COLD]
    return tuple(stats.student_interval(later or [*values.values()]))


def compare_trials(
    baseline: Trial,
    variant: Trial,
    of: str = SPEED,
    within: float | None = None,
    *,
    confidence: float = 0.95,
) -> Ratio:
    """Compute the ratio of two trials that were measured by turns.

    Lives with equal turns belong together. Rates: the pseudo-median of the log-ratios
    of neighbouring blocks in each pair of turns, one of either order, and Student's t
    over the pairs (over turns where there are fewer than five pairs); totals instead of
    blocks where rare slow steps make a difference. Whole runs, set-ups, memory:
    Student's t over turns, on the log scale. Metrics: Student's t over differences.
    """
    trials = baseline, variant
    if of == SPEED and not baseline.whole_runs:
        return _compare_rates(trials, confidence)
    a, b = read_values(baseline, of), read_values(variant, of)
    pairs = [(a[t], b[t]) for t in sorted(a.keys() & b.keys()) if t != COLD]
    if not pairs:
        return _unknown("nothing was measured in both; run it again for longer")
    if of not in QUANTITIES:
        estimate = stats.student_interval([y - x for x, y in pairs], confidence)
        return _judge_difference(estimate, of, within or 0.0)
    if not all(x > 0 and y > 0 for x, y in pairs):
        return _unknown(
            f"{of} is zero in at least one run, so there is no ratio; compare "
            "experiments that add some"
        )
    estimate = stats.student_interval([math.log(y / x) for x, y in pairs], confidence)
    return _conclude(trials, of, estimate)


def _unknown(reason: str) -> Ratio:
    return Ratio(math.nan, math.nan, math.nan, "cannot tell", reason)


def _judge_difference(estimate: Estimate, metric: str, within: float) -> Ratio:
    """Return a metric's difference with its verdict."""
    reason = f"the interval is wider than ±{within:g}; ask for more repeats"
    if any(map(math.isnan, estimate)):
        reason = f"{metric} has no interval here: it needs two runs or more with values"
    verdict = stats.judge_difference(estimate.low, estimate.high, within)
    reason = reason if verdict == "cannot tell" else ""
    return Ratio(*estimate, verdict, reason, metric)


def _compare_rates(trials: tuple[Trial, Trial], confidence: float) -> Ratio:
    """Compute the ratio of rates; a first life may tell another story."""
    estimate, typical, note = _estimate_rates(*trials, confidence)
    change, reach = _find_change(*trials, estimate, typical)
    if change and _judge(reach, SPEED)[0] == "cannot tell":
        change += (
            ": its speed changes on the way, or starts leave something behind; measure "
            "much longer, or compare runs that end (a loop over range(n), seconds=None)"
        )
        return _conclude(trials, SPEED, estimate, doubt=change)
    notes = [note, f"{change}: a long run may differ"] if change else [note]
    return _conclude(trials, SPEED, estimate, "; ".join(filter(None, notes)))


def _conclude(
    trials: tuple[Trial, Trial],
    of: str,
    estimate: Estimate,
    note: str = "",
    doubt: str = "",
) -> Ratio:
    """Make a ratio of its logarithm's estimate; no verdict where there is doubt."""
    verdict, reason = _judge(estimate, of)
    if verdict == "cannot tell" and (cause := explain_width(trials)):
        reason += f"; {cause}"
    for found in (doubt, *(find_doubt(trial, of) for trial in trials)):
        if found:
            verdict, reason = "cannot tell", found
    return Ratio(*map(stats.exp, estimate), verdict, reason or note)


def _judge(estimate: Estimate, of: str) -> tuple[str, str]:
    """Return the verdict on a ratio's interval, and why there is none."""
    low, high = stats.exp(estimate.low), stats.exp(estimate.high)
    if math.isnan(low):
        return "cannot tell", "one pair has no interval; give more seconds or repeats"
    words = {} if of == SPEED else {"above": "more", "below": "less"}
    verdict = stats.judge_ratio(low, high, **words)
    if verdict != "cannot tell":
        return verdict, ""
    if low > 1 or high < 1:
        return verdict, (
            "there is a difference, but it may be below 2 %; measure longer "
            "(seconds=…) if that matters"
        )
    # An interval shrinks with the square root of time.
    width = (estimate.high - estimate.low) / (2 * math.log(stats.SAME))
    longer = max(2, math.ceil(width**2))
    advice = "quiet the machine, or look for what changes from step to step"
    if longer <= 50:
        advice = f"measure about {longer} times as long (seconds=…)"
    return verdict, f"the interval holds both a gain and a loss; {advice}"


def _estimate_rates(
    baseline: Trial, variant: Trial, confidence: float
) -> tuple[Estimate, Estimate, str]:
    """Estimate the log-ratio of speeds, that of typical blocks; say what to know."""
    logs = _read_turns(baseline, variant)
    # Two turns, one of either order, count as one value; few of them as two.
    groups = [[t, t + 1] for t in sorted(logs) if t % 2 == 0 and t + 1 in logs]
    note = ""
    if len(groups) < _LEAST_PAIRS:
        groups, note = [[t] for t in sorted(logs)], f"from {len(logs)} turns of each"
    typical = [
        stats.pseudo_median([x for turn in group for x in logs[turn][0]])
        for group in groups
    ]
    total = [statistics.fmean(logs[turn][1] for turn in group) for group in groups]
    gaps = [t - m for t, m in zip(total, typical, strict=True)]
    by_block, by_total, gap = (
        stats.student_interval(each, confidence) for each in (typical, total, gaps)
    )
    if not abs(gap.value) > math.log(stats.SAME):
        return by_block, by_block, note if logs else ""
    if gap.low > 0 or gap.high < 0:
        alone = f"the typical step alone would give {math.exp(by_block.value):.3g} ×"
        return by_total, by_block, f"rare slow steps decide it: {alone}"
    # A stumble of the machine, or steps that are slow so seldom that few were seen.
    low, high = min(by_block.low, by_total.low), max(by_block.high, by_total.high)
    note = "a few slow steps may decide it: measure longer to see more of them"
    return Estimate(by_block.value, low, high), by_block, note


def _read_turns(
    baseline: Trial, variant: Trial
) -> dict[int, tuple[list[float], float]]:
    """Return log-ratios of neighbouring blocks, and of totals, by turn.

    A life that was led alone has no neighbour: there it is the ratio of totals.
    """
    partners, found = {life.turn: life for life in baseline.lives if life.blocks}, {}
    for b in variant.lives:
        if b.turn == COLD or not b.blocks or b.turn not in partners:
            continue
        a = partners[b.turn]
        if not (rate(a) and rate(b)):  # ranks may have steps without items
            continue
        total = math.log(rate(b) / rate(a))
        near = [
            math.log(second.items / second.seconds * first.seconds / first.items)
            for first, second in zip(a.blocks, b.blocks, strict=False)
            if first.items and second.items
        ]
        found[b.turn] = near if b.beside and near else [total], total
    return found


# Why there is no verdict


def find_doubt(trial: Trial, of: str) -> str:
    """Return why no verdict may rest on this trial, or nothing."""
    if trial.outcome in _BROKEN:
        return _BROKEN[trial.outcome]
    if of != SPEED or trial.whole_runs:
        return ""
    if trial.outcome == "not settled":
        return f"{trial.heading()} never settled, its speed changed; measure longer"
    seen = defaultdict(float, {"cores_per_thread": 1.0} | trial.conditions)
    several = seen["cores_per_thread"] > _SEVERAL
    if several and seen["others_cores"] > _BUSY and seen["waiting"] > _WAITING:
        who = "ranks" if any(b.rank_seconds for b in trial.blocks) else "threads"
        advice = ", or set torch.set_num_threads(1)" * (who == "threads")
        busy = f"other programs used {seen['others_cores']:.1f} cores"
        return f"{busy} while several {who} were measured; close them{advice}"
    walls = [b.wall_seconds for x in trial.lives if x.turn != COLD for b in x.blocks]
    short = min(walls, default=math.inf) < _SHORT_BLOCK_SECONDS
    if short and seen["throttled"] > _THROTTLED:
        return (
            f"a quota stopped this process {seen['throttled']:.0%} of the time, in "
            "blocks too short to tell whom it hit; use fewer threads or workers"
        )
    return ""


def _find_change(
    baseline: Trial, variant: Trial, log_ratio: Estimate, typical: Estimate
) -> tuple[str, Estimate]:
    """Return whose speed depends on how long it runs, and how far that may reach.

    The first life of each is longer than the others, and alone. Where all of it, or its
    last third, tells a ratio that is off by over a fifth, and by more than lives differ
    anyway, then speed changes on the way (a queue that starts full, a step that grows,
    rare slow steps), or later starts find what the first one left behind. A longer run
    may be off by more: the interval is stretched by twice as much, towards that ratio.
    """
    lives = [_read_lives(trial) for trial in (baseline, variant)]
    if math.isnan(log_ratio.high) or not all(lives):
        return "", log_ratio
    pairs = len([life for life in variant.lives if life.turn != COLD]) / 2
    basis = typical if log_ratio.value == typical.value else log_ratio
    # One life beside the mean of so many pairs of lives.
    scatter = (basis.high - basis.value) * math.sqrt(2 * (pairs + 1))
    limit = max(math.log(_CHANGED), scatter)
    ends, told = [log_ratio.low, log_ratio.high], [(limit, "")]
    for part, expected in enumerate((log_ratio.value, typical.value)):
        (early_a, later_a), (early_b, later_b) = lives[0][part], lives[1][part]
        off = math.log(early_b / early_a) - expected
        if abs(off) > limit:
            ends += [log_ratio.low + 2 * off, log_ratio.high + 2 * off]
            changes = (early_a / later_a, baseline), (early_b / later_b, variant)
            change, trial = max(changes, key=lambda pair: abs(math.log(pair[0])))
            where = "the end of " * part + "its first, longer life"
            said = f"ran {change:.2g} × as fast in {where} as in later ones"
            told.append((abs(off), f"{trial.heading()} {said}"))
    return max(told)[1], Estimate(log_ratio.value, min(ends), max(ends))


def _read_lives(trial: Trial) -> list[tuple[float, float]]:
    """Return the rate of the first life beside that of later ones, whole and typical.

    Whole: over all blocks; typical: the median block, of the first life in its last
    third. Empty where there is no longer first life.
    """
    first = [b for x in trial.lives if x.turn == COLD for b in x.blocks]
    later = [b for x in trial.lives if x.turn != COLD for b in x.blocks]
    if not first or not later:
        return []
    if any(not block.items for block in first + later):
        return []
    whole = rate(Life(0, blocks=first)), rate(Life(0, blocks=later))
    parts = first[-max(1, len(first) // 3) :], later
    late, usual = (statistics.median(b.items / b.seconds for b in x) for x in parts)
    return [whole, (late, usual)]


def explain_width(trials: Sequence[Trial]) -> str:
    """Return what made an interval wide and what helps, as far as it was seen."""
    for name, limit, said in _CAUSES:
        seen = max(trial.conditions.get(name, 0.0) for trial in trials)
        if seen > limit:
            return said.format(seen)
    return ""
