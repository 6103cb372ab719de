"""A script as an experiment: a function of it, or the script as it is.

As it is, each `optimizer.step()` ends a step. It has a stack of its own (greenlet) in
the thread that drives it. So all that Python and PyTorch keep for a thread is the
script's, and the clock and the profiler see it. Who drives it is a greenlet, too: see
`beside_scripts`.
"""

from __future__ import annotations

import contextlib
import contextvars
import gc
import importlib
import importlib.util
import os
import runpy
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch
from weakref import WeakKeyDictionary

from greenlet import getcurrent, greenlet

from kit.errors import ExperimentError

#: A script that goes on so often after it was ended cannot be ended.
_MOST_ENDINGS = 100
_UNENDING: list[greenlet] = []
_LATE_SECONDS = 8.0
#: An optimizer that steps less than so many times as often as another ends no step.
_OFTEN = 0.1
_CURE = """If it trains in its own processes or threads, make its main thread train. \
Otherwise put a `yield` into its loop, and diagnose that function: train.py:train."""
_LATE = f"""{{}} has not called optimizer.step() for {_LATE_SECONDS:g} s.
If it is still preparing, wait; otherwise stop it (Ctrl+C). {_CURE}
"""


@contextlib.contextmanager
def _telling_after(seconds: float, said: str) -> Generator[None, None, None]:
    """Say what may be the matter with what has not ended after so many seconds."""
    timer = threading.Timer(seconds, lambda: sys.stderr.write(said))
    timer.name, timer.daemon = "kit timer", True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def load_function(where: str, function: str, seconds: float = 10.0) -> Any:
    """Import a script, or a module, and return one of its functions.

    The script's folder comes first on `sys.path`, as with `python train.py`. A script
    that is still being imported after so many seconds is named.
    """
    path = Path(where)
    is_file = path.suffix == ".py"
    sys.path.insert(0, str(path.resolve().parent if is_file else Path.cwd()))
    said = (
        f"{where} is still being imported after {seconds:g} s: it seems to train at "
        "import.\nDiagnose it unmodified, with --script, or put the loop into a "
        "function with a `yield`.\n"
    )
    with _telling_after(seconds, said):
        module = _import_file(path) if is_file else importlib.import_module(where)
    if not hasattr(module, function):
        raise ExperimentError(f"{where} has no {function}.\nName one of its functions.")
    return getattr(module, function)


def _import_file(path: Path) -> Any:
    """Import a script by its path, whatever it is called.

    Its name may have a dot in it (train.v2.py), or be that of a module that is loaded
    already (select.py). Workers that are not forked import it by its name.
    """
    name = path.stem
    taken = getattr(sys.modules.get(name), "__file__", None)
    if name.isidentifier() and name not in sys.modules:
        return importlib.import_module(name)
    if taken is not None and Path(taken).resolve() == path.resolve():
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(f"script_{name}", path)
    if spec is None or spec.loader is None:
        raise ExperimentError(f"{path} cannot be imported.\nName a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class _Raised(NamedTuple):
    """What a greenlet hands over in place of raising it."""

    error: BaseException


def beside_scripts(function: Callable[..., Any], *given: Any, **named: Any) -> Any:
    """Call a function that drives scripts, on a stack beside theirs; return its result.

    PyTorch walks the C stack whenever it makes an error, and does not stop at the end
    of a greenlet's own. What it finds there are the frames that were current when the
    greenlet was resumed for the first time; if others lie there by now, it crashes. So
    one loop at the bottom of the stack makes every switch, always in the same way: what
    lies above either stack is its frames, which stay.
    """

    def run(_: object) -> Any:
        try:
            return function(*given, **named)
        except BaseException as error:
            return _Raised(error)

    driver = greenlet(run)
    driver.gr_context = contextvars.copy_context()
    asked = driver.switch(None)
    while not driver.dead:
        script, order = asked
        asked = driver.switch(script.switch(order))
    if isinstance(asked, _Raised):
        raise asked.error
    return asked


def _resume(script: greenlet, order: BaseException | None = None) -> Any:
    """Let a script go on to the end of its step, or raise something in it.

    Returns True after a step, None after its end.
    """
    hub = getcurrent().parent
    found = hub.switch((script, order)) if hub else script.switch(order)
    if isinstance(found, _Raised):
        raise found.error
    return found


def _hand_over(script: greenlet) -> None:
    """Let go on who drives this script; then raise what was asked for."""
    order = script.parent.switch(True)
    if order is not None:
        raise order


class _Ended(BaseException):
    """Raised in a script: what its `finally:` says is done.

    Who catches Exception or KeyboardInterrupt there does not catch it.
    """


def _shorten(word: str) -> str:
    """Return the last part of an absolute path, and any other word as it is."""
    return Path(word).name if Path(word).is_absolute() else word


class Script:
    """A script with its arguments as an experiment, in which a step is one item.

    A step ends with every `most` steps of its optimizer; of several ones, of that which
    came last, but for those that step seldom.
    """

    is_script = True

    def __init__(self, path: Path, words: Sequence[str] = (), most: int = 1) -> None:
        self._path, self._words, self._most = path, words, most
        self.__name__ = shlex.join([path.name, *map(_shorten, words)])

    def __call__(self) -> Generator[int, None, None]:
        """Run the script as Python would; it prints and writes what it always does."""
        driver = getcurrent()
        script = greenlet(self._execute, parent=driver.parent)
        interrupted = False

        def interrupt(*_: object) -> None:
            nonlocal interrupted
            if getcurrent() is script:
                raise _Ended("Ctrl+C")
            if getcurrent() is driver:
                raise KeyboardInterrupt
            interrupted = True  # between the two

        with contextlib.ExitStack() as stack:  # the last one comes first
            stack.callback(gc.collect)  # else its tensors and workers would live on
            with contextlib.suppress(ValueError):  # signals are the main thread's
                before = signal.signal(signal.SIGINT, interrupt)
                stack.callback(signal.signal, signal.SIGINT, before)
            stack.callback(os.chdir, os.getcwd())
            stack.callback(sys.modules.update, __main__=sys.modules["__main__"])
            path = [str(self._path.resolve().parent), *sys.path]
            stack.enter_context(patch.object(sys, "path", path))
            argv = [str(self._path), *self._words]
            stack.enter_context(patch.object(sys, "argv", argv))
            stack.enter_context(self._ending_steps(script))
            stack.callback(self._end, script)
            with _telling_after(_LATE_SECONDS, _LATE.format(self.__name__)):
                _resume(script)
            if script.dead:
                said = f"{self.__name__} ended without calling optimizer.step()."
                raise ExperimentError(f"{said}\n{_CURE}")
            yield 1
            while _resume(script):
                if interrupted:
                    raise KeyboardInterrupt
                yield 1

    def _execute(self, _: object) -> _Raised | None:
        try:
            runpy.run_path(str(self._path), run_name="__main__")
        except _Ended as end:
            return _Raised(KeyboardInterrupt()) if end.args else None
        except SystemExit as end:
            said = (
                f"{self.__name__} ended with exit status {end.code}.\nIts own message "
                "is above. Its own arguments come after `--`."
            )
            return _Raised(ExperimentError(said)) if end.code else None
        except BaseException as error:
            return _Raised(error)
        return None

    @contextlib.contextmanager
    def _ending_steps(self, script: greenlet) -> Generator[None, None, None]:
        """Hand over to who drives the script where a step has ended.

        That is when the label has ended which PyTorch puts around it: a profiler must
        not be stopped while one is open.
        """
        from torch.autograd import profiler
        from torch.optim.optimizer import register_optimizer_step_post_hook

        process, most, steps = os.getpid(), self._most, 0
        #: How often each optimizer has stepped that is still there, as they came.
        counts: WeakKeyDictionary[Any, int] = WeakKeyDictionary()

        def count(optimizer: Any, *_: object) -> None:
            nonlocal steps
            if getcurrent() is not script or os.getpid() != process:
                return  # another thread's, or a forked child's
            counts[optimizer] = counts.get(optimizer, 0) + 1
            least = _OFTEN * max(counts.values())
            often = [each for each, count in counts.items() if count >= least]
            steps += optimizer is often[-1]

        class Label(profiler.record_function):  # type: ignore[misc, valid-type]
            def __exit__(self, *error: Any) -> None:
                nonlocal steps
                super().__exit__(*error)
                if steps >= most and getcurrent() is script:
                    steps = 0
                    _hand_over(script)

        hook = register_optimizer_step_post_hook(count)
        label = patch.object(profiler, "record_function", Label)
        with hook, label:
            yield

    def _end(self, script: greenlet) -> None:
        for _ in range(_MOST_ENDINGS):
            if script.dead:
                return
            _resume(script, _Ended())
        _UNENDING.append(script)  # to let go of it would be to end it, for ever
        raise ExperimentError(
            f"{self.__name__} keeps running when stopped: an `except:` around its loop "
            "catches everything.\nWrite `except Exception:` there."
        )
