"""OpenMP's pools of threads, which PyTorch computes with."""

from __future__ import annotations

import contextlib
import ctypes
import functools

_SOFT = 1  # omp_pause_soft of OpenMP 5.0: settings stay, threads go


def release_threads() -> bool:
    """End the idle OpenMP threads of the calling thread; return whether they could be.

    Each thread that computes has a pool of its own. With more pool threads than cores
    GNU's OpenMP lets all of them wait less actively, which makes parallel steps slower.
    The next parallel step makes a new pool. Known on Linux only.
    """
    library = _library()
    return library is not None and library.omp_pause_resource_all(_SOFT) == 0


@functools.cache
def _library() -> ctypes.CDLL | None:
    """Return the OpenMP library in this process; None where there is none, or two."""
    paths = set()
    with contextlib.suppress(OSError), open("/proc/self/maps") as file:
        paths = {line.split()[-1] for line in file if "libgomp" in line}
    if len(paths) != 1:
        return None
    with contextlib.suppress(OSError):
        library = ctypes.CDLL(paths.pop())
        if hasattr(library, "omp_pause_resource_all"):
            return library
    return None
