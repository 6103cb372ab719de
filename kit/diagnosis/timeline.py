"""`timeline`: who was busy when, as a picture, in words, and as a file for Perfetto."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from kit import figures
from kit.choices import Place, check_place
from kit.diagnosis.interventions import installed
from kit.diagnosis.phases import Segment
from kit.diagnosis.places import during
from kit.diagnosis.profiling import record, watched
from kit.diagnosis.trace import Trace
from kit.experiment import ExperimentError, named, resolve
from kit.figures import Span
from kit.progress import Progress, take_turn

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SECONDS = 2.0
#: What is left out of names.
_PREFIXES = "kit: ", "aten::", "gloo:", "nccl:"
_PREFIXES += ("autograd::engine::evaluate_function: ",)
MAIN, LOADER, DEVICE = "main thread", "waiting for data", "device {} stream {}"
EXCHANGE = "exchange"


class _Recorded(Protocol):
    """A `Profile`, or what another tool recorded."""

    @property
    def trace(self) -> Trace: ...
    @property
    def segments(self) -> Sequence[Segment]: ...
    @property
    def shares(self) -> Mapping[str, float]: ...


def timeline(
    experiment: object, /, *, steps: int = 3, on: Place | None = None, **knobs: object
) -> Figure:
    """Draw who was busy when, over some whole steps of a profiled run.

    A lane for the main thread, for other threads (a backward pass has one of its own on
    a GPU), for waits for the loader, and for each stream of a device; with `on=ranks`
    for each of these on every rank. The figure's
    `save_trace(path)` writes the same run as a file that https://ui.perfetto.dev opens.
    Raises ExperimentError where the experiment cannot be run or profiled.

    >>> def train():
    ...     import torch
    ...     while True:
    ...         torch.ones(64, 64, requires_grad=True).sum().backward()
    ...         yield 64
    >>> figure = timeline(train, steps=2)
    >>> "main thread" in figure.alt
    True
    """
    check_steps(steps)
    with named("timeline()"):
        check_place(on)
        resolved = resolve(experiment)
        variant = watched(on, resolved, resolved.bind(knobs))
    call = variant.call
    with (
        Progress(f"recording {call}") as progress,
        take_turn(progress),
        contextlib.closing(variant),
        during(variant, progress, installed),
    ):
        profiles = record(
            *(variant, progress),
            seconds=_SECONDS,
            steps=steps,
            as_file=True,
            caller="timeline()",
        )
    figure = draw(profiles, call, steps)
    traces = [profile.trace.written for profile in profiles]
    figure.save_trace = functools.partial(_save, traces)  # type: ignore[attr-defined]
    return figure


def check_steps(steps: object) -> None:
    """Raise ExperimentError where this is not a number of steps."""
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ExperimentError(
            f"timeline(): steps={figures.format_value(steps)} is not a number of "
            "steps.\nUse a whole number, 1 or more."
        )


def _save(traces: Sequence[bytes], path: str | Path) -> Path:
    """Write the trace to a file, for https://ui.perfetto.dev or chrome://tracing.

    Of several processes, the events of all.
    """
    target, (written, *others) = Path(path), traces
    if others:
        content = json.loads(written)
        for other in others:
            content["traceEvents"] += json.loads(other)["traceEvents"]
        written = json.dumps(content).encode()
    target.write_bytes(written)
    return target


def find_lanes(
    profiles: Sequence[_Recorded], steps: int
) -> tuple[dict[str, list[Span]], list[float]]:
    """Return what each lane did in the first whole steps, and when steps ended.

    Times are seconds from the first mark of the first process.
    """
    first = profiles[0].trace
    begin, *ends = first.marks[: steps + 1]
    if len(profiles) == 1:
        lanes = _find_lanes(profiles[0], begin, ends[-1])
    else:
        lanes = {
            f"rank {rank}: {name}": spans
            for rank, profile in enumerate(profiles)
            for name, spans in _find_lanes(profile, begin, ends[-1]).items()
        }
    return lanes, [(mark - begin) / 1e9 for mark in (begin, *ends)]


def _find_lanes(profile: _Recorded, begin: int, end: int) -> dict[str, list[Span]]:
    """Return what each lane of one process did from `begin` to `end`."""
    trace = profile.trace
    lanes: dict[str, list[Span]] = {MAIN: []}
    for segment in profile.segments:
        if begin < segment.stop and segment.start < end:
            stop = min(segment.stop, end)
            lanes[MAIN].append(_span(segment, stop, begin))
    exchanges = [
        _make(max(e.start, begin), min(e.stop, end), begin, "communication", e.name)
        for thread in trace.threads.values()
        for e in thread
        if e.is_exchange and begin < e.stop and e.start < end
    ]
    if exchanges:
        lanes[EXCHANGE] = sorted(exchanges)
    others = [thread for thread in trace.threads if thread != trace.main]
    for number, thread in enumerate(others, 1):
        until, spans = 0, []
        backward = False
        for event in trace.threads[thread]:
            inside = max(begin, until) <= event.start < end
            if inside and not event.is_label and not event.is_exchange:
                stop = min(event.stop, end)
                phase = "backward" if event.is_backward else ""
                backward = backward or event.is_backward
                spans.append(_make(event.start, stop, begin, phase, event.name))
                until = event.stop
        if spans:
            kind = "backward thread" if backward else "other thread"
            lanes[f"{kind} {number}" if len(others) > 1 else kind] = spans
    for made in trace.devices:
        if begin <= made.start < end:
            lane = lanes.setdefault(DEVICE.format(made.device, made.stream), [])
            phase = "copies" if "Memcpy" in made.name else ""
            lane.append(_make(made.start, min(made.stop, end), begin, phase, made.name))
    waits = [span for span in lanes[MAIN] if span.phase == "input"]
    if waits:
        lanes[LOADER] = waits
    return lanes


def _span(segment: Segment, stop: int, begin: int) -> Span:
    label = _shorten(segment.name)
    return _make(max(segment.start, begin), stop, begin, segment.phase, label)


def _make(start: int, stop: int, begin: int, phase: str, label: str) -> Span:
    return Span((start - begin) / 1e9, (stop - begin) / 1e9, phase, _shorten(label))


def _shorten(name: str) -> str:
    """Write an event's name as a reader knows it."""
    if name.startswith("enumerate(DataLoader)#"):
        return "next batch"
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name.partition("#")[2] or name


def summarize(shares: Mapping[str, float], call: str) -> str:
    """Say what takes most of a step.

    >>> summarize({"input": 0.7, "forward": 0.3}, "train()")
    'train(): 70% of a step is waiting for data'
    """
    phase = max(shares, key=lambda p: shares[p])
    return f"{call}: {shares[phase]:.0%} of a step is {figures.PHASES[phase]}"


def draw(profiles: Sequence[_Recorded], call: str, steps: int) -> Figure:
    """Draw the lanes of some steps of an experiment, under what takes most of them."""
    lanes, marks = find_lanes(profiles, steps)
    title = summarize(profiles[0].shares, call)
    figure = figures.draw_timeline(lanes, title=title, marks=marks[:-1])
    figure.alt += " " + describe_overlaps(lanes)  # type: ignore[attr-defined]
    return figure


def describe_overlaps(lanes: Mapping[str, Sequence[Span]]) -> str:
    """Say how long any two lanes were busy at once, each pair in a sentence.

    >>> a, b = [Span(0.0, 2.0, "", "")], [Span(1.0, 3.0, "", "")]
    >>> describe_overlaps({"a": a, "b": b})
    'a and b are busy at once for 1.00 s.'
    """
    told = []
    busy = {
        name: _join(spans, waits=not name.endswith(EXCHANGE))
        for name, spans in lanes.items()
        if not name.endswith(LOADER)
    }
    for (a, first), (b, second) in itertools.combinations(busy.items(), 2):
        both = sum(
            max(0.0, min(x[1], y[1]) - max(x[0], y[0])) for x in first for y in second
        )
        time = f"for {figures.format_seconds(both)}" if both > 0 else "at no time"
        told.append(f"{a} and {b} are busy at once {time}.")
    return " ".join(told)


def _join(spans: Sequence[Span], *, waits: bool) -> list[tuple[float, float]]:
    """Join spans that touch; waiting, where a lane knows it, is not being busy."""
    joined: list[tuple[float, float]] = []
    for span in sorted(spans):
        if waits and span.phase in ("input", "sync", "communication"):
            continue
        if joined and span.start <= joined[-1][1] + 1e-9:
            joined[-1] = joined[-1][0], max(joined[-1][1], span.stop)
        else:
            joined.append((span.start, span.stop))
    return joined
