"""`measure`: one experiment with one set of knobs."""

from __future__ import annotations

import contextlib
import datetime
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

from kit.clock.experiment import Experiment, ExperimentError, describe, resolve
from kit.clock.log import Log, smoke
from kit.clock.origin import source_of
from kit.clock.run import Run, started
from kit.clock.stage import Place, Stage, check_place, prepare
from kit.clock.turns import take_turn
from kit.figures import format_value
from kit.machine import ticks
from kit.machine.facts import Machine, this_machine
from kit.progress import Progress, Stopped
from kit.trial import JOURNAL, Trial

_LONGEST_WARM_UP = 10.0
#: Libraries are loaded by then: a later start settles sooner, or not at all.
LATER_WARM_UP_SECONDS = 0.5
#: So many starts have an interval; more of them would leave little time to each.
_LIVES = 5


def measure(
    experiment: object,
    /,
    *,
    seconds: float | None = 2.0,
    repeats: int = 1,
    on: Place | None = None,
    **knobs: object,
) -> Trial:
    """Measure one experiment with these knobs.

    `seconds` is timed in all, in five lives (fewer where starts are dear), since
    the same code started again is not equally fast; each life warms up first.
    `seconds=None` runs the generator to its end, `repeats` times, with seeds 0, 1, 2 …
    `on=ranks` runs it on all of these processes at once, in equal steps; their items
    are summed. Returns a Trial. Raises ExperimentError where the experiment cannot be
    measured.

    >>> def count(*, upto=1000):
    ...     while True:
    ...         yield sum(range(upto)) and upto
    >>> measure(count, seconds=0.1, upto=10_000).outcome
    'complete'
    """
    check_arguments("measure()", seconds, repeats)
    check_place("measure()", on)
    resolved = resolve("measure()", experiment)
    stage = prepare(on, resolved, resolved.bind("measure()", knobs))
    with Progress(f"measuring {describe(resolved.name, stage.knobs)}") as progress:
        return measure_watched(stage, progress, seconds, repeats)


def measure_watched(
    stage: Stage,
    progress: Progress,
    seconds: float | None,
    repeats: int,
) -> Trial:
    """Measure what `measure` was asked for, while somebody watches the progress."""
    log, origin = Log(), Origin.find(stage.experiment)
    try:
        with take_turn(progress), contextlib.closing(stage):
            if seconds is None:
                _measure_runs(stage, log, progress, repeats)
            else:
                _measure_lives(stage, log, progress, seconds)
    except Stopped:
        log.stopped = True
    log.disturbed = progress.disturbed
    trial = make_trial(stage, log, origin, whole_runs=seconds is None)
    JOURNAL.append(trial)
    return trial


def _measure_runs(stage: Stage, log: Log, progress: Progress, repeats: int) -> None:
    """Run to the end so many times, with seeds 0, 1, 2 …"""
    for repeat in range(repeats):
        run = Run(stage, log, progress, setup=repeat, seed=repeat)
        with started(run, warm_up_seconds=None, cold=repeat == 0):
            progress.doing = f"run {repeat + 1} of {repeats}"
            progress.begin(repeat, repeats)
            run.to_the_end()
            progress.expect(1.0)


def _measure_lives(stage: Stage, log: Log, progress: Progress, seconds: float) -> None:
    """Time five lives, or as many as `seconds` would pay the starts of.

    The first start, which loads libraries, says little about later ones: how dear they
    are the second one tells.
    """
    life, lives, each, steps = 0, _LIVES, seconds / _LIVES, 1
    left, warm_up = seconds, longest_warm_up(seconds)
    while life < lives:
        run = Run(stage, log, progress, setup=life, steps_per_block=steps)
        with started(run, warm_up_seconds=warm_up, cold=life == 0):
            cost = run.ready - run.begun
            if life == 0 and (smoke() or cost >= seconds):
                lives, each = 1, seconds
            elif life == 1:
                is_dear = (_LIVES - 1) * cost > left
                lives = max(2, 1 + int(left / cost)) if is_dear else _LIVES
                each *= (_LIVES - 1) / (lives - 1)
            left -= cost
            progress.begin(life, lives, each)
            _measure_life(run, each)
        warm_up, steps = LATER_WARM_UP_SECONDS, run.steps_per_block
        life += 1


def _measure_life(run: Run, seconds: float) -> None:
    """Time blocks for so many seconds, one at least."""
    begun = ticks.CLOCK.wall()
    with run.active():
        for count in itertools.count():
            run.block(count)
            spent = ticks.CLOCK.wall() - begun
            run.progress.expect(spent / seconds)
            run.progress.so_far = f"{_rate(run.log):,.4g} items/s so far"
            if spent >= seconds or (smoke() and count):
                return


def longest_warm_up(seconds: float) -> float:
    """Return how long warm-up may last when this many seconds are to be measured."""
    return max(0.5, min(seconds, _LONGEST_WARM_UP))


def _rate(log: Log) -> float:
    latest = log.blocks[-50:]
    seconds = math.fsum(block.seconds for block in latest)
    return math.fsum(block.items for block in latest) / max(seconds, 1e-12)


@dataclass(frozen=True)
class Origin:
    """Where a trial comes from: machine, source of the experiment, time of day."""

    machine: Machine
    source: str
    started: str

    @classmethod
    def find(cls, experiment: Experiment) -> Origin:
        """Look around, once per measurement."""
        now = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
        return cls(this_machine(), source_of(experiment.own), now)


def make_trial(
    stage: Stage,
    log: Log,
    origin: Origin,
    *,
    whole_runs: bool,
    conditions: Mapping[str, float] | None = None,
) -> Trial:
    """Make a Trial of what was logged."""
    notes = list(stage.notes)
    if stage.shared:
        names = ", ".join(stage.shared)
        notes.append(f"Shared and put back at each start: {names}.")
    if log.ended_children:
        children = ", ".join(log.ended_children)
        notes.append(f"Processes still alive after the end were ended: {children}.")
    settled = 2 * log.unsettled_starts <= len(log.starts)
    outcome = "complete" if settled else "not settled"
    outcome = "disturbed" if log.disturbed else outcome
    return Trial(
        experiment=stage.experiment.name,
        title=stage.experiment.title,
        knobs=dict(stage.knobs),
        block_seconds=[block.seconds for block in log.blocks],
        block_wall_seconds=[block.wall_seconds for block in log.blocks],
        block_device_seconds=[block.device_seconds for block in log.blocks],
        block_items=[block.items for block in log.blocks],
        block_steps=[block.steps for block in log.blocks],
        block_setups=[block.setup for block in log.blocks],
        block_rounds=[block.round for block in log.blocks],
        block_rank_seconds=[b.rank_seconds for b in log.blocks if b.rank_seconds],
        setup_seconds=[start.seconds for start in log.starts],
        start_setups=[start.setup for start in log.starts],
        start_memory_bytes=[start.memory_bytes for start in log.starts],
        excluded_seconds=math.fsum(block.excluded_seconds for block in log.blocks),
        peak_memory_bytes=log.starts[0].memory_bytes if log.starts else None,
        metrics=_join_metrics(log),
        machine=origin.machine,
        source=origin.source,
        started=origin.started,
        outcome="stopped" if log.stopped else outcome,
        whole_runs=whole_runs,
        notes=notes,
        conditions=dict(conditions or {}),
    )


def _join_metrics(log: Log) -> dict[str, list[float]]:
    """Return each metric as one float per counted step, nan where it was not given."""
    steps = sum(block.steps for block in log.blocks)
    joined: dict[str, list[float]] = {}
    offset = 0
    for block in log.blocks:
        for step, metrics in block.metrics:
            for name, value in metrics.items():
                column = joined.setdefault(name, [math.nan] * steps)
                column[offset + step] = value
        offset += block.steps
    return joined


def check_arguments(caller: str, seconds: float | None, repeats: int) -> None:
    """Raise ExperimentError for arguments that no experiment can be measured with."""
    number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if seconds is not None and not (number and 0 < seconds < math.inf):
        raise ExperimentError(
            f"{caller}: seconds={format_value(seconds)} is not a time to measure for.\n"
            "Use a positive number, or seconds=None to run the generator to its end."
        )
    if not isinstance(repeats, int) or isinstance(repeats, bool) or repeats < 1:
        raise ExperimentError(
            f"{caller}: repeats={format_value(repeats)} is not a number of runs.\n"
            "Use a whole number, 1 or more."
        )
