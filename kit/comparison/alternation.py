"""Measures a baseline and a challenger by turns, so that drift hits both alike."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from kit.clock.log import Log, smoke
from kit.clock.measuring import (
    LATER_WARM_UP_SECONDS,
    Origin,
    longest_warm_up,
    make_trial,
)
from kit.clock.run import BLOCK_SECONDS, Run, started
from kit.clock.stage import Stage
from kit.machine import ticks
from kit.progress import Progress
from kit.trial import COLD, Trial

#: Does one thing with a variant: its set-up's number, how often it was done before.
Act = Callable[["Variant", int, int], None]


@dataclass
class Variant:
    """One experiment with one set of knobs, and all that was logged about it."""

    stage: Stage
    label: str
    origin: Origin
    whole_runs: bool
    log: Log = field(default_factory=Log)
    conditions: dict[str, float] = field(default_factory=dict)
    start_cost: float = 0.0
    step_seconds: float = 0.0
    block_seconds: float = BLOCK_SECONDS
    steps_per_block: int = 1
    can_be_suspended: bool = True

    def run(self, progress: Progress, setup: int, *, seed: int = 0) -> Run:
        """Make a new life of this variant."""
        return Run(
            self.stage,
            self.log,
            progress,
            setup=setup,
            seed=seed,
            block_seconds=self.block_seconds,
            steps_per_block=self.steps_per_block,
        )

    @property
    def block_cost(self) -> float:
        """What a block costs, with its share of the steps dropped after switches."""
        return max(self.block_seconds, self.step_seconds) + self.step_seconds / 2

    def trial(self) -> Trial:
        """Make a Trial of all that was logged so far."""
        return make_trial(
            self.stage,
            self.log,
            self.origin,
            whole_runs=self.whole_runs,
            conditions=self.conditions,
        )

    def start_uncounted(self, progress: Progress) -> None:
        """Start it for the first time, and close it after a step.

        What only a first start pays, loading libraries, say, is then in no whole run.
        """
        with started(self.run(progress, COLD), warm_up_seconds=None, cold=True) as run:
            run.skip_step()

    def start_cold(
        self, progress: Progress, seconds: float, look_seconds: float = 0.0
    ) -> None:
        """Start it alone for the first time: memory, cost of a start, of a block.

        A look at the first life of so many seconds is logged, too: it sees what the
        shorter lives that follow would not.
        """
        run = self.run(progress, COLD)
        with started(run, warm_up_seconds=longest_warm_up(seconds), cold=True):
            begun = ticks.CLOCK.wall()
            with run.active():
                while ticks.CLOCK.wall() - begun < look_seconds and not smoke():
                    run.block()
            self.can_be_suspended = run.can_be_suspended
            self.step_seconds, closing = run.step_seconds, ticks.CLOCK.wall()
            self.steps_per_block = run.steps_per_block
        self.start_cost = run.ready - run.begun + ticks.CLOCK.wall() - closing


def measure_pair(
    baseline: Variant,
    challenger: Variant,
    first_setup: int,
    rounds: int,
    progress: Progress,
    order: random.Random,
) -> None:
    """Measure a pair of set-ups in ABBA rounds, once with either created first.

    Which of the two is outside in a round is drawn for the first set-up; in the second
    it is the other one. Where one of the two cannot be suspended, only one is alive at
    a time. A smoke run does with one set-up, and swaps them from pair to pair.
    """
    outside = [order.choice([baseline, challenger]) for _ in range(rounds)]
    inside = [challenger if v is baseline else baseline for v in outside]
    together = baseline.can_be_suspended and challenger.can_be_suspended
    for swapped in (bool(first_setup % 4),) if smoke() else (False, True):
        variants = [challenger, baseline] if swapped else [baseline, challenger]
        setup = first_setup + swapped
        if together:
            _measure_together(variants, setup, inside if swapped else outside, progress)
        else:
            _measure_in_turn(variants, setup, rounds, progress)


def _measure_together(
    variants: list[Variant], setup: int, outside: list[Variant], progress: Progress
) -> None:
    with contextlib.ExitStack() as stack:
        runs: list[Run] = []
        for variant in variants:
            for run in runs:
                run.suspend()
            run = variant.run(progress, setup)
            stack.enter_context(started(run, warm_up_seconds=LATER_WARM_UP_SECONDS))
            runs.append(run)
        active = runs[1]
        for number, outer in enumerate(outside):
            first, second = runs if outer is variants[0] else runs[::-1]
            for run, blocks in ((first, 1), (second, 2), (first, 1)):
                if run is not active:
                    active.suspend()
                    active = run
                with run.active():
                    for _ in range(blocks):
                        run.block(number)


def _measure_in_turn(
    variants: list[Variant], setup: int, rounds: int, progress: Progress
) -> None:
    """Measure one after the other, each alone: all their blocks are one round."""
    for variant in variants:
        run = variant.run(progress, setup)
        with started(run, warm_up_seconds=LATER_WARM_UP_SECONDS), run.active():
            for _ in range(2 * rounds):
                run.block()


def alternate_whole(
    baseline: Variant,
    challenger: Variant,
    act: Act,
    *,
    first_setup: int,
    repeats: int,
    progress: Progress,
    part: tuple[int, int],
) -> None:
    """Let both act `repeats` times, alone, in the orders AB and BA by turns.

    `act(variant, setup, repeat)` does one whole run, one set-up, or one look at memory.
    """
    progress.begin(*part)
    for repeat in range(repeats):
        turn = [baseline, challenger] if repeat % 2 == 0 else [challenger, baseline]
        for variant in turn:
            act(variant, first_setup + repeat, repeat)
        progress.expect((repeat + 1) / repeats)


def run_to_the_end(progress: Progress) -> Act:
    """Return an act: one whole run, seeded with the number of the repeat."""

    def act(variant: Variant, setup: int, repeat: int) -> None:
        run = variant.run(progress, setup, seed=repeat)
        with started(run, warm_up_seconds=None):
            progress.doing = f"run {repeat + 1} of {run.call}"
            run.to_the_end()

    return act


def start_only(progress: Progress) -> Act:
    """Return an act: one set-up."""

    def act(variant: Variant, setup: int, repeat: int) -> None:
        with started(variant.run(progress, setup), warm_up_seconds=None):
            pass

    return act


def watch_memory(progress: Progress, seconds: float) -> Act:
    """Return an act: one start and warm-up, watched for the memory it adds."""

    def act(variant: Variant, setup: int, repeat: int) -> None:
        run = variant.run(progress, setup)
        with started(run, warm_up_seconds=longest_warm_up(seconds), cold=True):
            pass

    return act
