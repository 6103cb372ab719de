"""Child processes: find them, suspend and resume them, end them, time them."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterable

from kit.machine import system

#: Helpers that Python and PyTorch share between everything in a process. Suspending
#: or ending them with one experiment would harm the others.
_SHARED = (
    b"multiprocessing.resource_tracker",
    b"multiprocessing.forkserver",
    b"torch._inductor.compile_worker",
    b"torch_shm_manager",
)
#: Children that are known to be helpers, or have ended.
_helpers: set[int] = set()


def have_any() -> bool:
    """Return whether this process has children, living or not yet reaped."""
    if not hasattr(os, "waitid"):
        return True
    flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
    try:
        os.waitid(os.P_ALL, 0, flags)
    except ChildProcessError:
        return False
    return True


def descendants(pid: int | None = None) -> set[int]:
    """Return the process ids of children and their children, shared helpers left out.

    A fork server is left out, the workers that it started are not.
    """
    if pid is None and not have_any():
        return set()
    found: set[int] = set()
    for child in system.list_children(pid or os.getpid()):
        shared = _shared_helper(child) if pid is None else b""
        if not shared:
            found.add(child)
        if not shared or b"forkserver" in shared:
            found |= descendants(child)
    return found


def started_by(threads: Iterable[int | None]) -> set[int]:
    """Return the processes that threads of this process have started, with theirs.

    Threads are named by their native ids. Only Linux tells; elsewhere there are none.
    """
    found: set[int] = set()
    for thread in threads:
        started = set(system.list_started(os.getpid(), thread))
        found |= started.union(*map(descendants, started))
    return found


def _shared_helper(pid: int) -> bytes:
    """Return the name of the shared helper that this process is, or b""."""
    # A helper has its own command line only some milliseconds after its fork.
    tracker = sys.modules.get("multiprocessing.resource_tracker")
    if tracker and pid == getattr(tracker._resource_tracker, "_pid", None):
        return _SHARED[0]
    server = sys.modules.get("multiprocessing.forkserver")
    if server and pid == getattr(server._forkserver, "_forkserver_pid", None):
        return _SHARED[1]
    command = system.read_command(pid)
    if not command or command == system.read_command(os.getpid()):
        return b""
    return next((name for name in _SHARED if name in command), b"")


def children_seconds() -> float:
    """Return the processor time that all children have used so far, in seconds.

    Living descendants by their own processor clock (Linux), ended ones by what the
    system adds up for their parent.
    """
    if not sys.platform.startswith("linux"):
        return 0.0
    total = ended_seconds()
    for pid in descendants():
        with contextlib.suppress(OSError):
            # The kernel's clock id of another process: see clock_getcpuclockid(3).
            total += time.clock_gettime((~pid << 3) | 2)
    return total


def ended_seconds() -> float:
    """Return the processor time of all children that have ended, in seconds (Unix)."""
    if sys.platform == "win32":
        return 0.0
    import resource

    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime


def have_workers() -> bool:
    """Return whether a child process lives that is no shared helper."""
    global _helpers
    if not have_any():
        return False
    children = set(system.list_children(os.getpid()))
    _helpers &= children
    for pid in children - _helpers:
        if not _shared_helper(pid) and system.read_state(pid) not in ("Z", ""):
            return True
        _helpers.add(pid)
    # A fork server is a helper, the workers that it started are not.
    return any(system.list_children(pid) for pid in _helpers)


def suspend(pids: Iterable[int]) -> bool:
    """Suspend processes; return False where one could not be."""
    sent = [_send(pid, "SIGSTOP") for pid in pids]
    return all(sent)


def resume(pids: Iterable[int]) -> None:
    """Let suspended processes go on."""
    for pid in pids:
        _send(pid, "SIGCONT")


def end(pids: Iterable[int]) -> None:
    """End processes at once, suspended ones too, and their children."""
    for pid in pids:
        for child in descendants(pid):
            _send(child, "SIGKILL")
        _send(pid, "SIGKILL")


def alive(pids: Iterable[int]) -> set[int]:
    """Return those of the processes that still run (zombies do not)."""
    return {pid for pid in pids if system.read_state(pid) not in ("", "Z", "X")}


def leave_out_shared(pids: Iterable[int]) -> set[int]:
    """Return the processes that are no shared helpers.

    What was forked to become one may have been taken for a worker before. Only our own
    children can be helpers: workers of a fork server have its command line.
    """
    children = system.list_children(os.getpid())
    return {pid for pid in pids if pid not in children or not _shared_helper(pid)}


def name(pid: int) -> str:
    """Return what a process calls itself, or "process"."""
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read().strip()
    except OSError:
        return "process"


def _send(pid: int, name: str) -> bool:
    """Send a signal by name; a process that has already ended counts as done."""
    try:
        system.send(pid, name)
    except ProcessLookupError:
        return True
    except Exception:
        return False
    return True
