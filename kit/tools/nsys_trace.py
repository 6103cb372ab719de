"""What Nsight Systems recorded, as a trace like the profiler's.

Values of columns are NVIDIA's: https://docs.nvidia.com/nsight-systems/AnalysisGuide
("SQLite Schema Event Values").
"""

from __future__ import annotations

import bisect
import contextlib
import json
import re
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from kit.diagnosis.trace import BACKWARD, MOST_EVENTS, DeviceEvent, Event, Trace
from kit.experiment import ExperimentError
from kit.figures import format_value
from kit.tools import nsys_file
from kit.tools.nsys_file import CALLS, RANGES, Window, look_up, look_up_range

#: Ranges that are pushed and popped, and ranges that are started and ended.
_IS_RANGE = "eventType IN (59, 60)"
_COPIED, _WITHIN = "CUPTI_ACTIVITY_KIND_MEMCPY", 8
#: Names of copies and of kinds of memory as PyTorch's profiler writes them.
_COPIES = {1: "HtoD", 2: "DtoH", 8: "DtoD", 9: "HtoH", 10: "PtoP"}
_MEMORY = {0: "Pageable", 1: "Pinned", 2: "Device", 3: "Array", 4: "Managed"}
#: `emit_nvtx` writes an operation's numbers and shapes behind its name:
#: https://docs.pytorch.org/docs/stable/autograd.html
_SUFFIX = re.compile(
    r"(?:, (?:stashed )?seq = (?P<sequence>\d+))?(?:, op_id = \d+)?"
    r"(?:, sizes = (?P<sizes>\[.*?\]))?(?:, input_op_ids = \[.*\])?$"
)
#: "aten::add", "c10d::allreduce_", "autograd::engine::evaluate_function: AddBackward0";
#: labels of PyTorch's own begin with a capital: "FSDP::pre_forward".
_OPERATION = re.compile(r"[a-z_]\w*::\w")
_ENGINE = "autograd::engine::"
#: What PyTorch labels by itself.
_LABELLED = ("Optimizer.", "enumerate(DataLoader)#")
#: "cudaMemcpyAsync_v3020", "cudaStreamSynchronize_ptsz_v7000"
_VERSION = re.compile(r"(_ptsz|_ptds)?(_v\d+)?$")


class Steps(NamedTuple):
    """When steps begin, and which process and thread take them."""

    starts: Sequence[int]
    process: int
    thread: int


def find_steps(
    db: sqlite3.Connection, step: str, process: int | None, where: str
) -> Steps:
    """Find the ranges around steps: called `step`, or `step` and a number.

    They are those of the thread that has most of them. Raises ExperimentError where
    there are none, or where several processes have some and `process` does not choose.
    """
    name = look_up_range(db)
    numbered = re.compile(re.escape(step) + r"[\W_]*\d*")
    starts: dict[tuple[int, int], list[int]] = {}
    for start, text, owner in db.execute(
        f"SELECT start, {name}, globalTid FROM {RANGES} WHERE {_IS_RANGE} "
        f"AND substr({name}, 1, ?) = ? AND globalTid IS NOT NULL",
        (len(step), step),
    ):
        if numbered.fullmatch(_split(text)[0]):
            key = nsys_file.find_process(owner), nsys_file.find_thread(owner)
            starts.setdefault(key, []).append(start)
    if not starts:
        raise ExperimentError(_explain_labels(db, step, where))
    processes = sorted({owner for owner, _ in starts})
    listed = ", ".join(map(str, processes))
    if process is None and len(processes) > 1:
        raise ExperimentError(
            f"{where} holds steps of {len(processes)} processes: {listed}.\nChoose "
            f"one: read_nsys_report(path, process={processes[0]})"
        )
    chosen = [key for key in starts if process in (None, key[0])]
    if not chosen:
        raise ExperimentError(
            f"{where} holds no step of process={format_value(process)}.\nChoose one "
            f"that has some: {listed}"
        )
    most = max(chosen, key=lambda key: len(starts[key]))
    return Steps(sorted(starts[most]), *most)


def _explain_labels(db: sqlite3.Connection, step: str, where: str) -> str:
    """Say that a label is not there, and which are: those that take most time first."""
    counts: Counter[str] = Counter()
    times: Counter[str] = Counter()
    query = f'SELECT {look_up_range(db)}, "end" - start FROM {RANGES} WHERE {_IS_RANGE}'
    for text, took in db.execute(query):
        label, sequence, _ = _split(text or "")
        if _is_label(label, sequence) and not label.startswith(_LABELLED):
            label = re.sub(r"[\W_]*\d+$", "", label) or label
            counts[label] += 1
            times[label] += took or 0
    listed = ", ".join(
        f"{format_value(label)} ({counts[label]} ×)"
        for label, _ in times.most_common(8)
    )
    return (
        f"{where} has no label step={format_value(step)}.\n"
        f"The labels in it, longest first: {listed or 'none'}.\n"
        "Name the one that is around each step, read_nsys_report(path, step=…), or "
        "write one into the loop and profile again:\n"
        '    with torch.cuda.nvtx.range("step"): ...'
    )


def read_trace(db: sqlite3.Connection, steps: Steps) -> Trace:
    """Make a trace of what the process and its devices did in these steps.

    More than MOST_EVENTS are too many for memory: then the last steps are left out.
    """
    marks = list(steps.starts)
    window = Window(marks[0], marks[-1], steps.process)
    count = sum(nsys_file.count(db, table, window) for table in (RANGES, CALLS))
    if count > MOST_EVENTS:
        marks = marks[: max(1, (len(marks) - 1) * MOST_EVENTS // count) + 1]
        window = window._replace(stop=marks[-1])
    threads: dict[int, list[Event]] = {steps.thread: []}
    for event in (*_read_ranges(db, window), *_read_calls(db, window)):
        threads.setdefault(event.thread, []).append(event)
    # First, so that a pass comes before what the engine does in it where both begin.
    threads[steps.thread][:0] = _find_backward(threads, steps.thread)
    for events in threads.values():
        events.sort(key=_order)
    devices = sorted(_read_devices(db, window), key=lambda event: event.start)
    trace = Trace(marks, threads, steps.thread, devices)
    # How long a step is without nsys, its report does not tell.
    trace.step_seconds = trace.profiled_seconds
    return trace


def has_operations(trace: Trace) -> bool:
    """Return whether PyTorch's operations are in a trace, not only labels."""
    return any(_OPERATION.match(event.name) for event in trace.events)


def _order(event: Event) -> tuple[int, int]:
    return event.start, -event.stop


def _read_ranges(db: sqlite3.Connection, window: Window) -> Iterator[Event]:
    columns = ("globalTid", "end")
    rows = nsys_file.select(db, RANGES, look_up_range(db), columns, window, _IS_RANGE)
    for start, text, owner, stop in rows:
        label, sequence, shapes = _split(text or "")
        yield Event(
            label,
            start,
            start if stop is None else stop,  # None: open when recording ended
            nsys_file.find_thread(owner or 0),
            sequence,
            _is_label(label, sequence),
            label.startswith(_ENGINE),
            shapes,
            (),
            (),
        )


def _read_calls(db: sqlite3.Connection, window: Window) -> Iterator[Event]:
    # A copy within the device is work of the device's, not a copy to it.
    columns = ("correlationId", "copyKind")
    copies = nsys_file.select(db, _COPIED, "NULL", columns, window)
    within = {number for _, _, number, kind in copies if kind == _WITHIN}
    columns = ("globalTid", "end", "correlationId")
    rows = nsys_file.select(db, CALLS, look_up("nameId"), columns, window)
    for start, text, owner, stop, number in rows:
        name = _VERSION.sub("", text or "CUDA call")
        name += f" {_COPIES[_WITHIN]}" * (number in within)
        thread = nsys_file.find_thread(owner or 0)
        yield Event(name, start, stop, thread, -1, False, False, (), (), ())


def _read_devices(db: sqlite3.Connection, window: Window) -> Iterator[DeviceEvent]:
    kinds = {
        "KERNEL": (look_up("shortName"), ()),
        "MEMCPY": ("NULL", ("copyKind", "srcKind", "dstKind")),
        "MEMSET": ("'Memset'", ()),
        "GRAPH_TRACE": ("'CUDA graph'", ()),
    }
    for kind, (name, more) in kinds.items():
        table = f"CUPTI_ACTIVITY_KIND_{kind}"
        columns = ("end", "deviceId", "streamId", *more)
        rows = nsys_file.select(db, table, name, columns, window)
        for start, text, stop, device, stream, *copy in rows:
            label = _name_copy(*copy) if copy else text or "kernel"
            yield DeviceEvent(label, start, stop, device or 0, stream or 0)


def _name_copy(kind: int | None, source: int | None, target: int | None) -> str:
    """Name a copy as PyTorch's profiler does.

    >>> _name_copy(1, 0, 2), _name_copy(8, None, None)
    ('Memcpy HtoD (Pageable -> Device)', 'Memcpy DtoD')
    """
    ends = [_MEMORY[end] for end in (source, target) if end in _MEMORY]
    places = f" ({' -> '.join(ends)})" if len(ends) == 2 else ""
    return f"Memcpy {_COPIES.get(kind or 0, '')}".strip() + places


def _find_backward(threads: Mapping[int, Sequence[Event]], main: int) -> list[Event]:
    """Return each backward pass as an event of the main thread.

    For a GPU autograd's engine works on a thread of its own; the main thread waits, and
    no range says so. A pass is what the engine does, on any thread, until the main
    thread begins an operation that is not the engine's.
    """
    every = (event for events in threads.values() for event in events)
    engine = sorted((event for event in every if event.is_backward), key=_order)
    own = sorted(
        event.start
        for event in threads[main]
        if not (event.is_label or event.is_backward)
    )
    passes: list[tuple[int, int]] = []
    for event in engine:
        start, stop = passes[-1] if passes else (event.start, event.start)
        goes_on = bisect.bisect_left(own, event.start) <= bisect.bisect_left(own, stop)
        if passes and goes_on:
            passes[-1] = start, max(stop, event.stop)
        else:
            passes.append((event.start, event.stop))
    return [
        Event(BACKWARD, *found, main, -1, True, False, (), (), ()) for found in passes
    ]


def _is_label(name: str, sequence: int) -> bool:
    """Return whether a range is a label, not an operation of PyTorch or an extension.

    >>> _is_label("FSDP::pre_forward", -1), _is_label("FlashAttnFunc", 7)
    (True, False)
    """
    return sequence < 0 and not _OPERATION.match(name)


def _split(text: str) -> tuple[str, int, Sequence[Any]]:
    """Return a range's name, sequence number (-1 where it has none) and shapes.

    >>> _split("aten::mm, seq = 7, op_id = 9, sizes = [[4, 2], [2, 3]]")
    ('aten::mm', 7, [[4, 2], [2, 3]])
    """
    found = _SUFFIX.search(text)
    assert found is not None  # an end without numbers matches, too
    shapes: Sequence[Any] = ()
    with contextlib.suppress(ValueError):
        shapes = json.loads(found["sizes"] or "[]")
    return text[: found.start()], int(found["sequence"] or -1), shapes
