"""Progress, time left and Stop of anything long; one measurement at a time."""

from __future__ import annotations

import contextlib
import contextvars
import os
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping
from typing import Any

from kit import figures
from kit.mode import is_static

_SILENT_SECONDS, _SHORT_SECONDS = 2.0, 0.1
_SECONDS_BETWEEN_UPDATES, _SECONDS_BETWEEN_LINES = 0.5, 10.0
#: After so many seconds without a step, it is told who may be waited for.
_LONG_STEP_SECONDS = 8.0
#: Who measures holds the lock of its process: a forked child does not wait for its
#: parent. The titles are those of what is measured, the outermost first.
_locks: dict[int, threading.RLock] = {}
_titles: list[str] = []


class Stopped(Exception):
    """Raised between steps after `Progress.stop` was called."""


class Progress:
    """What a running measurement tells about itself, and how it is asked to stop.

    The driving thread sets the fields; a thread of its own shows them, so that a long
    set-up is not silent: after two seconds, or `at_once`. Nothing is shown while
    `hushed` is true. What has no steps is not missed for not ending one. Use it as a
    context manager around a measurement.
    """

    def __init__(
        self, title: str, *, at_once: bool = False, has_steps: bool = True
    ) -> None:
        self.title, self.doing, self.so_far, self.note = title, "setting up", "", ""
        self.stopping = self.waiting = self.disturbed = self.abandoned = False
        self.hushed: bool = False
        self._has_steps = has_steps
        #: Names the processes of what is measured, by process id.
        self.find_children: Callable[[], Mapping[int, str]] = dict
        self.fraction, self._part, self._parts = 0.0, 0, 1
        self.seconds_left: float | None = None
        self._started = self._begun = self._heard = time.monotonic()
        self._wait = _SHORT_SECONDS if at_once else _SILENT_SECONDS
        if is_static():  # a stored notebook keeps no progress
            self._wait = threading.TIMEOUT_MAX
        self._over, self._is_shown = threading.Event(), False
        self._display_id = os.urandom(8).hex()

    def stop(self) -> None:
        """Ask the measurement to stop after the current step."""
        self.stopping = True

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
        self._part, self._parts = part, parts
        if part == 0:
            self._begun = time.monotonic()
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
        doing = "" if self.doing == "measuring" else f"{self.doing}, "
        parts = [self.title, f"{doing}{time.monotonic() - self._started:.0f} s so far"]
        if self.stopping:
            parts.append("stopping after this step")
        if self.fraction:
            parts.append(f"{self.fraction:.0%} done")
        if self.seconds_left is not None:
            parts.append(f"about {self.seconds_left:.0f} s left")
        silent = self.silent_seconds
        is_missed = self._has_steps and not self.waiting
        if is_missed and silent > _LONG_STEP_SECONDS:
            parts.append(f"no step has ended for {silent:.0f} s")
            children = [f"{name} ({pid})" for pid, name in self.find_children().items()]
            parts += [f"child processes: {', '.join(children)}"] * bool(children)
        return " · ".join(part for part in (*parts, self.so_far, self.note) if part)

    def __enter__(self) -> Progress:
        run = contextvars.copy_context().run  # output belongs to the cell of a context
        self._thread = threading.Thread(target=run, args=[self._show], daemon=True)
        self._thread.name = "kit progress"
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(timeout=1)

    def _show(self) -> None:
        while not self._over.wait(self._wait):
            self._wait = _SHORT_SECONDS if self.hushed else self.show(self.text())
        if self._is_shown:
            self.show("")

    def show(self, text: str) -> float:
        """Show a line in place of the one before; return for how long it may stand."""
        again, self._is_shown = self._is_shown, True
        ipython = sys.modules.get("IPython")
        with contextlib.suppress(Exception):  # a closed channel must not end a run
            if ipython and hasattr(ipython.get_ipython(), "kernel"):
                from IPython.display import display

                page = figures.html_progress(text, self.fraction) if text else ""
                data = {"text/plain": text, "text/html": page}
                keep = {"display_id": self._display_id, "update": again}
                display(data, raw=True, metadata={"kit": "progress"}, **keep)
            elif sys.stderr.isatty():
                width = os.get_terminal_size(sys.stderr.fileno()).columns - 1
                print(f"{text[:width]:{width}}", end="\r", file=sys.stderr, flush=True)
            else:
                print(text, end="\n" if text else "", file=sys.stderr)
                return _SECONDS_BETWEEN_LINES
        return _SECONDS_BETWEEN_UPDATES


@contextlib.contextmanager
def take_turn(progress: Progress) -> Generator[None, None, None]:
    """Wait until no other thread measures, then keep the others waiting.

    A measurement inside a measurement goes on at once. Raises Stopped where the
    progress is told to stop meanwhile.
    """
    lock = _locks.setdefault(os.getpid(), threading.RLock())
    while not lock.acquire(timeout=0.05 if progress.waiting else 0):
        progress.waiting = True
        progress.doing = f"waiting for another one to end ({''.join(_titles[-1:])})"
        if progress.stopping:
            raise Stopped
    _titles.append(progress.title)
    try:
        progress.waiting = False
        yield
    finally:
        _titles.pop()
        lock.release()
