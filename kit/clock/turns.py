"""One measurement at a time in a process: others wait for their turn, and say so."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Generator

from kit.progress import Progress, Stopped

_SECONDS_BETWEEN_LOOKS = 0.05


class _Turn:
    """Who measures; each process has its own."""

    def __init__(self) -> None:
        self.pid, self.lock, self.title = os.getpid(), threading.RLock(), ""


_turn = _Turn()


@contextlib.contextmanager
def take_turn(progress: Progress) -> Generator[None, None, None]:
    """Wait until no other thread measures, then keep the others waiting.

    A measurement inside a measurement goes on at once. Raises Stopped where the
    progress is told to stop meanwhile.
    """
    global _turn
    if _turn.pid != os.getpid():  # forked while a thread of the parent measured
        _turn = _Turn()
    turn = _turn
    while not turn.lock.acquire(timeout=_SECONDS_BETWEEN_LOOKS * progress.waiting):
        progress.waiting = True
        progress.doing = f"waiting for another one to end ({turn.title})"
        if progress.stopping:
            raise Stopped
    outer, turn.title = turn.title, progress.title
    try:
        if not outer:
            progress.take_turn()
        yield
    finally:
        turn.title = outer
        turn.lock.release()
