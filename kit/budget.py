"""How the seconds of a comparison are spent: how long a life is, whether one more."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from kit import clock, system
from kit.comparison import hold_together
from kit.experiment import is_quick
from kit.life import COLD, Block, Life
from kit.progress import Progress
from kit.ratio import Ratio, compare_trials
from kit.trial import make_trial
from kit.variant import Variant

#: So many pairs of turns at least, and so many that the budget is split into.
_LEAST_PAIRS, _PLANNED_PAIRS = 5, 7
#: So much goes into first lives; honest pairs, or patience, may take so many times the
#: budget. Within ±0.5 %, more time would buy little.
_FIRST_SHARE, _MOST_OVER, _NARROW = 0.15, 3.0, math.log(1.005)
#: Of the time that a start costs, this much at least goes into measuring after it.
_SHARE_OF_START = 0.25
#: Lives side by side have two blocks at least, those alone the time of ten.
_BLOCKS_BESIDE, _BLOCKS_ALONE = 2, 10
#: A first life goes on, up to twice as long, while its latest block differs by so much.
_STEADY, _OVER_FIRST = 0.10, 2.0
#: A block over so many times the median is slow; a life lasts so many times as long as
#: it took to come to one.
_SLOW, _OVER_STRETCH = 2.0, 1.2
#: Under a quota, blocks span several of its periods: who uses it up is then who waits.
_BLOCK_SECONDS_UNDER_QUOTA, _THROTTLED = 0.25, 0.01


def find_stretch(blocks: Sequence[Block]) -> int:
    """Return how many blocks it took at most to come to a slow one, 0 without any.

    >>> find_stretch([Block(seconds) for seconds in (1, 1, 1, 5, 1, 5, 1)])
    4
    """
    slow = _SLOW * statistics.median(block.seconds for block in blocks)
    ends = [n for n, block in enumerate(blocks, 1) if block.seconds > slow]
    return max((b - a for a, b in itertools.pairwise([0, *ends])), default=0)


def is_steady(blocks: Sequence[Block]) -> bool:
    """Return whether the latest block is as fast as usual.

    >>> is_steady([Block(1, items=9) for _ in range(5)])
    True
    """
    rates = [block.items / block.seconds for block in blocks if block.items]
    if not rates or not blocks[-1].items:  # ranks may have steps without items
        return not rates
    return abs(math.log(rates[-1] / statistics.median(rates))) < _STEADY


@dataclass(eq=False)
class Side:
    """A baseline and a challenger: the pairs of turns so far, and what one costs."""

    pair: tuple[Variant, Variant]
    pair_seconds: float = 0.0
    _ratio: Ratio | None = None
    _turns: frozenset[int] = frozenset()

    @property
    def turns(self) -> frozenset[int]:
        """The turns in which both were measured; some may have been left out since."""
        one, other = ({life.turn for life in variant.lives} for variant in self.pair)
        return frozenset(one & other - {COLD})

    @property
    def pairs(self) -> int:
        """How many pairs of turns there are."""
        return len(self.turns) // 2

    def find_ratio(self, challengers: int) -> Ratio:
        """Return how the challenger compares, anew where the turns have changed."""
        if self._ratio is None or self._turns != self.turns:
            trials = [make_trial(variant, whole_runs=False) for variant in self.pair]
            confidence = hold_together(challengers)
            self._ratio = compare_trials(*trials, confidence=confidence)
            self._turns = self.turns
        return self._ratio


@dataclass(eq=False)
class Budget:
    """How many seconds a comparison may take; first starts come on top of them.

    `begun` is when it began, later by what first starts have cost.
    """

    variants: Sequence[Variant]
    progress: Progress
    seconds: float
    patient: bool

    def __post_init__(self) -> None:
        self.begun, self._load = clock.CLOCK.wall(), system.read_load()
        self._challengers = len(self.variants) - 1

    def has_seen_enough(self, variant: Variant, life: Life, seconds: float) -> bool:
        """Return whether a first life was timed long enough: no later one is longer."""
        variant.stretch = find_stretch(life.blocks)
        later, share = self.plan_blocks(variant), _FIRST_SHARE / len(self.variants)
        least = max(share * self.seconds, later * variant.block_cost)
        steady = is_steady(life.blocks) or seconds >= _OVER_FIRST * least
        return is_quick() or (seconds >= least and len(life.blocks) >= later and steady)

    def plan_blocks(self, variant: Variant) -> int:
        """Return how many blocks a life has that is led alone."""
        if is_quick():
            return 2
        cost = variant.block_cost
        least = max(_BLOCKS_BESIDE, _BLOCKS_ALONE * variant.block_seconds / cost)
        most = max(least, self._timed_seconds(variant) / cost)
        return math.ceil(max(most, self._stretch(variant)))

    def plan_rounds(self, side: Side) -> int:
        """Return how many rounds of two blocks of each two lives side by side have."""
        if is_quick():
            return 1
        cost = sum(variant.block_cost for variant in side.pair)
        evenly = sum(map(self._timed_seconds, side.pair)) / cost
        least = max(_BLOCKS_BESIDE, *map(self._stretch, side.pair))
        return max(int(evenly / 2), math.ceil(least / 2))

    def _timed_seconds(self, variant: Variant) -> float:
        """Return how long a life is timed: its share of the budget pays its start."""
        start = variant.start_seconds
        share = self._share((1 - _FIRST_SHARE) * _LEAST_PAIRS / _PLANNED_PAIRS)
        return max(share - start, _SHARE_OF_START * start)

    def _stretch(self, variant: Variant) -> float:
        """Return how many blocks it takes to see a slow one, as far as that is paid."""
        most = max(0.0, self._share(_MOST_OVER) - variant.start_seconds)
        return min(_OVER_STRETCH * variant.stretch, most / variant.block_cost)

    def _share(self, over: float) -> float:
        """Return what one life may take where so many times the budget is spent."""
        return over * self.seconds / (4 * _LEAST_PAIRS * self._challengers)

    def make_sides(self) -> list[Side]:
        """Put each challenger beside the baseline, and say how long it may take."""
        seen = system.describe_load(self._load, system.read_load())
        if seen["throttled"] > _THROTTLED:
            for variant in self.variants:
                variant.block_seconds = _BLOCK_SECONDS_UNDER_QUOTA
        baseline, *others = self.variants
        sides = [Side((baseline, c)) for c in others if not (is_quick() and c.is_inner)]
        for side in sides:
            blocks = 2 * self.plan_rounds(side)
            costs = [v.start_seconds + blocks * v.block_cost for v in side.pair]
            side.pair_seconds = 2 * sum(costs)
        needed = _LEAST_PAIRS * sum(side.pair_seconds for side in sides)
        most = _MOST_OVER * self.seconds
        one_pair = sum(side.pair_seconds for side in sides)
        planned = most if self.patient else self.seconds
        self._expected = max(planned, min(needed, most), one_pair)
        self._paired = clock.CLOCK.wall()
        self.progress.begin(0, 1, seconds=self._expected)
        if needed > 1.2 * self.seconds and not is_quick():
            self.progress.note = f"five pairs of runs need about {needed:.0f} s"
        return sides

    def allows(self, side: Side) -> bool:
        """Return whether one more pair of turns is due, and can be paid."""
        if side.pairs == 0 or is_quick():
            return side.pairs == 0
        few = side.pairs < _LEAST_PAIRS
        if not few and side.find_ratio(self._challengers).half_width <= _NARROW:
            return False
        over = _MOST_OVER if few or self.patient else 1.0
        spent = clock.CLOCK.wall() - self.begun
        return spent + side.pair_seconds <= over * self.seconds

    def finish_pair(self, side: Side, seconds: float) -> None:
        """Note what a pair of turns has told, and what it cost."""
        lives = [life for variant in side.pair for life in variant.lives[-2:]]
        timed = sum(block.wall_seconds for life in lives for block in life.blocks)
        for variant in side.pair:  # the cold start says little about later ones
            variant.start_seconds = max(0.0, seconds - timed) / 4
        side.pair_seconds = seconds
        ratio = side.find_ratio(self._challengers)
        self.progress.so_far = f"{side.pair[1].label}: {ratio.value:.3g} × so far"
        self.progress.expect((clock.CLOCK.wall() - self._paired) / self._expected)
