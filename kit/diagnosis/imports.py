"""The import of a script: watched, undone afterwards, its traceback cut to size."""

from __future__ import annotations

import contextlib
import functools
import importlib
import multiprocessing
import os
import signal
import sys
import sysconfig
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Generator
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, NoReturn

from kit import system

#: So often the import is interrupted again, should the script swallow it.
_SECONDS_BETWEEN = 2.0
_INSTALLED = tuple({sysconfig.get_path(name) for name in ("purelib", "platlib")})
#: Frames that are no part of a script's own traceback.
_OURS = (
    os.path.join(Path(__file__).parents[1], ""),
    str(importlib.__file__),
    "<frozen ",
)


class TrainsAtImport(BaseException):
    """Raised into a script that trains; no `except Exception` of its own catches it."""


class ImportWatch:
    """What was seen of a script while it was imported, "" where nothing was wrong."""

    def __init__(self, folder: Path) -> None:
        self.seen = ""
        self.over = False
        self._folder = str(folder / "_")[:-1]  # with the separator at its end

    def stop(self, seen: str) -> NoReturn:
        """Note what the script does, and end it there."""
        self.seen = self.seen or seen
        raise TrainsAtImport(seen)

    def is_script(self, filename: str) -> bool:
        """Return whether a file is the script or a neighbour, not a library."""
        is_library = filename.startswith((*_INSTALLED, *_OURS))
        return filename.startswith(self._folder) and not is_library

    def find_line(self, error: BaseException) -> str:
        """Return where in the script an error came up, as "train.py, line 3", or ""."""
        for entry in reversed(traceback.extract_tb(error.__traceback__)):
            if self.is_script(entry.filename):
                return f"{Path(entry.filename).name}, line {entry.lineno}"
        return ""

    def loads_library(self, frame: FrameType | None) -> bool:
        """Return whether the script waits for a library that is being imported."""
        for inner, _ in traceback.walk_stack(frame):
            filename = inner.f_code.co_filename
            if self.is_script(filename):
                return False
            if filename.startswith("<frozen importlib"):
                return True
        return False


@contextlib.contextmanager
def watch_import(watch: ImportWatch, seconds: float) -> Generator[None, None, None]:
    """End the import of a script that trains, or takes over `seconds`.

    It trains where an optimizer steps or a gradient is computed. The time is watched
    where the system can interrupt the main thread (POSIX); libraries may take longer.
    Nothing stays wrapped or registered afterwards. The script's own handlers see
    TrainsAtImport; should they swallow it, the watch still knows.
    """
    import torch
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    def refuse_step(*_: Any) -> None:
        if not watch.over:
            watch.stop("trains while it is imported: it calls optimizer.step()")

    # Tensor.backward looks this name up at each call.
    backward = torch.autograd.backward

    @functools.wraps(backward)
    def refuse_backward(*arguments: Any, **options: Any) -> Any:
        if not watch.over:
            watch.stop("trains while it is imported: it calls backward()")
        return backward(*arguments, **options)  # somebody has kept a reference

    def interrupt(_: int, frame: FrameType | None) -> None:
        if not watch.over and not watch.loads_library(frame):
            watch.stop(f"was still at work after {seconds:g} s of import")

    handle = register_optimizer_step_pre_hook(refuse_step)
    torch.autograd.backward = refuse_backward
    put_back = _start_timer(seconds, interrupt)
    try:
        try:
            yield
        finally:
            watch.over = True  # from here on nobody is interrupted any more
    finally:
        put_back()
        handle.remove()
        if torch.autograd.backward is refuse_backward:
            torch.autograd.backward = backward


def _start_timer(
    seconds: float, interrupt: Callable[[int, FrameType | None], None]
) -> Callable[[], None]:
    """Let the main thread be interrupted; return what puts back what was there."""
    is_main = threading.current_thread() is threading.main_thread()
    if not (is_main and hasattr(signal, "setitimer")):
        return lambda: None
    handler = signal.signal(signal.SIGALRM, interrupt)
    timer = signal.setitimer(signal.ITIMER_REAL, seconds, _SECONDS_BETWEEN)

    def put_back() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler or signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, *timer)

    return put_back


def end_children(error: BaseException | None, older: set[int]) -> None:
    """End the processes that a failed import has started; `older` ones are not its own.

    This one would wait for them at its end. A loader that the error's frames hold ends
    its workers itself, in good order; so do daemons when this process ends.
    """
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
    daemons = {child.pid for child in multiprocessing.active_children() if child.daemon}
    system.end(system.find_children() - older - daemons)


@contextlib.contextmanager
def restore_imports() -> Generator[None, None, None]:
    """Put back sys.path, sys.argv and the module table; libraries stay loaded."""
    path, arguments, modules = sys.path[:], sys.argv[:], dict(sys.modules)
    try:
        yield
    finally:
        added = {os.path.abspath(p) for p in Counter(sys.path) - Counter(path)}
        sys.path[:], sys.argv[:] = path, arguments
        news = {name.partition(".")[0] for name in sys.modules} - modules.keys()
        gone = {name for name in news if _folder_of(sys.modules.get(name)) in added}
        for name in list(sys.modules):
            if name.partition(".")[0] in gone:
                del sys.modules[name]
        sys.modules.update(modules)


def format_traceback(error: BaseException) -> str:
    """Return a traceback as the script alone would have got it, without the kit."""
    report = traceback.TracebackException.from_exception(error)
    _cut(report)
    return "".join(report.format())


def _cut(report: traceback.TracebackException) -> None:
    report.stack[:] = [f for f in report.stack if not f.filename.startswith(_OURS)]
    for inner in (report.__cause__, report.__context__, *(report.exceptions or ())):
        if inner is not None:
            _cut(inner)


def _folder_of(module: ModuleType | None) -> str:
    """Return the folder in which a top-level module or package lies."""
    spec = getattr(module, "__spec__", None)
    packages = list(getattr(spec, "submodule_search_locations", None) or [])
    file = packages[0] if packages else getattr(spec, "origin", None)
    found = packages or getattr(spec, "has_location", False)
    return os.path.dirname(os.path.abspath(file)) if found and file else ""
