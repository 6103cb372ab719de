"""Why no verdict rests on a measurement, although its interval would allow one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from kit import statistics
from kit.measuring.quantity import SPEED, write_ratio
from kit.measuring.rates import Rates
from kit.records import FIRST, Run, Trial
from kit.statistics import Estimate

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
    "stopped": "the measurement was stopped before its end: run it again",
}
#: What makes an interval wide: a condition, from where on, and what helps.
_WIDENED = (
    ("others_cores", _BUSY, "Other programs used {:.1f} cores: close them."),
    ("stolen", 0.02, "The host gave time to other guests: measure at another time."),
    ("throttled", _THROTTLED, "A quota stopped this process: use fewer threads."),
)


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
class Change:
    """That first runs tell another ratio: in words, and how far that may reach."""

    text: str
    reach: Estimate


def find_change(baseline: Trial, variant: Trial, rates: Rates) -> Change | None:
    """Return whether first runs tell another ratio than later ones.

    They are longer than the others. Where all of them, or their last thirds, tell a
    ratio that is off by over a fifth from that of every round, then speed changes on
    the way (a queue that starts full, a step that grows, rare slow steps), or later
    starts find what the first one left behind. A longer run may be off by more: the
    interval is stretched by twice as much, towards that ratio.
    """
    estimate = rates.estimate
    if math.isnan(estimate.high):
        return None
    parts = (
        ("the first, longer runs", _whole_rate, rates.total_rounds),
        ("the ends of the first, longer runs", _end_rate, rates.typical_rounds),
    )
    text, largest, ends = "", 0.0, [estimate.low, estimate.high]
    for where, rate, rounds in parts:
        later = fmean(rounds)
        early = _find_early_ratio(baseline, variant, rate, later)
        if early is None:
            continue
        beyond = max(min(rounds) - early, early - max(rounds))
        if beyond > math.log(_CHANGED):
            off = early - later
            ends += [estimate.low + 2 * off, estimate.high + 2 * off]
            if beyond > largest + 1e-9:  # of equal ones, all of the runs are told
                largest = beyond
                text = f"{where} told {write_ratio(statistics.exp(early))} ×"
    if not text:
        return None
    return Change(text, Estimate(estimate.value, min(ends), max(ends)))


def _find_early_ratio(
    baseline: Trial,
    variant: Trial,
    rate: Callable[[Run], float],
    later: float,
) -> float | None:
    """Return the log-ratio of first runs; None where there are none, or do not tell.

    The baseline's first run comes before and after the others. Of both ratios that
    counts which is nearer to the later one; where one is above and the other below, the
    machine's speed changed, and they do not tell.
    """
    rates = [
        [rate(run) for run in trial.runs if run.round == FIRST and run.blocks]
        for trial in (baseline, variant)
    ]
    ratios = [
        math.log(own / other)
        for other in rates[0]
        for own in rates[1]
        if own > 0 and other > 0
    ]
    if not ratios or min(ratios) < later < max(ratios):
        return None
    return min(ratios, key=lambda ratio: abs(ratio - later))


def _whole_rate(run: Run) -> float:
    return run.items_per_second


def _end_rate(run: Run) -> float:
    """Return the rate of the typical block in the last third of a run."""
    last = run.blocks[-max(1, len(run.blocks) // 3) :]
    return median(block.items / block.seconds for block in last)


def explain_width(trials: Sequence[Trial]) -> str:
    """Return what made an interval wide and what helps, as far as it was seen."""
    for name, limit, sentence in _WIDENED:
        seen = max(trial.conditions.get(name, 0.0) for trial in trials)
        if seen > limit:
            return sentence.format(seen)
    return ""
