"""How busy the machine is with work that is not ours."""

from __future__ import annotations

import contextlib
import os
import time
from typing import NamedTuple

from kit.machine import processes


class Load(NamedTuple):
    """One reading of processor seconds since some fixed moment.

    `everyone` is the whole machine's, `process` this process's and its children's,
    `thread` the calling thread's, `waited` what all threads of this process have
    waited for a core.
    """

    wall: float
    everyone: float
    process: float
    thread: float
    waited: float


def read() -> Load:
    """Read the load counters; those that the system does not tell are 0."""
    return Load(
        time.perf_counter(),
        _everyone(),
        time.process_time() + processes.children_seconds(),
        time.thread_time(),
        _waited(),
    )


def _everyone() -> float:
    """Return busy processor seconds of the whole machine (Linux)."""
    with contextlib.suppress(OSError), open("/proc/stat") as file:
        user, nice, system, _idle, _io, irq, soft, *_ = map(
            int, file.readline().split()[1:]
        )
        return (user + nice + system + irq + soft) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _waited() -> float:
    total = 0
    with contextlib.suppress(OSError):
        for task in os.listdir("/proc/self/task"):
            with (
                contextlib.suppress(OSError),
                open(f"/proc/self/task/{task}/schedstat") as file,
            ):
                total += int(file.read().split()[1])
    return total * 1e-9
