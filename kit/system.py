"""What the system tells: child processes, memory, how busy others are, quotas."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import psutil

from kit import clock

_ROOT = Path("/")
_FORK_SERVER = "multiprocessing.forkserver"
#: Helpers that Python and PyTorch share between everything in a process.
_HELPERS = [_FORK_SERVER, "multiprocessing.resource_tracker", "torch_shm_manager"]
_HELPERS += ["torch._inductor.compile_worker"]
#: Who is asked to end has so long.
_SECONDS_TO_END = 0.5
_SECONDS_BETWEEN_LOOKS = 0.02
#: A look takes milliseconds in a process with large libraries: it may use so much of
#: one core.
_MOST_OF_A_CORE = 0.1
_IDLE = ("idle", "iowait", "steal", "guest", "guest_nice")  # guests are in user, too


# Child processes


def find_children(besides: Collection[int] = ()) -> set[int]:
    """Return the living descendants of this process, shared helpers left out.

    A fork server is left out, the workers that it started are not. `besides` are native
    ids of threads: what they have started is left out, too, where the system tells.
    """
    found: set[int] = set()
    for child in _list_children(os.getpid(), besides) if _has_children() else ():
        helper = _name_helper(child)
        if not helper:
            found.add(child)
        if helper in ("", _FORK_SERVER):
            found |= find_descendants(child)
    return find_alive(found)


def find_descendants(pid: int) -> set[int]:
    """Return the children of a process and theirs, those that have just ended too."""
    children = _list_children(pid)
    return set(children).union(*map(find_descendants, children))


def find_alive(pids: Iterable[int]) -> set[int]:
    """Return those of the processes that still run (zombies do not)."""
    gone = ("zombie", "dead", None)
    return {pid for pid in pids if _ask(pid, psutil.Process.status) not in gone}


def end(pids: Collection[int]) -> None:
    """Ask processes to end; then end them.

    PyTorch raises in the main thread that a loader's worker was killed, whatever that
    computes, but not of one that was asked.
    """
    for how in (psutil.Process.terminate, psutil.Process.kill):
        for pid in find_alive(pids):
            _ask(pid, how)
        begun = time.perf_counter()
        while find_alive(pids) and time.perf_counter() - begun < _SECONDS_TO_END:
            time.sleep(0.01)


def name_process(pid: int) -> str:
    """Return what a process calls itself, or "process"."""
    return _ask(pid, psutil.Process.name) or "process"


def read_children_seconds() -> float:
    """Return the processor time that all descendants have used so far, in seconds.

    Shared helpers count, and so do those that have ended and were waited for.
    """
    times = [_ask(p, psutil.Process.cpu_times) for p in find_descendants(os.getpid())]
    # The first four are its own and its ended children's.
    return clock.read_ended_seconds() + sum(sum(each[:4]) for each in times if each)


def _ask(pid: int, question: Callable[[psutil.Process], Any]) -> Any:
    """Return what psutil tells of a process; None where it has ended."""
    with contextlib.suppress(psutil.Error):
        return question(psutil.Process(pid))


def _has_children() -> bool:
    """Return whether there are any, living or not yet waited for; in a microsecond."""
    if hasattr(os, "waitid"):
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return False
    return True


def _list_children(pid: int, besides: Collection[int] = ()) -> list[int]:
    """Return the direct children; psutil would look at every process there is."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            if int(thread) not in besides:
                with open(f"/proc/{pid}/task/{thread}/children") as file:
                    found += map(int, file.read().split())
        return found
    return [child.pid for child in _ask(pid, psutil.Process.children) or ()]


def _name_helper(pid: int) -> str:
    """Return the name of the shared helper that a child is, or ""."""
    command = _ask(pid, psutil.Process.cmdline) or []
    # A fork has our own command line, whatever stands there.
    if command == psutil.Process().cmdline():
        return ""
    return next((name for name in _HELPERS if name in " ".join(command)), "")


# Memory


class MemoryWatch:
    """Watch how far memory rises above where it was on entering.

    Where an accelerator was used, the increase is the accelerator's. Else it is that
    of this process and its children: on Linux the proportional set size (PSS), which
    counts shared pages once, sampled up to fifty times a second, or this process's
    own high-water mark where that is higher; elsewhere the resident size. In bytes.
    Freed memory is given back first. Both take a while, so `in_a_hurry` nothing is
    given back, and only this process's own mark is read.
    """

    def __init__(self, *, in_a_hurry: bool = False) -> None:
        self.increase = self._start = self._peak = 0
        self._in_a_hurry, self._done = in_a_hurry, threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.name = "kit memory"

    def __enter__(self) -> MemoryWatch:
        if not self._in_a_hurry:
            _give_back()
        self._device_start = _reset_device_peaks()
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
        self._own_start = _read_high_water()
        if not self._in_a_hurry:
            self._start = self._peak = proportional_bytes()
            self._thread.start()
        return self

    def _look(self) -> None:
        # One process is read after the other. Pages that children begin to share
        # meanwhile would be counted twice; they are not in the next look.
        pause, before = _SECONDS_BETWEEN_LOOKS, self._start
        while not self._done.wait(pause):
            begun, now = time.perf_counter(), proportional_bytes()
            self._peak, before = max(self._peak, min(before, now)), now
            cost = time.perf_counter() - begun
            pause = max(_SECONDS_BETWEEN_LOOKS, cost / _MOST_OF_A_CORE)

    def __exit__(self, *error: object) -> None:
        if not self._in_a_hurry:
            self._done.set()
            self._thread.join()
            now = min(proportional_bytes(), proportional_bytes())
            self._peak = max(self._peak, now)
        own = _read_high_water() - self._own_start
        device = _count_device_bytes("peak") - self._device_start
        self.increase = device if device > 0 else max(self._peak - self._start, own, 0)


def proportional_bytes() -> int:
    """Return the memory of this process and its children, shared pages once."""
    pids = *find_children(), os.getpid()
    told = [_ask(pid, psutil.Process.memory_full_info) for pid in pids]
    return sum(getattr(each, "pss", each.rss) for each in told if each)


def private_bytes() -> int:
    """Return the memory that this process shares with no other, in bytes.

    What a fork has shared counts from when one of the two writes to it.

    >>> private_bytes() > 1e6
    True
    """
    return int(psutil.Process().memory_full_info().uss)


def available_bytes() -> int:
    """Return the bytes that can be taken now without making anybody go short.

    Of the accelerators in use, if there are any, on the one that has least; else in
    this machine, or in the limit that this process runs under.
    """
    if devices := clock.find_initialised():
        with contextlib.suppress(RuntimeError):
            return min(map(_count_unused_bytes, devices))
    left = [psutil.virtual_memory().available, *_find_left_in_groups(_ROOT)]
    return max(min(left), 0)


def _find_left_in_groups(root: Path) -> Iterator[int]:
    """Yield what each control group's limit leaves, whoever in it uses the rest.

    Files that were read and can be dropped at once do not count as used.
    """
    names = (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    )
    for group in find_groups(root, "memory"):
        for limit_file, usage_file, droppable in names:
            limit = read_text(root, group / limit_file).strip()
            usage = read_text(root, group / usage_file).strip()
            if limit.isdigit() and usage.isdigit():
                statistics = read_text(root, group / "memory.stat")
                found = re.search(rf"^{droppable} (\d+)$", statistics, re.MULTILINE)
                used = int(usage) - (int(found[1]) if found else 0)
                yield int(limit) - used


def _count_unused_bytes(index: int) -> int:
    """Return the bytes of an accelerator that are free, or held back for reuse."""
    told = sys.modules["torch"].accelerator
    held_back = told.memory_reserved(index) - told.memory_allocated(index)
    return int(told.get_memory_info(index)[0] + held_back)


def _give_back() -> None:
    """Give freed memory back to the system, so that all start from the same."""
    gc.collect()
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)


def _reset_device_peaks() -> int:
    """Watch for new peaks on all devices; return the bytes that are allocated now."""
    fakes = sum(device.reset_peak() for device in clock.DEVICES)
    for index in clock.find_initialised():
        with contextlib.suppress(RuntimeError):
            sys.modules["torch"].accelerator.reset_peak_memory_stats(index)
    return fakes + _count_device_bytes("current")


def _count_device_bytes(which: str) -> int:
    """Return the bytes allocated on all devices, "current" or "peak"."""
    total = sum(device.peak() for device in clock.DEVICES if which == "peak")
    for index in clock.find_initialised():
        # Apple's does not tell before PyTorch 2.14; then the process's memory counts.
        with contextlib.suppress(RuntimeError):
            told = sys.modules["torch"].accelerator.memory_stats(index)
            total += told.get(f"allocated_bytes.all.{which}", 0)
    return total


def _read_high_water() -> int:
    """Return this process's highest resident size since the last reset (Linux)."""
    told = re.search(r"VmHWM:\s+(\d+)", read_text(_ROOT, "proc/self/status"))
    return int(told[1]) * 1024 if told else 0


# How busy the machine is


class Load(NamedTuple):
    """One reading of processor seconds since some fixed moment.

    `everyone` is all programs' on the cores that we may use, `process` this process's
    and its descendants', `thread` the calling thread's, `waited` what all threads of
    this process have waited for a core. `stolen` is what the host gave to other guests
    while a processor of this one had work, `throttled` how long this process's control
    group was stopped by its quota, summed over processors.
    """

    wall: float
    everyone: float
    process: float
    thread: float
    waited: float
    stolen: float = 0.0
    throttled: float = 0.0


def read_load(root: Path = _ROOT) -> Load:
    """Read the load counters; those that the system does not tell are 0.

    Files are read below `root`, so that a test can pretend.
    """
    busy = stolen = 0.0
    for times in _read_allowed_cores():
        busy += sum(s for name, s in times._asdict().items() if name not in _IDLE)
        stolen += getattr(times, "steal", 0.0)
    waited = 0
    for path in (root / "proc/self/task").glob("*/schedstat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            waited += int(path.read_text().split()[1])
    return Load(
        time.perf_counter(),
        busy,
        time.process_time() + read_children_seconds(),
        time.thread_time(),
        waited * 1e-9,
        stolen,
        read_throttled(root),
    )


def _read_allowed_cores() -> list[Any]:
    """Return the times of the cores that this process may use.

    In a container, the others are other people's.
    """
    every = psutil.cpu_times(percpu=True)
    if not hasattr(os, "sched_getaffinity"):
        return every
    allowed = os.sched_getaffinity(0)
    return [times for number, times in enumerate(every) if number in allowed]


def describe_load(before: Load, after: Load) -> dict[str, float]:
    """Return how busy others kept the machine between two readings, and what we used.

    `others_cores` is how many cores other programs used on average,
    `cores_per_thread` how many we used per core of the driving thread, `waiting` how
    many of our threads waited for a core, `stolen` how many cores the host gave away,
    `throttled` the share of the time that a quota stopped us, at most 1.

    >>> start, end = Load(0, 0, 0, 0, 0), Load(2.0, 3.0, 2.0, 2.0, 0.5)
    >>> describe_load(start, end)["others_cores"]
    0.5
    """
    change = Load(*(b - a for a, b in zip(before, after, strict=True)))
    wall = max(change.wall, 1e-9)
    return {
        "others_cores": max(0.0, change.everyone - change.process) / wall,
        "cores_per_thread": change.process / max(change.thread, 1e-9),
        "waiting": change.waited / wall,
        # The kernel's counters of stolen time are known to go backwards now and then.
        "stolen": max(0.0, change.stolen) / wall,
        "throttled": min(1.0, max(0.0, change.throttled) / wall),
    }


# Quotas


def find_memory(root: Path) -> tuple[int, str]:
    """Find the machine's memory or the tightest limit on it, in bytes."""
    sizes = [(psutil.virtual_memory().total, "psutil.virtual_memory()")]
    for group in find_groups(root, "memory"):
        for file in ("memory.max", "memory.limit_in_bytes"):
            text = read_text(root, group / file).strip()
            if text.isdigit():  # version 1 writes "no limit" as a number near 2⁶³
                sizes.append((int(text), f"the limit in {group / file}"))
    return min(sizes)


def read_throttled(root: Path) -> float:
    """Return the seconds that the group with the tightest quota was stopped so far.

    Summed over the processors that it was stopped on; 0.0 where nothing tells.
    """
    quota = find_quota(root)
    text = read_text(root, f"{quota[1]}/cpu.stat") if quota else ""
    told = re.search(r"^throttled_(usec|time) (\d+)$", text, re.MULTILINE)
    if told is None:
        return 0.0
    # Version 2 counts microseconds, version 1 nanoseconds.
    return int(told[2]) / (1e6 if told[1] == "usec" else 1e9)


def read_text(root: Path, path: str | PurePosixPath) -> str:
    """Return a file's text, none where it cannot be read; `root` stands for "/"."""
    try:
        return (root / str(path).lstrip("/")).read_text(errors="replace")
    except OSError:
        return ""


def find_quota(root: Path) -> tuple[float, str] | None:
    """Return the tightest quota in cores, and the control group that sets it."""
    quotas = []
    for group in find_groups(root, "cpu"):
        for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
            words = " ".join(read_text(root, group / name) for name in names).split()
            if len(words) == 2 and all(word.isdigit() and int(word) for word in words):
                quotas.append((int(words[0]) / int(words[1]), str(group)))
    return min(quotas, default=None)


def find_groups(root: Path, controller: str) -> Iterator[PurePosixPath]:
    """Yield this process's own control group and those around it, versions 1 and 2.

    In a container the own path may be that of the machine outside. No such folder is
    there then, and the last one, where the groups are mounted, is the container's own.
    """
    told = re.findall(r"^\d+:([^:]*):(/.*)$", read_text(root, "proc/self/cgroup"), re.M)
    for names, path in told or [("", "/"), (controller, "/")]:
        if names and controller not in names.split(","):
            continue
        inside = PurePosixPath("/" if ".." in path else path).relative_to("/")
        for folder in {names, controller if names else ""}:
            for part in (inside, *inside.parents):
                yield PurePosixPath("/sys/fs/cgroup") / folder / part
