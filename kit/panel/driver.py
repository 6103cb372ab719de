"""Runs one measurement beside the cells of a notebook, as a cell would run it."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from kit import state, system
from kit.panel import openmp
from kit.progress import Progress

#: A step that has not ended so long after Stop may never end.
_LATE_SECONDS = 2.0

Task = Callable[[Progress], None]


class Driver:
    """Drives measurements in a thread of its own, or here where updates need that.

    The thread takes over what belongs to a thread in PyTorch (thread count, grad mode,
    autocast …) from the cells' thread: as it was after the latest cell, or, where it
    does not follow the cells, when this was made. `show()` is called where there is
    progress to show, `show_partial(trials)` where a comparison has partial results and
    nothing is timed.
    """

    def __init__(
        self,
        show: Callable[[], None],
        show_partial: Callable[[Mapping[str, Any]], None],
        replaced: Callable[[], None],
        *,
        follows_cells: bool = True,
    ) -> None:
        self.progress: Progress | None = None
        self.show, self.show_partial, self._replaced = show, show_partial, replaced
        self._one_run, self._closed = threading.Lock(), False
        self._thread: threading.Thread | None = None
        self._state, self._follows_cells = state.capture(), follows_cells
        self._shell = _find_shell()
        self._cell = _cell_of(self._shell)
        #: Whether a cell runs now: one that makes a panel does.
        self.in_cell = self._shell is not None
        for event, listener in self._listeners():
            self._shell.events.register(event, listener)

    def _listeners(self) -> list[tuple[str, Callable[[Any], None]]]:
        if self._shell is None:
            return []
        return [
            ("pre_run_cell", self._before_cell),
            ("post_run_cell", self._after_cell),
        ]

    @property
    def blocking(self) -> bool:
        """Whether a measurement must run in the handler of its button.

        Colab does not show what other threads change. Where handlers have a thread of
        their own, which an interrupt does not reach, there is no need to.
        """
        asked = os.environ.get("KIT_BLOCKING")
        wanted = asked == "1" if asked else "google.colab" in sys.modules
        return wanted and threading.current_thread() is threading.main_thread()

    @property
    def running(self) -> bool:
        """Whether a measurement is under way, or waits for its turn."""
        return self.progress is not None

    def start(self, title: str, task: Task) -> None:
        """Run `task(progress)` in the background, unless one runs or all is over."""
        if self._closed or not self._one_run.acquire(blocking=False):
            return
        progress = _Watched(title, self)
        if self.blocking:
            with contextlib.suppress(KeyboardInterrupt):  # there is no other Stop here
                self._drive(task, progress)
            return
        self._thread = threading.Thread(
            target=self._drive_as_cell, args=(task, progress), name="kit panel"
        )
        self._thread.daemon = True
        self._thread.start()

    def run(self, title: str, task: Task) -> None:
        """Run `task(progress)` here and now, for code that waits for the result."""
        with Progress(title) as progress:
            progress.doing = "waiting for this panel's run to end"
            while not self._one_run.acquire(timeout=0.05):
                pass
            self._drive(task, progress)

    def _drive_as_cell(self, task: Task, progress: Progress) -> None:
        import torch

        # The one setting that ends with a `with` of its own.
        with torch.inference_mode(bool(self._state["inference"])):
            state.take_over(self._state)
            self._drive(task, progress)

    def _drive(self, task: Task, progress: Progress) -> None:
        self.progress = progress
        self.show()
        try:
            task(progress)
        finally:
            self.progress = None
            self._one_run.release()
            self.show()

    def stop(self) -> None:
        """Ask the measurement to stop after the current step.

        Asked again because the step does not end, end the processes that it waits for.
        """
        if (progress := self.progress) is None:
            return
        if self._is_late(progress):
            progress.abandoned = True
            system.end(progress.find_children())
        progress.stop()

    def tell(self) -> str:
        """Return how far the measurement is, as one line."""
        if (progress := self.progress) is None:
            return ""
        count = len(progress.find_children()) if self._is_late(progress) else 0
        again = f" · Stop again ends its {count} child processes" if count else ""
        return progress.text() + again

    def _is_late(self, progress: Progress) -> bool:
        asked = progress.stopping and not progress.waiting
        return asked and progress.silent_seconds > _LATE_SECONDS

    def join(self, seconds: float | None = None) -> None:
        """Wait until the measurement has ended."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(seconds)

    def close(self) -> None:
        """Stop, and listen to buttons and cells no longer."""
        self._closed = True  # a click may be on its way
        self.stop()
        for event, listener in self._listeners():
            with contextlib.suppress(ValueError):
                self._shell.events.unregister(event, listener)
        self._shell = None

    def _before_cell(self, info: Any) -> None:
        self.in_cell = True
        if self._cell is not None and getattr(info, "cell_id", None) == self._cell:
            self._replaced()
        elif self.progress is not None:
            self.progress.disturb()

    def _after_cell(self, result: Any) -> None:
        self.in_cell = False
        if self._follows_cells:
            self._state = state.capture()
        openmp.release_threads()  # or they would slow down those of a measurement


class _Watched(Progress):
    """A progress that a panel shows, instead of a cell's output."""

    def __init__(self, title: str, driver: Driver) -> None:
        super().__init__(title)
        self._driver = driver

    def take_turn(self) -> None:
        super().take_turn()
        if self._driver.in_cell:
            self.disturb()

    def expect(self, share: float) -> None:
        super().expect(share)
        if self._driver.blocking:
            self._driver.show()

    def report(self, find: Callable[[], Mapping[str, Any]]) -> None:
        self._driver.show_partial(find())


def _find_shell() -> Any:
    if "IPython" not in sys.modules:
        return None
    from IPython import get_ipython

    return get_ipython()


def _cell_of(shell: Any) -> str | None:
    """Return the id of the cell that runs now, where the front end tells it."""
    with contextlib.suppress(Exception):
        return str(shell.get_parent()["metadata"]["cellId"])
    return None
