"""What this process may use: a machine's cores and memory, less others' limits.

Each search returns a value, None where it is unknown, and how it was found.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from kit.machine import system

Found = tuple[int | None, str]


def read_text(root: Path, path: str | PurePosixPath) -> str:
    """Return a file's text, none where it cannot be read; `root` stands for "/"."""
    try:
        return (root / str(path).lstrip("/")).read_text(errors="replace")
    except OSError:
        return ""


def find_cores(root: Path) -> Found:
    """Count the cores in the affinity mask that the tightest quota leaves."""
    allowed, reason = _allowed_cores()
    if allowed is None:
        return None, "the system does not tell"
    limit = _quota(root)
    if limit is None:
        return allowed, f"{allowed} {reason}; no control group sets a quota"
    quota, group = limit
    cores = min(allowed, max(1, int(quota)))
    return cores, f"{allowed} {reason}; a quota of {quota:.3g} cores in {group}"


def find_memory(root: Path) -> Found:
    """Find the machine's memory or the tightest limit on it, in bytes."""
    if not system.is_linux():
        return system.read_memory()[0], "psutil.virtual_memory()"
    total = re.search(r"MemTotal:\s+(\d+) kB", read_text(root, "proc/meminfo"))
    sizes = [(int(total[1]) * 1024, "MemTotal in /proc/meminfo")] if total else []
    for group in _groups(root, "memory"):
        for file in ("memory.max", "memory.limit_in_bytes"):
            text = read_text(root, group / file).strip()
            # Version 1 writes "no limit" as a number near 2⁶³.
            if text.isdigit() and int(text) < 2**60:
                sizes.append((int(text), f"the limit in {group / file}"))
    return min(sizes, default=(None, "/proc/meminfo cannot be read"))


def find_shared_memory(root: Path) -> Found:
    """Find the size of /dev/shm, through which loaders' workers send batches."""
    try:
        disk = os.statvfs(root / "dev/shm")
    except (OSError, AttributeError):
        return None, "there is no /dev/shm"
    return disk.f_blocks * disk.f_frsize, "the size of /dev/shm"


def _allowed_cores() -> Found:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0)), "in this process's affinity mask"
    return os.cpu_count(), "by os.cpu_count(): this system has no affinity mask"


def read_throttled(root: Path) -> float:
    """Return the seconds that the group with the tightest quota was stopped so far.

    Summed over the processors that it was stopped on; 0.0 where nothing tells.
    """
    limit = _quota(root)
    if limit is None:
        return 0.0
    words = read_text(root, f"{limit[1]}/cpu.stat").split()
    told = dict(zip(words[::2], words[1::2], strict=False))
    # Version 2 counts microseconds, version 1 nanoseconds.
    for name, per_second in (("throttled_usec", 1e6), ("throttled_time", 1e9)):
        if told.get(name, "").isdecimal():
            return int(told[name]) / per_second
    return 0.0


def _quota(root: Path) -> tuple[float, str] | None:
    quotas = []
    for group in _groups(root, "cpu"):
        files = ("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        for names in files:
            words = " ".join(read_text(root, group / name) for name in names).split()
            if len(words) == 2 and all(word.isdigit() and int(word) for word in words):
                quotas.append((int(words[0]) / int(words[1]), str(group)))
    return min(quotas, default=None)


def _groups(root: Path, controller: str) -> Iterator[PurePosixPath]:
    # This process's own control group and those around it, versions 1 and 2. In a
    # container the mount's root is part of the path but not of the file system.
    own: dict[str, str] = {}
    for line in read_text(root, "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        own.update(dict.fromkeys(controllers.split(","), path))
    mounts = read_text(root, "proc/self/mountinfo") or (
        "0 0 0 / /sys/fs/cgroup - cgroup2 - -\n"
        f"0 0 0 / /sys/fs/cgroup/{controller} - cgroup - {controller}"
    )
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        places = before.split()[3:5]
        kind, _, options = after.partition(" ")
        if kind == "cgroup2":
            path = own.get("")
        elif kind == "cgroup" and controller in options.split(" ")[-1].split(","):
            path = own.get(controller)
        else:
            continue
        if len(places) < 2:
            continue
        mount_root, mount_point = places
        inside = PurePosixPath(path or "/")
        if ".." in inside.parts or not inside.is_relative_to(mount_root):
            inside = PurePosixPath(mount_root)
        inside = inside.relative_to(mount_root)
        for part in [inside, *inside.parents]:
            yield PurePosixPath(mount_point) / part
