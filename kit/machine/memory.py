"""How much memory an experiment adds while it starts."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import re
import sys
import threading
import time
from pathlib import Path
from types import TracebackType

from kit.machine import devices, limits, processes, system

_SECONDS_BETWEEN_LOOKS = 0.02
#: A look takes milliseconds in a process with large libraries: it may use so much of
#: one core.
_MOST_OF_A_CORE = 0.1


class MemoryWatch:
    """Watch how far memory rises above where it was on entering.

    Where an accelerator was used, the increase is the accelerator's. Else it is that
    of this process and its children: on Linux the proportional set size (PSS), which
    counts shared pages once, sampled up to fifty times a second, or this process's
    own high-water mark where that is higher; elsewhere the resident size. In bytes.
    Freed memory is given back first. Both take a while, so `in_a_hurry` nothing is
    given back, and only this process's own mark is read.
    """

    def __init__(self, *, in_a_hurry: bool = False) -> None:
        self.increase = 0
        self._in_a_hurry = in_a_hurry

    def __enter__(self) -> MemoryWatch:
        if not self._in_a_hurry:
            _give_back()
        self._device_start = {_key(d): d.reset_peak() for d in devices.initialised()}
        self._reset_high_water()
        self._own_start = _high_water()
        self._start = self._peak = 0
        if not self._in_a_hurry:
            self._start = self._peak = proportional_bytes()
            self._done = threading.Event()
            self._thread = threading.Thread(target=self._look, daemon=True)
            self._thread.start()
        return self

    @property
    def highest(self) -> int:
        """How far memory has risen in this machine so far, by the looks until now."""
        return self._peak - self._start

    def rise(self) -> int:
        """Return how far memory is above where it was on entering, at this moment."""
        device = sum(
            max(0, d.now() - self._device_start.get(_key(d), 0))
            for d in devices.initialised()
        )
        if device or self._in_a_hurry:
            return device or max(_high_water() - self._own_start, 0)
        return max(proportional_bytes() - self._start, 0)

    def _look(self) -> None:
        pause = _SECONDS_BETWEEN_LOOKS
        # One process is read after the other. Pages that children begin to share
        # meanwhile would be counted twice; they are not in the next look.
        before = self._start
        while not self._done.wait(pause):
            begun = time.perf_counter()
            now = proportional_bytes()
            self._peak = max(self._peak, min(before, now))
            before = now
            cost = time.perf_counter() - begun
            pause = max(_SECONDS_BETWEEN_LOOKS, cost / _MOST_OF_A_CORE)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._in_a_hurry:
            self._done.set()
            self._thread.join()
            now = min(proportional_bytes(), proportional_bytes())
            self._peak = max(self._peak, now)
        own = _high_water() - self._own_start
        host = max(self._peak - self._start, own, 0)
        device = sum(
            max(0, d.peak() - self._device_start.get(_key(d), 0))
            for d in devices.initialised()
        )
        self.increase = device or host

    def _reset_high_water(self) -> None:
        with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
            file.write("5")


def proportional_bytes() -> int:
    """Return the memory of this process and its children, shared pages once."""
    if not os.path.exists("/proc/self/smaps_rollup"):
        pids = [os.getpid(), *processes.descendants()]
        return sum(map(system.read_resident_bytes, pids))
    total = 0
    for pid in [*processes.descendants(), os.getpid()]:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/smaps_rollup") as file:
            total += _kilobytes(file.read(), "Pss:")
    return total


def private_bytes() -> int:
    """Return the memory that this process shares with no other, in bytes.

    What a fork has shared counts from when one of the two writes to it.

    >>> private_bytes() > 1e6
    True
    """
    if not system.is_linux():
        return int(system.import_psutil().Process().memory_full_info().uss)
    for path in ("/proc/self/smaps_rollup", "/proc/self/smaps"):
        with contextlib.suppress(OSError), open(path) as file:
            told = re.findall(r"^Private_\w+:\s+(\d+) kB", file.read(), re.M)
            return sum(map(int, told)) * 1024
    return system.read_resident_bytes(os.getpid())


def available_bytes() -> int:
    """Return the bytes that can be taken now without making anybody go short.

    Of the accelerators in use, if there are any, on the one that has least; else in
    this machine, or in the limit that this process runs under.
    """
    told = [device.available() for device in devices.initialised()]
    if free := [known for known in told if known is not None]:
        return min(free)
    machine, found = system.read_memory()
    limit, _ = limits.find_memory(Path("/"))
    if limit is not None and limit < machine:
        found = min(found, limit - proportional_bytes())
    return max(found, 0)


def _high_water() -> int:
    """Return this process's highest resident size since the last reset (Linux)."""
    with contextlib.suppress(OSError), open("/proc/self/status") as file:
        return _kilobytes(file.read(), "VmHWM:")
    return 0


def _kilobytes(text: str, field: str) -> int:
    for line in text.splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    return 0


def _give_back() -> None:
    """Return freed memory to the system, so that a start finds the same as the last."""
    gc.collect()
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)


def _key(device: devices.Accelerator) -> tuple[str, int]:
    return type(device).__name__, getattr(device, "index", id(device))
