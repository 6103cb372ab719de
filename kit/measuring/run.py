"""One run of an experiment: start, warm-up, timed stretches, close."""

from __future__ import annotations

import functools
import math
import mmap
import random
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar

from kit import clock, system
from kit.errors import ExperimentError
from kit.machine import this_machine
from kit.measuring.experiment import Experiment, describe, parse_yield
from kit.measuring.records import Run, Stretch, Trial
from kit.measuring.settings import (
    Shared,
    read_random,
    read_settings,
    restore_random,
    restore_settings,
    seed_everything,
)
from kit.mode import is_quick

#: A stretch, and a window of warm-up, last so long at least, in seconds …
STRETCH_SECONDS = 0.020
#: … and where a device has a queue, a stretch has so many steps: to wait for the device
#: hides what overlaps between two of them.
STEPS_ON_DEVICE = 20
#: Warm-up ends where windows agree within so much, or after so many of them.
_AGREE, _MOST_WINDOWS = 0.10, 8
#: A generator that yields so often without a number has forgotten it.
_MOST_BARE_YIELDS = 1000
_QUICK_STEPS = 2
#: Processes that end are looked for so often, every 10 ms; what is left is named.
_LOOKS = 50
#: `torch.compile` keeps at most eight versions of a function, then it gives up.
_MOST_COMPILED = 8
#: Threads that belong to all: the kit's own, and those that compile for PyTorch.
_COMMON_THREADS = ("kit ", "InductorSubproc")
#: A thread of C++ that has run Python is a dummy; the other is tqdm's.
_IDLE_THREADS = ("_DummyThread", "TMonitor")
_AGAIN = "The first yield ends set-up; then yield once per step. Is its loop empty?"


def _now() -> str:
    return datetime.now().astimezone().isoformat("T", "seconds")


@dataclass(eq=False)
class Variant:
    """An experiment with one set of knobs, and its runs so far."""

    #: What drives its runs elsewhere than in this process: a class like Driver.
    driver: ClassVar[type | None] = None

    experiment: Experiment
    knobs: Mapping[str, object]
    label: str = ""
    #: Whether a step may handle no items, as on one of several ranks.
    may_be_empty: bool = False
    #: Whether another one must not run between its steps.
    runs_alone: bool = False
    runs: list[Run] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    outcome: str = "finished"
    started: str = field(default_factory=_now)

    @property
    def call(self) -> str:
        """The call as a reader would write it."""
        return describe(self.experiment.name, self.knobs)

    @functools.cached_property
    def shared(self) -> Shared:
        """The modules and optimizers that it closes over."""
        return Shared(self.experiment.own, self.knobs)

    def drive(self, round: int, seed: int = 0) -> Driver:
        """Return what drives a new run of it."""
        kind: type[Driver] = self.driver or Driver
        return kind(self, round, seed)

    def note(self, sentence: str) -> None:
        """Add a sentence to its notes, once."""
        if sentence not in self.notes:
            self.notes.append(sentence)


def make_trial(variant: Variant, *, complete_runs: bool) -> Trial:
    """Make a Trial of a variant's runs so far."""
    outcome = variant.outcome
    settled = [run.settled for run in variant.runs]
    if is_quick():
        outcome = "quick"
    elif outcome == "finished" and 2 * sum(settled) < len(settled):
        outcome = "not settled"
    return Trial(
        experiment=variant.experiment.name,
        title=variant.experiment.title,
        knobs=dict(variant.knobs),
        runs=list(variant.runs),
        machine=this_machine(),
        started=variant.started,
        outcome=outcome,
        complete_runs=complete_runs,
        notes=list(variant.notes),
    )


class Driver:
    """Drives one run; what it measures is in `run`.

    Use it as a context manager: `open`, `warm_up`, then `keep` again and again, or
    `run_to_end`. On ranks, `prepare`, `start`, `advance` and `close` are others.
    """

    def __init__(self, variant: Variant, round: int, seed: int = 0) -> None:
        self.variant = variant
        self.seed = seed
        self.run = Run(round)
        #: Seconds of a step, as warm-up has found them; 0 before.
        self.step_seconds = 0.0
        #: Whether the generator has ended, and how long it went on after its last step.
        self.has_ended = False
        self.tail_seconds = 0.0
        #: The error that the experiment itself has raised.
        self.error: BaseException | None = None
        self._steps_done = 0
        self._steps_since_start = 0
        self._generator: Any = None
        self._memory_watch: system.MemoryWatch | None = None
        self._children: set[int] = set()
        self._is_open = False

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        self.close(error)

    # Start and warm-up

    def open(self, *, watch_memory: bool = False) -> Stretch:
        """Start the generator, and return what it did up to its first yield."""
        self.prepare()
        if watch_memory:
            watch = system.MemoryWatch()
            watch.begin()  # what interrupts it has nothing to end
            self._memory_watch = watch
        first = self.start(self.seed)
        if first is None:
            call = self.variant.call
            raise ExperimentError(f"{call} ended without a single `yield n`.\n{_AGAIN}")
        self.run.setup_seconds = first.seconds
        self.variant.runs.append(self.run)
        return first

    def prepare(self) -> None:
        """Note what is there before the start: settings, random states, processes.

        And take some memory. In one process the same code finds the same memory in
        every run, and how that suits the caches would become the verdict. Blocks stay
        small: a large one that is freed raises malloc's thresholds, which pages that
        are mapped do not.
        """
        _ = self.variant.shared
        self._settings = read_settings()
        self._random = read_random()
        self._threads = set(threading.enumerate())
        self._children = system.list_children()
        draw = random.SystemRandom().randint
        self._blocks = [bytearray(draw(1, 60_000)) for _ in range(4)]
        self._pages = mmap.mmap(-1, draw(1, 3_000) * mmap.PAGESIZE)
        for start in range(0, len(self._pages), mmap.PAGESIZE):
            self._pages[start] = 1  # the system gives a page to whoever writes to it
        self._is_open = True

    def start(self, seed: int) -> Stretch | None:
        """Start the generator, and run it to its first yield.

        Returns that as a stretch of one step, of none where the yield is bare; None
        where it ended without a yield.
        """
        variant = self.variant
        restore_settings(self._settings)
        variant.shared.put_back()
        seed_everything(seed)
        self.has_ended = False
        first = Stretch()
        clock.synchronize()
        begun = clock.CLOCK.wall()
        try:
            self._generator = variant.experiment.start(variant.knobs)
            value = next(self._generator)
        except StopIteration:
            return None
        except BaseException as error:
            self._note_error(error, "set-up")
            raise
        clock.synchronize()
        first.seconds = clock.CLOCK.wall() - begun
        if value is not None:
            self._take(value, first)
            _read_metrics(first)
        self._steps_since_start = 0
        return first

    def warm_up(self) -> None:
        """Run windows of steps until the latest ones agree, eight at most."""
        if is_quick():
            return
        times: list[float] = []
        while len(times) < _MOST_WINDOWS:
            window = self.time(1, STRETCH_SECONDS)
            times.append(window.seconds / window.steps)
            self.step_seconds = times[-1]
            if (agreed := find_agreement(times)) is not None:
                self.step_seconds = agreed
                return
        self.run.settled = False

    # Timing

    def keep(self, seconds: float) -> None:
        """Time a stretch of at least so many seconds, and keep it."""
        if is_quick():
            stretch = self.time(_QUICK_STEPS)
        elif self.has_queue():
            stretch = self.time(STEPS_ON_DEVICE, seconds)
        else:
            stretch = self.time(1, max(seconds, STRETCH_SECONDS))
        self.run.add(stretch)

    def time(self, steps: int, seconds: float = 0.0) -> Stretch:
        """Time at least so many steps and so much time.

        A generator that ends is started again: what it does up to its first yield is
        not timed.
        """
        if self.has_queue():
            # The host runs ahead of the device, so only a number of steps is sure.
            if self.step_seconds:
                steps = max(steps, math.ceil(seconds / self.step_seconds))
            seconds = 0.0
        stretch = Stretch()
        while stretch.steps < steps or stretch.seconds < seconds:
            missing = max(steps - stretch.steps, 1)
            stretch.extend(self.advance(missing, seconds - stretch.seconds))
            if self.has_ended:
                self.restart()
        return stretch

    def has_queue(self) -> bool:
        """Return whether it uses a device, whose work goes on after a call."""
        return clock.has_queue()

    def restart(self) -> None:
        """Start a generator again that has ended."""
        if not self._steps_since_start or self.start(self.seed) is None:
            raise ExperimentError(
                f"{self.variant.call} ended after its first yield, which ends set-up, "
                "so there is no step to time.\nPut `while True:` around its loop, or "
                "measure complete runs: seconds=None."
            )

    def run_to_end(self, first: Stretch) -> None:
        """Go on to the generator's end; keep the complete run as one stretch.

        `first` is what `open` returned; where it ended with a bare yield, it is left
        out.
        """
        whole = Stretch()
        if first.steps:
            whole.extend(first)
        most = _QUICK_STEPS - whole.steps if is_quick() else math.inf
        whole.extend(self.advance(most))
        whole.seconds += self.tail_seconds
        if not whole.steps:
            raise ExperimentError(
                f"{self.variant.call} completed no step.\n"
                "Yield how many items each step handled."
            )
        self.run.add(whole)

    def advance(self, steps: float, seconds: float = 0.0) -> Stretch:
        """Time steps until so many are done, and so much time, or the generator ends.

        Devices are waited for at the beginning and at the end only. What follows the
        last step belongs to none; `tail_seconds` is how long that took.
        """
        wall = clock.CLOCK.wall
        generator = self._generator
        stretch = Stretch()
        bare_yields = 0
        self.tail_seconds = 0.0
        clock.synchronize()
        begun = previous = wall()
        until = begun + seconds
        try:
            while stretch.steps < steps or previous < until:
                value = next(generator)
                now = wall()
                if value is None and bare_yields < _MOST_BARE_YIELDS:
                    stretch.excluded_seconds += now - previous
                    until += now - previous
                    bare_yields += 1
                else:
                    self._take(value, stretch)
                    bare_yields = 0
                previous = now
        except StopIteration:
            self.has_ended = True
            self.tail_seconds = wall() - previous
        except BaseException as error:
            self._note_error(error, f"step {self._steps_done + 1}")
            raise
        clock.synchronize()
        left_out = stretch.excluded_seconds + self.tail_seconds
        if stretch.steps:
            stretch.seconds = max(wall() - begun - left_out, 1e-9)
        _read_metrics(stretch)
        return stretch

    def _take(self, value: object, stretch: Stretch) -> None:
        """Add what a step has yielded; metrics are copied where they are, not read."""
        if value.__class__ is int and value > 0:  # type: ignore[operator]
            stretch.items += value  # type: ignore[operator]
        else:
            try:
                least = 0 if self.variant.may_be_empty else 1
                items, row = parse_yield(value, least=least)
            except ValueError as error:
                raise ExperimentError(
                    f"{self.variant.call} yielded {error}.\nYield items, as in "
                    '`yield len(images)`, or `yield n, {"loss": loss}`.'
                ) from None
            stretch.items += items
            if row:
                row = {name: _copy_metric(metric) for name, metric in row.items()}
                stretch.metrics.append((stretch.steps, row))
        stretch.steps += 1
        self._steps_done += 1
        self._steps_since_start += 1

    def _note_error(self, error: BaseException, at: str) -> None:
        """Keep the experiment's error, and note in it which call and step it was."""
        self.error = error
        if not isinstance(error, (ExperimentError, KeyboardInterrupt)):
            error.add_note(f"in {self.variant.call}, {at}, measured by the kit")

    # What goes on between its steps

    def note_company(self) -> None:
        """Note whether it must run alone: it has company, or has changed a setting."""
        if self.has_company() or read_settings() != self._settings:
            self.variant.runs_alone = True

    def has_company(self) -> bool:
        """Return whether it has child processes or Python threads of its own."""
        threads = set(threading.enumerate()) - self._threads
        for thread in threads:
            is_common = thread.name.startswith(_COMMON_THREADS)
            if not is_common and type(thread).__name__ not in _IDLE_THREADS:
                return True
        return bool(self.find_children())

    def find_children(self) -> dict[int, str]:
        """Return the names of the processes that it has started, by process id."""
        new = system.list_children() - self._children
        return {pid: name for pid in new if (name := system.name_child(pid))}

    def pause(self) -> None:
        """Let another run go on."""
        self._paused_random = read_random()

    def resume(self) -> None:
        """Go on, with its own random numbers; the first step is not timed."""
        restore_random(self._paused_random)
        self.time(1)

    # Its end

    def read_memory(self, *, is_complete: bool = True) -> None:
        """Stop watching memory, and note how much was added, where that is all."""
        watch, self._memory_watch = self._memory_watch, None
        if watch is None:
            return
        added = watch.end()
        if is_complete:
            self.run.memory_bytes = added

    def close(self, because: BaseException | None = None) -> None:
        """Close the generator, and put everything back; name what goes on running.

        `because` is the error that ended the run, if one did.
        """
        self.read_memory(is_complete=because is None)
        if not self._is_open:
            return
        try:
            if self._generator is not None:
                self._generator.close()
                self._generator = None
        except BaseException as error:
            if because is None:
                self._note_error(error, "closing (its `finally:`)")
                raise
            because.add_note(f"Closing it raised, too: {error!r}")
        finally:
            self._is_open = False
            restore_settings(self._settings)
            restore_random(self._random)
            del self._blocks, self._pages
            self.variant.shared.put_back()
        if because is None:
            self._name_what_is_left()

    def _name_what_is_left(self) -> None:
        for _ in range(_LOOKS):
            left = self.find_children()
            if not left:
                return
            time.sleep(0.01)
        names = ", ".join(sorted(left.values()))
        self.variant.note(f"It left processes running: {names}.")


def _copy_metric(metric: Any) -> Any:
    """Copy a tensor without its graph; the next step may change it in place."""
    return metric.detach().clone() if hasattr(metric, "detach") else float(metric)


def _read_metrics(stretch: Stretch) -> None:
    """Read metrics as numbers, which waits for a device."""
    for _, row in stretch.metrics:
        row.update({name: float(value) for name, value in row.items()})


def find_agreement(times: list[float], within: float = _AGREE) -> float | None:
    """Return the time on which the latest windows agree, or None.

    One with one, two with two, or four with four: steps of a loader come in gushes.

    >>> find_agreement([3.0, 1.0, 1.05])
    1.05
    """
    for count in (1, 2, 4):
        if len(times) >= 2 * count:
            now = math.fsum(times[-count:]) / count
            before = math.fsum(times[-2 * count : -count]) / count
            if abs(math.log(now / before)) < within:
                return now
    return None


_compiled = 0


def make_room_for_compiled(starts: int) -> None:
    """Reset `torch.compile` before it gives up, while no run is open.

    What guards on an object of the run is compiled anew with each start, and kept; with
    eight versions of a function it is run uncompiled from then on.
    """
    global _compiled
    utils = sys.modules.get("torch._dynamo.utils")
    if utils is None:
        return
    import torch

    graphs = utils.counters["stats"]["unique_graphs"]
    if graphs - _compiled + starts > _MOST_COMPILED:
        torch.compiler.reset()
        _compiled = graphs
