"""Progress, time left and partial results of anything that takes over two seconds."""

from __future__ import annotations

import contextlib
import contextvars
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from kit import figures

_SILENT_SECONDS, _SHORT_SECONDS = 2.0, 0.1
_SECONDS_BETWEEN_UPDATES = 0.5
#: After so many seconds without a step, it is told who may be waited for.
_LONG_STEP_SECONDS = 8.0


class Stopped(Exception):
    """Raised between steps after `Progress.stop` was called."""


class Progress:
    """What a running measurement tells about itself, and how it is asked to stop.

    The driving thread sets the fields; a thread of its own shows them, so that a long
    set-up is not silent: after two seconds, or `at_once`. Use it as a context manager
    around a measurement.
    """

    def __init__(self, title: str, *, at_once: bool = False) -> None:
        self.title = title
        self._at_once = at_once
        self.doing = "setting up"
        self.so_far = ""
        self.note = ""
        self.stopping = False
        self.waiting = False
        self.disturbed = False
        self.abandoned = False
        #: Names the processes of what is measured, by process id.
        self.find_children: Callable[[], Mapping[int, str]] = dict
        self.fraction = 0.0
        self.seconds_left: float | None = None
        self.started = self._begun = self._heard = time.monotonic()
        self._part, self._parts = 0, 1

    def stop(self) -> None:
        """Ask the measurement to stop after the current step."""
        self.stopping = True

    def disturb(self) -> None:
        """Say that something else runs in this process, unless this one only waits."""
        self.disturbed = self.disturbed or not self.waiting

    def take_turn(self) -> None:
        """Go on after others have been waited for."""
        self.waiting = False

    def report(self, find: Callable[[], Mapping[str, Any]]) -> None:
        """Offer what was measured so far, by label, at a moment when nothing is timed.

        Whoever shows pictures calls `find` and draws now; a line of text needs neither.
        """

    def hear(self) -> None:
        """Note that steps begin or have ended."""
        self._heard = time.monotonic()

    @property
    def silent_seconds(self) -> float:
        """How long no steps have begun or ended."""
        return time.monotonic() - self._heard

    def begin(self, part: int, parts: int, seconds: float | None = None) -> None:
        """Say which part starts, of how many equal ones, and how long it will take."""
        if part == 0:
            self._begun = time.monotonic()
        self._part, self._parts = part, parts
        if seconds is not None:
            self.seconds_left = seconds * (parts - part)

    def expect(self, share: float) -> None:
        """Say how much of the part is done, 0 to 1; the time left follows."""
        self.fraction = (self._part + min(max(share, 0.0), 1.0)) / self._parts
        if self.fraction > 0:
            spent = time.monotonic() - self._begun
            self.seconds_left = spent * (1 - self.fraction) / self.fraction

    def text(self) -> str:
        """Return the state as one line."""
        elapsed = time.monotonic() - self.started
        doing = "" if self.doing == "measuring" else f"{self.doing}, "
        parts = [self.title, f"{doing}{elapsed:.0f} s so far"]
        if self.stopping:
            parts.append("stopping after this step")
        if self.fraction:
            parts.append(f"{self.fraction:.0%} done")
        if self.seconds_left is not None:
            parts.append(f"about {self.seconds_left:.0f} s left")
        silent = self.silent_seconds
        if silent > _LONG_STEP_SECONDS and not self.waiting:
            parts.append(f"no step has ended for {silent:.0f} s")
            children = self.find_children()
            named = [f"{name} ({pid})" for pid, name in sorted(children.items())]
            parts += ["child processes: " + ", ".join(named)] * bool(named)
        return " · ".join(parts + [x for x in (self.so_far, self.note) if x])

    def __enter__(self) -> Progress:
        self._done = threading.Event()
        self._display: _Notebook | _Terminal = (
            _Notebook() if _in_notebook() else _Terminal()
        )
        # The cell that output belongs to is kept in a context variable.
        context = contextvars.copy_context()
        self._thread = threading.Thread(
            target=context.run, args=(self._show,), daemon=True
        )
        self._thread.start()
        return self

    def _show(self) -> None:
        wait = _SHORT_SECONDS if self._at_once else _SILENT_SECONDS
        while not self._done.wait(wait):
            self._display.show(self)
            wait = self._display.seconds_between

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._done.set()
        self._thread.join(timeout=1)
        self._display.clear()


def _in_notebook() -> bool:
    if "ipykernel" not in sys.modules:
        return False
    from IPython import get_ipython

    shell = get_ipython()
    return shell is not None and hasattr(shell, "kernel")


class _Notebook:
    """One output of the running cell, updated in place and emptied at the end."""

    seconds_between = _SECONDS_BETWEEN_UPDATES

    def __init__(self) -> None:
        self._handle: object | None = None

    def show(self, progress: Progress) -> None:
        from IPython.display import display

        text = progress.text()
        html = figures.html_progress(text, progress.fraction)
        data = {"text/plain": text, "text/html": html}
        self._publish(display, data)

    def clear(self) -> None:
        if self._handle is not None:
            from IPython.display import display

            self._publish(display, {"text/plain": "", "text/html": ""})

    def _publish(self, display: object, data: dict[str, str]) -> None:
        options = {"raw": True, "metadata": {"kit": "progress"}}
        with contextlib.suppress(Exception):  # a closed channel must not end a run
            if self._handle is None:
                self._handle = display(data, display_id=True, **options)
            else:
                self._handle.update(data, **options)


class _Terminal:
    """One line on a terminal, or a line now and then in a log."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._width = 0
        self.seconds_between = _SECONDS_BETWEEN_UPDATES if self._live else 10.0

    def show(self, progress: Progress) -> None:
        text = progress.text()
        with contextlib.suppress(OSError, ValueError):
            if self._live:
                text = text[: os.get_terminal_size(sys.stderr.fileno()).columns - 1]
                sys.stderr.write("\r" + text.ljust(self._width))
                self._width = len(text)
            else:
                sys.stderr.write(text + "\n")
            sys.stderr.flush()

    def clear(self) -> None:
        if self._live and self._width:
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.write("\r" + " " * self._width + "\r")
                sys.stderr.flush()
