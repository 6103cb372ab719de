"""One measurement at a time in a process: others wait for their turn, and say so."""

from __future__ import annotations

import collections
import contextlib
import threading
from collections.abc import Generator
from dataclasses import dataclass

from kit.progress import Progress, Stopped

_SECONDS_BETWEEN_LOOKS = 0.05
_CHANGED = threading.Condition()


@dataclass(eq=False)
class _Ticket:
    thread: int
    title: str


#: The first one measures, the others wait.
_QUEUE: collections.deque[_Ticket] = collections.deque()


@contextlib.contextmanager
def take_turn(progress: Progress) -> Generator[None, None, None]:
    """Wait until no other thread measures, then keep the others waiting.

    A measurement inside a measurement goes on at once. Raises Stopped where the
    progress is told to stop meanwhile.
    """
    me = threading.get_ident()
    if _QUEUE and _QUEUE[0].thread == me:
        yield
        return
    ticket = _Ticket(me, progress.title)
    with _CHANGED:
        _QUEUE.append(ticket)
    try:
        _wait(ticket, progress)
        yield
    finally:
        with _CHANGED:
            _QUEUE.remove(ticket)
            _CHANGED.notify_all()


def _wait(ticket: _Ticket, progress: Progress) -> None:
    with _CHANGED:
        while (ahead := _QUEUE[0]) is not ticket:
            progress.waiting = True
            progress.doing = f"waiting for another one to end ({ahead.title})"
            if progress.stopping:
                raise Stopped
            _CHANGED.wait(_SECONDS_BETWEEN_LOOKS)
    progress.take_turn()
