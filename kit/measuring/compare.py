"""`measure` and `compare`: rounds in both orders, so that drift hits all alike."""

from __future__ import annotations

import gc
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from kit import clock
from kit.errors import ExperimentError, naming
from kit.figures import format_value
from kit.measuring.experiment import Choice, check_place, list_choices, resolve
from kit.measuring.records import COLD, Trial, tell_listeners
from kit.measuring.report import Comparison
from kit.measuring.run import (
    STRETCH_SECONDS,
    Driver,
    Variant,
    make_room_for_compiled,
    make_trial,
)
from kit.measuring.units import read_unit
from kit.measuring.verdict import LEAST_PAIRS, MEMORY, QUANTITIES, SPEED
from kit.mode import is_quick
from kit.progress import Progress

#: The budget is split into so many pairs of rounds; they may take three times as long.
_WANTED_PAIRS, _MOST_OVER = 5, 3.0
#: A run is timed for a quarter of the time that its start takes at least. One that
#: takes no turns may have loader workers, whose queue was full when it began.
_SHARE_OF_START, _LEAST_ALONE = 0.25, 0.2
#: A cold start is timed for so many times as long as a later run is planned to be.
_COLD_FACTOR = 2.0
#: Complete runs, memory and metrics are compared in so many rounds, unless asked else.
_REPEATS = 6


@dataclass(frozen=True)
class Request:
    """What `compare` was asked for."""

    of: str = SPEED
    seconds: float | None = 4.0
    repeats: int = _REPEATS
    within: float | None = None
    unit: str | None = None

    def check(self) -> None:
        """Raise ExperimentError where the parts do not go together."""
        check_effort(self.seconds, self.repeats)
        if not isinstance(self.of, str):
            raise ExperimentError(
                f"of={format_value(self.of)} is not the name of a quantity.\n"
                f"Name one: {', '.join(QUANTITIES)}, or a metric."
            )
        is_complete = self.seconds is None
        if self.of == MEMORY and is_complete:
            raise ExperimentError(
                f"of={self.of!r} does not go with seconds=None: it watches starts and "
                "warm-ups.\nOmit seconds."
            )
        if self.of not in (SPEED, MEMORY) and not is_complete:
            raise ExperimentError(
                f"of={format_value(self.of)} compares complete runs, but seconds="
                f"{format_value(self.seconds)} cuts them short.\n"
                f"Pass seconds=None, or compare {SPEED} or {MEMORY}."
            )
        is_metric = self.of not in QUANTITIES
        if is_metric and not _is_positive(self.within):
            raise ExperimentError(
                f"of={format_value(self.of)} is a metric, compared by its difference, "
                f"and within={format_value(self.within)} is not a difference.\n"
                "Say which difference counts as the same: within=0.01. "
                f"Quantities: {', '.join(QUANTITIES)}."
            )
        if self.within is not None and not is_metric:
            raise ExperimentError(
                f"within={format_value(self.within)} is for metrics, but {self.of} is "
                "compared as a ratio.\nOmit it."
            )
        if self.of == SPEED and not is_complete and self.repeats != _REPEATS:
            raise ExperimentError(
                f"repeats={format_value(self.repeats)} is for complete runs, memory "
                f"and metrics: more {SPEED} need more time.\nPass seconds=…"
            )
        if self.unit is not None and self.of != SPEED:
            raise ExperimentError(
                f"unit={format_value(self.unit)} is for {SPEED}, but {self.of} has "
                "its own unit.\nOmit it."
            )
        read_unit(self.unit)


def check_effort(seconds: Any, repeats: Any) -> None:
    """Raise ExperimentError for what is no time, or no number of runs."""
    if seconds is not None and not _is_positive(seconds):
        raise ExperimentError(
            f"seconds={format_value(seconds)} is not a valid time to measure.\n"
            "Use a positive number, or seconds=None to run the generator to its end."
        )
    is_whole = isinstance(repeats, Integral) and not isinstance(repeats, bool)
    if not is_whole or repeats < 1:
        raise ExperimentError(
            f"repeats={format_value(repeats)} is not a number of runs.\n"
            "Use a whole number, 1 or more."
        )


def _is_positive(value: Any) -> bool:
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    return is_number and 0 < value < math.inf


def make_variant(choice: Choice) -> Variant:
    """Make a variant of a choice, in its place."""
    if choice.place is not None:
        made: Variant = choice.place.prepare(choice.experiment, choice.knobs)
    else:
        made = Variant(choice.experiment, choice.knobs)
    made.label = choice.label
    made.runs_alone = made.runs_alone or choice.experiment.is_script
    return made


# One experiment


def measure(
    experiment: object,
    /,
    *,
    seconds: float | None = 2.0,
    repeats: int = 5,
    on: Any = None,
    **knobs: object,
) -> Trial:
    """Measure one experiment with these knobs.

    `seconds` is timed in all, in `repeats` runs, since the same code started again is
    not equally fast; each run warms up first. `seconds=None` runs the generator to its
    end, `repeats` times, with seeds 0, 1, 2 … `on=ranks` runs it on all of these
    processes at once, in equal steps; their items are summed. Returns a Trial, with the
    range of its runs. That is no confidence interval: a machine's speed drifts, and
    only `compare` decides small differences. Raises ExperimentError where the
    experiment cannot be measured; its own errors come as they are, with a note.

    >>> def count(*, upto=1000):
    ...     while True:
    ...         yield sum(range(upto)) and upto
    >>> measure(count, seconds=0.1, upto=10_000).items_per_second > 0
    True
    """
    with naming("measure()"):
        check_effort(seconds, repeats)
        resolved = resolve(experiment)
        check_place(on)
        choice = Choice(resolved, resolved.bind(knobs), on, resolved.name)
        variant = make_variant(choice)
    trial = measure_variant(variant, seconds, repeats)
    tell_listeners(trial)
    return trial


def measure_variant(
    variant: Variant, seconds: float | None, repeats: int = 5, of: str = SPEED
) -> Trial:
    """Measure what `measure` was asked for, with a progress bar."""
    runs = 1 if is_quick() else repeats
    with Progress(f"measuring {variant.call}") as progress:
        for number in range(runs):
            progress.show(number / runs)
            make_room_for_compiled(1)
            if seconds is None:
                _run_to_end(variant, number, seed=number)
            elif of == MEMORY:
                _watch_start(variant, number)
            else:
                _time_run(variant, number, seconds / repeats)
    return make_trial(variant, complete_runs=seconds is None)


def _time_run(variant: Variant, round: int, seconds: float) -> None:
    """Start, warm up, and time so many seconds; the first run's memory is watched."""
    with variant.drive(round) as driver:
        driver.open(watch_memory=not variant.runs)
        driver.warm_up()
        driver.read_memory()
        driver.keep(seconds)
        driver.note_company()


def _run_to_end(variant: Variant, round: int, seed: int) -> Driver:
    with variant.drive(round, seed) as driver:
        driver.run_to_end(driver.open())
    return driver


def _watch_start(variant: Variant, round: int) -> None:
    with variant.drive(round) as driver:
        driver.open(watch_memory=True)
        driver.warm_up()


# Several


def compare(
    experiment: object,
    /,
    *,
    of: str = SPEED,
    seconds: float | None = 4.0,
    repeats: int = 6,
    within: float | None = None,
    on: Any = None,
    unit: str | None = None,
    **choices: object,
) -> Comparison:
    """Compare every combination of the choices in rounds; the first is the baseline.

    Lists and ranges are choices, everything else is a value. `experiment` may also be
    a dict of experiments by name, and `on` a list: `on=[ranks[:1], ranks]`. `seconds`
    is the total; five pairs of rounds may take three times as long, and three pairs are
    always made. `of` names what is compared: "items_per_second"; "peak_memory_bytes",
    what a start and its warm-up add, in `repeats` rounds; and with `seconds=None`,
    which runs each generator to its end `repeats` times, "run_seconds" or a metric,
    which needs `within`, the difference that counts as the same. `unit` chooses how a
    rate is shown: "ms per step", "GB/s" (where items are bytes), "images/s" …
    Raises ExperimentError where something cannot be compared. An interrupt keeps what
    was measured, and says where.

    >>> def add(*, upto=1000):
    ...     while True:
    ...         yield sum(range(upto)) and 1
    >>> compare(add, upto=[1000, 100_000], seconds=2.0).ratio.value < 0.5
    True
    """
    request = Request(of, seconds, repeats, within, unit)
    with naming("compare()"):
        request.check()
        variants = make_variants(experiment, on, choices)
    comparison = compare_variants(variants, request)
    tell_listeners(*comparison.trials, comparison)
    return comparison


def make_variants(
    experiment: object, on: object, choices: Mapping[str, object]
) -> list[Variant]:
    """Make a variant of each choice; raises ExperimentError where there is only one."""
    planned = list_choices(experiment, on, choices)
    if len(planned) > 1:
        return [make_variant(choice) for choice in planned]
    advice = (
        "Give a knob a list, as in batch_size=[32, 64], or pass two experiments:\n"
        '{"plain": f, "other": g}.'
    )
    for knob, value in planned[0].knobs.items():
        if isinstance(value, (tuple, set)) or hasattr(value, "tolist"):
            kind = type(value).__name__
            advice = f"A {kind} is one value: write a list, {knob}=[…]."
    raise ExperimentError(
        f"only one variant ({planned[0].label}); there is nothing to compare.\n{advice}"
    )


def compare_variants(variants: Sequence[Variant], request: Request) -> Comparison:
    """Compare what `compare` was asked for, with a progress bar."""
    import scipy.special  # noqa: F401  # between two runs it would change what they find

    begun = clock.CLOCK.wall()
    names = " · ".join(variant.label for variant in variants)
    with Progress(f"comparing {names}"[:80]) as progress:
        try:
            if request.seconds is None or request.of == MEMORY:
                _compare_rounds(variants, request, progress)
            else:
                _Rates(variants, request.seconds, progress).compare()
        except KeyboardInterrupt as interrupt:
            kept = _keep_what_was_measured(variants, request, interrupt)
            raise kept.with_traceback(interrupt.__traceback__) from None
    return _make_comparison(variants, request, clock.CLOCK.wall() - begun)


def _make_comparison(
    variants: Sequence[Variant], request: Request, took: float | None = None
) -> Comparison:
    """Make a Comparison; `Comparison.ratios` judges it when it is read."""
    complete = request.seconds is None
    trials = [make_trial(variant, complete_runs=complete) for variant in variants]
    labels = [variant.label for variant in variants]
    return Comparison(trials, labels, request.of, request.within, request.unit, took)


def _keep_what_was_measured(
    variants: Sequence[Variant], request: Request, interrupt: KeyboardInterrupt
) -> KeyboardInterrupt:
    """Return the interrupt with what was compared until then, if that is anything."""
    known = []
    for variant in variants:
        variant.outcome = "stopped"
        if any(run.round != COLD for run in variant.runs):
            known.append(variant)
    if len(known) < 2 or known[0] is not variants[0]:
        return interrupt
    comparison = _make_comparison(known, request)
    kept: Any = KeyboardInterrupt(
        "compare() was interrupted. What was measured so far is kept as "
        f"`sys.last_value.comparison`:\n\n{comparison!r}"
    )
    kept.comparison = comparison
    return kept


# Complete runs, and memory


def _compare_rounds(
    variants: Sequence[Variant], request: Request, progress: Progress
) -> None:
    """Make rounds of complete runs, or of starts that are watched for their memory.

    Each variant is first started once, which is not compared: it loads libraries.
    """
    is_memory = request.of == MEMORY
    if not is_quick():
        for variant in variants:
            if is_memory:
                _watch_start(variant, COLD)
            else:
                with variant.drive(COLD) as driver:
                    driver.open(watch_memory=True)
    rounds = 1 if is_quick() else request.repeats
    for number in range(rounds):
        progress.show(number / rounds)
        make_room_for_compiled(len(variants))
        order = variants if number % 2 == 0 else variants[::-1]
        for variant in order:
            if is_memory:
                _watch_start(variant, number)
            else:
                _check_metric(_run_to_end(variant, number, seed=number), request.of)


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


# Rates


class _Rates:
    """The cold starts and the pairs of rounds of one comparison of rates.

    The two rounds of a pair have opposite orders. A challenger that can take turns with
    the baseline meets it in runs of their own; all others and the baseline run one
    after the other. The verdict never decides when to stop.
    """

    def __init__(
        self, variants: Sequence[Variant], seconds: float, progress: Progress
    ) -> None:
        self.variants = variants
        self.baseline = variants[0]
        self.seconds = seconds
        self.progress = progress
        #: What set-up, warm-up and close of a run cost, by the latest pair.
        self.start_seconds = 0.0
        self._next_round = 0

    def compare(self) -> None:
        """Start each variant cold, then make three pairs, five, or what fits."""
        if is_quick():
            self._run_one_after_the_other(self.variants, 0)
            return
        seconds = _COLD_FACTOR * max(self._plan_run_seconds(), _LEAST_ALONE)
        for variant in self.variants:
            self.progress.show(0.0)
            make_room_for_compiled(1)
            _time_run(variant, COLD, seconds)
        begun = clock.CLOCK.wall()
        pairs = 0
        while True:
            pair_begun = clock.CLOCK.wall()
            self._make_pair_of_all()
            pairs += 1
            now = clock.CLOCK.wall()
            spent, latest = now - begun, now - pair_begun
            most = self.seconds if pairs >= _WANTED_PAIRS else _MOST_OVER * self.seconds
            if pairs >= LEAST_PAIRS and spent + latest > most:
                return
            self.progress.show(spent / max(self.seconds, _WANTED_PAIRS * latest))

    def _count_runs(self) -> int:
        """Return how many runs a pair of rounds has."""
        turning = [each for each in self.variants[1:] if self._can_take_turns(each)]
        alone = len(self.variants) - len(turning)
        return 4 * len(turning) + (2 * alone if alone > 1 else 0)

    def _plan_run_seconds(self) -> float:
        """Return how long a run is timed: its share of the budget, less its start.

        Of more seconds, half buys longer runs, and half more of them.
        """
        pairs = max(_WANTED_PAIRS, math.sqrt(_WANTED_PAIRS * self.seconds))
        share = self.seconds / (pairs * self._count_runs())
        least = _SHARE_OF_START * self.start_seconds
        return max(share - self.start_seconds, least, STRETCH_SECONDS)

    def _can_take_turns(self, challenger: Variant) -> bool:
        """Return whether a challenger and the baseline can run between each other."""
        if challenger.runs_alone or self.baseline.runs_alone:
            return False
        return not self.baseline.shared.tensors & challenger.shared.tensors

    def _make_pair_of_all(self) -> None:
        """Make one pair of rounds of every challenger with the baseline."""
        begun = clock.CLOCK.wall()
        before, planned = self._count_timed_seconds(), self._count_runs()
        for challenger in self.variants[1:]:
            if self._can_take_turns(challenger):
                self._make_pair_by_turns(challenger)
        # A challenger that has just turned out not to take turns is among these.
        alone = [each for each in self.variants[1:] if not self._can_take_turns(each)]
        if alone:
            first = self._number_two_rounds()
            self._run_one_after_the_other([self.baseline, *alone], first)
            self._run_one_after_the_other([*alone[::-1], self.baseline], first + 1)
        if self._count_runs() == planned:  # else one has turned out to run alone
            timed = self._count_timed_seconds() - before
            untimed = clock.CLOCK.wall() - begun - timed
            self.start_seconds = max(0.0, untimed) / planned

    def _number_two_rounds(self) -> int:
        """Return the number of the first of two rounds, which is even."""
        first = self._next_round
        self._next_round += 2
        return first

    def _count_timed_seconds(self) -> float:
        return math.fsum(run.seconds for each in self.variants for run in each.runs)

    def _run_one_after_the_other(self, order: Sequence[Variant], round: int) -> None:
        make_room_for_compiled(len(order))
        for variant in order:
            _time_run(variant, round, max(self._plan_run_seconds(), _LEAST_ALONE))

    def _make_pair_by_turns(self, challenger: Variant) -> None:
        """Make a pair of rounds in which both take turns, as far as they can.

        Where that shows that they cannot, the pair is left out.
        """
        import torch

        first = self._number_two_rounds()
        try:
            self._alternate(self.baseline, challenger, first)
            self._alternate(challenger, self.baseline, first + 1)
        except torch.OutOfMemoryError:
            challenger.runs_alone = True  # each alone may fit; if not, it says so
        except _CannotTakeTurnsError:
            pass
        if not self._can_take_turns(challenger):
            gc.collect()  # an error's frames hold what does not fit
            if clock.find_initialised():
                torch.accelerator.empty_cache()
            for variant in (self.baseline, challenger):
                pair = first, first + 1
                variant.runs = [run for run in variant.runs if run.round not in pair]

    def _alternate(self, one: Variant, other: Variant, round: int) -> None:
        """Time stretches in the order A B, B A, A B … until the time is over."""
        make_room_for_compiled(2)
        seconds = 2 * self._plan_run_seconds()
        with one.drive(round) as a:
            a.open()
            a.warm_up()
            _require_idle(a)
            a.pause()
            with other.drive(round) as b:
                b.open()
                b.warm_up()
                _require_idle(b)
                a.run.took_turns = b.run.took_turns = True
                running, order = b, [a, b]
                begun = clock.CLOCK.wall()
                while True:
                    for driver in order:
                        if driver is not running:
                            running.pause()
                            driver.resume()
                            running = driver
                        driver.keep(STRETCH_SECONDS)
                        _require_idle(driver)
                    order.reverse()
                    if clock.CLOCK.wall() - begun >= seconds:
                        return


class _CannotTakeTurnsError(Exception):
    """One of two variants goes on, or has changed a setting, between its steps."""


def _require_idle(driver: Driver) -> None:
    driver.note_company()
    if driver.variant.runs_alone:
        raise _CannotTakeTurnsError
