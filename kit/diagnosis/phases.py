"""What the main thread does when: its wall time, parted into phases."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from kit import figures
from kit.diagnosis.trace import BACKWARD, LOADER, Event, Trace, within

#: The phases, in the order of a step.
PHASES = (
    "input",
    "copies",
    "forward",
    "backward",
    "optimizer",
    "communication",
    "sync",
    "python",
)
#: A pause between operations that is so many operations long is the reader's own code.
_LONG_PAUSE = 20
_LABELS = {
    "enumerate(DataLoader)#": "input",
    "Optimizer.": "optimizer",
    BACKWARD: "backward",
    LOADER: "input",
}
_EXCHANGES = ("c10d::", "gloo:", "nccl:", "mpi:", "ucc:", "record_param_comms")
_WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
_COPIES = ("cudaMemcpyAsync", "cudaMemcpy")
_READS = ("aten::item", "aten::_local_scalar_dense", "aten::is_nonzero", "aten::equal")

#: Arithmetic that updates parameters, clips gradients or averages weights.
_UPDATE = re.compile(
    r"^aten::(_foreach_\w+|_fused_\w+|(add|sub|mul|div|neg|sqrt|addcmul|addcdiv|lerp"
    r"|clamp|clamp_max|copy|pow|square|sum|norm|linalg_vector_norm|linalg_norm)_?)$"
)
_MAY_TRAIN = ("forward", "copies", "sync", "communication")
#: (name of the operation before, name of an operation) → phase
Learned = Mapping[tuple[str, str], str]


class Segment(NamedTuple):
    """A stretch of the main thread's time in one phase; times in nanoseconds.

    Stretches without an event, between operations, have an empty name.
    """

    start: int
    stop: int
    phase: str
    name: str = ""


def part(
    trace: Trace, operation_seconds: float, learned: Learned | None = None
) -> list[Segment]:
    """Part the main thread's wall time, from the first mark to the last, into phases.

    Each moment belongs to one segment. An operation is an event that no other holds;
    labels that the reader's code opened are looked through. Operations up to the last
    whose gradient a backward pass computes are "forward". After a backward pass,
    operations on tensors as large as gradients are the optimizer's, others the code's
    outside training; a trace without shapes takes what another has `learned`. Pauses
    between operations belong to what follows; those longer than twenty operations are
    code outside PyTorch.
    """
    found = list(_find_operations(trace))
    for index, phase in _find_leftovers(found, trace, learned):
        found[index] = _Found(found[index].event, phase)
    return list(_fill(found, trace, 1e9 * _LONG_PAUSE * operation_seconds))


def learn(trace: Trace) -> Learned:
    """Learn of a trace with shapes to which phase operations outside training belong.

    Maps the names of an operation and of the one before it to the phase.
    """
    found = list(_find_operations(trace))
    counts: dict[tuple[str, str], Counter[str]] = {}
    for index, phase in _find_leftovers(found, trace, None):
        counts.setdefault(_names(found, index), Counter())[phase] += 1
    return {names: count.most_common(1)[0][0] for names, count in counts.items()}


def shares(segments: Sequence[Segment], cost: Mapping[str, float]) -> dict[str, float]:
    """Return each phase's fraction of the time; `cost` (ns) is taken off each first."""
    times: Counter[str] = Counter()
    for segment in segments:
        times[segment.phase] += segment.stop - segment.start
    left = {p: max(0.0, times[p] - cost.get(p, 0.0)) for p in PHASES if times[p]}
    total = sum(left.values()) or 1.0
    return {phase: time / total for phase, time in left.items()}


def list_shares(
    shares: Mapping[str, float], step_seconds: float
) -> list[tuple[str, str, str]]:
    """Return a table's rows: each phase in words, its share, its time in a step.

    >>> list_shares({"input": 0.25}, 0.1)
    [('waiting for data', '25.0%', '25.0 ms')]
    """
    return [
        (
            figures.PHASES[p],
            f"{share:.1%}",
            figures.format_seconds(share * step_seconds),
        )
        for p, share in shares.items()
    ]


def count_events(segments: Sequence[Segment], trace: Trace) -> Counter[str]:
    """Count the main thread's events in each phase."""
    counts: Counter[str] = Counter()
    places = iter(segments)
    segment = next(places, None)
    for event in trace.events:
        while segment is not None and event.start >= segment.stop:
            segment = next(places, None)
        if segment is not None:
            counts[segment.phase] += 1
    return counts


class _Found(NamedTuple):
    event: Event
    phase: str


def _find_operations(trace: Trace) -> Iterator[_Found]:
    """Yield what no other event holds, with its phase as far as its name tells it."""
    until = 0
    for event in trace.events:
        if event.start < until:
            continue
        phase = _phase_of(event, trace)
        if phase is None:
            continue
        yield _Found(event, phase)
        until = event.stop


def _phase_of(event: Event, trace: Trace) -> str | None:
    for start, phase in _LABELS.items():
        if event.name.startswith(start):
            # A step with a closure holds forward and backward passes of its own.
            inner = within(trace.events, event.start, event.stop)
            closed = phase == "optimizer" and any(e.name == BACKWARD for e in inner)
            return None if closed else phase
    if event.name.startswith(_EXCHANGES):
        return "communication"
    if event.is_label:
        return None
    if trace.devices:
        inner = within(trace.events, event.start, event.stop)
        names = {e.name for e in inner}
        if names & {*_COPIES}:
            return "sync" if event.name.startswith(_READS) else "copies"
        if names & {*_WAITS}:
            return "sync"
    return "forward"


def _find_leftovers(
    found: Sequence[_Found], trace: Trace, learned: Learned | None
) -> Iterator[tuple[int, str]]:
    """Yield the operations around backward passes that train nothing, with a phase."""
    shapes = _gradient_shapes(trace)
    places = [i for i, f in enumerate(found) if f.phase == "backward"]
    for previous, place in itertools.pairwise([None, *places, None]):
        begin = 0 if previous is None else previous + 1
        end = len(found) if place is None else place
        matched = None if place is None else _find_matched(found, begin, place, trace)
        first, last = matched or (end, end - 1)
        stretches = []
        if previous is not None:
            backward = found[previous].event
            limit = next(mark for mark in trace.marks if mark > backward.start)
            stop = begin
            while stop < first and found[stop].event.start < limit:
                if found[stop].phase == "input":
                    break
                stop += 1
            stretches.append((begin, stop))
        if matched:
            stretches.append((last + 1, end))
        for stretch in stretches:
            if learned is None:
                yield from _judge_by_shapes(found, *stretch, shapes)
                continue
            for index in range(*stretch):
                if found[index].phase == "forward":
                    yield index, learned.get(_names(found, index), "python")


def _names(found: Sequence[_Found], index: int) -> tuple[str, str]:
    return found[index - 1].event.name if index else "", found[index].event.name


def _gradient_shapes(trace: Trace) -> set[tuple[int, ...]]:
    """Return the shapes of the gradients that were accumulated; single numbers not."""
    shapes = set()
    for events in trace.threads.values():
        for event in events:
            if event.name == "torch::autograd::AccumulateGrad" and event.shapes:
                shape = tuple(event.shapes[0])
                if shape and max(shape, default=0) > 1:
                    shapes.add(shape)
    return shapes


def _find_matched(
    found: Sequence[_Found], begin: int, place: int, trace: Trace
) -> tuple[int, int] | None:
    """Return the first and last operation whose gradient the backward computes."""
    backward = found[place].event
    numbers = {
        event.sequence
        for events in trace.threads.values()
        for event in within(events, backward.start, backward.stop)
        if event.is_backward and event.sequence >= 0
    }
    # Operations without a gradient show the number that the next one will get, so the
    # last that shows a number is the one that has it.
    places: dict[int, int] = {}
    for index in range(begin, place):
        if found[index].phase in _MAY_TRAIN:
            event = found[index].event
            for inner in within(trace.events, event.start, event.stop):
                if inner.sequence in numbers:
                    places[inner.sequence] = index
    return (min(places.values()), max(places.values())) if places else None


def _judge_by_shapes(
    found: Sequence[_Found], begin: int, stop: int, shapes: set[tuple[int, ...]]
) -> Iterator[tuple[int, str]]:
    """Yield arithmetic on tensors as large as gradients as the optimizer's.

    Operations on single numbers belong to what came before them.
    """
    phase = "python"
    for index in range(begin, stop):
        event = found[index].event
        if found[index].phase != "forward":
            continue
        if event.shapes and event.shapes[0]:
            first = event.shapes[0]
            inner = first if isinstance(first[0], list) else [first]
            sizes = {tuple(shape) for shape in inner}
            if max(itertools.chain(*sizes), default=0) > 1:
                updates = sizes & shapes and _UPDATE.search(event.name)
                phase = "optimizer" if updates else "python"
        yield index, phase


def _fill(
    found: Sequence[_Found], trace: Trace, long_pause: float
) -> Iterator[Segment]:
    """Yield the operations and the pauses between them, without a gap."""
    begin, end = trace.marks[0], trace.marks[-1]

    def name(start: int, stop: int, phase: str) -> str:
        if stop - start <= long_pause:
            return phase
        busy = _count_busy(trace, start, stop)
        return "forward" if busy > 0.5 * (stop - start) else "python"

    for event, phase in found:
        start, stop = max(event.start, begin), min(event.stop, end)
        if start > begin:
            yield Segment(begin, start, name(begin, start, phase))
        if stop > start:
            yield Segment(start, stop, phase, event.name)
        begin = max(begin, stop)
    if end > begin:
        yield Segment(begin, end, name(begin, end, "forward"))


def _count_busy(trace: Trace, start: int, stop: int) -> int:
    """Return how long other threads of a pool did operations in a stretch."""
    longest = 0
    for thread, events in trace.threads.items():
        if thread == trace.main:
            continue
        busy, until = 0, start
        for event in events:
            if event.start >= stop:
                break
            if event.stop > until:
                busy += min(event.stop, stop) - max(event.start, until)
                until = event.stop
        longest = max(longest, busy)
    return longest
