"""How the seconds of a comparison are spent: how long a run is, whether one more."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import median

from kit import clock, statistics, system
from kit.measuring.rates import LEAST_PAIRS, estimate_rates
from kit.measuring.variant import Variant
from kit.mode import is_quick
from kit.progress import Progress
from kit.records import Block, Run
from kit.statistics import Estimate

#: The budget is split into so many pairs of rounds.
_PLANNED_PAIRS = 7
#: So much goes into first runs; five pairs, or patience, may take so many times the
#: budget. Within ±0.5 %, more time would buy little.
_FIRST_SHARE, _MOST_OVER, _NARROW = 0.15, 3.0, math.log(1.005)
#: Of the time that a start costs, this much at least goes into measuring after it.
_SHARE_OF_START = 0.25
#: A run has two blocks at least, a sequential one the time of ten.
_LEAST_BLOCKS, _BLOCKS_SEQUENTIAL = 2, 10
#: A first run goes on, up to twice as long, while its latest block differs by so much.
_ALIKE, _OVER_FIRST = 0.10, 2.0
#: A block over so many times the median is slow; a run lasts so many times as long as
#: it took to come to one.
_SLOW, _OVER_SLOW = 2.0, 1.2
#: Under a quota, blocks span several of its periods: who uses it up is then who waits.
_BLOCK_SECONDS_UNDER_QUOTA, _THROTTLED = 0.25, 0.01


def count_to_a_slow_one(blocks: Sequence[Block]) -> int:
    """Return how many blocks it took at most to come to a slow one, 0 without any.

    >>> count_to_a_slow_one([Block(seconds) for seconds in (1, 1, 1, 5, 1, 5, 1)])
    4
    """
    slow = _SLOW * median(block.seconds for block in blocks)
    ends = [n for n, block in enumerate(blocks, 1) if block.seconds > slow]
    return max((b - a for a, b in itertools.pairwise([0, *ends])), default=0)


def is_as_fast_as_before(blocks: Sequence[Block]) -> bool:
    """Return whether the latest block is as fast as the median one.

    >>> is_as_fast_as_before([Block(1, items=9) for _ in range(5)])
    True
    """
    rates = [block.items / block.seconds for block in blocks if block.items]
    if not rates or not blocks[-1].items:  # ranks may have steps without items
        return not rates
    return abs(math.log(rates[-1] / median(rates))) < _ALIKE


@dataclass(eq=False)
class Match:
    """A baseline and a challenger, and what a pair of rounds of both costs."""

    baseline: Variant
    challenger: Variant
    pair_seconds: float = 0.0

    @property
    def variants(self) -> tuple[Variant, Variant]:
        """Both, the baseline first."""
        return self.baseline, self.challenger

    @property
    def are_idle(self) -> bool:
        """Whether both are idle between steps, so that they can be interleaved."""
        return bool(
            self.baseline.idle_between_steps and self.challenger.idle_between_steps
        )

    @property
    def pairs(self) -> int:
        """How many pairs of rounds are kept; some may have been left out."""
        return len(self.baseline.rounds & self.challenger.rounds) // 2

    def estimate(self, confidence: float) -> Estimate:
        """Estimate the log-ratio of rates from the rounds that are kept."""
        runs = self.baseline.runs, self.challenger.runs
        return estimate_rates(*runs, confidence).estimate


@dataclass(eq=False)
class Plan:
    """How many seconds a comparison may take; first starts come on top of them.

    `begun` is when it began, later by what first starts have cost.
    """

    variants: Sequence[Variant]
    progress: Progress
    seconds: float
    patient: bool

    def __post_init__(self) -> None:
        self.begun = clock.CLOCK.wall()
        self._load = system.read_load()
        self._challengers = len(self.variants) - 1
        self._confidence = statistics.hold_together(self._challengers)
        #: When first runs were over, and how long the rest may take.
        self._rounds_begun = self._rounds_seconds = 0.0

    # First runs

    def needs_more(self, variant: Variant, run: Run, seconds: float) -> bool:
        """Return whether a first run goes on, which was timed for so many seconds.

        It lasts for at least as long as any later one, to see what those would not.
        """
        if is_quick():
            return False
        later_blocks = self.plan_blocks(variant)
        first_runs = len(self.variants) + 1  # the baseline has two
        share = _FIRST_SHARE * self.seconds / first_runs
        least = max(share, later_blocks * variant.block_cost)
        if seconds < least or len(run.blocks) < later_blocks:
            return True
        return seconds < _OVER_FIRST * least and not is_as_fast_as_before(run.blocks)

    # How long a run is

    def plan_blocks(self, variant: Variant) -> int:
        """Return how many blocks a sequential run has."""
        if is_quick():
            return 2
        cost = variant.block_cost
        least = _BLOCKS_SEQUENTIAL * variant.block_seconds / cost
        timed = self._timed_seconds(variant) / cost
        slow = self._count_to_a_slow_one([variant])
        return math.ceil(max(_LEAST_BLOCKS, least, timed, slow))

    def plan_turns(self, match: Match) -> int:
        """Return how often interleaved runs take turns: A B B A, two blocks of each."""
        if is_quick():
            return 1
        cost = sum(variant.block_cost for variant in match.variants)
        timed = sum(map(self._timed_seconds, match.variants)) / cost
        blocks = max(_LEAST_BLOCKS, self._count_to_a_slow_one(match.variants))
        return max(int(timed / 2), math.ceil(blocks / 2))

    def _timed_seconds(self, variant: Variant) -> float:
        """Return how long a run is timed: its share of the budget pays its start."""
        runs = 4 * _PLANNED_PAIRS * self._challengers
        share = (1 - _FIRST_SHARE) * self.seconds / runs
        start = variant.start_seconds
        return max(share - start, _SHARE_OF_START * start)

    def _count_to_a_slow_one(self, variants: Sequence[Variant]) -> float:
        """Return how many blocks of each it takes to see a slow one, if that is paid.

        Five pairs may take three times the budget.
        """
        runs = 4 * LEAST_PAIRS * self._challengers
        paid = len(variants) * _MOST_OVER * self.seconds / runs
        left = paid - sum(variant.start_seconds for variant in variants)
        affordable = max(0.0, left) / sum(variant.block_cost for variant in variants)
        wanted = max(variant.blocks_to_a_slow_one for variant in variants)
        return min(_OVER_SLOW * wanted, affordable)

    # How many rounds

    def begin_rounds(self) -> list[Match]:
        """Match each challenger with the baseline, and say how long it may take."""
        seen = system.describe_load(self._load, system.read_load())
        if seen["throttled"] > _THROTTLED:
            for variant in self.variants:
                variant.block_seconds = _BLOCK_SECONDS_UNDER_QUOTA
        baseline, *challengers = self.variants
        if is_quick():
            challengers = [each for each in challengers if not each.is_inner]
        matches = [Match(baseline, challenger) for challenger in challengers]
        for match in matches:
            blocks = 2 * self.plan_turns(match)
            costs = [v.start_seconds + blocks * v.block_cost for v in match.variants]
            match.pair_seconds = 2 * sum(costs)
        one_pair = sum(match.pair_seconds for match in matches)
        needed, most = LEAST_PAIRS * one_pair, _MOST_OVER * self.seconds
        planned = most if self.patient else self.seconds
        self._rounds_seconds = max(planned, min(needed, most), one_pair)
        self._rounds_begun = clock.CLOCK.wall()
        self.progress.begin(0, 1, seconds=self._rounds_seconds)
        if needed > 1.2 * self.seconds and not is_quick():
            self.progress.note = f"five pairs of rounds need about {needed:.0f} s"
        return matches

    def allows(self, match: Match) -> bool:
        """Return whether one more pair of rounds is due, and can be paid."""
        if match.pairs == 0 or is_quick():
            return match.pairs == 0
        is_wide = not match.estimate(self._confidence).half_width <= _NARROW
        has_few = match.pairs < LEAST_PAIRS
        if not has_few and not is_wide:
            return False
        over = _MOST_OVER if has_few or self.patient else 1.0
        spent = clock.CLOCK.wall() - self.begun
        return spent + match.pair_seconds <= over * self.seconds

    def note_pair(self, match: Match, rounds: Collection[int], seconds: float) -> None:
        """Note what a pair of rounds has cost, and tell what it has shown."""
        runs = [
            run
            for variant in match.variants
            for run in variant.runs
            if run.round in rounds
        ]
        if len(runs) == 4:  # else it was disturbed, and left out
            timed = sum(block.wall_seconds for run in runs for block in run.blocks)
            for variant in match.variants:  # a cold start says little about later ones
                variant.start_seconds = max(0.0, seconds - timed) / len(runs)
        match.pair_seconds = seconds
        value = statistics.exp(match.estimate(self._confidence).value)
        self.progress.so_far = f"{match.challenger.label}: {value:.3g} × so far"
        spent = clock.CLOCK.wall() - self._rounds_begun
        self.progress.expect(spent / self._rounds_seconds)
