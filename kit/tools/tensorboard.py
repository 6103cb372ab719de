"""TensorBoard beside a notebook: a fresh folder for logs, a server that ends with it.

TensorBoard's own magic starts its server as a process that outlives the kernel, and
looks for it on the PATH, where a kernel's own environment often is not. It starts what
the variable TENSORBOARD_BINARY names instead, and shows the address in the variable
TENSORBOARD_PROXY_URL (https://github.com/tensorflow/tensorboard/blob/master/tensorboard/notebook.py).
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import sys
import sysconfig
import threading
from pathlib import Path

from kit import system
from kit.experiment import ExperimentError

_SERVER = "kit-tensorboard"
_SECONDS_BETWEEN_LOOKS = 0.5


def prepare_tensorboard(folder: str | Path = "runs") -> Path:
    """Make a fresh folder for logs, and let `%tensorboard` end with this kernel.

    The logs' folder is numbered: "runs/1", the next time "runs/2". TensorBoard's magic
    then starts a server that only this machine reaches, and that ends with the process
    that called this. On a JupyterHub, such as Binder's, it is shown through the server
    proxy. Raises ExperimentError where TensorBoard is not installed, or the folder
    cannot be written.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     prepare_tensorboard(folder).name, prepare_tensorboard(folder).name
    ('1', '2')
    """
    if importlib.util.find_spec("tensorboard") is None:
        raise ExperimentError(
            "prepare_tensorboard(): TensorBoard is not installed.\n"
            f"Install it with `{sys.executable} -m pip install tensorboard`, then "
            "restart the kernel."
        )
    logs = _make_folder(Path(folder))
    beside = shutil.which(_SERVER, path=sysconfig.get_path("scripts"))
    server = beside or shutil.which(_SERVER)
    if server is None:
        raise ExperimentError(
            f"prepare_tensorboard(): there is no {_SERVER} beside this Python, nor on "
            "the PATH.\n"
            "It comes with the kit: run `make lab`, or `pip install --editable .` in "
            "the kit's folder."
        )
    os.environ["TENSORBOARD_BINARY"] = server
    hub = os.environ.get("JUPYTERHUB_SERVICE_PREFIX")
    if hub:
        os.environ.setdefault("TENSORBOARD_PROXY_URL", f"{hub}proxy/%PORT%/")
    return logs


def _make_folder(parent: Path) -> Path:
    """Make the folder with the next number that is free."""
    try:
        parent.mkdir(parents=True, exist_ok=True)
        taken = [int(path.name) for path in parent.iterdir() if path.name.isdecimal()]
        made = parent / str(max(taken, default=0) + 1)
        made.mkdir()
    except OSError as error:
        raise ExperimentError(
            f"prepare_tensorboard(): folder={str(parent)!r} cannot be written "
            f"({error.strerror or error}).\nName a folder that you may write to, as in "
            'prepare_tensorboard("runs").'
        ) from None
    return made


def serve() -> None:
    """Run TensorBoard until it is ended, or until the process that started it ends."""
    parent = os.getppid()
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    from tensorboard.main import run_main

    try:
        run_main()
    except SystemExit as end:
        if end.code and any(word.startswith("--port") for word in sys.argv):
            sys.stderr.write("Without --port, TensorBoard takes one that is free.\n")
        raise


def _end_with(parent: int) -> None:
    """End this process, as if asked to, once another one has ended."""
    while os.getppid() == parent and system.find_alive([parent]):
        threading.Event().wait(_SECONDS_BETWEEN_LOOKS)
    os.kill(os.getpid(), signal.SIGTERM)
