"""What runs on a rank: it joins a world, calls a function, makes a run for the kernel.

ipyparallel calls everything here, one thing after the other, on the main thread of the
rank's process.
"""

from __future__ import annotations

import datetime
import faulthandler
import functools
import inspect
import os
import signal
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from traceback import FrameSummary
from typing import Any, NamedTuple

import cloudpickle
from IPython import get_ipython

from kit.errors import ExperimentError
from kit.machine import find_cores
from kit.measuring.experiment import Experiment
from kit.measuring.records import Stretch
from kit.measuring.run import Driver, Variant

_KIT, _PYTHON = Path(__file__).parents[1], Path(sysconfig.get_path("stdlib"))


@dataclass(frozen=True)
class Outcome:
    """How a call ended on one rank: "returned", "raised", "stopped" or "died".

    `value` is what was returned, pickled. `error` is kind and message on one line.
    `place` is the innermost line of the reader's code.
    """

    kind: str
    value: bytes = b""
    error: str = ""
    place: FrameSummary | None = None
    traceback: str = ""


class _Here:
    """What the kernel keeps open in this process."""

    barrier_group: Any = None
    driver: Driver | None = None


# Worlds


def introduce(me: int, count: int, paths: list[str], folder: str) -> int:
    """Get ready to be a rank; return how many GPUs are here.

    `count` is how many ranks share the cores, and `paths` is where the kernel finds
    modules. Where threads stand is written to a file in the folder, at SIGUSR2 and
    where C++ code ends the process.
    """
    sys.path += [path for path in paths if path not in sys.path]
    share = max(1, (find_cores() or 1) // count)
    os.environ["OMP_NUM_THREADS"] = str(share)
    import torch.distributed  # with all that `join` needs: there others wait

    file = open(Path(folder, f"stacks-{me}"), "w")  # noqa: SIM115
    faulthandler.enable(file)
    faulthandler.register(signal.SIGUSR2, file)
    return torch.cuda.device_count()


def join(
    me: int, members: tuple[int, ...], gpus: int, path: str, seconds: float
) -> dict[str, Any]:
    """Make a world of some ranks, the only one of this process; return facts about it.

    They meet in the file at `path`. Each rank has a GPU where there are enough.
    """
    import torch
    import torch.distributed as dist

    device = "cpu"
    if max(members) < gpus:
        device = f"cuda:{me}"
        torch.cuda.set_device(device)
    loopback = "lo" if sys.platform == "linux" else "lo0"
    os.environ["GLOO_SOCKET_IFNAME"] = loopback
    if dist.is_initialized():
        dist.destroy_process_group()
    dist.init_process_group(
        "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl",
        init_method=f"file://{path}",
        rank=members.index(me),
        world_size=len(members),
        timeout=datetime.timedelta(seconds=seconds),
    )
    # A barrier waits for all that is under way in its group: not the experiment's.
    _Here.barrier_group = dist.new_group(backend="gloo")
    names = {"torch": torch, "dist": dist, "device": torch.device(device)}
    names |= {"rank": dist.get_rank(), "world_size": dist.get_world_size()}
    get_ipython().user_ns.update(names)
    thread = threading.main_thread().ident
    facts = {"threads": torch.get_num_threads(), "process": os.getpid()}
    return facts | {"device": device, "main_thread": thread}


# Calls


def perform(me: int, payload: bytes) -> Outcome:
    """Run a pickled call, and say how it ended."""
    try:
        function, arguments, options = cloudpickle.loads(payload)
        _lend(function)
        return Outcome("returned", cloudpickle.dumps(function(*arguments, **options)))
    except BaseException as error:
        return _describe(error)


def unpack(file: str, make: Callable[..., Any], parts: Iterable[Any]) -> Any:
    """Make code that the kernel has sent; it stands in this file, or cell, there."""
    return make(*parts).replace(co_filename=file)


def _lend(function: object) -> None:
    """Let a function of a cell find names of this rank that did not come with it."""
    inner = _find_function(function)
    module = sys.modules.get(getattr(inner, "__module__", None) or "")
    if inner is not None and inner.__globals__ is not getattr(module, "__dict__", None):
        for name, value in get_ipython().user_ns.items():
            inner.__globals__.setdefault(name, value)


def _find_function(function: object) -> Any:
    """Return the plain function inside a partial, a method or a callable object."""
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.ismethod(function):
        function = function.__func__
    if inspect.isfunction(function):
        return inspect.unwrap(function)
    call = type(function).__call__
    return call if inspect.isfunction(call) else None


def _describe(error: BaseException) -> Outcome:
    """Make an outcome of what ended a call."""
    text = traceback.format_exception(error)
    place = find_place(traceback.extract_tb(error.__traceback__))
    message = " ".join(str(error).split())
    if not isinstance(error, ExperimentError):
        name = type(error).__name__
        message = f"{name}: {message}" if message else name
    return Outcome("raised", error=message, place=place, traceback="".join(text))


def find_place(frames: Iterable[FrameSummary]) -> FrameSummary | None:
    """Return the innermost place in the reader's code, if any; the text comes later."""
    for frame in reversed([*frames]):
        if is_readers(frame.filename):
            place = frame.filename, frame.lineno, frame.name
            return FrameSummary(*place, lookup_line=False)
    return None


def is_readers(file: str) -> bool:
    """Return whether a file, or a cell, is neither a library's nor the kit's.

    >>> is_readers("train.py"), is_readers(os.__file__), is_readers(__file__)
    (True, False, False)
    """
    if file.startswith("<"):
        return not file.startswith("<frozen")
    path = Path(os.path.realpath(file))
    ours = [path.is_relative_to(folder.resolve()) for folder in (_KIT, _PYTHON)]
    return not any(ours) and {"site-packages", "dist-packages"}.isdisjoint(path.parts)


# A run, driven command by command


class RankDriver(Driver):
    """Drives what a run is on one rank; only the kernel starts it again."""

    def restart(self) -> None:
        """Say that it has ended: only the kernel starts it again."""
        raise ExperimentError(
            f"{self.variant.call} ended after {self._steps_done} steps, while it was "
            "being recorded.\nPut `while True:` around its loop."
        )


class RankVariant(Variant):
    """An experiment on one rank."""

    driver = RankDriver


def begin_run(experiment: Experiment, knobs: Any) -> None:
    """Make a run, which is not yet started."""
    import torch.distributed as dist

    _lend(experiment.own)
    variant = RankVariant(experiment, knobs)
    variant.may_be_empty = dist.get_world_size() > 1
    _Here.driver = variant.drive(0)
    _Here.driver.prepare()


def start_run(seed: int) -> Stretch | None:
    """Start the generator, and run it to its first yield; return that."""
    assert _Here.driver is not None
    return _Here.driver.start(seed)


class TimedSteps(NamedTuple):
    """Steps that were timed, whether the run has ended, and all steps it has made."""

    stretch: Stretch
    has_ended: bool
    tail_seconds: float
    steps_done: int


def time_steps(driver: Driver, count: int) -> TimedSteps:
    """Time so many steps, or those up to the generator's end."""
    stretch = driver.advance(count)
    return TimedSteps(
        stretch, driver.has_ended, driver.tail_seconds, driver._steps_done
    )


def use_driver(function: Callable[[Driver], Any]) -> Any:
    """Call a function with what drives the run here, once all ranks are there."""
    import torch.distributed as dist

    assert _Here.driver is not None
    dist.barrier(group=_Here.barrier_group)
    return function(_Here.driver)


def close_run(because: BaseException | None) -> list[str]:
    """Close the generator; return what there is to note about the run."""
    driver, _Here.driver = _Here.driver, None
    if driver is None:
        return []
    driver.close(because)
    return driver.variant.notes
