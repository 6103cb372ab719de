"""How busy the machine is with work that is not ours."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import NamedTuple

from kit.machine import limits, processes
from kit.machine.limits import read_text

_ROOT = Path("/")
#: Where busy, idle and stolen times stand in the first line of /proc/stat.
_BUSY, _STOLEN = (0, 1, 2, 5, 6), 7


class Load(NamedTuple):
    """One reading of processor seconds since some fixed moment.

    `everyone` is the whole machine's, `process` this process's and its children's,
    `thread` the calling thread's, `waited` what all threads of this process have
    waited for a core. `stolen` is what the host gave to other guests while a
    processor of this one had work, `throttled` how long this process's control group
    was stopped by its quota, summed over processors.
    """

    wall: float
    everyone: float
    process: float
    thread: float
    waited: float
    stolen: float = 0.0
    throttled: float = 0.0


def read(root: Path = _ROOT) -> Load:
    """Read the load counters; those that the system does not tell are 0.

    Files are read below `root`, so that a test can pretend.
    """
    everyone, stolen = _everyone_and_stolen(root)
    return Load(
        time.perf_counter(),
        everyone,
        time.process_time() + processes.children_seconds(),
        time.thread_time(),
        _waited(root),
        stolen,
        limits.read_throttled(root),
    )


def describe(before: Load, after: Load) -> dict[str, float]:
    """Return how busy others kept the machine between two readings, and what we used.

    `others_cores` is how many cores other programs used on average,
    `cores_per_thread` how many we used per core of the driving thread, `waiting` how
    many of our threads waited for a core, `stolen` how many cores the host gave away,
    `throttled` the share of the time that a quota stopped us, at most 1.

    >>> start, end = Load(0, 0, 0, 0, 0), Load(2.0, 3.0, 2.0, 2.0, 0.5)
    >>> describe(start, end)["others_cores"]
    0.5
    """
    change = Load(*(b - a for a, b in zip(before, after, strict=True)))
    wall = max(change.wall, 1e-9)
    return {
        "others_cores": max(0.0, change.everyone - change.process) / wall,
        "cores_per_thread": change.process / max(change.thread, 1e-9),
        "waiting": change.waited / wall,
        # The kernel's counters of stolen time are known to go backwards now and then.
        "stolen": max(0.0, change.stolen) / wall,
        "throttled": min(1.0, max(0.0, change.throttled) / wall),
    }


def _everyone_and_stolen(root: Path) -> tuple[float, float]:
    """Return busy and stolen processor seconds of the whole machine (Linux)."""
    first, *words = read_text(root, "proc/stat").partition("\n")[0].split() or [""]
    if first != "cpu" or not all(word.isdecimal() for word in words):
        return 0.0, 0.0
    numbers = [int(word) for word in words] + [0] * (_STOLEN + 1)
    per_second = os.sysconf("SC_CLK_TCK")
    return sum(numbers[i] for i in _BUSY) / per_second, numbers[_STOLEN] / per_second


def _waited(root: Path) -> float:
    total = 0
    tasks = root / "proc/self/task"
    with contextlib.suppress(OSError):
        for task in os.listdir(tasks):
            with contextlib.suppress(ValueError, IndexError):
                total += int(read_text(tasks, f"{task}/schedstat").split()[1])
    return total * 1e-9
