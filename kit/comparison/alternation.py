"""Measures a baseline and a challenger by turns, so that drift hits both alike."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kit.clock.experiment import Experiment
from kit.clock.log import Log, smoke
from kit.clock.measuring import Origin, longest_warm_up, make_trial
from kit.clock.progress import Progress
from kit.clock.run import BLOCK_SECONDS, Run, started
from kit.clock.snapshot import SharedObjects
from kit.comparison.ratio import Ratio, compare_trials
from kit.machine import load, ticks
from kit.trial import Trial

#: So much of a larger budget goes into each pair of set-ups, in seconds.
_SECONDS_PER_PAIR = 3.0
#: Libraries are loaded by then: a later start settles sooner, or not at all.
_WARM_UP_SECONDS = 0.5
#: Honest pairs, or patience, may take this many times the budget.
_MOST_OVER = 3.0


@dataclass
class Variant:
    """One experiment with one set of knobs, and all that was logged about it."""

    experiment: Experiment
    knobs: Mapping[str, object]
    label: str
    shared: SharedObjects
    origin: Origin
    whole_runs: bool
    log: Log = field(default_factory=Log)
    conditions: dict[str, float] = field(default_factory=dict)
    start_cost: float = 0.0
    block_cost: float = 0.0
    can_be_suspended: bool = True

    def run(self, progress: Progress, setup: int, *, seed: int = 0) -> Run:
        """Make a new life of this variant."""
        return Run(
            self.experiment,
            self.knobs,
            self.log,
            progress,
            setup=setup,
            seed=seed,
            shared=self.shared,
        )

    def trial(self) -> Trial:
        """Make a Trial of all that was logged so far."""
        return make_trial(
            self.experiment,
            self.knobs,
            self.log,
            self.origin,
            whole_runs=self.whole_runs,
            shared=self.shared,
            conditions=self.conditions,
        )

    def start_cold(self, progress: Progress, seconds: float | None) -> None:
        """Start it alone for the first time: memory, cost of a start, of a block."""
        warm_up = None if seconds is None else longest_warm_up(seconds)
        run = self.run(progress, -1)
        with started(run, warm_up_seconds=warm_up, cold=True):
            self.can_be_suspended = run.can_be_suspended
            step, closing = run.step_seconds, ticks.CLOCK.wall()
        self.start_cost = run.ready - run.begun + ticks.CLOCK.wall() - closing
        self.block_cost = max(BLOCK_SECONDS, step) + step / 2


@dataclass(frozen=True)
class Plan:
    """How a budget is spent: pairs of set-ups, and rounds within each set-up."""

    pairs: int
    rounds: int
    seconds: float


def plan(
    seconds: float, least_pairs: int, start_cost: float, round_cost: float
) -> Plan:
    """Divide the budget, all in seconds.

    At least `least_pairs` pairs of set-ups where starting is cheap, even where that
    takes longer than asked; fewer where it would take more than three times as long.

    >>> plan(4.0, 5, start_cost=0.1, round_cost=0.1).pairs
    5
    """

    def cost(pairs: int, rounds: int) -> float:
        return 2 * pairs * (start_cost + rounds * round_cost)

    if smoke():
        return Plan(2, 1, cost(2, 1))
    # A longer life sees what happens seldom, such as the end of an epoch: most of a
    # large budget goes there.
    pairs = max(least_pairs, min(2 * least_pairs, int(seconds / _SECONDS_PER_PAIR)))
    left = seconds / (2 * pairs) - start_cost
    rounds = max(1, int(left / round_cost))
    if cost(pairs, rounds) > _MOST_OVER * seconds:
        pairs = max(1, int(_MOST_OVER * seconds / cost(1, rounds)))
        left = seconds / (2 * pairs) - start_cost
        rounds = max(rounds, int(left / round_cost))
    return Plan(pairs, rounds, cost(pairs, rounds))


def alternate_rates(
    baseline: Variant,
    challenger: Variant,
    *,
    first_setup: int,
    seconds: float,
    least_pairs: int,
    patient: bool,
    progress: Progress,
    part: tuple[int, int],
) -> int:
    """Measure rates in ABBA rounds; return the number of the next set-up.

    Set-ups come in pairs: in one the baseline is created first, in the other the
    challenger. Where one of them cannot be suspended, only one is alive at a time.
    """
    order = random.Random(first_setup)
    wanted = plan(
        seconds,
        least_pairs,
        baseline.start_cost + challenger.start_cost,
        2 * (baseline.block_cost + challenger.block_cost),
    )
    progress.begin(*part, seconds=wanted.seconds)
    if wanted.seconds > 1.2 * seconds and not smoke():
        total = wanted.seconds * part[1]
        progress.note = f"honest pairs need about {total:.0f} s in all"
    together = baseline.can_be_suspended and challenger.can_be_suspended
    measure = _measure_together if together else _measure_in_turn
    before, begun, pair = load.read(), ticks.CLOCK.wall(), 0
    while True:
        for swapped in (False, True):
            setup = first_setup + 2 * pair + swapped
            variants = [challenger, baseline] if swapped else [baseline, challenger]
            measure(variants, setup, wanted.rounds, _WARM_UP_SECONDS, progress, order)
            progress.expect((2 * pair + 1 + swapped) / (2 * wanted.pairs))
        pair += 1
        ratio = compare_trials(baseline.trial(), challenger.trial())
        progress.so_far = f"{challenger.label}: {ratio.value:.3g} × so far"
        # Costs of later starts are known only now: the budget decides, not the plan.
        end = (ticks.CLOCK.wall() - begun) * (pair + 1) / pair
        if smoke():
            done = pair == wanted.pairs
        elif patient:
            narrow = pair >= least_pairs and not _is_wide(ratio)
            done = narrow or end > _MOST_OVER * seconds
        else:
            done = end > (seconds if pair >= least_pairs else _MOST_OVER * seconds)
        if done:
            break
    conditions = _conditions(before, load.read())
    baseline.conditions = _worst(baseline.conditions, conditions)
    challenger.conditions = conditions
    return first_setup + 2 * pair


def _is_wide(ratio: Ratio) -> bool:
    return not ratio.high / ratio.low < 1.01**2


def _measure_together(
    variants: list[Variant],
    setup: int,
    rounds: int,
    warm_up: float,
    progress: Progress,
    order: random.Random,
) -> None:
    with contextlib.ExitStack() as stack:
        runs = []
        for variant in variants:
            for run in runs:
                run.suspend()
            run = variant.run(progress, setup)
            runs.append(stack.enter_context(started(run, warm_up_seconds=warm_up)))
        active = runs[1]
        for number in range(rounds):
            first, second = order.sample(runs, 2)
            for run, blocks in ((first, 1), (second, 2), (first, 1)):
                if run is not active:
                    active.suspend()
                    active = run
                with run.active():
                    for _ in range(blocks):
                        run.block(number)


def _measure_in_turn(
    variants: list[Variant],
    setup: int,
    rounds: int,
    warm_up: float,
    progress: Progress,
    order: random.Random,
) -> None:
    """Measure one after the other, each alone: all their blocks are one round."""
    for variant in variants:
        run = variant.run(progress, setup)
        with started(run, warm_up_seconds=warm_up), run.active():
            for _ in range(2 * rounds):
                run.block()


def alternate_whole(
    baseline: Variant,
    challenger: Variant,
    act: Callable[[Variant, int, int], None],
    *,
    first_setup: int,
    repeats: int,
    progress: Progress,
    part: tuple[int, int],
) -> int:
    """Let both act `repeats` times, alone, in random order; return the next set-up.

    `act(variant, setup, repeat)` does one whole run, one set-up, or one look at memory.
    """
    order = random.Random(first_setup)
    progress.begin(*part)
    for repeat in range(repeats):
        for variant in order.sample([baseline, challenger], 2):
            act(variant, first_setup + repeat, repeat)
        progress.expect((repeat + 1) / repeats)
    return first_setup + repeats


def run_to_the_end(progress: Progress) -> Callable[[Variant, int, int], None]:
    """Return an act: one whole run, seeded with the number of the repeat."""

    def act(variant: Variant, setup: int, repeat: int) -> None:
        run = variant.run(progress, setup, seed=repeat)
        with started(run, warm_up_seconds=None, cold=not variant.log.starts):
            progress.doing = f"run {repeat + 1} of {run.call}"
            run.to_the_end()

    return act


def start_only(progress: Progress) -> Callable[[Variant, int, int], None]:
    """Return an act: one set-up."""

    def act(variant: Variant, setup: int, repeat: int) -> None:
        with started(variant.run(progress, setup), warm_up_seconds=None):
            pass

    return act


def watch_memory(
    progress: Progress, seconds: float
) -> Callable[[Variant, int, int], None]:
    """Return an act: one start and warm-up, watched for the memory it adds."""

    def act(variant: Variant, setup: int, repeat: int) -> None:
        run = variant.run(progress, setup)
        with started(run, warm_up_seconds=longest_warm_up(seconds), cold=True):
            pass

    return act


def _conditions(before: load.Load, after: load.Load) -> dict[str, float]:
    """Return how busy others kept the machine, and how many cores we used."""
    wall = after.wall - before.wall
    process = after.process - before.process
    return {
        "others_cores": max(0.0, after.everyone - before.everyone - process) / wall,
        "cores_per_thread": process / max(after.thread - before.thread, 1e-9),
        "waiting": (after.waited - before.waited) / wall,
    }


def _worst(a: Mapping[str, float], b: Mapping[str, float]) -> dict[str, float]:
    return {key: max(a.get(key, 0.0), b[key]) for key in b}
