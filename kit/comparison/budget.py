"""Spends a budget of seconds on pairs of set-ups, where the interval is widest."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from kit.clock.log import smoke
from kit.comparison.alternation import Variant, measure_pair
from kit.comparison.ratio import Ratio, compare_trials
from kit.machine import ticks
from kit.progress import Progress
from kit.trial import Trial

#: So much of the budget goes to the first pairs of all challengers, evenly; the rest
#: goes where the interval is widest.
_FIRST_SHARE = 0.6
#: Honest pairs, or patience, may take this many times the budget.
_MOST_OVER = 3.0
#: Once the interval is within ±0.5 % of its middle, more time would buy little.
_NARROW = math.log(1.01)
#: Of the time that a start costs, this much at least goes into measuring after it.
_LEAST_PER_START = 0.25


@dataclass
class Pairing:
    """A challenger beside its baseline: pairs of set-ups so far, and what they cost."""

    baseline: Variant
    challenger: Variant
    pairs: int = 0
    rounds: int = 0
    seconds: float = 0.0
    ratio: Ratio | None = None

    @property
    def start_seconds(self) -> float:
        """What starting both once costs, with warm-up and closing."""
        if not self.pairs:
            return self.baseline.start_cost + self.challenger.start_cost
        # The cold start, which loads libraries, says little about later ones.
        started = self.seconds - 2 * self.rounds * self.round_seconds
        return max(0.0, started) / (2 * self.pairs)

    @property
    def round_seconds(self) -> float:
        """What one ABBA round costs."""
        return 2 * (self.baseline.block_cost + self.challenger.block_cost)

    @property
    def width(self) -> float:
        """How far apart the interval's ends are, on the log scale."""
        if self.ratio is None or not self.ratio.low > 0:
            return math.inf
        return math.log(self.ratio.high / self.ratio.low)

    def pair_seconds(self, rounds: int) -> float:
        """Expect what a pair of set-ups with so many rounds each costs."""
        return 2 * (self.start_seconds + rounds * self.round_seconds)

    def choose_rounds(self, seconds: float) -> int:
        """Return how many rounds each set-up gets where a pair may take `seconds`."""
        if smoke():
            return 1
        left = max(
            seconds / 2 - self.start_seconds, self.start_seconds * _LEAST_PER_START
        )
        return max(1, int(left / self.round_seconds))

    def measure(self, rounds: int, first_setup: int, progress: Progress) -> None:
        """Measure one more pair of set-ups."""
        begun, order = ticks.CLOCK.wall(), random.Random(first_setup)
        measure_pair(
            self.baseline, self.challenger, first_setup, rounds, progress, order
        )
        self.pairs += 1
        self.rounds += rounds
        self.seconds += ticks.CLOCK.wall() - begun


@dataclass(frozen=True)
class Budget:
    """How many seconds a comparison may take since `begun`, and how well it is spent.

    At least `least_pairs` pairs of set-ups each, even where that takes up to three
    times as long; then more where the interval is widest. It ends early only when
    every interval is narrow, whatever the verdicts are. A patient one goes on to three
    times its seconds while an interval is wide.
    """

    seconds: float
    least_pairs: int
    patient: bool
    begun: float

    def spend(
        self,
        pairings: Sequence[Pairing],
        confidence: float,
        progress: Progress,
    ) -> None:
        """Measure pairs of set-ups until the budget is spent."""
        each = self._first_seconds(pairings)
        needed = sum(
            self.least_pairs * p.pair_seconds(p.choose_rounds(each)) for p in pairings
        )
        expected = max(self.seconds - self._spent(), needed)
        progress.begin(0, 1, seconds=expected)
        if needed > 1.2 * self.seconds and not smoke():
            progress.note = f"honest pairs need about {needed:.0f} s in all"
        begun, setup = ticks.CLOCK.wall(), 0
        while (pairing := self._choose(pairings, each)) is not None:
            pairing.measure(pairing.choose_rounds(each), setup, progress)
            setup += 2
            trials = pairing.baseline.trial(), pairing.challenger.trial()
            pairing.ratio = compare_trials(*trials, confidence=confidence)
            label, value = pairing.challenger.label, pairing.ratio.value
            progress.so_far = f"{label}: {value:.3g} × so far"
            progress.expect((ticks.CLOCK.wall() - begun) / expected)
            progress.report(lambda: _trials_so_far(pairings))

    def _spent(self) -> float:
        return ticks.CLOCK.wall() - self.begun

    def _first_seconds(self, pairings: Sequence[Pairing]) -> float:
        """Return what each of the first pairs may take."""
        left = max(0.0, self.seconds - self._spent())
        return _FIRST_SHARE * left / (self.least_pairs * len(pairings))

    def _choose(self, pairings: Sequence[Pairing], each: float) -> Pairing | None:
        """Return what to measure next, None where it is time to end."""
        behind = min(pairings, key=lambda p: p.pairs)
        if behind.pairs == 0:
            return behind
        if smoke():
            return behind if behind.pairs < 2 else None
        if behind.pairs < self.least_pairs:
            return behind if self._fits(behind, each, _MOST_OVER) else None
        widest = max(pairings, key=lambda p: p.width)
        if widest.width <= _NARROW:
            return None
        over = _MOST_OVER if self.patient else 1.0
        return widest if self._fits(widest, each, over) else None

    def _fits(self, pairing: Pairing, each: float, over: float) -> bool:
        cost = pairing.pair_seconds(pairing.choose_rounds(each))
        return self._spent() + cost <= over * self.seconds


def _trials_so_far(pairings: Sequence[Pairing]) -> dict[str, Trial]:
    started = [pairing for pairing in pairings if pairing.pairs]
    variants = [started[0].baseline, *(pairing.challenger for pairing in started)]
    return {variant.label: variant.trial() for variant in variants}
