"""What is recorded of a run: PyTorch's trace, and the lines that were executed.

The trace is read from the file that PyTorch's profiler writes for Perfetto.
"""

from __future__ import annotations

import contextlib
import functools
import json
import linecache
import os
import queue
import sys
import sysconfig
import tempfile
import threading
import timeit
from collections.abc import Generator, Mapping, Sequence
from multiprocessing import connection, queues
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from kit import clock
from kit.diagnosis.wrapping import STEP
from kit.errors import ExperimentError

_SECONDS_BETWEEN_LOOKS = 0.002
_SECONDS_FOR_THE_LOCK = 0.0001
#: What the sampler notes where a thread waits for another one, or for a queue.
WAITING, WAITING_FOR_QUEUE = "", "queue"
_QUEUES = {queue.__file__, connection.__file__, queues.__file__}
#: Where packages are installed.
_PACKAGES = {"site-packages", "dist-packages"}
#: Packages that train for their users.
_FRAMEWORKS = {"lightning", "pytorch_lightning", "transformers", "accelerate", "trl"}
_FRAMEWORKS |= {"fastai", "ignite", "skorch", "stable_baselines3", "timm", "diffusers"}
_FRAMEWORKS |= {"sentence_transformers", "composer", "catalyst", "mmengine"}
_ONE_ONLY = """a profiler is already running, and PyTorch allows only one.
Remove it from around this call or inside the experiment: the kit records the same."""
_KIT = f"{Path(__file__).parents[1]}{os.sep}"
#: What these files of the kit call in place of the reader's line counts for that line.
_WRAPPERS = {
    str(Path(__file__).with_name(f"{name}.py")) for name in ("wrapping", "switches")
}
_DEVICE_KINDS = {"kernel", "gpu_memcpy", "gpu_memset"}
_KINDS = {"cpu_op", "user_annotation", "cuda_runtime", "cuda_driver", *_DEVICE_KINDS}
#: Letters of a line of code that a report shows.
_LONGEST_CODE = 60


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

    Each in order of their starts. `marks` part the steps, one more than there are
    steps; `written` is the same as a file.
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
    copies = find_copies(content["traceEvents"])
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
        if kind in ("cuda_runtime", "cuda_driver"):
            name = copies.get((name, more.get("correlation")), name)
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


def find_copies(events: Sequence[Mapping[str, Any]]) -> dict[Any, str]:
    """Return how calls that copy are called with their direction, by correlation.

    >>> args = {"correlation": 7}
    >>> device = {"cat": "gpu_memcpy", "name": "Memcpy DtoH (Device)", "args": args}
    >>> host = {"cat": "cuda_runtime", "name": "cudaMemcpyAsync", "args": args}
    >>> find_copies([device, host])
    {('cudaMemcpyAsync', 7): 'cudaMemcpyAsync DtoH'}
    """
    directions = {
        event["args"].get("correlation"): event["name"].split()[1]
        for event in events
        if event.get("cat") == "gpu_memcpy"
    }
    found = {}
    for event in events:
        place = event.get("args", {}).get("correlation")
        is_call = str(event.get("cat")) in ("cuda_runtime", "cuda_driver")
        if is_call and place in directions:
            name = event["name"]
            found[name, place] = f"{name} {directions[place]}"
    return found


class Sample(NamedTuple):
    """What a thread executed at a moment.

    `line` is the innermost line that is the reader's, `inner` the innermost one of a
    framework below it, or the same line.
    """

    when: int
    line: str
    inner: str


@contextlib.contextmanager
def sampling() -> Generator[list[Sample], None, None]:
    """Look from another thread at which line the calling thread executes."""
    samples: list[Sample] = []
    watched, done = threading.get_ident(), threading.Event()

    def look() -> None:
        while not done.wait(_SECONDS_BETWEEN_LOOKS):
            frame = sys._current_frames().get(watched)
            if sample := look_at(frame):
                samples.append(sample)

    thread = threading.Thread(target=look, name="kit lines", daemon=True)
    interval = sys.getswitchinterval()
    # A thread that asks for Python's lock gets it so late at most; else it would see
    # the lines that give it back by themselves.
    sys.setswitchinterval(_SECONDS_FOR_THE_LOCK)
    thread.start()
    try:
        yield samples
    finally:
        done.set()
        thread.join()
        sys.setswitchinterval(interval)


def look_at(frame: FrameType | None) -> Sample | None:
    """Return what a thread with this innermost frame executes, None for the kit."""
    when = clock.epoch_nanoseconds()
    if frame and frame.f_code.co_filename == threading.__file__:
        caller = frame.f_back
        while caller and caller.f_code.co_filename == threading.__file__:
            caller = caller.f_back
        is_queue = caller and caller.f_code.co_filename in _QUEUES
        waiting = WAITING_FOR_QUEUE if is_queue else WAITING
        return Sample(when, waiting, waiting)
    if frame and frame.f_code.co_filename.startswith(_KIT):
        return None
    inner = ""
    while frame and (
        _is_library(frame.f_code.co_filename) or frame.f_code.co_filename in _WRAPPERS
    ):
        name = frame.f_code.co_filename
        if name in _QUEUES:
            return Sample(when, WAITING_FOR_QUEUE, WAITING_FOR_QUEUE)
        if not inner and _is_framework(name):
            inner = write_line(name, frame.f_lineno)
        frame = frame.f_back
    if not frame or frame.f_code.co_filename.startswith(_KIT):
        return None
    line = write_line(frame.f_code.co_filename, frame.f_lineno)
    return Sample(when, line, inner or line)


@functools.cache
def _is_library(filename: str) -> bool:
    if filename.startswith("<ipython-input"):
        return False
    is_package = not _PACKAGES.isdisjoint(Path(filename).parts)
    return is_package or filename.startswith(("<", sysconfig.get_path("stdlib")))


@functools.cache
def _is_framework(filename: str) -> bool:
    """Return whether a file belongs to a framework that trains for the reader."""
    folders = Path(filename).parts
    places = [n for n, folder in enumerate(folders[:-1]) if folder in _PACKAGES]
    return bool(places) and folders[places[-1] + 1] in _FRAMEWORKS


def write_line(filename: str, number: int) -> str:
    """Write a line as "train.py:41: the line", a notebook's as "cell:3: the line"."""
    is_cell = "ipykernel" in filename or filename.startswith("<ipython-input")
    name = "cell" if is_cell else os.path.basename(filename)
    text = linecache.getline(filename, number).strip()
    shown = text if len(text) <= _LONGEST_CODE else f"{text[: _LONGEST_CODE - 1]}…"
    return f"{name}:{number}" + (f": {shown}" if shown else "")


def measure_operation() -> float:
    """Return how many seconds a tiny operation takes from Python, as it is trained.

    >>> 0 < measure_operation() < 0.001
    True
    """
    import torch

    number = torch.ones(1, requires_grad=True)
    with torch.enable_grad():
        asked: dict[str, Any] = {"globals": {"number": number}, "number": 200}
        return min(timeit.repeat("number * number", repeat=10, **asked)) / 200
