"""What is recorded of a run: PyTorch's trace, the reader's lines, bytes that move.

The trace is read from the file that PyTorch's profiler writes for Perfetto.
"""

from __future__ import annotations

import contextlib
import functools
import json
import linecache
import os
import sys
import sysconfig
import tempfile
import threading
import timeit
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kit import clock
from kit.diagnosis.counterfactuals import STEP
from kit.errors import ExperimentError

_SECONDS_BETWEEN_LOOKS = 0.002
#: What the sampler notes where a thread waits for another one.
WAITING = ""
_ONE_ONLY = """a profiler is already at work, and PyTorch has one only.
Leave it out, around this call or inside the experiment: the kit records the same."""
_KIT = str(Path(__file__).parents[1])
_DEVICE_KINDS = {"kernel", "gpu_memcpy", "gpu_memset"}
_KINDS = {"cpu_op", "user_annotation", "cuda_runtime", "cuda_driver", *_DEVICE_KINDS}


class Event(NamedTuple):
    """One event of a trace; times in nanoseconds, `lane` is its thread or stream."""

    start: int
    stop: int
    name: str
    lane: str
    is_label: bool = False
    is_backward: bool = False


class Trace(NamedTuple):
    """Events of whole steps: of the main thread, of others, of devices.

    Each in order of their starts. `marks` are the ends of steps, one more than there
    are steps; `written` is the same as a file.
    """

    marks: list[int]
    main: list[Event]
    others: list[Event]
    devices: list[Event]
    written: str = ""


@contextlib.contextmanager
def profiling() -> Generator[list[str], None, None]:
    """Let PyTorch's profiler record; afterwards the list holds its trace as a file.

    Raises ExperimentError where a profiler is at work already.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile

    if torch.autograd._profiler_enabled():
        raise ExperimentError(_ONE_ONLY)
    kinds, name = [ProfilerActivity.CPU], "KINETO_LOG_LEVEL"
    kinds += [ProfilerActivity.CUDA] * torch.cuda.is_initialized()
    found: list[str] = []
    before = os.environ.get(name)
    os.environ[name] = before or "99"  # its log says nothing that a reader can act on
    try:
        profiler = profile(activities=kinds)
        profiler.start()
        try:
            yield found
        finally:
            goes_on = torch.autograd._profiler_enabled()
            if goes_on:  # else one of the experiment's has ended it
                profiler.stop()
        if not goes_on:
            raise ExperimentError(_ONE_ONLY)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            profiler.export_chrome_trace(str(path))
            found.append(path.read_text("utf-8"))
    finally:
        del os.environ[name]
        os.environ |= {name: before} if before else {}


def read_trace(found: Sequence[str]) -> Trace:
    """Read the events of whole steps, without the first step.

    On ranks the profilers begin one after the other, and whoever is early waits there:
    nobody is charged for that.
    """
    content = json.loads(found[0])
    base, main = content["baseTimeNanoseconds"], ""
    marks: list[int] = []
    host: list[Event] = []
    devices: list[Event] = []
    for event in content["traceEvents"]:
        kind = event.get("cat")
        if event["ph"] != "X" or kind not in _KINDS:
            continue
        start, name, more = round(1000 * event["ts"]), event["name"], event["args"]
        start, stop = base + start, base + start + round(1000 * event["dur"])
        if name == STEP:
            main = event["tid"]
            marks += [start, stop]
        elif kind in _DEVICE_KINDS:
            lane = f"device {more.get('device')} stream {more.get('stream')}"
            devices.append(Event(start, stop, name, lane))
        else:
            is_backward = "autograd::engine" in name or more.get("Fwd thread id", 0) > 0
            is_label = kind == "user_annotation"
            host.append(Event(start, stop, name, event["tid"], is_label, is_backward))
    marks = [*sorted(marks)[2::2], max(marks)]
    host.sort(key=lambda event: (event.start, -event.stop))  # who holds others is first
    kept = [e for e in host if marks[0] <= e.start < marks[-1]]
    made = [e for e in sorted(devices) if marks[0] <= e.start < marks[-1]]
    mine = [event for event in kept if event.lane == main]
    others = [event for event in kept if event.lane != main]
    return Trace(marks, mine, others, made, found[0])


@contextlib.contextmanager
def sampling() -> Generator[list[tuple[int, str]], None, None]:
    """Look from another thread at which line the calling thread executes.

    The list holds (time in nanoseconds, the innermost line that is not a library's).
    """
    samples: list[tuple[int, str]] = []
    watched, done = threading.get_ident(), threading.Event()

    def look() -> None:
        while not done.wait(_SECONDS_BETWEEN_LOOKS):
            frame = sys._current_frames().get(watched)
            if frame and frame.f_code.co_filename == threading.__file__:
                samples.append((clock.epoch_nanoseconds(), WAITING))
                continue
            while frame and _is_library(frame.f_code.co_filename):
                frame = frame.f_back
            if frame and not frame.f_code.co_filename.startswith(_KIT):
                line = write_line(frame.f_code.co_filename, frame.f_lineno)
                samples.append((clock.epoch_nanoseconds(), line))

    thread = threading.Thread(target=look, name="kit lines", daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        done.set()
        thread.join()


@functools.cache
def _is_library(filename: str) -> bool:
    libraries = [sysconfig.get_path(kind) for kind in ("stdlib", "purelib", "platlib")]
    return filename.startswith(("<", *libraries)) or "-packages" in filename


def write_line(filename: str, number: int) -> str:
    """Write a line as "train.py:41: the line", a notebook's as "cell:3: the line"."""
    name = "cell" if "ipykernel" in filename else os.path.basename(filename)
    text = linecache.getline(filename, number).strip()
    return f"{name}:{number}" + (f": {text[:60]}" if text else "")


@contextlib.contextmanager
def counting() -> Generator[list[int], None, None]:
    """Count the bytes that operations read and write, views and arithmetic left out."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves
    from torch.utils.flop_counter import flop_registry

    class Counting(TorchDispatchMode):
        def __torch_dispatch__(
            self, function: Any, types: Any, arguments: Any = (), options: Any = None
        ) -> Any:
            made = function(*arguments, **(options or {}))
            if not function.is_view and function.overloadpacket not in flop_registry:
                leaves = tree_leaves((arguments, options, made))
                tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
                moved.append(sum(tensor.nbytes for tensor in tensors))
            return made

    moved: list[int] = []
    with Counting():
        yield moved


def look_around(has_device: bool, _: object = None) -> tuple[float, float, int]:
    """Measure what a copy moves here, and what an operation costs; count threads.

    In bytes per second, read and written, and in seconds, from Python and recorded for
    the backward pass.

    >>> look_around(False)[0] > 1e6
    True
    """
    import torch

    source = torch.ones(8_000_000, device="cuda" if has_device else "cpu")
    target, number = torch.empty_like(source), torch.ones(1, requires_grad=True)

    def copy() -> None:
        target.copy_(source)
        clock.synchronize()

    copying = min(timeit.repeat(copy, number=1, repeat=10))
    with torch.enable_grad():
        asked = {"globals": {"number": number}, "number": 200, "repeat": 10}
        starting = min(timeit.repeat("number * number", **asked)) / 200
    return 2 * source.nbytes / copying, starting, torch.get_num_threads()
