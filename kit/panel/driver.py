"""Runs one measurement beside the cells of a notebook, as a cell would run it."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from kit.clock import snapshot
from kit.progress import Progress


class Watched(Progress):
    """A progress that a panel shows, instead of a cell's output."""

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, *_: object) -> None:
        return None


class Driver:
    """Drives measurements in a thread of its own, or here where updates need that.

    The thread takes over what belongs to a thread in PyTorch (thread count, grad mode,
    autocast …) from the cells' thread, as it was after the latest cell.
    """

    def __init__(self) -> None:
        self.progress: Watched | None = None
        self._thread: threading.Thread | None = None
        self._state = snapshot.capture()
        self._shell = _find_shell()
        self._cell = _cell_of(self._shell)
        self._on_replaced: Callable[[], None] | None = None
        if self._shell is not None:
            self._shell.events.register("pre_run_cell", self._before_cell)
            self._shell.events.register("post_run_cell", self._after_cell)

    @property
    def blocking(self) -> bool:
        """Whether a measurement must run in the handler of its button.

        Colab does not show what other threads change.
        """
        asked = os.environ.get("KIT_BLOCKING")
        return asked == "1" if asked else "google.colab" in sys.modules

    @property
    def running(self) -> bool:
        """Whether a measurement is under way, or waits for its turn."""
        return self.progress is not None

    def start(
        self, title: str, task: Callable[[Watched], None], done: Callable[[], None]
    ) -> None:
        """Run `task(progress)`, then `done()`; at once returns, unless blocking."""
        self.progress = Watched(title)
        if self.blocking:
            self._drive(task, done)
            return
        self._thread = threading.Thread(
            target=self._drive_as_cell, args=(task, done), daemon=True, name="kit panel"
        )
        self._thread.start()

    def run(self, title: str, task: Callable[[Watched], None]) -> None:
        """Run `task(progress)` here and now, for code that waits for the result."""
        self.progress = Watched(title)
        self._drive(task, lambda: None)

    def _drive_as_cell(
        self, task: Callable[[Watched], None], done: Callable[[], None]
    ) -> None:
        import torch

        snapshot.restore(self._state)
        # A new thread reports the count of the one that made it, and uses another.
        torch.set_num_threads(torch.get_num_threads())
        self._drive(task, done)

    def _drive(self, task: Callable[[Watched], None], done: Callable[[], None]) -> None:
        assert self.progress is not None
        try:
            task(self.progress)
        finally:
            self.progress = None
            done()

    def stop(self) -> None:
        """Ask the measurement to stop after the current step."""
        if self.progress is not None:
            self.progress.stop()

    def join(self, seconds: float | None = None) -> None:
        """Wait until the measurement has ended."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(seconds)

    def close(self) -> None:
        """Stop, and listen to cells no longer."""
        self.stop()
        if self._shell is not None:
            for event, listener in (
                ("pre_run_cell", self._before_cell),
                ("post_run_cell", self._after_cell),
            ):
                with contextlib.suppress(ValueError):
                    self._shell.events.unregister(event, listener)
            self._shell = None

    def on_replaced(self, listener: Callable[[], None]) -> None:
        """Call this when the cell that made the panel runs again."""
        self._on_replaced = listener

    def _before_cell(self, info: Any) -> None:
        if self._cell is not None and getattr(info, "cell_id", None) == self._cell:
            if self._on_replaced is not None:
                self._on_replaced()
        elif self.progress is not None:
            self.progress.disturb()

    def _after_cell(self, result: Any) -> None:
        self._state = snapshot.capture()


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
