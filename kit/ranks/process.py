"""`python -m kit.ranks.process engine …`: a process that ends with the one it serves.

ipyparallel starts its controller and engines in sessions of their own, so they outlive
a kernel that is killed. These look whether it is still there.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading

from ipykernel.iostream import OutStream

from kit.machine import processes

_SECONDS_BETWEEN_LOOKS = 0.25


class Output(OutStream):
    """What is printed goes to the notebook; what C++ writes to stderr, to the log.

    A process that C++ code ends has no time to send its last words anywhere else.
    """

    def __init__(self, *arguments: object, **options: object) -> None:
        is_error = "stderr" in arguments
        super().__init__(*arguments, **{**options, "watchfd": not is_error})


def end_with(parent: int, folder: str, is_controller: bool) -> None:
    """Wait until another process has ended; then end this one and its children.

    The controller also ends the engines, which may be stuck in code that lets no other
    thread run, and removes the folder.
    """
    while os.getppid() == parent:
        threading.Event().wait(_SECONDS_BETWEEN_LOOKS)
    if is_controller:
        processes.end(_find_others(folder))
        shutil.rmtree(folder, ignore_errors=True)
    processes.end([os.getpid()])


def _find_others(folder: str) -> list[int]:
    """Return the other processes that were started for a folder."""
    import psutil

    running = psutil.process_iter(["pid", "cmdline"])
    found = [p.info["pid"] for p in running if folder in (p.info["cmdline"] or ())]
    return sorted({*found} - {os.getpid(), *processes.descendants(os.getpid())})


def serve() -> None:
    """Be a controller, or an engine, of the process and the folder that are named."""
    role, parent, folder = sys.argv[1:4]
    del sys.argv[1:4]
    is_controller = role == "controller"
    watched = (int(parent), folder, is_controller)
    threading.Thread(target=end_with, args=watched, daemon=True).start()
    if is_controller:
        from ipyparallel.controller.app import main
    else:
        from ipyparallel.engine.app import main
    main()


if __name__ == "__main__":
    serve()
