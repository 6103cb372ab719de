"""`compare`: every combination of the choices, the first is the baseline."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from kit.clock.log import smoke
from kit.clock.measuring import check_arguments
from kit.clock.stage import Place, check_places
from kit.clock.turns import take_turn
from kit.comparison import alternation
from kit.comparison.alternation import Variant
from kit.comparison.budget import Budget, Pairing
from kit.comparison.choices import check_metric, check_quantity, make_variants
from kit.comparison.conditions import choose_block_seconds, watched
from kit.comparison.quantities import QUANTITIES, SPEED
from kit.comparison.result import Comparison, hold_together
from kit.machine import ticks
from kit.progress import Progress, Stopped
from kit.trial import JOURNAL

#: So many whole runs of each, unless more are asked for.
REPEATS = 6
#: So many pairs of turns a rate gets at least, and so many turns a start.
_LEAST_PAIRS, _TURNS_OF_STARTS = 5, 6
#: So much of the budget goes into a longer look at the first life of each variant.
_LOOK_SHARE = 0.15


def compare(
    experiment: object,
    /,
    *,
    of: str = SPEED,
    seconds: float | None = 4.0,
    repeats: int = REPEATS,
    within: float | None = None,
    on: Place | list[Place] | None = None,
    patient: bool = False,
    title: str | None = None,
    **choices: object,
) -> Comparison:
    """Compare every combination of the choices by turns; the first is the baseline.

    Lists and ranges are choices, everything else is a value. `experiment` may also be
    a dict of experiments by name. `seconds` is the total; `seconds=None` runs each
    generator to its end, `repeats` times. `of` names what is compared: a quantity or a
    metric, which needs `within`, the difference that counts as the same. `on` is where
    they run, `ranks` for one, or a choice: `on=[ranks[:1], ranks]`.
    `patient=True` goes on to three times the budget where the interval is wide. `title`
    stands above reports and pictures in place of the finding.
    Raises ExperimentError where something cannot be compared.

    >>> def add(*, upto=1000):
    ...     while True:
    ...         yield sum(range(upto)) and 1
    >>> compare(add, upto=[1000, 100_000], seconds=2.0).ratio.value < 0.5
    True
    """
    check_arguments("compare()", seconds, repeats)
    check_quantity(of, seconds, within)
    places = check_places("compare()", on)
    variants = make_variants(experiment, places, choices, whole_runs=seconds is None)
    names = " · ".join(variant.label for variant in variants)
    with Progress(f"comparing {names}"[:100]) as progress:
        return compare_watched(
            variants, progress, of, within, seconds, repeats, patient, title=title
        )


def compare_watched(
    variants: Sequence[Variant],
    progress: Progress,
    of: str,
    within: float | None,
    seconds: float | None,
    repeats: int,
    patient: bool,
    *,
    title: str | None = None,
    journal: list[object] = JOURNAL,
) -> Comparison:
    """Compare what `compare` was asked for, while somebody watches the progress.

    A recording keeps what is in `journal` by default; another list keeps it from that.
    """
    stopped = False
    try:
        with take_turn(progress), contextlib.ExitStack() as stack:
            for variant in variants:
                stack.enter_context(contextlib.closing(variant.stage))
            _alternate(variants, of, seconds, repeats, patient, progress)
    except Stopped:
        stopped = True
    for variant in variants:
        variant.log.stopped, variant.log.disturbed = stopped, progress.disturbed
    trials = [variant.trial() for variant in variants]
    labels = [variant.label for variant in variants]
    comparison = Comparison(trials, labels, of, within, title)
    journal.extend([*trials, comparison])
    return comparison


def _alternate(
    variants: Sequence[Variant],
    of: str,
    seconds: float | None,
    repeats: int,
    patient: bool,
    progress: Progress,
) -> None:
    """Start each variant cold and alone, then each challenger beside the baseline."""
    begun = ticks.CLOCK.wall()
    with watched(variants) as look:
        if seconds is not None:
            look_seconds = _LOOK_SHARE * seconds / len(variants) * (of == SPEED)
            for variant in variants:
                variant.start_cold(progress, seconds, look_seconds)
        else:
            for variant in variants:
                variant.start_uncounted(progress)
        baseline, *challengers = variants
        if of == SPEED and seconds is not None:
            choose_block_seconds(variants, look)
            budget = Budget(seconds, _LEAST_PAIRS, patient, begun)
            pairings = [Pairing(baseline, challenger) for challenger in challengers]
            budget.spend(pairings, hold_together(len(challengers)), progress)
            return
        if of == "setup_seconds":
            act = alternation.start_only(progress)
        elif of == "peak_memory_bytes":
            act = alternation.watch_memory(progress, seconds or 0.0)
        else:
            act = _run_whole(of, progress)
        turns = repeats if seconds is None else _TURNS_OF_STARTS
        turns = 2 if smoke() else turns
        for index, challenger in enumerate(challengers):
            alternation.alternate_whole(
                baseline,
                challenger,
                act,
                first_setup=index * turns,
                repeats=turns,
                progress=progress,
                part=(index, len(challengers)),
            )


def _run_whole(of: str, progress: Progress) -> alternation.Act:
    """Return an act: one whole run, checked for the metric that is compared."""
    run = alternation.run_to_the_end(progress)

    def act(variant: Variant, setup: int, repeat: int) -> None:
        run(variant, setup, repeat)
        if of not in QUANTITIES:
            check_metric(of, [variant.trial()])

    return act
