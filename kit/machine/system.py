"""What the system tells of processes and memory: Linux in /proc, others by psutil.

So on Linux nothing but Python is needed. Of a process that has ended, or may not be
looked at, nothing is told.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
from typing import Any

#: Not every kernel lists the children of a process, by the thread that started them.
LISTS_CHILDREN = os.path.exists(f"/proc/self/task/{os.getpid()}/children")
_WORDS = {"R": "running", "S": "sleeping", "D": "disk-sleep", "T": "stopped"}
_WORDS |= {"t": "tracing-stop", "Z": "zombie", "X": "dead", "I": "idle"}
_LETTERS = {word: letter for letter, word in _WORDS.items()}
_ACTIONS = {"SIGSTOP": "suspend", "SIGCONT": "resume", "SIGKILL": "kill"}


def is_linux() -> bool:
    """Return whether this is Linux, where /proc tells."""
    return sys.platform == "linux"


def list_children(pid: int) -> list[int]:
    """Return the ids of the processes that a process has started."""
    if not is_linux():
        psutil = import_psutil()
        with contextlib.suppress(psutil.Error):
            return [child.pid for child in psutil.Process(pid).children()]
        return []
    if not LISTS_CHILDREN:
        everyone = map(int, filter(str.isdecimal, os.listdir("/proc")))
        return [other for other in everyone if _read_stat(other)[1:2] == [str(pid)]]
    with contextlib.suppress(OSError):
        threads = os.listdir(f"/proc/{pid}/task")
        return [child for t in threads for child in list_started(pid, int(t))]
    return []


def list_started(pid: int, thread: int | None) -> list[int]:
    """Return the processes that one thread has started, where the system tells.

    `thread` is its native id.
    """
    path = f"/proc/{pid}/task/{thread}/children"
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return list(map(int, file.read().split()))
    return []


def read_command(pid: int) -> bytes:
    """Return a process's command line, b"" where it cannot be read.

    Between its words is a zero byte, or elsewhere than on Linux a space.
    """
    if is_linux():
        with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read()
        return b""
    psutil = import_psutil()
    with contextlib.suppress(psutil.Error):
        return " ".join(psutil.Process(pid).cmdline()).encode()
    return b""


def read_state(pid: int) -> str:
    """Return a process's state as a letter, as `ps` has it; "" where there is none.

    "T" is suspended; "Z" is a zombie, which has ended and was not waited for.
    """
    if is_linux():
        return "".join(_read_stat(pid)[:1])
    psutil = import_psutil()
    with contextlib.suppress(psutil.Error):
        return _LETTERS.get(str(psutil.Process(pid).status()), "R")
    return ""


def name_state(pid: int) -> str:
    """Return a process's state as a word, "" where there is no such process.

    >>> name_state(os.getpid())
    'running'
    """
    return _WORDS.get(read_state(pid), "")


def read_resident_bytes(pid: int) -> int:
    """Return how much memory a process holds, shared pages too; 0 where unknown."""
    if is_linux():
        with contextlib.suppress(OSError, IndexError):
            with open(f"/proc/{pid}/statm") as file:
                pages = int(file.read().split()[1])
            return pages * os.sysconf("SC_PAGE_SIZE")
        return 0
    psutil = import_psutil()
    with contextlib.suppress(psutil.Error):
        return int(psutil.Process(pid).memory_info().rss)
    return 0


def read_memory() -> tuple[int, int]:
    """Return this machine's memory, and how much of it is available, in bytes."""
    if not is_linux():
        found = import_psutil().virtual_memory()
        return found.total, found.available
    with open("/proc/meminfo") as file:
        told = dict(re.findall(r"^(\w+):\s+(\d+) kB", file.read(), re.M))
    available = told.get("MemAvailable", told["MemFree"])
    return int(told["MemTotal"]) * 1024, int(available) * 1024


def send(pid: int, name: str) -> None:
    """Send SIGSTOP, SIGCONT or SIGKILL, or do what comes nearest on this system.

    Raises ProcessLookupError, or psutil's error, where there is no such process.
    """
    if hasattr(signal, name):
        os.kill(pid, getattr(signal, name))
    else:
        getattr(import_psutil().Process(pid), _ACTIONS[name])()


def import_psutil() -> Any:
    """Return psutil; raise ImportError that says how to install it."""
    try:
        import psutil
    except ImportError:
        raise ImportError(
            f"On {sys.platform} the kit needs psutil, which tells it about processes "
            f"and memory.\nInstall it: {sys.executable} -m pip install psutil"
        ) from None
    return psutil


def _read_stat(pid: int) -> list[str]:
    """Return what Linux tells of a process: its state, its parent, and so on."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].decode().split()
    return []
