"""Working beside the cells of a notebook, as one of them would."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import sys
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future, wait
from typing import Any

from kit import state
from kit.progress import Progress, Stopped

_SOFT = 1  # omp_pause_soft of OpenMP 5.0: settings stay, threads go


class Beside(Progress):
    """The progress of what a thread of its own may do beside a notebook's cells.

    A cell that begins meanwhile makes the measurement *disturbed*.
    """

    def __init__(self, title: str, *, at_once: bool = False) -> None:
        super().__init__(title, at_once=at_once)
        self._settings: Future[state.Settings] = Future()
        self._in_cell = False
        shell = _find_shell()
        self._events = getattr(shell, "events", None)
        self._loop = getattr(getattr(shell, "kernel", None), "io_loop", None)

    def ask_cells(self) -> contextlib.AbstractContextManager[None]:
        """Return a context for another thread, in which it computes as the cells do.

        What PyTorch keeps for a thread is taken over from the thread of the cells,
        which is asked now, where a button is handled, and answers when no cell runs.
        The context waits for that; it raises Stopped where it was stopped before.
        """
        self._each_event(lambda events: events.register)
        if self._loop is None or threading.current_thread() is threading.main_thread():
            self._answer()  # no cell runs, or this is part of one
        else:
            self.waiting, self.doing = True, "waiting for the running cell to end"
            self._loop.add_callback(self._answer)
        return self._computing_as_cells()

    def _each_event(self, choose: Callable[[Any], Callable[..., None]]) -> None:
        if self._events is not None:
            choose(self._events)("pre_run_cell", self._before_cell)
            choose(self._events)("post_run_cell", self._after_cell)

    def _answer(self) -> None:
        release_threads()  # or they would slow down those of a measurement
        self.waiting = False
        self._settings.set_result(state.capture())

    def _before_cell(self, _: Any) -> None:
        self._in_cell = True
        self.disturb()

    def _after_cell(self, _: Any) -> None:
        self._in_cell = False

    def take_turn(self) -> None:
        """Go on; a cell that began while we waited and still runs disturbs us."""
        super().take_turn()
        if self._in_cell:
            self.disturb()

    @contextlib.contextmanager
    def _computing_as_cells(self) -> Generator[None, None, None]:
        import torch

        try:
            while not wait([self._settings], 0.05).done:
                if self.stopping:
                    raise Stopped
            settings = self._settings.result()
            # Inference mode is the one setting that ends with a `with` of its own.
            with torch.inference_mode(bool(settings["inference"])):
                state.take_over(settings)
                yield
        finally:
            self._each_event(lambda events: events.unregister)


def _find_shell() -> Any:
    return sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None


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
