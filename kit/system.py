"""What the system tells: child processes, memory, limits."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import multiprocessing
import os
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import psutil

from kit import clock

#: Helpers that Python and PyTorch share between everything in a process.
_HELPERS = (
    "multiprocessing.forkserver",
    "multiprocessing.resource_tracker",
    "torch_shm_manager",
    "torch._inductor.compile_worker",
)
_SECONDS_BETWEEN_LOOKS = 0.002


# Child processes


def list_children() -> set[int]:
    """Return the process ids of this process's children.

    What a fork server has started for this process counts. psutil would look at every
    process there is.
    """
    active = multiprocessing.active_children()
    found = {child.pid for child in active if child.pid is not None}
    folder = f"/proc/{os.getpid()}/task"
    try:
        threads = os.listdir(folder)
    except OSError:  # not on Linux
        return found | {child.pid for child in psutil.Process().children()}
    for thread in threads:
        with contextlib.suppress(OSError):  # a thread that has ended
            text = Path(folder, thread, "children").read_text()
            found.update(map(int, text.split()))
    return found


def name_child(pid: int) -> str:
    """Return a child's name, none for one that has ended or that all share."""
    # What a fork server has started has the server's command line.
    is_own = any(child.pid == pid for child in multiprocessing.active_children())
    try:
        child = psutil.Process(pid)
        command = child.cmdline()
        has_ended = child.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
        name = child.name()
    except psutil.Error:
        return ""
    # A fork has our own command line, whatever stands there.
    is_fork = command == psutil.Process().cmdline()
    is_shared = any(helper in " ".join(command) for helper in _HELPERS)
    if has_ended or (is_shared and not (is_fork or is_own)):
        return ""
    return name


# Memory


class MemoryWatch:
    """Watches how far memory rises above where it was at the beginning.

    Where an accelerator is in use, that is the accelerator's, by its allocator. Else it
    is this process's resident size, looked at every 2 ms; child processes do not count.
    Freed memory is given back first.
    """

    def begin(self) -> None:
        """Begin to watch."""
        gc.collect()
        if sys.platform == "linux":
            with contextlib.suppress(OSError, AttributeError):
                ctypes.CDLL(None).malloc_trim(0)
        self._device_start = _reset_device_peaks()
        self._process = psutil.Process()
        self._start = self._peak = self._process.memory_info().rss
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.name = "kit memory"
        self._thread.start()

    def _look(self) -> None:
        while not self._over.wait(_SECONDS_BETWEEN_LOOKS):
            self._peak = max(self._peak, self._process.memory_info().rss)

    def end(self) -> int:
        """Stop watching; return by how many bytes memory rose."""
        self._over.set()
        self._thread.join()
        on_device = _count_device_bytes("peak") - self._device_start
        if on_device > 0:
            return on_device
        return max(self._peak, self._process.memory_info().rss) - self._start


def available_bytes() -> int:
    """Return the bytes that can be taken now without making anybody go short.

    Of the accelerators in use, if there are any, on the one that has least; else in
    this machine, or in the limit that this process runs under.
    """
    if devices := clock.find_initialised():
        with contextlib.suppress(RuntimeError):
            return min(map(_count_unused_bytes, devices))
    left = [psutil.virtual_memory().available, *_find_left_in_groups()]
    return max(min(left), 0)


def _find_left_in_groups() -> Iterator[int]:
    """Yield what each control group's limit leaves, whoever in it uses the rest.

    Files that were read and can be dropped at once do not count as used.
    """
    for group in find_groups():
        limit = read_text(group / "memory.max").strip()
        usage = read_text(group / "memory.current").strip()
        if limit.isdecimal() and usage.isdecimal():
            statistics = read_text(group / "memory.stat")
            found = re.search(r"^inactive_file (\d+)$", statistics, re.MULTILINE)
            used = int(usage) - (int(found[1]) if found else 0)
            yield int(limit) - used


def _count_unused_bytes(index: int) -> int:
    """Return the bytes of an accelerator that are free, or held back for reuse."""
    told = sys.modules["torch"].accelerator
    held_back = told.memory_reserved(index) - told.memory_allocated(index)
    return int(told.get_memory_info(index)[0] + held_back)


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


# Limits of control groups (version 2)


def find_memory() -> int:
    """Find the machine's memory or the tightest limit on it, in bytes."""
    sizes = [psutil.virtual_memory().total]
    for group in find_groups():
        text = read_text(group / "memory.max").strip()
        if text.isdecimal():  # else it is "max"
            sizes.append(int(text))
    return min(sizes)


def find_quota() -> float | None:
    """Return the tightest quota in cores, None where there is none."""
    quotas = []
    for group in find_groups():
        words = read_text(group / "cpu.max").split()
        if len(words) == 2 and all(word.isdecimal() and int(word) for word in words):
            quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)


def find_groups() -> Iterator[PurePosixPath]:
    """Yield this process's own control group and those around it.

    In a container the own path may be that of the machine outside. No such folder is
    there then, and the last one, where the groups are mounted, is the container's own.
    """
    found = re.search(r"^0::(/.*)$", read_text("/proc/self/cgroup"), re.MULTILINE)
    path = PurePosixPath(found[1] if found else "/")
    inside = PurePosixPath("/") if ".." in path.parts else path
    for part in (inside, *inside.parents):
        yield PurePosixPath("/sys/fs/cgroup") / part.relative_to("/")


def read_text(path: str | PurePosixPath) -> str:
    """Return a file's text, none where it cannot be read."""
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
