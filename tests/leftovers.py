"""See that `make test` leaves nothing: a process, a port, or a file that is not needed.

    python tests/leftovers.py before FILE
    python tests/leftovers.py after FILE

Other programs on the machine are not blamed. Ours are the processes with the same
KIT_MAKE_TEST in their environment, what lies in TMPDIR, which is a folder of this one
`make test`, and new files in shared memory that no other process has mapped.
"""

import argparse
import contextlib
import json
import os
import sys
import time
from pathlib import Path

import psutil

#: What pytest, TensorBoard, torchrun and fork servers of kernels leave by themselves.
KEPT = ("pytest-of-", ".tensorboard-", "torchelastic_", "pymp-")


def list_files():
    """Return this user's files and folders in shared memory and in TMPDIR."""
    found = []
    for folder in ("/dev/shm", os.environ["TMPDIR"]):
        with contextlib.suppress(FileNotFoundError):
            found += os.scandir(folder)
    return [each.path for each in found if is_own(each)]


def is_own(entry):
    with contextlib.suppress(FileNotFoundError):
        is_kept = entry.name.startswith(KEPT)
        return entry.stat(follow_symlinks=False).st_uid == os.getuid() and not is_kept
    return False


def find_left(before):
    """Return what was not there before: processes by their ids, and files by paths."""
    mark = os.environ["KIT_MAKE_TEST"]
    asking = [os.getpid(), *(parent.pid for parent in psutil.Process().parents())]
    left = {}
    used_by_others = ""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get("KIT_MAKE_TEST") != mark:
                used_by_others += Path(f"/proc/{process.pid}/maps").read_text()
            elif process.pid not in asking:
                left[process.pid] = describe(process)
    for path in list_files():
        if path not in before and f"{path}\n" not in used_by_others:
            left[path] = path
    return left


def describe(process):
    """Return a process as words, with the ports at which it listens."""
    connections = process.net_connections("inet")
    ports = [each.laddr.port for each in connections if each.status == "LISTEN"]
    listening = f", listens at {ports}" if ports else ""
    return f"process {process.pid}{listening}: {' '.join(process.cmdline())}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("when", choices=["before", "after"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--seconds", type=float, default=10, help="to end within")
    arguments = parser.parse_args()
    if arguments.when == "before":
        arguments.file.write_text(json.dumps(list_files()))
        return
    before = json.loads(arguments.file.read_text())
    deadline = time.monotonic() + arguments.seconds
    left = find_left(before)
    while left and time.monotonic() < deadline:
        time.sleep(0.2)
        # What others use for a moment is there once, and not again.
        now = find_left(before)
        left = {key: now[key] for key in left if key in now}
    if left:
        sys.exit("\n".join(["make test leaves:", *left.values()]))


if __name__ == "__main__":
    main()
