"""Wall time, and how much of it was spent waiting for a core because of others."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import NamedTuple

from kit.machine import processes

_ROOM_FOR_ONE_SNAPSHOT = 1e-4


class Ticks(NamedTuple):
    """One reading, in seconds.

    `wall` is the monotonic clock; `delay` how long the reading thread has waited
    for a core so far; `own` the processor time of this process's other threads and
    of children that have ended; `children` says whether any live.
    """

    wall: float
    delay: float
    own: float
    children: bool = False


def run_seconds(start: Ticks, end: Ticks) -> float:
    """Return the time between two readings, less the waiting that others caused.

    Waiting for a core behind one's own workers and threads is a cost of the
    experiment. It can be no longer than the processor time that those used, so
    only what exceeds that is taken off. Where child processes live, nothing is: they
    go on while this thread waits, so the wait is not lost.

    >>> run_seconds(Ticks(0, 0, 0), Ticks(1.0, 0.3, 0.1))
    0.8
    """
    foreign = max(0.0, (end.delay - start.delay) - (end.own - start.own))
    wall = end.wall - start.wall
    if start.children or end.children:
        foreign = 0.0
    return round(max(wall - foreign, 1e-9), 9)


def epoch_nanoseconds() -> int:
    """Return the time of day in nanoseconds, the one that PyTorch's profiler uses."""
    return time.time_ns()


class Clock:
    """Reads wall time and run-queue delay of the calling thread.

    Where the system does not tell the delay (macOS, Windows), `delay` stays 0 and
    run time is wall time.
    """

    def __init__(self, *, uses_delay: bool = True) -> None:
        self.uses_delay = uses_delay
        self._local = threading.local()

    wall = staticmethod(time.perf_counter)

    def begin(self) -> Ticks:
        """Read the clock at the start of a stretch: wall time comes last."""
        others = self._others()
        return Ticks(*self._wall_and_delay(), *others)

    def end(self) -> Ticks:
        """Read the clock at the end of a stretch: wall time comes first."""
        return Ticks(*self._wall_and_delay(), *self._others())

    def _wall_and_delay(self) -> tuple[float, float]:
        descriptor = self._schedstat() if self.uses_delay else None
        if descriptor is None:
            return time.perf_counter(), 0.0
        # A preemption between the two readings would put them out of step.
        for _ in range(5):
            before = time.perf_counter()
            delay = int(os.pread(descriptor, 64, 0).split()[1]) * 1e-9
            wall = time.perf_counter()
            if wall - before < _ROOM_FOR_ONE_SNAPSHOT:
                break
        return wall, delay

    def _others(self) -> tuple[float, bool]:
        # This is off the clock, but workers go on meanwhile: it must be quick.
        if not self.uses_delay or self._schedstat() is None:
            return 0.0, False
        threads = time.process_time() - time.thread_time()
        return threads + processes.ended_seconds(), processes.have_workers()

    def _schedstat(self) -> int | None:
        """Open this thread's schedstat once: a descriptor belongs to its thread."""
        key = (os.getpid(), threading.get_native_id())
        if getattr(self._local, "key", None) != key:
            self._local.key = key
            self._local.file = _Descriptor("/proc/thread-self/schedstat")
        return self._local.file.number


class _Descriptor:
    """A file open for reading as long as its thread lives; None where it is not."""

    def __init__(self, path: str) -> None:
        self.number: int | None = None
        self._close = os.close  # at the very end of Python, `os` is no longer there
        with contextlib.suppress(OSError):
            self.number = os.open(path, os.O_RDONLY)

    def __del__(self) -> None:
        if self.number is not None:
            self._close(self.number)


#: The one clock that drives experiments; tests put a clock of their own here.
CLOCK = Clock()
