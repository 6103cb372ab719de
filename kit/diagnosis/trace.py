"""One profiled run: PyTorch's own events over whole steps, and what recording costs."""

from __future__ import annotations

import bisect
import contextlib
import math
import os
import tempfile
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from kit import clock
from kit.experiment import ExperimentError

#: What the diagnosis itself writes into a trace.
STEP, BACKWARD, LOADER = "kit: step", "kit: backward", "kit: loader"
#: More events than these are not kept: steps are left out, and it is said.
MOST_EVENTS = 150_000
#: So many operations, three times with and without a profiler, tell an event's cost.
_OPERATIONS = 1000
#: PyTorch's number for events that Python code opened by name.
_USER_SCOPE = 7


class Event(NamedTuple):
    """One event of a trace; times in nanoseconds.

    Only operations have shapes, and only convolutions their other `inputs`.
    """

    name: str
    start: int
    stop: int
    thread: int
    sequence: int
    is_label: bool
    is_backward: bool
    shapes: Sequence[Any]
    dtypes: Sequence[str]
    inputs: Sequence[Any]

    @property
    def duration(self) -> int:
        """Return how long it took, in nanoseconds."""
        return self.stop - self.start

    @property
    def is_exchange(self) -> bool:
        """Whether it is an exchange between ranks, in a thread of their group."""
        return self.name.startswith(("gloo:", "nccl:"))


class DeviceEvent(NamedTuple):
    """Something that an accelerator did; times in nanoseconds."""

    name: str
    start: int
    stop: int
    device: int
    stream: int


@dataclass
class Trace:
    """The events of whole steps, by thread, each thread's in order of their starts.

    `marks` are the ends of steps, one more than there are steps. `step_seconds` is a
    step without the profiler, `profiled_seconds` one with it. `written` is the same as
    a file, where that was asked for.
    """

    marks: list[int]
    threads: dict[int, list[Event]]
    main: int
    devices: list[DeviceEvent] = field(default_factory=list)
    step_seconds: float = 0.0
    most_event_cost: float = math.inf
    written: bytes = b""

    @property
    def steps(self) -> int:
        """Return how many whole steps there are."""
        return len(self.marks) - 1

    @property
    def events(self) -> list[Event]:
        """Return the main thread's events."""
        return self.threads[self.main]

    @property
    def profiled_seconds(self) -> float:
        """Return the seconds of a step while it was recorded."""
        return (self.marks[-1] - self.marks[0]) / self.steps / 1e9

    @property
    def inflation(self) -> float:
        """Return by which fraction recording made a step longer."""
        if not self.step_seconds > 0:
            return 0.0
        return max(0.0, self.profiled_seconds / self.step_seconds - 1)

    @property
    def event_cost(self) -> float:
        """Return the nanoseconds that recording one event of the main thread costs.

        No more than `most_event_cost`: other reasons made the steps longer, then.
        """
        extra = 1e9 * (self.profiled_seconds - self.step_seconds) * self.steps
        each = max(0.0, extra) / max(1, len(self.events))
        return min(each, self.most_event_cost)


class Raw(list[Any]):
    """The profiler's own events; `written` is the same as a file."""

    written = b""


def is_profiling() -> bool:
    """Return whether a profiler is at work on this thread."""
    import torch

    return bool(torch.autograd._profiler_enabled())


def refuse_second_profiler(caller: str) -> None:
    """Raise ExperimentError where a profiler is at work on this thread."""
    if is_profiling():
        raise ExperimentError(
            f"{caller}: a profiler is already at work in this process, and PyTorch "
            "has one only.\nLeave the `with torch.profiler.profile(…):` around this "
            "call, or inside the experiment, and try again."
        )


@contextlib.contextmanager
def profiling(
    *, shapes: bool = False, as_file: bool = False, caller: str = "diagnose()"
) -> Generator[Raw, None, None]:
    """Let PyTorch's profiler record; afterwards the list holds its raw events.

    Shapes of operations cost some time to record. `as_file` also keeps the trace as a
    file that Perfetto and Chrome read.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile

    refuse_second_profiler(caller)
    kinds = [ProfilerActivity.CPU]
    if torch.cuda.is_initialized():
        kinds.append(ProfilerActivity.CUDA)
    found = Raw()
    with _quiet():
        profiler = profile(activities=kinds, record_shapes=shapes)
        profiler.start()
        try:
            yield found
        finally:
            if is_profiling():
                profiler.stop()
                results = profiler.profiler.kineto_results
                found.extend(results.events())
                if as_file:
                    found.written = _write(profiler)


def _write(profiler: Any) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return path.read_bytes()


def measure_event_cost() -> float:
    """Return how many nanoseconds recording one event costs here and now.

    >>> measure_event_cost() >= 0
    True
    """
    import torch

    def time_operations() -> float:
        begun = clock.CLOCK.wall()
        for _ in range(_OPERATIONS):
            torch.empty((), device="cpu")
        return clock.CLOCK.wall() - begun

    plain = min(time_operations() for _ in range(3))
    with profiling():
        recorded = min(time_operations() for _ in range(3))
    return 1e9 * max(0.0, recorded - plain) / _OPERATIONS


@contextlib.contextmanager
def _quiet() -> Generator[None, None, None]:
    """Keep the profiler's own log, which the reader cannot act on, off the screen."""
    name, before = "KINETO_LOG_LEVEL", os.environ.get("KINETO_LOG_LEVEL")
    os.environ[name] = before or "99"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)


def read(raw: Iterable[Any], caller: str = "diagnose()") -> Trace:
    """Make a Trace of raw events: what lies between the first and the last mark.

    Raises ExperimentError where there are no two marks.
    """
    marks, main, host, devices = [], 0, [], []
    for event in raw:
        start = event.start_ns()
        if event.name() == STEP:
            marks.append(start)
            main = event.start_thread_id()
        elif str(event.device_type()).endswith("CPU"):
            host.append((start, -event.duration_ns(), event))
        else:
            stop = start + event.duration_ns()
            place = event.device_index(), event.device_resource_id()
            devices.append(DeviceEvent(event.name(), start, stop, *place))
    if len(marks) < 2:
        raise ExperimentError(
            f"{caller}: the profiler kept no whole step.\nDoes the experiment stop a "
            "profiler of its own? Leave that out, and try again."
        )
    marks.sort()
    threads: dict[int, list[Event]] = {main: []}
    for start, _, event in sorted(host, key=lambda item: item[:2]):
        if marks[0] <= start < marks[-1]:
            made = _make(event)
            threads.setdefault(made.thread, []).append(made)
    kept = [d for d in devices if marks[0] <= d.start < marks[-1]]
    kept.sort(key=lambda d: d.start)
    return Trace(marks, threads, main, kept, written=getattr(raw, "written", b""))


def _make(event: Any) -> Event:
    start, name = event.start_ns(), event.name()
    shaped = name.startswith(("aten::", "torch::autograd::AccumulateGrad"))
    # Earlier versions of PyTorch, such as 2.11, give lists of tensors no shapes.
    read_shapes = getattr(event, "structured_input_shapes", event.shapes)
    return Event(
        name,
        start,
        start + event.duration_ns(),
        event.start_thread_id(),
        event.sequence_nr(),
        event.scope() == _USER_SCOPE or event.is_user_annotation(),
        bool(event.fwd_thread_id()) or name.startswith("autograd::engine"),
        read_shapes() if shaped else (),
        event.dtypes() if shaped else (),
        event.concrete_inputs() if name == "aten::convolution" else (),
    )


def within(events: Sequence[Event], start: int, stop: int) -> Sequence[Event]:
    """Return the events that begin in a stretch, of a list in order of starts."""
    first = bisect.bisect_left(events, start, key=lambda e: e.start)
    last = bisect.bisect_left(events, stop, key=lambda e: e.start)
    return events[first:last]
