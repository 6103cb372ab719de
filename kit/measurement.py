"""`measure` and `compare`: lives by turns, so that drift hits all variants alike."""

from __future__ import annotations

import contextlib
import itertools
import math
import random
from collections.abc import Generator, Iterator, Sequence

from kit import choices as asked
from kit import clock, stats, system
from kit.budget import Budget, Side
from kit.choices import REPEATS, Place, Request, make_variant
from kit.comparison import Comparison
from kit.experiment import ExperimentError, is_quick, named, resolve
from kit.life import COLD, Life
from kit.progress import Progress, Stopped, take_turn
from kit.ratio import MEMORY, QUANTITIES, SPEED
from kit.trial import Trial, make_trial, rate, write_down
from kit.variant import Variant

#: So many turns of starts, and lives of one that is measured.
_STARTS, _LIVES = 6, 5
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

    `seconds` is timed in all, in five lives (fewer where starts are dear), since
    the same code started again is not equally fast; each life warms up first.
    `seconds=None` runs the generator to its end, `repeats` times (once, unless said),
    with seeds 0, 1, 2 …
    `on=ranks` runs it on all of these processes at once, in equal steps; their items
    are summed. Returns a Trial. Raises ExperimentError where the experiment cannot be
    measured.

    >>> def count(*, upto=1000):
    ...     while True:
    ...         yield sum(range(upto)) and upto
    >>> measure(count, seconds=0.1, upto=10_000).outcome
    'complete'
    """
    with named("measure()"):
        asked.check_arguments(seconds, repeats)
        asked.check_place(on)
        resolved = resolve(experiment)
        variant = make_variant(resolved, resolved.bind(knobs), on)
    with Progress(f"measuring {variant.call}") as progress:
        return measure_watched(variant, progress, seconds, repeats or 1)


def measure_watched(
    variant: Variant, progress: Progress, seconds: float | None, repeats: int
) -> Trial:
    """Measure what `measure` was asked for, while somebody watches the progress."""
    with _noting_end([variant], progress), take_turn(progress), _noting_load([variant]):
        for repeat in range(repeats if seconds is None else 0):
            progress.begin(repeat, repeats)
            with variant.lead(repeat, progress, seed=repeat) as life:
                life.open(watch=repeat == 0)
                life.read_memory()
                life.to_the_end()
            progress.expect(1.0)
        if seconds:
            _lead_lives(variant, progress, seconds)
    trial = make_trial(variant, whole_runs=seconds is None)
    write_down(trial)
    return trial


def _lead_lives(variant: Variant, progress: Progress, seconds: float) -> None:
    """Lead five lives, or as many as `seconds` would pay the starts of.

    The first start, which loads libraries, says little about later ones: how dear they
    are the second one tells.
    """
    turn, lives, each, left = 0, _LIVES, seconds / _LIVES, seconds
    while turn < lives:
        with variant.lead(turn, progress) as life:
            life.open(watch=turn == 0)
            life.settle(_LATER_WARM_UP if turn else longest_warm_up(seconds))
            cost = life.ready - life.begun
            if turn == 0 and (is_quick() or cost >= seconds):
                lives, each = 1, seconds
            elif turn == 1:
                is_dear = (_LIVES - 1) * cost > left
                lives = max(2, 1 + int(left / cost)) if is_dear else _LIVES
                each *= (_LIVES - 1) / (lives - 1)
            left -= cost
            progress.begin(turn, lives, each)
            # Within `with`: a life learns that an interrupt ends it, and hurries.
            begun, spent = clock.CLOCK.wall(), 0.0
            while spent < each and not (is_quick() and len(life.blocks) > 1):
                life.block()
                spent = clock.CLOCK.wall() - begun
                progress.expect(spent / each)
                progress.so_far = f"{rate(life):,.4g} items/s so far"
        turn += 1


def longest_warm_up(seconds: float) -> float:
    """Return how long warm-up may last when this many seconds are to be measured."""
    return max(0.5, min(seconds, _LONGEST_WARM_UP))


@contextlib.contextmanager
def _noting_end(
    variants: Sequence[Variant], progress: Progress
) -> Generator[None, None, None]:
    """Note how a measurement ended; one may be stopped while it waits, too."""
    try:
        yield
    except Stopped:
        for variant in variants:
            variant.outcome = "stopped"
    for variant in variants:
        if progress.disturbed and variant.outcome == "complete":
            variant.outcome = "disturbed"


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
    **choices: object,
) -> Comparison:
    """Compare every combination of the choices by turns; the first is the baseline.

    Lists and ranges are choices, everything else is a value. `experiment` may also be
    a dict of experiments by name. `seconds` is the total; `seconds=None` runs each
    generator to its end, `repeats` times (six, unless said). `of` names what is
    compared: "items_per_second", "run_seconds", "setup_seconds", "peak_memory_bytes",
    or a metric, which needs `within`, the difference that counts as the same. `on` is
    where they run, `ranks` for one, or a choice: `on=[ranks[:1], ranks]`.
    `patient=True` goes on to three times the budget where the interval is wide. `title`
    stands above reports and pictures in place of the finding.
    Raises ExperimentError where something cannot be compared.

    >>> def add(*, upto=1000):
    ...     while True:
    ...         yield sum(range(upto)) and 1
    >>> compare(add, upto=[1000, 100_000], seconds=2.0).ratio.value < 0.5
    True
    """
    request = Request(of, seconds, repeats, within, patient, title)
    with named("compare()"):
        request.check()
        places, found = asked.check_places(on), asked.resolve_all(experiment)
        variants = [make() for make in asked.plan_variants(found, places, choices)]
        asked.check_several(variants)
    names = " · ".join(variant.label for variant in variants)
    with Progress(f"comparing {names}"[:100]) as progress:
        return compare_watched(variants, progress, request)


def compare_watched(
    variants: Sequence[Variant], progress: Progress, request: Request
) -> Comparison:
    """Compare what `compare` was asked for, while somebody watches the progress.

    First lives of all, then pairs of turns, every challenger in turn: one pair always;
    five, which may take three times the budget; then for as long as its interval is not
    narrow. The verdict never decides when to stop.
    """
    stats.load_libraries()
    with _noting_end(variants, progress), take_turn(progress), _noting_load(variants):
        if request.seconds is None or request.of != SPEED:
            _compare_starts(variants, progress, request)
        else:
            budget = Budget(variants, progress, request.seconds, request.patient)
            for variant in variants:
                _look(variant, budget)
            sides, turns = budget.make_sides(), itertools.count()
            loops = {side: _alternate(side, turns, budget) for side in sides}
            while chosen := [side for side in sides if budget.allows(side)]:
                for side in chosen:
                    begun = clock.CLOCK.wall()
                    next(loops[side]), next(loops[side])
                    budget.finish_pair(side, clock.CLOCK.wall() - begun)
                progress.report(lambda: _make_trials(variants))
    trials = [make_trial(v, whole_runs=request.seconds is None) for v in variants]
    labels = [variant.label for variant in variants]
    made = Comparison(trials, labels, request.of, request.within, request.title)
    if request.is_kept:
        write_down(*trials, made)
    return made


def _make_trials(variants: Sequence[Variant]) -> dict[str, Trial]:
    timed = [v for v in variants if any(life.turn != COLD for life in v.lives)]
    return {v.label: make_trial(v, whole_runs=False) for v in timed}


def _look(variant: Variant, budget: Budget) -> None:
    """Lead a first life, alone: what a start and a block cost, and whether it rests.

    It is timed for at least as long as any later one: it sees what those would not.
    """
    with variant.lead(COLD, budget.progress) as life:
        life.open(watch=True)
        life.settle(longest_warm_up(budget.seconds))
        life.pause_to_look()
        variant.start_seconds = started = life.ready - life.begun
        begun = clock.CLOCK.wall()
        while True:
            life.block()
            if budget.has_seen_enough(variant, life, clock.CLOCK.wall() - begun):
                break
        closing = clock.CLOCK.wall()
    variant.rests = life.rests and not variant.experiment.is_script
    variant.start_seconds += clock.CLOCK.wall() - closing
    budget.begun += started


def _alternate(side: Side, turns: Iterator[int], budget: Budget) -> Iterator[None]:
    """Lead lives of a baseline and a challenger, for ever; yield after each turn.

    Who starts first changes from turn to turn. Two that rest live side by side: their
    blocks follow each other as A B B A or B A A B, drawn, and the other way round in
    the twin turn. Others are led alone, one after the other.
    """
    pair, order, progress = side.pair, random.Random(0), budget.progress
    while True:
        outside = [order.randrange(2) for _ in range(budget.plan_rounds(side))]
        for swapped in (0, 1):
            turn, (one, other) = next(turns), (pair[swapped], pair[1 - swapped])
            if not (one.rests and other.rests):
                for variant in (one, other):
                    with variant.lead(turn, progress) as life:
                        life.open()
                        life.settle(_LATER_WARM_UP, _choose_phase(turn, variant))
                        for _ in range(budget.plan_blocks(variant)):
                            life.block()
                yield
                continue
            with one.lead(turn, progress) as first:
                first.open()
                first.settle(_LATER_WARM_UP, _choose_phase(turn, one))
                first.pause()
                with other.lead(turn, progress, beside=first) as second:
                    second.open()
                    second.settle(_LATER_WARM_UP, _choose_phase(turn, other))
                    lives, running = (first, second), second
                    for life in [lives[n ^ k] for n in outside for k in (0, 1, 1, 0)]:
                        if not running.rests:
                            break
                        if life is not running:
                            running.pause()
                            life.resume()
                            running = life
                        life.block()
            one.rests, other.rests = first.rests, second.rests
            _leave_out_restless(pair)
            yield


def _choose_phase(turn: int, variant: Variant) -> int:
    """Return how many steps a life skips, so that slow ones come early and late.

    Every life begins alike; one that ends just after its first slow step, or just
    before it, would always do so.
    """
    return int(_GOLDEN * turn % 1 * variant.stretch * variant.steps)


def _leave_out_restless(pair: Sequence[Variant]) -> None:
    """Take out the turns that somebody led side by side who no longer rests."""
    restless = [variant for variant in pair if not variant.rests]
    turns = {life.turn for v in restless for life in v.lives if life.beside}
    for variant in pair:
        variant.lives = [life for life in variant.lives if life.turn not in turns]


def _compare_starts(
    variants: Sequence[Variant], progress: Progress, request: Request
) -> None:
    """Compare whole runs, set-ups or memory: the orders A B and B A by turns.

    Each variant is first started once, and that is not compared: a first start loads
    libraries.
    """
    whole = request.seconds is None
    count = (request.repeats or REPEATS) if whole else _STARTS
    if is_quick():
        count = 2
    for variant in variants:
        with variant.lead(COLD, progress) as life:
            life.open(watch=True)
            if request.seconds is None:
                life.skip(1)
            else:
                life.settle(longest_warm_up(request.seconds))
    pairs = list(itertools.product(variants[1:], range(count)))
    for turn, (challenger, repeat) in enumerate(pairs):
        progress.begin(turn, len(pairs))
        pair = variants[0], challenger
        for variant in pair if repeat % 2 == 0 else pair[::-1]:
            with variant.lead(turn, progress, seed=repeat if whole else 0) as life:
                _start_once(life, request)
        progress.expect(1.0)


def _start_once(life: Life, request: Request) -> None:
    """Do what is compared: a start, one with its memory, or a whole run."""
    life.open(watch=request.of == MEMORY)
    if request.seconds is None:
        life.to_the_end()
        if request.of not in QUANTITIES and request.of not in life.metrics:
            raise ExperimentError(
                f"compare(): {life.variant.call} yields no metric {request.of!r} "
                f"(it yields {', '.join(life.metrics) or 'none'}).\n"
                f'Yield it with each step: yield n, {{"{request.of}": value}}; or '
                f"compare a quantity: {', '.join(QUANTITIES)}."
            )
    elif request.of == MEMORY:
        life.settle(longest_warm_up(request.seconds))
