"""Accelerators that this process has initialised: wait for them, ask their memory."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Protocol


class Accelerator(Protocol):
    """What the clock needs of a device with a queue."""

    def synchronize(self) -> None:
        """Wait until the queue is empty."""

    def reset_peak(self) -> int:
        """Start watching for a new peak; return the bytes allocated now."""

    def peak(self) -> int:
        """Return the highest number of bytes allocated since `reset_peak`."""


class TorchAccelerator:
    """One device of `torch.cuda` or `torch.xpu`, by its index."""

    def __init__(self, module: ModuleType, index: int) -> None:
        self.module, self.index = module, index

    def synchronize(self) -> None:
        """Wait until the queue is empty."""
        self.module.synchronize(self.index)

    def reset_peak(self) -> int:
        """Start watching for a new peak; return the bytes allocated now."""
        self.module.reset_peak_memory_stats(self.index)
        return int(self.module.memory_allocated(self.index))

    def peak(self) -> int:
        """Return the highest number of bytes allocated since `reset_peak`."""
        return int(self.module.max_memory_allocated(self.index))


class MetalAccelerator:
    """Apple's GPU: it tells what is allocated now, not the peak."""

    def synchronize(self) -> None:
        """Wait until the queue is empty."""
        import torch

        torch.mps.synchronize()

    def reset_peak(self) -> int:
        """Return the bytes allocated now."""
        return self.peak()

    def peak(self) -> int:
        """Return the bytes allocated now."""
        import torch

        return int(torch.mps.current_allocated_memory())


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


def synchronize() -> None:
    """Wait for every accelerator that this process has initialised."""
    for accelerator in initialised():
        accelerator.synchronize()
