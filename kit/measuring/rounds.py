"""In which order runs come: first runs, then rounds in both orders.

What drifts, such as heat or other programs, then hits both variants alike.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence

from kit import clock
from kit.errors import ExperimentError
from kit.measuring.plan import Match, Plan, count_to_a_slow_one
from kit.measuring.quantity import QUANTITIES
from kit.measuring.run import Driver, drive
from kit.measuring.variant import Variant, make_trial
from kit.mode import is_quick
from kit.progress import Progress
from kit.records import FIRST, Trial

#: So many rounds of starts where memory is compared.
_MEMORY_ROUNDS = 6
#: Libraries are loaded by the second start: it settles sooner, or not at all.
_LONGEST_WARM_UP, LATER_WARM_UP = 10.0, 0.5
#: What advances by this share of a whole, again and again, spreads evenly over it.
_GOLDEN = (math.sqrt(5) - 1) / 2


def longest_warm_up(seconds: float) -> float:
    """Return how long warm-up may last when this many seconds are to be measured."""
    return max(0.5, min(seconds, _LONGEST_WARM_UP))


# Rates


def compare_rates(variants: Sequence[Variant], progress: Progress, plan: Plan) -> None:
    """Make first runs, then pairs of rounds, with every challenger in turn.

    One pair always; five, which may take three times the budget; then for as long as
    its interval is not narrow. The verdict never decides when to stop. The baseline's
    first run comes before and after the others, so that a machine whose speed changes
    meanwhile is not taken for a variant whose speed does.
    """
    for variant in [*variants, variants[0]]:
        _make_first_run(variant, plan)
    matches = plan.begin_rounds()
    numbers = itertools.count()
    rounds = {match: _alternate(match, numbers, plan) for match in matches}
    while due := [match for match in matches if plan.allows(match)]:
        for match in due:
            if not plan.allows(match):  # others have used up the time meanwhile
                continue
            begun = clock.CLOCK.wall()
            pair = next(rounds[match]), next(rounds[match])
            plan.note_pair(match, pair, clock.CLOCK.wall() - begun)
        progress.report(lambda: _make_trials(variants))


def _make_trials(variants: Sequence[Variant]) -> dict[str, Trial]:
    """Return the trials so far of those that were measured in a round, by label."""
    return {v.label: make_trial(v, complete_runs=False) for v in variants if v.rounds}


def _make_first_run(variant: Variant, plan: Plan) -> None:
    """Make a first run, which sees what a start and a block cost.

    Also whether the variant is idle between its steps, and how rare its slow steps are.
    """
    is_cold = not variant.runs
    with drive(variant, FIRST, plan.progress) as driver:
        driver.open(watch_memory=is_cold)
        driver.warm_up(longest_warm_up(plan.seconds) if is_cold else LATER_WARM_UP)
        driver.check_idle_in_pause()
        start_seconds = driver.ready_at - driver.opened_at
        variant.start_seconds = start_seconds
        begun = clock.CLOCK.wall()
        while True:
            driver.time_block()
            slow = count_to_a_slow_one(driver.run.blocks)
            variant.blocks_to_a_slow_one = max(variant.blocks_to_a_slow_one, slow)
            spent = clock.CLOCK.wall() - begun
            if not plan.needs_more(variant, driver.run, spent):
                break
        closing = clock.CLOCK.wall()
    was_idle = variant.idle_between_steps is not False
    is_script = variant.experiment.is_script
    variant.idle_between_steps = was_idle and driver.is_idle and not is_script
    variant.start_seconds += clock.CLOCK.wall() - closing
    plan.begun += start_seconds


def _alternate(match: Match, numbers: Iterator[int], plan: Plan) -> Iterator[int]:
    """Make rounds of a baseline and a challenger, for ever; yield each one's number.

    Who starts first changes from round to round. Two variants that are idle between
    their steps are interleaved: their blocks follow each other as A B B A or B A A B,
    drawn, and the other way round in the second round of a pair. Others run one after
    the other.
    """
    order = random.Random(0)
    while True:
        swaps = [order.random() < 0.5 for _ in range(plan.plan_turns(match))]
        for is_swapped in (False, True):
            number = next(numbers)
            one, other = match.variants
            if is_swapped:
                one, other = other, one
            if match.are_idle:
                _make_interleaved_runs(one, other, number, swaps, plan)
                _leave_out_disturbed_rounds(plan.variants)
            else:
                for variant in (one, other):
                    _make_sequential_run(variant, number, plan)
            yield number


def _make_sequential_run(variant: Variant, number: int, plan: Plan) -> None:
    with drive(variant, number, plan.progress) as driver:
        driver.open()
        driver.warm_up(LATER_WARM_UP, _choose_skip(variant, number))
        for _ in range(plan.plan_blocks(variant)):
            driver.time_block()


def _make_interleaved_runs(
    one: Variant, other: Variant, number: int, swaps: Sequence[bool], plan: Plan
) -> None:
    """Make two runs whose blocks take turns; end early where one is no more idle."""
    with drive(one, number, plan.progress) as first:
        first.open()
        first.warm_up(LATER_WARM_UP, _choose_skip(one, number))
        first.pause()
        with drive(other, number, plan.progress, partner=first) as second:
            second.open()
            second.warm_up(LATER_WARM_UP, _choose_skip(other, number))
            running = second
            for driver in _order_blocks(first, second, swaps):
                if not running.is_idle:
                    break
                if driver is not running:
                    running.pause()
                    driver.resume()
                    running = driver
                driver.time_block()
    one.idle_between_steps = first.is_idle
    other.idle_between_steps = second.is_idle


def _order_blocks(
    first: Driver, second: Driver, swaps: Sequence[bool]
) -> Iterator[Driver]:
    """Yield whose block comes next: A B B A for each turn, or B A A B if swapped."""
    for is_swapped in swaps:
        a, b = (second, first) if is_swapped else (first, second)
        yield from (a, b, b, a)


def _choose_skip(variant: Variant, number: int) -> int:
    """Return how many steps a run skips, so that slow ones come early and late.

    Every run begins alike; one that ends just after its first slow step, or just
    before it, would always do so.
    """
    steps = variant.blocks_to_a_slow_one * variant.steps_per_block
    return int(_GOLDEN * number % 1 * steps)


def _leave_out_disturbed_rounds(variants: Sequence[Variant]) -> None:
    """Take out the interleaved rounds of a variant that is no more idle."""
    disturbed = {
        run.round
        for variant in variants
        for run in variant.runs
        if run.interleaved and not variant.idle_between_steps
    }
    for variant in variants:
        variant.runs = [run for run in variant.runs if run.round not in disturbed]


# Complete runs, and memory


def compare_complete_runs(
    variants: Sequence[Variant], progress: Progress, of: str, repeats: int
) -> None:
    """Compare runs to the end, with equal seeds for all variants.

    Each variant is first started once, and that is not compared: a first start loads
    libraries.
    """
    for variant in variants:
        with drive(variant, FIRST, progress) as driver:
            driver.open(watch_memory=True)
            driver.skip(1)
    rounds = 2 if is_quick() else repeats
    for variant, number, repeat in _alternate_starts(variants, progress, rounds):
        with drive(variant, number, progress, seed=repeat) as driver:
            driver.open()
            driver.run_to_end()
            _check_metric(driver, of)


def compare_memory(
    variants: Sequence[Variant], progress: Progress, seconds: float
) -> None:
    """Compare what starts and warm-ups add; first ones load libraries."""
    for variant in variants:
        _watch_start(variant, FIRST, progress, seconds)
    rounds = 2 if is_quick() else _MEMORY_ROUNDS
    for variant, number, _ in _alternate_starts(variants, progress, rounds):
        _watch_start(variant, number, progress, seconds)


def measure_memory(variant: Variant, progress: Progress, seconds: float) -> None:
    """Measure what a start and its warm-up add; the first one loads libraries."""
    rounds = 1 if is_quick() else _MEMORY_ROUNDS
    for number in (FIRST, *range(rounds)):
        progress.begin(max(0, number), rounds)
        _watch_start(variant, number, progress, seconds)


def _watch_start(
    variant: Variant, number: int, progress: Progress, seconds: float
) -> None:
    with drive(variant, number, progress) as driver:
        driver.open(watch_memory=True)
        driver.warm_up(longest_warm_up(seconds))


def _alternate_starts(
    variants: Sequence[Variant], progress: Progress, rounds: int
) -> Iterator[tuple[Variant, int, int]]:
    """Yield who starts next, in which round, and the how manieth of its challenger.

    The orders A B and B A alternate.
    """
    baseline, *challengers = variants
    pairs = list(itertools.product(challengers, range(rounds)))
    for number, (challenger, repeat) in enumerate(pairs):
        progress.begin(number, len(pairs))
        order = [baseline, challenger]
        if repeat % 2 == 1:
            order.reverse()
        for variant in order:
            yield variant, number, repeat
        progress.expect(1.0)


def _check_metric(driver: Driver, of: str) -> None:
    """Raise ExperimentError where a run has not given the metric that is compared."""
    known = driver.run.metrics
    if of in QUANTITIES or of in known:
        return
    raise ExperimentError(
        f"compare(): {driver.variant.call} yields no metric {of!r} "
        f"(it yields {', '.join(known) or 'none'}).\n"
        f'Yield it with each step: yield n, {{"{of}": value}}; or '
        f"compare a quantity: {', '.join(QUANTITIES)}."
    )
