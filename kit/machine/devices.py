"""Accelerators that this process has initialised: their queue, clock and memory."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Protocol


class Accelerator(Protocol):
    """What the clock needs of a device with a queue."""

    def synchronize(self) -> None:
        """Wait until the queue is empty."""

    def mark(self) -> object:
        """Queue a mark that notes the device's time when it is reached, None if none.

        Nothing waits for it.
        """

    def elapsed(self, start: Any, end: Any) -> float:
        """Return the seconds between two marks, both of them reached."""

    def reset_peak(self) -> int:
        """Start watching for a new peak; return the bytes allocated now."""

    def peak(self) -> int:
        """Return the highest number of bytes allocated since `reset_peak`."""

    def now(self) -> int:
        """Return the bytes allocated now."""

    def available(self) -> int | None:
        """Return the bytes that can still be allocated; None where it is not in use."""

    def release(self) -> None:
        """Give memory back that was allocated before and is not in use."""


class TorchAccelerator:
    """One device of `torch.cuda` or `torch.xpu`, by its index."""

    def __init__(self, module: ModuleType, index: int) -> None:
        self.module, self.index = module, index

    def synchronize(self) -> None:
        """Wait until the queue is empty."""
        self.module.synchronize(self.index)

    def mark(self) -> object:
        """Record an event on the device's current stream."""
        event = self.module.Event(enable_timing=True)
        event.record(self.module.current_stream(self.index))
        return event

    def elapsed(self, start: Any, end: Any) -> float:
        """Return the seconds between two events that have been waited for."""
        return float(start.elapsed_time(end)) / 1000

    def reset_peak(self) -> int:
        """Start watching for a new peak; return the bytes allocated now."""
        self.module.reset_peak_memory_stats(self.index)
        return int(self.module.memory_allocated(self.index))

    def peak(self) -> int:
        """Return the highest number of bytes allocated since `reset_peak`."""
        return int(self.module.max_memory_allocated(self.index))

    def now(self) -> int:
        """Return the bytes allocated now."""
        return int(self.module.memory_allocated(self.index))

    def available(self) -> int | None:
        """Return the bytes that are free, or held back for reuse."""
        free, _ = self.module.mem_get_info(self.index)
        held_back = self.module.memory_reserved(self.index) - self.now()
        return int(free + held_back)

    def release(self) -> None:
        """Give memory back that is held back for reuse."""
        self.module.empty_cache()


class MetalAccelerator:
    """Apple's GPU: it tells what is allocated now, not the peak."""

    def synchronize(self) -> None:
        """Wait until the queue is empty."""
        import torch

        torch.mps.synchronize()

    def mark(self) -> object:
        """Record an event; None where the GPU holds nothing, so is not in use.

        The system takes up an event together with the work that follows it, so a mark
        at a begin is reached when the first of that work is.
        """
        import torch
        from torch.mps.event import Event

        if not torch.mps.current_allocated_memory():
            return None
        event = Event(enable_timing=True)
        event.record()
        return event

    def elapsed(self, start: Any, end: Any) -> float:
        """Return the seconds between two events; asked twice of one, it would hang."""
        return float(start.elapsed_time(end)) / 1000

    def reset_peak(self) -> int:
        """Return the bytes allocated now."""
        return self.peak()

    def peak(self) -> int:
        """Return the bytes allocated now."""
        import torch

        return int(torch.mps.current_allocated_memory())

    def now(self) -> int:
        """Return the bytes allocated now."""
        return self.peak()

    def available(self) -> int | None:
        """Return the bytes that are left of what the system recommends."""
        import torch

        used = torch.mps.driver_allocated_memory()
        return int(torch.mps.recommended_max_memory() - used) if used else None

    def release(self) -> None:
        """Give memory back that is held back for reuse."""
        import torch

        torch.mps.empty_cache()


#: Devices that PyTorch does not know; the tests put one with a queue here.
EXTRA: list[Accelerator] = []


def initialised() -> Iterator[Accelerator]:
    """Yield each accelerator that this process has initialised.

    Asking never initialises one. A CUDA device without a context is left alone.
    """
    yield from EXTRA
    torch = sys.modules.get("torch")
    if torch is None:
        return
    if torch.cuda.is_initialized():
        for index in range(torch.cuda.device_count()):
            if torch._C._cuda_hasPrimaryContext(index):
                yield TorchAccelerator(torch.cuda, index)
    if torch.xpu.is_initialized():
        for index in range(torch.xpu.device_count()):
            yield TorchAccelerator(torch.xpu, index)
    if torch.backends.mps.is_available():  # it does not tell whether it was used
        yield MetalAccelerator()


def in_use() -> bool:
    """Return whether this process uses an accelerator, as far as can be told."""
    return any(device.available() is not None for device in initialised())


def synchronize() -> None:
    """Wait for every accelerator that this process has initialised."""
    for accelerator in initialised():
        accelerator.synchronize()


class Stopwatch:
    """Time by the devices' own clocks, from `begin` to `end`.

    Where several devices were at work, the longest time counts. It covers what was
    queued on each device's current stream and its waiting for more, but not what the
    process does before the first mark or after the last.
    """

    def __init__(self) -> None:
        self._devices = list(initialised())
        self._starts: list[object] = []
        self._ends: list[object] = []

    def begin(self) -> None:
        """Mark the begin on every device that was initialised when this was made."""
        self._starts = [_mark(device) for device in self._devices]

    def end(self) -> None:
        """Mark the end; `synchronize` must follow before `seconds` is asked, once."""
        self._ends = [_mark(device) for device in self._devices]

    def seconds(self) -> float | None:
        """Return the longest time between two marks; None where no device tells."""
        found = []
        for device, start, end in zip(
            self._devices, self._starts, self._ends, strict=True
        ):
            if start is not None and end is not None:
                with contextlib.suppress(RuntimeError):
                    found.append(device.elapsed(start, end))
        return max(found, default=None)


def _mark(device: Accelerator) -> object:
    """Return a mark; None where this version of PyTorch, or a stream, has none.

    A fault of the device itself comes up again when it is waited for.
    """
    with contextlib.suppress(RuntimeError, AttributeError):
        return device.mark()
    return None
