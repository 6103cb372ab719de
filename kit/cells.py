"""Working beside the cells of a notebook, as one of them would."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

from kit.measuring import settings

_SOFT = 1  # omp_pause_soft of OpenMP 5.0: settings stay, threads go


def computing_as_cells(
    notice: Callable[[Any], None],
) -> contextlib.AbstractContextManager[None]:
    """Return a context for another thread, in which it computes as this one does.

    Call it where a button is handled: the thread of the cells, while none runs. From
    now on, so that none begins in between, each cell that begins is noticed.
    """
    release_threads()  # or they would slow down those of a measurement
    loaded = sys.modules.get("IPython")
    events = getattr(loaded and loaded.get_ipython(), "events", None)
    if events is not None:
        events.register("pre_run_cell", notice)
    return _take_over(settings.capture(), events, notice)


@contextlib.contextmanager
def _take_over(found: settings.Settings, events: Any, notice: Any) -> Iterator[None]:
    import torch

    try:
        # Inference mode is the one setting that ends with a `with` of its own.
        with torch.inference_mode(bool(found["inference"])):
            settings.take_over(found)
            yield
    finally:
        if events is not None:
            events.unregister("pre_run_cell", notice)


def release_threads() -> bool:
    """End the idle OpenMP threads of the calling thread; return whether they could be.

    Each thread that computes has a pool of its own. With more pool threads than cores
    GNU's OpenMP lets all of them wait less actively, which makes parallel steps slower.
    The next parallel step makes a new pool. Known on Linux only.
    """
    library = _find_openmp()
    return library is not None and library.omp_pause_resource_all(_SOFT) == 0


@functools.cache
def _find_openmp() -> ctypes.CDLL | None:
    """Return the OpenMP library in this process; None where there is none, or two."""
    with contextlib.suppress(OSError, ValueError):
        with open("/proc/self/maps") as file:
            (path,) = {line.split()[-1] for line in file if "libgomp" in line}
        library = ctypes.CDLL(path)
        return library if hasattr(library, "omp_pause_resource_all") else None
    return None
