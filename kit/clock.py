"""Wall time, how much of it others caused, and waiting for accelerators."""

from __future__ import annotations

import math
import sys
import time
from typing import Any, NamedTuple

_ROOM_FOR_ONE_SNAPSHOT = 1e-4


class Ticks(NamedTuple):
    """One reading, in seconds.

    `wall` is the monotonic clock; `delay` how long the reading thread has waited
    for a core so far, nan where the system does not tell (macOS, Windows); `own` the
    processor time of this process's other threads and of children that have ended.
    """

    wall: float
    delay: float
    own: float


def run_seconds(start: Ticks, end: Ticks) -> float:
    """Return the time between two readings, less the waiting that others caused.

    Waiting for a core behind one's own workers and threads is a cost of the
    experiment. It can be no longer than the processor time that those used, so
    only what exceeds that is taken off; nothing where the delay is unknown.

    >>> run_seconds(Ticks(0, 0, 0), Ticks(1.0, 0.3, 0.1))
    0.8

    The counter of delays ticks coarsely, and may be ahead of the clock:

    >>> run_seconds(Ticks(7, 2, 3), Ticks(8, 7, 3))
    1e-09
    """
    foreign = max(0.0, (end.delay - start.delay) - (end.own - start.own))
    return round(max(end.wall - start.wall - foreign, 1e-9), 9)


class Clock:
    """Reads wall time and run-queue delay of the calling thread."""

    def __init__(self, *, uses_delay: bool = True) -> None:
        self.uses_delay = uses_delay

    wall = staticmethod(time.perf_counter)

    def begin(self) -> Ticks:
        """Read the clock at the start of a stretch: wall time comes last."""
        return self._read()[1]

    def end(self) -> Ticks:
        """Read the clock at the end of a stretch: wall time comes first."""
        return self._read()[0]

    def _read(self) -> tuple[Ticks, Ticks]:
        for _ in range(5):
            before = time.perf_counter()
            delay = _read_delay() if self.uses_delay else math.nan
            own = read_ended_seconds() + time.process_time() - time.thread_time()
            after = time.perf_counter()
            # A preemption in between would put wall time and delay out of step.
            if after - before < _ROOM_FOR_ONE_SNAPSHOT:
                break
        return Ticks(before, delay, own), Ticks(after, delay, own)


#: The one clock that drives experiments; tests put a clock of their own here.
CLOCK = Clock()
#: Accelerators that PyTorch does not know; tests put one with a queue here. It has
#: `synchronize()`, `reset_peak()`, which returns the bytes in use, and `peak()`.
DEVICES: list[Any] = []


def find_initialised() -> list[int]:
    """Return the indices of the accelerators that this process has initialised.

    Asking never initialises one. A CUDA device without a context is left alone.
    """
    torch = sys.modules.get("torch")
    kind = torch and torch.accelerator.current_accelerator()
    if not torch or not kind:
        return []
    module = torch.get_device_module(kind)
    if kind.type == "mps":  # it does not tell whether it was initialised
        used = torch.backends.mps.is_available() and module.driver_allocated_memory()
        return [0] if used else []
    found = range(module.device_count() if module.is_initialized() else 0)
    is_cuda = kind.type == "cuda"
    return [i for i in found if not is_cuda or torch._C._cuda_hasPrimaryContext(i)]


def synchronize() -> None:
    """Wait for every accelerator that this process has initialised."""
    for device in DEVICES:
        device.synchronize()
    for index in find_initialised():
        sys.modules["torch"].accelerator.synchronize(index)


def processor_seconds() -> float:
    """Return the processor time that this process has used so far, in all threads."""
    return time.process_time()


def compute_in_pause(seconds: float) -> float:
    """Rest for so many seconds; return the processor time that others took here."""
    before = processor_seconds()
    time.sleep(seconds)
    return processor_seconds() - before


def epoch_nanoseconds() -> int:
    """Return the time of day in nanoseconds, the one that PyTorch's profiler uses."""
    return time.time_ns()


def read_ended_seconds() -> float:
    """Return the processor time of all children that have ended, in seconds (Unix)."""
    if sys.platform == "win32":
        return 0.0
    import resource

    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime


def _read_delay() -> float:
    try:
        with open("/proc/thread-self/schedstat") as file:
            return int(file.read().split()[1]) * 1e-9
    except OSError:
        return math.nan
