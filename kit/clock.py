"""The clock, and waiting for accelerators."""

from __future__ import annotations

import sys
import time
from typing import Any


class Clock:
    """Reads the time; tests put a clock of their own in its place."""

    wall = staticmethod(time.perf_counter)


#: The one clock that drives experiments.
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


def has_queue() -> bool:
    """Return whether an accelerator is in use, whose work goes on after a call."""
    return bool(DEVICES) or bool(find_initialised())


def synchronize() -> None:
    """Wait for every accelerator that this process has initialised."""
    for device in DEVICES:
        device.synchronize()
    for index in find_initialised():
        sys.modules["torch"].accelerator.synchronize(index)


def processor_seconds() -> float:
    """Return the processor time that this process has used so far, in all threads."""
    return time.process_time()


def epoch_nanoseconds() -> int:
    """Return the time of day in nanoseconds, the one that PyTorch's profiler uses."""
    return time.time_ns()
