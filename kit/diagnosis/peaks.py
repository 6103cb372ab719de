"""How fast this machine computes, moves memory and starts operations: short probes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from kit import clock

_SIDE = 1024  # of square matrices: large enough to reach the peak, quick on one core
_BYTES = 64_000_000  # more than caches hold
_TINY = 200  # operations in a row
_SECONDS = 0.08


class Peaks(NamedTuple):
    """The best that a short probe reached here, with so many threads.

    Floating-point operations per second of a float32 matrix product or a convolution,
    whichever is better, bytes that a copy
    reads and writes per second, and the seconds that one operation on a single number
    takes, from Python and recorded for the backward pass.
    """

    flops_per_second: float
    bytes_per_second: float
    operation_seconds: float
    threads: int


def measure_peaks(device: str = "cpu") -> Peaks:
    """Measure the peaks of a device, once for each number of threads; about 0.4 s.

    >>> measure_peaks().flops_per_second > 1e6
    True
    """
    import torch

    return _measure(device, torch.get_num_threads())


@functools.cache
def _measure(device: str, threads: int) -> Peaks:
    import torch

    with torch.random.fork_rng(), torch.no_grad(), torch.autocast("cpu", enabled=False):
        a, b = (
            torch.rand(_SIDE, _SIDE, device=device, dtype=torch.float32)
            for _ in 2 * "x"
        )
        product = torch.empty_like(a)
        flops = 2 * _SIDE**3 / _best(lambda: torch.mm(a, b, out=product))
        # Libraries for convolutions may know a machine better than those for products.
        images, filters = (
            torch.rand(*shape, device=device, dtype=torch.float32)
            for shape in ((8, 64, 32, 32), (64, 64, 3, 3))
        )
        convolving = _best(lambda: torch.conv2d(images, filters, padding=1))
        flops = max(flops, 2 * 64 * 9 * images.numel() / convolving)
        source = torch.ones(_BYTES // 8, device=device, dtype=torch.float32)
        target = torch.empty_like(source)
        copying = _best(lambda: target.copy_(source))
    with torch.enable_grad():
        number = torch.ones(1, dtype=torch.float32, requires_grad=True)
        starting = _best(lambda: _operate(number)) / _TINY
    return Peaks(flops, 8 * len(source) / copying, starting, threads)


def _operate(number: Any) -> None:
    for _ in range(_TINY):
        number * number


def _best(act: Callable[[], object]) -> float:
    """Return the seconds of the quickest of several, after one to warm up."""
    act()
    wall, times = clock.CLOCK.wall, []
    begun = wall()
    while not times or wall() - begun < _SECONDS:
        clock.synchronize()
        before = wall()
        act()
        clock.synchronize()
        times.append(wall() - before)
    return max(min(times), 1e-9)
