"""What the operations of a trace do: arithmetic, moving memory, or only starting."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kit.diagnosis.peaks import Peaks
from kit.diagnosis.phases import Segment
from kit.diagnosis.trace import Event, Trace

#: Where recording makes a step longer than this, times are corrected for it.
MOST_INFLATION = 0.20
_ARITHMETIC = re.compile(
    r"::_?(add|b|badd|sparse_add)?mm|conv|attention|lstm|gru|rnn|linear|::dot|::mv"
    r"|einsum|matmul|Torch-Compiled|CompiledFxGraph|CompiledFunction"
)
_KERNELS = re.compile(r"gemm|cutlass|conv|xmma|wgrad|dgrad|flash|attention|cudnn", re.I)
_BYTES = {"double": 8, "long int": 8, "float": 4, "int": 4, "c10::Half": 2}
_BYTES |= {"c10::BFloat16": 2, "short int": 2}
_TRAINING = ("forward", "backward")


@dataclass(frozen=True)
class Work:
    """What the main thread's time in forward and backward passes goes into.

    Seconds per step: `compute` for matrix products, convolutions, attention, `memory`
    for all other operations, `overhead` for what an operation costs before it does
    anything; `optimizer_overhead` is that of the optimizer. `operations` are per step.
    """

    compute: float
    memory: float
    overhead: float
    optimizer_overhead: float
    operations: float


def is_inflated(trace: Trace) -> bool:
    """Return whether recording made the steps so slow that times need correcting."""
    return trace.inflation > MOST_INFLATION


def weigh(trace: Trace, segments: Sequence[Segment], peaks: Peaks) -> Work:
    """Split the time of forward and backward into arithmetic, memory and overhead.

    Eager overhead is operations times what one costs on this machine at least
    (`peaks.operation_seconds`), and no more than they took: an operation's own time up
    to that cost, and all pauses between operations. What recording costs is taken off
    each event first, where it made the step longer by over 20 %.
    """
    if trace.devices:
        return _weigh_devices(trace, segments)
    cost = trace.event_cost if is_inflated(trace) else 0.0
    times: Counter[str] = Counter()
    operations = 0
    for event, phase, work in _weigh_events(trace, segments, peaks, cost):
        operations += event.name.startswith("aten::")
        if phase in _TRAINING:
            times[_kind(event)] += work  # type: ignore[assignment]
    weighed = work_by_segment(trace, segments, peaks, cost)
    for segment, (work, events) in zip(segments, weighed, strict=True):
        took = segment.stop - segment.start - cost * events
        times[f"{segment.phase} overhead"] += max(0.0, took - work)  # type: ignore[assignment]
    took = trace.marks[-1] - trace.marks[0] - cost * len(trace.events)
    # The same fractions of a step as it is without the profiler.
    scale = took / trace.step_seconds if trace.step_seconds else 1e9 * trace.steps
    return Work(
        times["compute"] / scale,
        times["memory"] / scale,
        sum(times[f"{phase} overhead"] for phase in _TRAINING) / scale,
        times["optimizer overhead"] / scale,
        operations / trace.steps,
    )


def _weigh_devices(trace: Trace, segments: Sequence[Segment]) -> Work:
    """Split by what a device did: its kernels' time, and what the host takes beyond it.

    Where the host needs longer for forward, backward and update than the device is
    busy, the device waits for operations to be started.
    """
    times: Counter[str] = Counter()
    until = 0
    for event in trace.devices:
        took = max(0, event.stop - max(event.start, until))
        until = max(until, event.stop)
        if not event.name.startswith(("Memcpy", "Memset")):
            times["compute" if _KERNELS.search(event.name) else "memory"] += took
    host = sum(
        segment.stop - segment.start
        for segment in segments
        if segment.phase in (*_TRAINING, "optimizer")
    )
    scale = 1e9 * trace.steps
    return Work(
        times["compute"] / scale,
        times["memory"] / scale,
        max(0, host - times.total()) / scale,
        0.0,
        sum(event.name.startswith("aten::") for event in trace.events) / trace.steps,
    )


def count(
    trace: Trace, segments: Sequence[Segment], peaks: Peaks
) -> tuple[float, float]:
    """Count floating-point operations, and bytes moved by all but arithmetic, per step.

    The trace needs shapes. Bytes are those of operations that do more than start.
    """
    flops = moved = 0.0
    for event, phase, work in _weigh_events(trace, segments, peaks, trace.event_cost):
        if phase in _TRAINING:
            flops += _count_flops(event)
            moved += _count_bytes(event) if work and _kind(event) == "memory" else 0.0
    return flops / trace.steps, moved / trace.steps


def _kind(event: Event) -> str:
    return "compute" if _ARITHMETIC.search(event.name) else "memory"


def work_by_segment(
    trace: Trace, segments: Sequence[Segment], peaks: Peaks, cost: float
) -> list[tuple[float, int]]:
    """Return for each segment the nanoseconds of real work, and its events."""
    place, worked = 0, [[0.0, 0] for _ in segments]
    for event, _, work in _weigh_events(trace, segments, peaks, cost):
        while place < len(segments) - 1 and event.start >= segments[place].stop:
            place += 1
        worked[place][0] += work
        worked[place][1] += 1
    return [(work, int(events)) for work, events in worked]


def _weigh_events(
    trace: Trace, segments: Sequence[Segment], peaks: Peaks, cost: float
) -> Iterator[tuple[Event, str, float]]:
    """Yield the main thread's events with their phase and nanoseconds of real work."""
    least, place = 1e9 * peaks.operation_seconds, 0
    for event, own in zip(trace.events, _own_times(trace.events), strict=True):
        while place < len(segments) - 1 and event.start >= segments[place].stop:
            place += 1
        yield event, segments[place].phase, max(0.0, own - cost - least)


def _own_times(events: Sequence[Event]) -> list[float]:
    """Return what each event took without those inside it, in nanoseconds."""
    own = [float(event.duration) for event in events]
    open_events: list[int] = []
    for index, event in enumerate(events):
        while open_events and events[open_events[-1]].stop <= event.start:
            open_events.pop()
        if open_events:
            own[open_events[-1]] -= event.duration
        # Labels of the reader's own hold what lies between operations, too.
        if not event.is_label:
            open_events.append(index)
        else:
            own[index] = 0.0
    return [max(0.0, time) for time in own]


def _count_flops(event: Event) -> float:
    """Return the floating-point operations of matrix products and their like.

    A multiplication and an addition count as two. A convolution's backward pass does
    twice what its forward pass does; attention is two products of matrices, queries by
    keys and the result by values, and five in its backward pass.
    """
    name, shapes = event.name.removeprefix("aten::"), event.shapes
    try:
        if name in ("mm", "bmm"):
            return 2.0 * math.prod(shapes[0]) * shapes[1][-1]
        if name in ("addmm", "baddbmm"):
            return 2.0 * math.prod(shapes[1]) * shapes[2][-1]
        if name == "convolution":
            return 2.0 * _count_outputs(event) * math.prod(shapes[1][1:])
        if name == "convolution_backward":
            return 4.0 * math.prod(shapes[0]) * math.prod(shapes[2][1:])
        if name.startswith("mkldnn_rnn_layer"):
            weights = math.prod(shapes[1]) + math.prod(shapes[2])
            twice = 1 + ("backward" in name)
            return 2.0 * twice * math.prod(shapes[0][:-1]) * weights
        if name.startswith("_scaled_dot_product"):
            is_backward = "backward" in name
            queries, keys = shapes[is_backward], shapes[1 + is_backward]
            return 2.0 * (5 if is_backward else 2) * math.prod(queries) * keys[-2]
    except (IndexError, TypeError, ValueError):
        return 0.0
    return 0.0


def _count_outputs(event: Event) -> int:
    """Return how many numbers come out of a convolution, as PyTorch documents it.

    For a transposed one, how many go in: that is what its arithmetic goes by.
    """
    (items, _, *sides), (channels, _, *kernel) = event.shapes[:2]
    strides, paddings, dilations, transposed = event.inputs[3:7]
    if transposed:
        return math.prod(event.shapes[0])
    places = [
        (side + 2 * padding - dilation * (size - 1) - 1) // stride + 1
        for side, size, stride, padding, dilation in zip(
            sides, kernel, strides, paddings, dilations, strict=True
        )
    ]
    return math.prod([items, channels, *places])


def _count_bytes(event: Event) -> float:
    """Return the bytes an operation reads and writes: its inputs, and a result.

    The result is taken to be as large as the largest input, as elementwise operations
    and copies have it.
    """
    sizes = [
        math.prod(shape) * _BYTES.get(dtype, 1)
        for shape, dtype in zip(event.shapes, event.dtypes, strict=False)
        if shape and all(isinstance(n, int) for n in shape)
    ]
    return float(sum(sizes) + max(sizes, default=0))
