"""From what was measured to a verdict: which causes are suspected, and which it is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kit import figures, stats
from kit.diagnosis.interventions import Intervention
from kit.diagnosis.operations import Work
from kit.ratio import Ratio, write_ratio

#: A cause counts where the lower end of what its removal saves is above this fraction.
LEAST_SAVING = 0.03
#: Below this, a cause is no verdict where useful work takes most of the step.
_WORTH_A_REPAIR = 0.10
#: Useful work takes most of a step from this fraction on.
_MOST = 0.5
#: Memory traffic is "near the bandwidth" from this share of a copy's on: operations
#: write into fresh memory, and not in the order in which it lies.
_NEAR_BANDWIDTH = 0.2
_LEAST_RATE = 0.01
#: Costs of training itself: they can be lowered, seldom removed.
_NECESSARY = ("optimizer", "overhead")
#: Another number of threads is the simplest of all repairs.
_SIMPLEST = 0.6
#: Optimizers for which PyTorch has a fused step on every device.
_FUSED = ("SGD", "Adam", "AdamW", "Adagrad")


#: What leaving each cause out would be, in a sentence about it.
REMOVED = {
    "input": "the wait for data",
    "transfer": "copies to the device",
    "python": "code outside PyTorch",
    "overhead": "the cost of starting operations",
    "sync": "waits for the device",
    "optimizer": "the update of parameters",
    "threads": "the wrong number of threads",
    "communication": "the exchange between ranks",
}


@dataclass(frozen=True)
class Evidence:
    """What a profiled run says: shares of the wall time, work, and what surrounds it.

    `shares_by_step` are those of "python", "overhead" and "loops" (updates of
    parameters outside the optimizer's step) in each step. `exchanges` says that ranks
    exchange something, if only beside what they compute.
    """

    shares: Mapping[str, float]
    shares_by_step: Mapping[str, Sequence[float]]
    work: Work
    step_seconds: float
    optimizers: Sequence[str]
    threads: int
    cores: int
    children: int
    exchanges: bool = False


def suspect(evidence: Evidence) -> list[Intervention]:
    """Return the interventions that may show a saving; the first is for each cause."""
    shares, cores = evidence.shares, evidence.cores
    found: list[Intervention] = []
    if shares.get("input", 0) > LEAST_SAVING or evidence.children:
        found.append(Intervention("without waiting for data", "input", cached=True))
    if shares.get("copies", 0) > LEAST_SAVING:
        found.append(Intervention("batches already there", "transfer", on_device=True))
    if shares.get("sync", 0) > LEAST_SAVING:
        found.append(Intervention("without reading numbers", "sync", unread=True))
    if shares.get("communication", 0) > LEAST_SAVING or evidence.exchanges:
        found.append(Intervention("without exchange", "communication", alone=True))
    if shares.get("optimizer", 0) > LEAST_SAVING and evidence.optimizers:
        found.append(Intervention("without optimizer.step()", "optimizer", step="skip"))
        if shares["optimizer"] > _WORTH_A_REPAIR:
            fused = any(name in _FUSED for name in evidence.optimizers)
            kind = "fused" if fused else "foreach"
            found.append(Intervention(f"{kind}=True", "optimizer", step=kind))
    threads = cores if evidence.threads != cores else 1
    if cores > 1 or evidence.threads > 1:
        label = f"{threads} thread{'s' * (threads > 1)}"
        found.append(Intervention(label, "threads", threads=threads))
    if evidence.children > cores:
        found.append(Intervention(f"{cores} workers", "threads", workers=cores))
    return found


@dataclass(frozen=True)
class Estimated(Ratio):
    """The ratio of speeds that a share of some profiled steps lets expect.

    It was not measured, so it has no interval. `spread` is how alike the steps are; a
    verdict goes by it.
    """

    spread: stats.Estimate = field(
        default=stats.Estimate(math.nan, math.nan, math.nan), repr=False, compare=False
    )

    def __str__(self) -> str:
        return f"about {write_ratio(self.value)} ×"


def saved(ratio: Ratio | stats.Estimate) -> stats.Estimate:
    """Return the fraction of the time that something saves, of a ratio of speeds.

    >>> saved(Ratio(2.0, 1.6, 2.5, "faster"))
    Estimate(value=0.5, low=0.375, high=0.6)
    """
    return stats.Estimate(*(1 - 1 / x for x in (ratio.value, ratio.low, ratio.high)))


def bound(ratio: Ratio) -> stats.Estimate:
    """Return the fraction of the time that something saves, as a verdict takes it."""
    return saved(ratio.spread if isinstance(ratio, Estimated) else ratio)


def write_saving(ratio: Ratio) -> str:
    """Write what something saves of the time, with its interval if it was measured.

    >>> write_saving(Ratio(2.0, 1.6, 2.5, "faster")), write_saving(estimate([0.5, 0.5]))
    ('50 % [38, 60]', 'about 50 %')
    """
    about = "about " if isinstance(ratio, Estimated) else ""
    return about + figures.format_saving(*saved(ratio))


def explain_saving(ratio: Ratio) -> str:
    """Write what something saves, and how that is known if it was not measured.

    >>> explain_saving(estimate([0.5, 0.5]))
    'about 50 %, estimated from its share of 2 profiled steps'
    """
    saving = write_saving(ratio)
    return f"{saving}, {ratio.reason}" if isinstance(ratio, Estimated) else saving


def estimate(shares: Sequence[float]) -> Estimated:
    """Return the ratio of speeds if a share of each step were not there.

    >>> estimate([0.5, 0.5]).value
    2.0
    """
    ends = (min(max(share, 0.0), 0.999) for share in stats.student_interval(shares))
    spread = stats.Estimate(*(1 / (1 - share) for share in ends))
    verdict = stats.judge_ratio(spread.low, spread.high)
    steps = f"{len(shares)} profiled steps"
    if len(shares) < 2:
        verdict, steps = "cannot tell", "one profiled step; diagnose smaller steps"
    reason = f"estimated from its share of {steps}"
    return Estimated(spread.value, math.nan, math.nan, verdict, reason, spread=spread)


class Conclusion(NamedTuple):
    """A verdict, or None, and why."""

    verdict: str | None
    reason: str


def conclude(
    savings: Mapping[str, Ratio],
    evidence: Evidence,
    rates: Mapping[str, float],
    removed: Mapping[str, Ratio] | None = None,
) -> Conclusion:
    """Decide which cause it is; None where none is sure.

    `rates` are the shares of the machine's peaks that "compute" and "memory" reach.
    `removed` are savings without a cause altogether, where `savings` are a repair's:
    how much a cause weighs is told by those.
    """
    fractions = {cause: bound(ratio) for cause, ratio in savings.items()}
    sure = {
        cause: fraction
        for cause, fraction in fractions.items()
        if fraction.low > LEAST_SAVING and savings[cause].verdict == "faster"
    }
    compute, memory = (
        seconds / evidence.step_seconds
        for seconds in (evidence.work.compute, evidence.work.memory)
    )
    useful = compute + memory
    weights = {
        cause: saved((removed or savings).get(cause, ratio)).value
        for cause, ratio in savings.items()
    }
    wins = [
        cause
        for cause, fraction in fractions.items()
        if fraction.low > LEAST_SAVING
        and (cause not in _NECESSARY or weights[cause] > max(compute, memory))
        and (fraction.value >= _WORTH_A_REPAIR or useful < _MOST)
    ]
    best = max(wins, key=weights.__getitem__, default=None)
    if best and "threads" in wins:
        simple = weights["threads"] >= _SIMPLEST * weights[best]
        best = "threads" if simple else best
    if best in sure:
        return Conclusion(best, "")
    may_be = [
        cause
        for cause, fraction in fractions.items()
        if cause not in (*sure, *_NECESSARY) and fraction.value >= _WORTH_A_REPAIR
    ]
    if best or may_be:  # it may well be this one, so it is none of the others
        return Conclusion(None, _explain(savings, fractions, sure))
    if useful >= _MOST and compute >= memory:
        said = f"{compute:.0%} of the step is matrix products and the like"
        if rates["compute"] >= _LEAST_RATE:  # else what they do could not be counted
            said += f", at {rates['compute']:.0%} of this machine's measured peak"
        return Conclusion("compute", said)
    if useful >= _MOST and rates["memory"] >= _NEAR_BANDWIDTH:
        return Conclusion(
            "memory",
            f"{memory:.0%} of the step moves numbers through memory, at "
            f"{rates['memory']:.0%} of this machine's measured bandwidth",
        )
    return Conclusion(None, _explain(savings, fractions, sure))


def _explain(
    savings: Mapping[str, Ratio],
    fractions: Mapping[str, stats.Estimate],
    sure: Mapping[str, stats.Estimate],
) -> str:
    """Say why there is no verdict."""
    unsure = {
        cause: fraction
        for cause, fraction in fractions.items()
        if cause not in sure and not fraction.high <= _WORTH_A_REPAIR
    }
    if unsure:
        most = max(unsure, key=lambda cause: unsure[cause].value)
        may = f"removing {REMOVED[most]} may save {write_saving(savings[most])}"
        why = savings[most].reason or "the interval is too wide to tell"
        why = f"it is {why}" if isinstance(savings[most], Estimated) else why
        return f"{may}; not sure, since {why}; give it more seconds"
    if sure:
        names = ", ".join(sure)
        return f"no single cause stands out; small savings are possible ({names})"
    most = max([LEAST_SAVING, *(fraction.high for fraction in fractions.values())])
    least = f"nothing that was left out saves more than {math.ceil(100 * most)}%"
    return f"nothing to repair was found; {least}"
