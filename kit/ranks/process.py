"""`python -m kit.ranks.process engine …`: a process that ends with the one it serves.

ipyparallel starts its controller and engines in sessions of their own, so they outlive
a kernel that is killed. These look whether it is still there.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import shutil
import sys
import threading
import traceback
from importlib import import_module
from pathlib import Path

from ipykernel.iostream import OutStream

from kit import system

_SECONDS_BETWEEN_LOOKS = 0.25
_SECONDS_TO_START, _SECONDS_BETWEEN_TRIES = 60, 0.05
#: Where the controller writes how engines connect to it, below the folder.
_CONNECTION = "security/ipcontroller-engine.json"


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
        system.end(_find_others(folder))
        shutil.rmtree(folder, ignore_errors=True)
    system.end([os.getpid()])


def _find_others(folder: str) -> list[int]:
    """Return the other processes that were started for a folder."""
    import psutil

    running = psutil.process_iter(["pid", "cmdline"])
    found = [p.info["pid"] for p in running if folder in (p.info["cmdline"] or ())]
    return sorted({*found} - {os.getpid(), *system.find_descendants(os.getpid())})


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
        # What a rank needs is loaded while the controller and the kernel get ready.
        import_module("torch.distributed")
        from ipyparallel.engine.app import main

        _wait_for_connection(Path(folder, _CONNECTION))
    failed = True
    try:
        main()
        failed = False
    except Exception:  # so ends the loop of an engine that is told to stop
        traceback.print_exc()
    finally:
        _leave(int(failed))


def _leave(code: int) -> None:
    """End this process after what was asked to be done at its end.

    Python would go on and free all that PyTorch has in memory, object by object. That
    takes a second; the system does it at once.
    """
    gc.freeze()
    atexit._run_exitfuncs()
    os._exit(code)


def _wait_for_connection(file: Path) -> None:
    """Wait until a file is there and complete: engines start beside the controller."""
    ended = threading.Event()
    for _ in range(int(_SECONDS_TO_START / _SECONDS_BETWEEN_TRIES)):
        with contextlib.suppress(OSError, ValueError):
            json.loads(file.read_text())
            return
        ended.wait(_SECONDS_BETWEEN_TRIES)


if __name__ == "__main__":
    serve()
