"""What an experiment has around it: settings, random state, child processes, threads.

They are there while its steps run. In between, another variant has its own.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator

from kit.clock import snapshot
from kit.machine import processes

#: Threads that queues between processes need; they add nothing while both ends rest.
_QUIET_THREADS = ("QueueFeederThread", "pin_memory")


class Surroundings:
    """The state of one variant, and the children and threads that it has started."""

    def __init__(self) -> None:
        self.children: set[int] = set()
        self.entered = False
        self.can_stop_children = True
        self._threads: set[threading.Thread] = set()
        self._driver: threading.Thread | None = None
        self._before: set[int] = set()
        self._threads_before: set[threading.Thread] = set()
        self._state: snapshot.State | None = None

    @property
    def can_rest(self) -> bool:
        """Whether nothing goes on while they are left.

        Child processes can be suspended; threads cannot.
        """
        busy = [
            thread
            for thread in self._threads
            if thread.is_alive()
            and not any(quiet in thread.name for quiet in _QUIET_THREADS)
        ]
        return self.can_stop_children and not busy

    @contextlib.contextmanager
    def enter(self) -> Generator[None, None, None]:
        """Swap in the variant's state and let its children go on; then the reverse."""
        outside = snapshot.capture()
        self._driver = threading.current_thread()
        self._before = processes.descendants()
        self._threads_before = set(threading.enumerate())
        self.entered = True
        if self._state is not None:
            snapshot.restore(self._state)
        processes.resume(self.children)
        try:
            yield
        finally:
            self.entered = False
            # Workers that went on while the clock stands still would work for free.
            stopped = processes.suspend(self.children)
            new = self._find_new()
            stopped = processes.suspend(new) and stopped
            self.can_stop_children = stopped and self.can_stop_children
            children = processes.alive(self.children | new)
            self.children = processes.leave_out_shared(children)
            processes.resume(children - self.children)
            self._state = snapshot.capture()
            snapshot.restore(outside)
            self._threads |= set(threading.enumerate()) - self._threads_before

    def find_children(self) -> set[int]:
        """Return the child processes, those started since they were entered too."""
        new = self._find_new() if self.entered else set()
        return processes.leave_out_shared(processes.alive(self.children | new))

    def _find_new(self) -> set[int]:
        new = processes.descendants() - self._before
        if not new:
            return new
        # A cell that runs beside a panel's experiment has children of its own.
        others = self._threads_before - self._threads - {self._driver}
        return new - processes.started_by(thread.native_id for thread in others)

    @contextlib.contextmanager
    def enter_last(self) -> Generator[None, None, None]:
        """Swap in the variant's state to close it: no children are looked for."""
        outside = snapshot.capture()
        if self._state is not None:
            snapshot.restore(self._state)
        try:
            yield
        finally:
            snapshot.restore(outside)
