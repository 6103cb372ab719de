"""What a set-up prints is told once; later starts of the same are silent."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Generator

#: Threads whose prints are dropped now. A forked worker is another process.
_SILENT: set[tuple[int, int]] = set()


@contextlib.contextmanager
def silencing() -> Generator[None, None, None]:
    """Drop what this thread prints meanwhile; all others go on to print.

    Errors and warnings are still heard, and so is what other processes print.
    """
    stream, me = sys.stdout, _identify()
    own = getattr(stream, "__dict__", None)
    if own is None or me in _SILENT:
        yield
        return
    write, before = stream.write, own.get("write")

    def write_unless_silent(text: str) -> int:
        return len(text) if _identify() in _SILENT else write(text)

    own["write"] = write_unless_silent
    _SILENT.add(me)
    try:
        yield
    finally:
        _SILENT.discard(me)
        # Else somebody has wrapped it meanwhile, and will take it off.
        if own.get("write") is write_unless_silent:
            del own["write"]
            own |= {"write": before} if before else {}


def _identify() -> tuple[int, int]:
    return os.getpid(), threading.get_ident()
