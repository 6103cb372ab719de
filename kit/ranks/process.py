"""`python -m kit.ranks.process engine …`: a process that ends with the one it serves.

ipyparallel starts its controller and engines in sessions of their own, so they outlive
a kernel that is killed. These look whether it is still there.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
from importlib import import_module

from ipykernel.iostream import OutStream

from kit.machine import processes

_SECONDS_BETWEEN_LOOKS = 0.25
#: The controller goes last: what watches an engine tells it that the engine has ended.
_SECONDS_LONGER = 1.0


class Output(OutStream):
    """What is printed goes to the notebook; what C++ writes to stderr, to the log.

    A process that C++ code ends has no time to send its last words anywhere else.
    """

    def __init__(self, *arguments: object, **options: object) -> None:
        is_error = "stderr" in arguments
        super().__init__(*arguments, **{**options, "watchfd": not is_error})


def end_with(parent: int, folder: str | None = None) -> None:
    """End this process and its children once another one has ended; wait for that.

    `folder` is removed first.
    """
    while os.getppid() == parent:
        threading.Event().wait(_SECONDS_BETWEEN_LOOKS)
    if folder is not None:
        threading.Event().wait(_SECONDS_LONGER)
        shutil.rmtree(folder, ignore_errors=True)
    processes.end([os.getpid()])


def serve() -> None:
    """Be a controller, or an engine, of the process and the folder that are named."""
    role, parent, folder = sys.argv[1:4]
    del sys.argv[1:4]
    watched = (int(parent), folder if role == "controller" else None)
    threading.Thread(target=end_with, args=watched, daemon=True).start()
    if role == "controller":
        from ipyparallel.controller.app import main
    else:
        # Loaded while the engine waits to be registered.
        threading.Thread(target=import_module, args=("torch",), daemon=True).start()
        from ipyparallel.engine.app import main
    main()


if __name__ == "__main__":
    serve()
