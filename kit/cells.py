"""Working beside the cells of a notebook, as one of them would."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import sys
from collections.abc import Iterator
from typing import Any

from kit import state
from kit.progress import Progress

_SOFT = 1  # omp_pause_soft of OpenMP 5.0: settings stay, threads go


class Beside(Progress):
    """The progress of what a thread of its own may do beside a notebook's cells.

    A cell that runs meanwhile makes a measurement *disturbed*.
    """

    def __init__(self, title: str, *, at_once: bool = False) -> None:
        super().__init__(title, at_once=at_once)
        self._in_cell = False

    def computing_as_cells(self) -> contextlib.AbstractContextManager[None]:
        """Return a context for another thread, in which it computes as this one does.

        Call it where a button is handled: the thread of the cells, while none runs.
        Cells are noticed from now on, so that none begins in between.
        """
        release_threads()  # or they would slow down those of a measurement
        loaded = sys.modules.get("IPython")
        events = getattr(loaded and loaded.get_ipython(), "events", None)
        if events is not None:
            events.register("pre_run_cell", self._begin_cell)
            events.register("post_run_cell", self._end_cell)
        return self._follow(state.capture(), events)

    @contextlib.contextmanager
    def _follow(self, settings: state.Settings, events: Any) -> Iterator[None]:
        import torch

        try:
            # Inference mode is the one setting that ends with a `with` of its own.
            with torch.inference_mode(bool(settings["inference"])):
                state.take_over(settings)
                yield
        finally:
            if events is not None:
                events.unregister("pre_run_cell", self._begin_cell)
                events.unregister("post_run_cell", self._end_cell)

    def _begin_cell(self, _: Any) -> None:
        self._in_cell = True
        self.disturb()

    def _end_cell(self, _: Any) -> None:
        self._in_cell = False

    def take_turn(self) -> None:
        """Go on; a cell that began while we waited and still runs disturbs us."""
        super().take_turn()
        if self._in_cell:
            self.disturb()


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
