"""One life of an experiment in this process: its generator and what it has around it.

`Life` is what `Run` needs of a life, wherever it takes place; `LocalLife` is one here.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
import traceback
from collections.abc import Generator, Mapping
from typing import Any, Protocol

from kit.clock import snapshot
from kit.clock.experiment import Experiment, ExperimentError, describe
from kit.clock.log import Block
from kit.clock.shared import SharedObjects
from kit.clock.silence import silencing
from kit.clock.stepping import Stepper, failure
from kit.clock.surroundings import Surroundings
from kit.machine import devices, processes, ticks
from kit.progress import Progress

_GRACE_SECONDS = 2.0
#: So many tensors, each of at most so many bytes, shift the addresses of a life.
_SHIFTS, _LARGEST_SHIFT = 4, 12_000_000
_GRACE_AFTER_INTERRUPT = 0.7


class Life(Protocol):
    """One life of an experiment, as a run drives it."""

    @property
    def can_be_suspended(self) -> bool:
        """Whether nothing of it would go on while another variant runs."""

    def start(self, seed: int) -> float | None:
        """Start the generator, and run it to its first yield; return run seconds.

        It starts as the reader's state and the seed are. None where it ended without a
        yield. A life can be started again where its generator has ended.
        """

    def time(self, count: int | None) -> Block:
        """Time so many steps; where count is None, steps until the generator ends.

        `ended` of the block says whether it did; to its end, it may take several calls.
        """

    def active(self) -> contextlib.AbstractContextManager[None]:
        """Swap in this life's state and let its children go on."""

    def find_children(self) -> dict[int, str]:
        """Return the names of its child processes by process id."""

    def close(self, because: BaseException | None = None) -> list[str]:
        """Close the generator; return the child processes that had to be ended."""


class LocalLife:
    """One life of an experiment in this process, driven by the thread that starts it.

    `shared` is put back at each start. `may_idle` says that a step may handle no items.
    What set-up prints is dropped where the life is `silent`, and when it starts again.
    """

    def __init__(
        self,
        experiment: Experiment,
        knobs: Mapping[str, object],
        shared: SharedObjects,
        progress: Progress,
        *,
        may_idle: bool = False,
        silent: bool = False,
    ) -> None:
        self._silent = silent
        self._experiment, self._knobs, self._shared = experiment, knobs, shared
        self._call = describe(experiment.name, knobs)
        self._stepper = Stepper(self._call, progress, may_idle=may_idle)
        self._around = Surroundings()
        self._outside: snapshot.State | None = None
        self._shifts = _shift_addresses()

    @property
    def can_be_suspended(self) -> bool:
        """Whether nothing of it would go on while another variant runs.

        Child processes can be suspended; threads and shared modules cannot.
        """
        return self._around.can_rest and not self._shared.names

    def start(self, seed: int) -> float | None:
        """Start the generator, and run it to its first yield; return run seconds."""
        if self._outside is None:
            self._outside = snapshot.capture()
        snapshot.restore(self._outside)
        self._shared.restore()
        snapshot.seed_everything(seed)
        devices.synchronize()
        quiet = silencing() if self._silent else contextlib.nullcontext()
        self._silent = True
        start = ticks.CLOCK.begin()
        try:
            with quiet:
                self._stepper.generator = self._experiment.start(self._knobs)
                value = self._stepper.advance("set-up")
        except StopIteration:
            return None
        devices.synchronize()
        seconds = ticks.run_seconds(start, ticks.CLOCK.end())
        if value is not None:
            self._stepper.parse(value, -1)
        return seconds

    def time(self, count: int | None) -> Block:
        """Time so many steps; where count is None, all until the generator ends."""
        return self._stepper.time(count)

    @contextlib.contextmanager
    def active(self) -> Generator[None, None, None]:
        """Swap in this life's state and let its children go on.

        Blocks that follow each other share one such stretch: what lies between them is
        then too short for workers to gain from it.
        """
        if self._around.entered:
            yield
            return
        self._stepper.drained = False  # others had the devices
        with self._around.enter():
            yield

    def find_children(self) -> dict[int, str]:
        """Return the names of its child processes by process id."""
        return {pid: processes.name(pid) for pid in self._around.find_children()}

    def close(self, because: BaseException | None = None) -> list[str]:
        """Close the generator, then end child processes that are still alive.

        They have two seconds, less after an interrupt. `because` is the error that
        ended the life, if one did. Returns who had to be ended. Raises ExperimentError
        where the generator raises on closing.
        """
        ended: list[str] = []
        if self._stepper.generator is None:
            return ended
        processes.resume(self._around.children)
        interrupted = isinstance(because, KeyboardInterrupt)
        grace = _GRACE_AFTER_INTERRUPT if interrupted else _GRACE_SECONDS
        timer = threading.Timer(grace, self._end_children, [ended])
        timer.daemon = True
        timer.start()
        generator, self._stepper.generator = self._stepper.generator, None
        try:
            with self._around.enter_last():
                # Only the one that raised: workers of the other are still suspended.
                if because is not None and generator.gi_frame is None:
                    let_go(because)
                generator.close()
        except (KeyboardInterrupt, ExperimentError):
            raise
        except BaseException as error:
            if not interrupted:
                where = "closing (its `finally:`)"
                raise failure(self._call, error, where) from error
        finally:
            del generator
            self._shifts.clear()
            self._wait_for_children(timer)
        return ended

    def _wait_for_children(self, timer: threading.Timer) -> None:
        while timer.is_alive() and processes.alive(self._around.children):
            time.sleep(0.01)
        timer.cancel()

    def _end_children(self, ended: list[str]) -> None:
        left = processes.alive(self._around.children)
        ended += [f"{processes.name(pid)} ({pid})" for pid in sorted(left)]
        processes.end(left)


def _shift_addresses() -> list[Any]:
    """Take memory of random size, so that what a life allocates lies elsewhere.

    In one process the same code finds the same memory in every life, and how that suits
    the caches would become the verdict. The sizes come from the system: a reader's
    seeds, and the order of their random numbers, have nothing to do with it.
    """
    import torch

    sizes = random.SystemRandom()
    return [
        torch.ones(sizes.randint(1, _LARGEST_SHIFT), dtype=torch.uint8, device="cpu")
        for _ in range(_SHIFTS)
    ]


def let_go(error: BaseException | None) -> None:
    """Clear the frames behind an error: they hold its tensors, and loaders' workers.

    Left to the garbage collector, shutting workers down takes seconds; those that are
    forked later would inherit them.
    """
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
