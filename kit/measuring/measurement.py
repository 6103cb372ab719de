"""`measure` and `compare`: rounds in both orders, so that drift hits all alike."""

from __future__ import annotations

import contextlib
import itertools
import math
import random
from collections.abc import Generator, Iterator, Sequence
from typing import Any

from kit import clock, statistics, system
from kit.errors import ExperimentError, naming
from kit.journal import write_down
from kit.measuring import request as requests
from kit.measuring.comparison import Comparison
from kit.measuring.experiment import resolve
from kit.measuring.plan import Match, Plan, count_to_a_slow_one
from kit.measuring.ratio import MEMORY, QUANTITIES, SPEED
from kit.measuring.request import REPEATS, Request, make_variant
from kit.measuring.run import Driver, drive
from kit.measuring.variant import Place, Variant, make_trial
from kit.mode import is_quick
from kit.progress import Progress, Stopped, take_turn
from kit.records import FIRST, Trial

#: So many rounds of starts where memory is compared, and runs that `measure` makes.
_MEMORY_ROUNDS, _RUNS = 6, 5
#: Libraries are loaded by then: a later start settles sooner, or not at all.
_LONGEST_WARM_UP, _LATER_WARM_UP = 10.0, 0.5
#: What advances by this share of a whole, again and again, spreads evenly over it.
_GOLDEN = (math.sqrt(5) - 1) / 2


def measure(
    experiment: object,
    /,
    *,
    seconds: float | None = 2.0,
    repeats: int | None = None,
    on: Place | None = None,
    **knobs: object,
) -> Trial:
    """Measure one experiment with these knobs.

    `seconds` is timed in all, in five runs (at least two, where starts are expensive),
    since the same code started again is not equally fast; each run warms up first.
    `seconds=None` runs the generator to its end, `repeats` times (once, unless said),
    with seeds 0, 1, 2 …
    `on=ranks` runs it on all of these processes at once, in equal steps; their items
    are summed. Returns a Trial, with the range of its runs. That is no confidence
    interval: a machine's speed drifts, and only `compare` decides small differences.
    Raises ExperimentError where the experiment cannot be measured.

    >>> def count(*, upto=1000):
    ...     while True:
    ...         yield sum(range(upto)) and upto
    >>> measure(count, seconds=0.1, upto=10_000).outcome
    'finished'
    """
    with naming("measure()"):
        requests.check_arguments(seconds, repeats)
        requests.check_place(on)
        resolved = resolve(experiment)
        variant = make_variant(resolved, resolved.bind(knobs), on)
    with Progress(f"measuring {variant.call}") as progress:
        return measure_watched(variant, progress, seconds, repeats or 1)


def measure_watched(
    variant: Variant, progress: Progress, seconds: float | None, repeats: int
) -> Trial:
    """Measure what `measure` was asked for, while somebody watches the progress."""
    with _keeping_notes([variant], progress):
        if seconds is None:
            _run_to_end_repeatedly(variant, progress, repeats)
        else:
            _run_for_a_time(variant, progress, seconds)
    trial = make_trial(variant, complete_runs=seconds is None)
    write_down(trial)
    return trial


def _run_to_end_repeatedly(variant: Variant, progress: Progress, repeats: int) -> None:
    for repeat in range(repeats):
        progress.begin(repeat, repeats)
        with drive(variant, repeat, progress, seed=repeat) as driver:
            driver.open(watch_memory=repeat == 0)
            driver.read_memory()
            driver.run_to_end()
        progress.expect(1.0)


def _run_for_a_time(variant: Variant, progress: Progress, seconds: float) -> None:
    """Make five runs, or as many as `seconds` would pay the starts of, at least two.

    The first start, which loads libraries, says little about later ones: how expensive
    they are the second one tells.
    """
    runs, left, each = _RUNS, seconds, seconds / _RUNS
    if is_quick():
        runs, each = 1, seconds
    for number in itertools.count():
        if number == runs:
            return
        with drive(variant, number, progress) as driver:
            driver.open(watch_memory=number == 0)
            is_first = number == 0
            driver.warm_up(longest_warm_up(seconds) if is_first else _LATER_WARM_UP)
            start_cost = driver.ready_at - driver.opened_at
            if number == 1:
                runs = _count_affordable_runs(start_cost, left)
                each = left / (runs - 1)
            progress.begin(number, runs, each)
            # Within `with`: the driver learns that an interrupt ends it, and hurries.
            _time_blocks(driver, progress, each)
        left -= each


def _count_affordable_runs(start_cost: float, seconds: float) -> int:
    """Return how many runs there are in all, given what each later start costs."""
    later = _RUNS - 1
    if later * start_cost > seconds:
        later = max(1, int(seconds / start_cost))
    return 1 + later


def _time_blocks(driver: Driver, progress: Progress, seconds: float) -> None:
    """Time blocks for so many seconds, two of them in quick mode."""
    begun = clock.CLOCK.wall()
    spent = 0.0
    while spent < seconds:
        driver.time_block()
        spent = clock.CLOCK.wall() - begun
        progress.expect(spent / seconds)
        progress.so_far = f"{driver.run.items_per_second:,.4g} items/s so far"
        if is_quick() and len(driver.run.blocks) > 1:
            return


def longest_warm_up(seconds: float) -> float:
    """Return how long warm-up may last when this many seconds are to be measured."""
    return max(0.5, min(seconds, _LONGEST_WARM_UP))


@contextlib.contextmanager
def _keeping_notes(
    variants: Sequence[Variant], progress: Progress
) -> Generator[None, None, None]:
    """Wait for our turn; note how a measurement ended, and how busy the machine was.

    A measurement may be stopped while it waits, too.
    """
    try:
        with take_turn(progress), _noting_load(variants):
            yield
    except Stopped:
        _set_outcome(variants, "stopped")
    except KeyboardInterrupt:
        _set_outcome(variants, "stopped")
        raise
    if progress.disturbed:
        _set_outcome(variants, "disturbed")


def _set_outcome(variants: Sequence[Variant], outcome: str) -> None:
    for variant in variants:
        if variant.outcome == "finished":
            variant.outcome = outcome


@contextlib.contextmanager
def _noting_load(variants: Sequence[Variant]) -> Generator[None, None, None]:
    """Note beside which load variants were measured, and close them."""
    before = system.read_load()
    with contextlib.ExitStack() as stack:
        for variant in variants:
            stack.callback(variant.close)
        try:
            yield
        finally:
            conditions = system.describe_load(before, system.read_load())
            for variant in variants:
                variant.conditions = conditions


def compare(
    experiment: object,
    /,
    *,
    of: str = SPEED,
    seconds: float | None = 4.0,
    repeats: int | None = None,
    within: float | None = None,
    on: Place | list[Place] | None = None,
    patient: bool = False,
    title: str | None = None,
    unit: str | None = None,
    **choices: object,
) -> Comparison:
    """Compare every combination of the choices in rounds; the first is the baseline.

    Lists and ranges are choices, everything else is a value. `experiment` may also be
    a dict of experiments by name. `seconds` is the total; five pairs of rounds may take
    up to three times as long. `seconds=None` runs each generator to its end, `repeats`
    times (six, unless said). `of` names what is compared: "items_per_second",
    "peak_memory_bytes" (what a start and its warm-up add), and with `seconds=None`
    "run_seconds" or a metric, which needs `within`, the difference that counts as the
    same. `on` is where they run, `ranks` for one, or a choice: `on=[ranks[:1], ranks]`.
    `patient=True` goes on to three times the budget where the interval is wide; the
    progress says how long that is. `title` stands above reports and pictures in place
    of the finding. `unit` chooses how a rate is shown: "ms per step", "GB/s" (where
    items are bytes), "images/s" …
    Raises ExperimentError where something cannot be compared. An interrupt keeps what
    was measured, and says where.

    >>> def add(*, upto=1000):
    ...     while True:
    ...         yield sum(range(upto)) and 1
    >>> compare(add, upto=[1000, 100_000], seconds=2.0).ratio.value < 0.5
    True
    """
    request = Request(of, seconds, repeats, within, patient, title, unit)
    with naming("compare()"):
        request.check()
        places = requests.check_places(on)
        experiments = requests.resolve_all(experiment)
        plans = requests.plan_variants(experiments, places, choices)
        variants = [make() for make in plans]
        requests.check_several(variants)
    names = " · ".join(variant.label for variant in variants)
    with Progress(f"comparing {names}"[:100]) as progress:
        try:
            return compare_watched(variants, progress, request)
        except KeyboardInterrupt as interrupt:
            raise _keep_what_was_measured(variants, request, interrupt) from None


def _keep_what_was_measured(
    variants: Sequence[Variant], request: Request, interrupt: KeyboardInterrupt
) -> KeyboardInterrupt:
    """Return the interrupt with what was compared until then, if that is anything."""
    if not all(variant.rounds for variant in variants):
        return interrupt
    comparison = _make_comparison(variants, request)
    kept: Any = KeyboardInterrupt(
        "compare() was interrupted. What was measured until then is kept as "
        f"`sys.last_value.comparison`:\n\n{comparison!r}"
    )
    kept.comparison = comparison
    return kept


def _make_comparison(variants: Sequence[Variant], request: Request) -> Comparison:
    complete = request.seconds is None
    trials = [make_trial(variant, complete_runs=complete) for variant in variants]
    labels = [variant.label for variant in variants]
    how = {"title": request.title, "unit": request.unit}
    return Comparison(trials, labels, request.of, request.within, **how)


def compare_watched(
    variants: Sequence[Variant], progress: Progress, request: Request
) -> Comparison:
    """Compare what `compare` was asked for, while somebody watches the progress."""
    statistics.load_libraries()
    with _keeping_notes(variants, progress):
        if request.seconds is None:
            _compare_complete_runs(variants, progress, request)
        elif request.of == MEMORY:
            _compare_memory(variants, progress, request.seconds)
        else:
            plan = Plan(variants, progress, request.seconds, request.patient)
            _compare_rates(variants, progress, plan)
    made = _make_comparison(variants, request)
    if request.is_kept:
        write_down(*made.trials, made)
    return made


# Rates


def _compare_rates(variants: Sequence[Variant], progress: Progress, plan: Plan) -> None:
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
            begun = clock.CLOCK.wall()
            for _ in range(2):
                next(rounds[match])
            plan.note_pair(match, clock.CLOCK.wall() - begun)
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
        driver.warm_up(longest_warm_up(plan.seconds) if is_cold else _LATER_WARM_UP)
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


def _alternate(match: Match, numbers: Iterator[int], plan: Plan) -> Iterator[None]:
    """Make rounds of a baseline and a challenger, for ever; yield after each one.

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
                _leave_out_disturbed_rounds(match)
            else:
                for variant in (one, other):
                    _make_sequential_run(variant, number, plan)
            yield


def _make_sequential_run(variant: Variant, number: int, plan: Plan) -> None:
    with drive(variant, number, plan.progress) as driver:
        driver.open()
        driver.warm_up(_LATER_WARM_UP, _choose_skip(variant, number))
        for _ in range(plan.plan_blocks(variant)):
            driver.time_block()


def _make_interleaved_runs(
    one: Variant, other: Variant, number: int, swaps: Sequence[bool], plan: Plan
) -> None:
    """Make two runs whose blocks take turns; end early where one is no more idle."""
    with drive(one, number, plan.progress) as first:
        first.open()
        first.warm_up(_LATER_WARM_UP, _choose_skip(one, number))
        first.pause()
        with drive(other, number, plan.progress, partner=first) as second:
            second.open()
            second.warm_up(_LATER_WARM_UP, _choose_skip(other, number))
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


def _leave_out_disturbed_rounds(match: Match) -> None:
    """Take out the interleaved rounds of a variant that is no more idle."""
    disturbed = {
        run.round
        for variant in match.variants
        for run in variant.runs
        if run.interleaved and not variant.idle_between_steps
    }
    for variant in match.variants:
        variant.runs = [run for run in variant.runs if run.round not in disturbed]


# Complete runs, and memory


def _compare_complete_runs(
    variants: Sequence[Variant], progress: Progress, request: Request
) -> None:
    """Compare runs to the end, with equal seeds for all variants.

    Each variant is first started once, and that is not compared: a first start loads
    libraries.
    """
    for variant in variants:
        with drive(variant, FIRST, progress) as driver:
            driver.open(watch_memory=True)
            driver.skip(1)
    rounds = 2 if is_quick() else request.repeats or REPEATS
    for variant, number, repeat in _alternate_starts(variants, progress, rounds):
        with drive(variant, number, progress, seed=repeat) as driver:
            driver.open()
            driver.run_to_end()
            _check_metric(driver, request.of)


def _compare_memory(
    variants: Sequence[Variant], progress: Progress, seconds: float
) -> None:
    """Compare what starts and warm-ups add; first ones load libraries."""
    for variant in variants:
        with drive(variant, FIRST, progress) as driver:
            driver.open(watch_memory=True)
            driver.warm_up(longest_warm_up(seconds))
    rounds = 2 if is_quick() else _MEMORY_ROUNDS
    for variant, number, _ in _alternate_starts(variants, progress, rounds):
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
