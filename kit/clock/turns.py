"""One measurement at a time in a process: others wait for their turn, and say so."""

from __future__ import annotations

import collections
import contextlib
import os
import threading
from collections.abc import Generator
from dataclasses import dataclass

from kit.progress import Progress, Stopped

_SECONDS_BETWEEN_LOOKS = 0.05


@dataclass(eq=False)
class _Ticket:
    thread: int
    title: str


class _Queue:
    """Who measures, first, and who waits, in order; each process has its own."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.changed = threading.Condition()
        self.tickets: collections.deque[_Ticket] = collections.deque()


_queue = _Queue()


@contextlib.contextmanager
def take_turn(progress: Progress) -> Generator[None, None, None]:
    """Wait until no other thread measures, then keep the others waiting.

    A measurement inside a measurement goes on at once. Raises Stopped where the
    progress is told to stop meanwhile.
    """
    global _queue
    if _queue.pid != os.getpid():  # forked while a thread of the parent measured
        _queue = _Queue()
    queue, me = _queue, threading.get_ident()
    if queue.tickets and queue.tickets[0].thread == me:
        yield
        return
    ticket = _Ticket(me, progress.title)
    with queue.changed:
        queue.tickets.append(ticket)
    try:
        _wait(queue, ticket, progress)
        yield
    finally:
        with queue.changed:
            queue.tickets.remove(ticket)
            queue.changed.notify_all()


def _wait(queue: _Queue, ticket: _Ticket, progress: Progress) -> None:
    with queue.changed:
        while (ahead := queue.tickets[0]) is not ticket:
            progress.waiting = True
            progress.doing = f"waiting for another one to end ({ahead.title})"
            if progress.stopping:
                raise Stopped
            queue.changed.wait(_SECONDS_BETWEEN_LOOKS)
    progress.take_turn()
