"""`measure` and `compare`: rounds in both orders, so that drift hits all alike."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Generator, Sequence
from typing import Any

from kit import clock, statistics, system
from kit.errors import naming
from kit.journal import write_down
from kit.measuring.comparison import Comparison
from kit.measuring.experiment import resolve
from kit.measuring.plan import Plan
from kit.measuring.quantity import MEMORY, SPEED
from kit.measuring.request import (
    REPEATS,
    Request,
    check_arguments,
    check_place,
    check_places,
    check_several,
    make_variant,
    plan_choices,
    resolve_all,
)
from kit.measuring.rounds import (
    LATER_WARM_UP,
    compare_complete_runs,
    compare_memory,
    compare_rates,
    longest_warm_up,
    measure_memory,
)
from kit.measuring.run import Driver, drive
from kit.measuring.variant import Place, Variant, make_trial
from kit.mode import is_quick
from kit.progress import Progress, Stopped, take_turn
from kit.records import Trial

#: So many runs `measure` makes.
_RUNS = 5


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
        check_arguments(seconds, repeats)
        check_place(on)
        resolved = resolve(experiment)
        variant = make_variant(resolved, resolved.bind(knobs), on)
    with Progress(f"measuring {variant.call}") as progress:
        return measure_watched(variant, progress, seconds, repeats or 1)


def measure_watched(
    variant: Variant,
    progress: Progress,
    seconds: float | None,
    repeats: int = 1,
    of: str = SPEED,
    is_kept: bool = True,
) -> Trial:
    """Measure what `measure` was asked for, while somebody watches the progress.

    Where it is watched for its memory, the first start, which loads libraries, is no
    run that counts. `is_kept` says whether a recording keeps it.
    """
    with _noting_end([variant], progress), take_turn(progress), _noting_load([variant]):
        if of == MEMORY and seconds is not None:
            measure_memory(variant, progress, seconds)
        elif seconds is None:
            _run_to_end_repeatedly(variant, progress, repeats)
        else:
            _run_for_a_time(variant, progress, seconds)
    trial = make_trial(variant, complete_runs=seconds is None)
    if is_kept:
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
            driver.warm_up(longest_warm_up(seconds) if is_first else LATER_WARM_UP)
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


@contextlib.contextmanager
def _noting_end(
    variants: Sequence[Variant], progress: Progress
) -> Generator[None, None, None]:
    """Note how a measurement ended; one may be stopped while it waits, too."""
    try:
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
        places = check_places(on)
        experiments = resolve_all(experiment)
        planned = plan_choices(experiments, places, choices)
        variants = [choice.make() for choice in planned]
        check_several(variants)
    names = " · ".join(variant.label for variant in variants)
    with Progress(f"comparing {names}"[:100]) as progress:
        try:
            return compare_watched(variants, progress, request)
        except KeyboardInterrupt as interrupt:
            kept = _keep_what_was_measured(variants, request, interrupt)
            raise kept.with_traceback(interrupt.__traceback__) from None


def _keep_what_was_measured(
    variants: Sequence[Variant], request: Request, interrupt: KeyboardInterrupt
) -> KeyboardInterrupt:
    """Return the interrupt with what was compared until then, if that is anything."""
    known = [variant for variant in variants if variant.rounds]
    if len(known) < 2 or known[0] is not variants[0]:
        return interrupt
    comparison = _make_comparison(known, request)
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
    with _noting_end(variants, progress), take_turn(progress), _noting_load(variants):
        if request.seconds is None:
            repeats = request.repeats or REPEATS
            compare_complete_runs(variants, progress, request.of, repeats)
        elif request.of == MEMORY:
            compare_memory(variants, progress, request.seconds)
        else:
            plan = Plan(variants, progress, request.seconds, request.patient)
            compare_rates(variants, progress, plan)
    made = _make_comparison(variants, request)
    if request.is_kept:
        write_down(*made.trials, made)
    return made
