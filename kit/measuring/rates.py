"""The log-ratio of two variants' rates, estimated from the rounds of both."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from kit import statistics
from kit.records import FIRST, Run
from kit.statistics import Estimate

#: A pair of rounds is one value; below so many pairs each round is one.
LEAST_PAIRS = 5


@dataclass(frozen=True)
class Rates:
    """The log-ratio of two variants' rates, by the typical block and by all time.

    Estimates over all rounds, and the values of single rounds.
    """

    typical: Estimate
    total: Estimate
    typical_rounds: Sequence[float]
    total_rounds: Sequence[float]

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
        [median(logs) for logs in typical.values()],
        [median(logs) for logs in total.values()],
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
