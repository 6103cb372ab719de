"""Short probes: what a sample, a batch, its way to the main process, a step take."""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kit import clock, stats, system
from kit.experiment import Experiment
from kit.life import BLOCK_SECONDS, Life
from kit.progress import Progress
from kit.state import Shared
from kit.tuning.loop import Epoch, Loop, count_bytes, count_items
from kit.variant import Variant

#: Pauses take no longer than this in all, in seconds: beside slow batches, what taking
#: one over costs hardly matters.
_PAUSES, _MOST_PAUSING = 6, 0.6
#: A stretch is timed in so many blocks.
_BLOCKS = 16


@dataclass(frozen=True)
class Probes:
    """What the probes found, per batch where nothing else is said; times in seconds.

    `sample_seconds` and `collate_seconds` are those of the main process. One worker
    makes a batch in `load_seconds`, of which it waits `waiting_seconds` and computes
    the rest; without workers it is `alone_seconds`. Taking a batch over from a worker
    costs the main process `carry_seconds`. A step alone takes `step_seconds` on
    `step_cores`. `unevenness` is a slow batch over the mean one. At each start of an
    epoch `start_seconds` go by, and `fork_seconds` for each further worker. An unknown
    is nan.
    """

    batch_size: int
    batch_bytes: int
    cores: int
    sample_seconds: float = math.nan
    collate_seconds: float = math.nan
    alone_seconds: float = math.nan
    load_seconds: float = math.nan
    waiting_seconds: float = 0.0
    carry_seconds: float = 0.0
    unevenness: float = 1.0
    start_seconds: float = 0.0
    fork_seconds: float = 0.0
    step_seconds: float = 0.0
    step_cores: float = 1.0
    batches_per_epoch: float = math.inf


@dataclass
class Watch:
    """Who watches a tuning, how long it may still take, and what its steps train."""

    progress: Progress
    shared: Shared
    seconds: float
    deadline: float
    starts: int = 0

    @property
    def left(self) -> float:
        """Return the seconds that are left."""
        return self.deadline - clock.CLOCK.wall()

    def say(self, doing: str) -> None:
        """Tell what is done now, and how much of the time is spent."""
        self.progress.doing = doing
        self.progress.expect(1 - self.left / self.seconds)


class Drive:
    """One life of a loop: driven step by step, its blocks timed by the clock."""

    def __init__(self, life: Life, watch: Watch) -> None:
        self._life, self._watch = life, watch

    def drive(self, seconds: float, least: int = 1) -> stats.Estimate:
        """Time steps for so many seconds, at least so many; return items per second.

        Time that is running out ends it after one step.
        """
        begun, first = clock.CLOCK.wall(), len(self._life.blocks)
        # Workers go on between blocks, so few and long ones are fairer than many.
        self._life.variant.block_seconds = max(BLOCK_SECONDS, seconds / _BLOCKS)
        steps = 0
        while True:
            self._life.block()
            steps += self._life.blocks[-1].steps
            spent = clock.CLOCK.wall() - begun
            self._watch.progress.expect(1 - self._watch.left / self._watch.seconds)
            if self._watch.left <= 0 or (spent >= seconds and steps >= least):
                break
        blocks = self._life.blocks[first:]
        # Wall time: while this process waits for a core, its workers go on.
        seconds_each = [block.wall_seconds for block in blocks]
        self.step_seconds = math.fsum(seconds_each) / steps
        return stats.rate_interval([block.items for block in blocks], seconds_each)

    def step(self) -> None:
        """Do a single step."""
        self._life.variant.block_seconds = 0.0
        self._life.block()


@contextlib.contextmanager
def live(experiment: Experiment, watch: Watch) -> Generator[Drive, None, None]:
    """Start a life of an experiment, and end it and its workers whatever happens."""
    variant = Variant(experiment, experiment.fixed)
    variant.shared = watch.shared
    with contextlib.closing(variant), variant.lead(0, watch.progress) as life:
        life.open()
        yield Drive(life, watch)


def probe_worker(
    loop: Loop, watch: Watch, seconds: float
) -> tuple[dict[str, Any], stats.Estimate | None]:
    """Watch one worker make batches that nobody waits for, then with steps.

    Returns fields of Probes, and items per second with steps (None where time is out).
    """
    watch.say("watching one worker make batches")
    with live(loop.experiment(), watch) as life:
        life.drive(seconds, least=2)
        found = _read_epochs(loop.epochs)
        pause = 2.5 * found["load_seconds"]
        pauses = min(_PAUSES, int(_MOST_PAUSING / max(pause, 1e-3)))
        for _ in range(pauses if watch.left > pause * pauses else 0):
            loop.pause(pause)
            life.step()
        # What others do to this process at times is no part of what it needs.
        carry = sorted(loop.carries)[len(loop.carries) // 4] if loop.carries else 0.0
        found["carry_seconds"] = min(carry, found["load_seconds"])
        found |= {
            "batch_size": count_items(loop.batch, loop.batch_size),
            "batch_bytes": count_bytes(loop.batch),
        }
        measured = None
        if watch.left > 4 * found["load_seconds"]:
            loop.stepping = True
            life.drive(0.1 * seconds, least=4)
            measured = life.drive(seconds, least=4)
    return found, measured


def _read_epochs(epochs: Sequence[Epoch]) -> dict[str, float]:
    """Make of arrivals what a batch takes, and what the start of an epoch adds."""
    intervals = [seconds for epoch in epochs for seconds in epoch.intervals()]
    first = epochs[0]
    if not intervals:  # an epoch of one batch, or a very slow one
        intervals = [first.arrivals[0] - first.started]
    mean = statistics.fmean(intervals)
    batches = computed = 0.0
    for epoch in epochs:
        if len(epoch.looks) > 1:
            (begin, before), (end, after) = epoch.looks[0], epoch.looks[-1]
            batches, computed = batches + end - begin, computed + after - before
    computing = computed / batches if batches else mean
    # The very first start may have had libraries to load.
    starts = [e for e in epochs if e.arrivals][1:] or [first]
    begin = statistics.fmean(e.arrivals[0] - e.begun - mean for e in starts)
    ends = [e.ended - e.arrivals[-1] for e in epochs if e.ended and e.arrivals]
    ordered = sorted(intervals)
    slow = ordered[math.ceil(0.95 * len(ordered)) - 1]
    return {
        "load_seconds": mean,
        "waiting_seconds": max(0.0, mean - computing),
        "unevenness": max(1.0, slow / mean),
        "start_seconds": max(0.0, begin) + (statistics.fmean(ends) if ends else 0.0),
        "fork_seconds": statistics.fmean(e.started - e.begun for e in starts),
    }


def probe_alone(
    loop: Loop, watch: Watch, seconds: float
) -> tuple[float, stats.Estimate | None]:
    """Let the main process make the batches itself, then with steps.

    Returns seconds per batch without steps, and items per second with them (None where
    time is out).
    """
    watch.say("making batches without workers")
    with live(loop.experiment(), watch) as life:
        life.drive(0.05 * seconds)
        alone = life.drive(seconds)
        alone_seconds = life.step_seconds
        if loop.step is None:
            return alone_seconds, alone
        if watch.left < 2 * alone_seconds:
            return alone_seconds, None
        loop.stepping = True
        life.drive(0.05 * seconds)
        return alone_seconds, life.drive(seconds)


def probe_step(
    step: Callable[[Any], object], batch: Any, watch: Watch, seconds: float
) -> tuple[float, float]:
    """Do the step on one kept batch; return its seconds and how many cores it uses."""
    watch.say("timing the step on one batch that is kept")

    def repeat() -> Iterator[int]:
        while True:
            step(batch)
            yield 1

    with live(Experiment(repeat, "step", "Repeat a step."), watch) as life:
        life.drive(0.2 * seconds, least=3)
        before = system.read_load()
        life.drive(seconds)
        after = system.read_load()
    busy = (after.process - before.process) / max(after.wall - before.wall, 1e-9)
    return life.step_seconds, busy


def probe_samples(
    loader: Any, seconds: float, batches: Iterable[Sequence[Any]]
) -> tuple[float, float]:
    """Time single samples in this process, and their collating.

    Reads batches, given as indices, while there is time. Returns seconds per sample and
    per collating; nan where a data set has no index.
    """
    wall = clock.CLOCK.wall
    begun, reading, collating = wall(), [], []
    for indices in batches:
        samples = []
        for index in indices:
            before = wall()
            samples.append(read_sample(loader.dataset, index))
            reading.append(wall() - before)
        for _ in range(3):
            before = wall()
            loader.collate_fn(
                samples if loader.batch_sampler is not None else samples[0]
            )
            collating.append(wall() - before)
        if wall() - begun > seconds:
            break
    if not reading:
        return math.nan, math.nan
    return statistics.fmean(reading), statistics.median(collating)


def read_sample(dataset: Any, index: Any) -> Any:
    """Read one sample as a loader does."""
    if hasattr(dataset, "__getitems__"):
        return dataset.__getitems__([index])[0]
    return dataset[index]


def measure_workers(loop: Loop, watch: Watch, seconds: float) -> stats.Estimate:
    """Measure the loop with its steps, past the batches that were made ahead."""
    workers = int(loop.settings["num_workers"])  # type: ignore[call-overload]
    watch.say(f"measuring {workers} workers")
    loop.stepping = True
    with live(loop.experiment(), watch) as life:
        ahead = workers * ((loop.prefetch_factor or 2) + 1)
        life.drive(0.1 * seconds, least=ahead)
        return life.drive(seconds, least=2 * workers)
