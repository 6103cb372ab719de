"""Why a measurement cannot be trusted, or was hard to make: reason and remedy."""

from __future__ import annotations

import math
import statistics
from typing import NamedTuple

from kit.comparison.quantities import SPEED
from kit.stats import Estimate
from kit.trial import COLD, Trial

#: Processor cores that other programs used, on average, before they are named.
_BUSY_CORES = 0.1
#: Cores per driving thread above which an experiment computes with several threads.
_SEVERAL_THREADS = 1.2
_WAITING = 0.05
#: Seconds per second that the host gave to other guests.
_STOLEN = 0.02
#: Share of the time that a quota stopped us, with blocks too short to tell whom.
_THROTTLED = 0.05
_SHORT_BLOCK_SECONDS = 0.2
#: How much the ratio in first, longer lives may differ from that in later ones.
_CHANGED = 1.2


def find_doubt(trial: Trial, of: str) -> str:
    """Return why no verdict may rest on this trial, or nothing."""
    if trial.outcome == "disturbed":
        return "other cells ran meanwhile; run it again alone"
    if trial.outcome == "stopped":
        return "it was stopped before the end; run it again"
    if of != SPEED or trial.whole_runs:
        return ""
    if trial.outcome == "not settled":
        return (
            f"{trial.heading()} never settled: its speed still changed when warm-up "
            "ended; measure longer"
        )
    seen = trial.conditions
    if (
        seen.get("others_cores", 0.0) > _BUSY_CORES
        and seen.get("cores_per_thread", 1.0) > _SEVERAL_THREADS
        and seen.get("waiting", 0.0) > _WAITING
    ):
        busy = f"other programs used {seen['others_cores']:.1f} cores while several"
        if trial.block_rank_seconds:
            return f"{busy} ranks were measured, which wait for each other; close them"
        return (
            f"{busy} threads were measured; close them, or set torch.set_num_threads(1)"
        )
    blocks = zip(trial.block_setups, trial.block_wall_seconds, strict=True)
    shortest = min((t for setup, t in blocks if setup != COLD), default=math.inf)
    if seen.get("throttled", 0.0) > _THROTTLED and shortest < _SHORT_BLOCK_SECONDS:
        return (
            f"a quota stopped this process {seen['throttled']:.0%} of the time, and "
            "blocks are too short to tell whom it hit; use fewer threads or workers, "
            "or run it again"
        )
    return ""


def find_change(
    baseline: Trial, variant: Trial, log_ratio: Estimate
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
    pairs = len({s for s in variant.block_setups if s != COLD}) / 2
    # One life beside the mean of so many pairs of lives.
    usual = (log_ratio.high - log_ratio.low) / 2 * math.sqrt(2 * (pairs + 1))
    value, low, high = log_ratio
    limit = most = max(math.log(_CHANGED), usual)
    message = ""
    for part in ("first", "late"):
        a, b = (getattr(life, part) for life in lives if life)
        off = math.log(b / a) - value
        if abs(off) <= limit:
            continue
        low = min(low, log_ratio.low + 2 * off)
        high = max(high, log_ratio.high + 2 * off)
        if abs(off) > most:
            most = abs(off)
            changes = [getattr(life, part) / life.later for life in lives if life]
            change, trial = max(
                zip(changes, (baseline, variant), strict=True),
                key=lambda c: abs(math.log(c[0])),
            )
            where = "the end of " * (part == "late") + "its first, longer life"
            message = (
                f"{trial.heading()} ran {change:.2g} × as fast in {where} as in later "
                "ones"
            )
    return message, Estimate(value, low, high)


class _Lives(NamedTuple):
    """Items per second: in the first life, late in it, and in the later lives."""

    first: float
    late: float
    later: float


def _read_lives(trial: Trial) -> _Lives | None:
    """Return the rates of a trial's lives; None where there is no longer first one."""
    first, later = [], []
    columns = trial.block_setups, trial.block_items, trial.block_seconds
    for setup, items, seconds in zip(*columns, strict=True):
        (first if setup == COLD else later).append((items, seconds))
    if not first or not later:
        return None
    last_third = first[-max(1, len(first) // 3) :]
    return _Lives(
        _rate(first), statistics.median(n / t for n, t in last_third), _rate(later)
    )


def _rate(blocks: list[tuple[float, float]]) -> float:
    return math.fsum(n for n, _ in blocks) / math.fsum(t for _, t in blocks)


def explain_width(trials: tuple[Trial, Trial]) -> str:
    """Return what made an interval wide and what helps, as far as it was seen."""
    seen = {
        key: max(trial.conditions.get(key, 0.0) for trial in trials)
        for key in ("others_cores", "stolen", "throttled")
    }
    if seen["others_cores"] > _BUSY_CORES:
        return f"other programs used {seen['others_cores']:.1f} cores: close them"
    if seen["stolen"] > _STOLEN:
        return "the host gave time to other guests: measure at another time"
    if seen["throttled"] > _THROTTLED:
        return "a quota stopped this process now and then: use fewer threads or workers"
    return ""
