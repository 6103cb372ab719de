"""`timeline`: who was busy when, as a picture, in words, and as a file for Perfetto."""

from __future__ import annotations

import contextlib
import functools
import itertools
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from kit import figures
from kit.clock.experiment import ExperimentError, describe, resolve
from kit.clock.measuring import check_arguments
from kit.clock.shared import SharedObjects
from kit.clock.turns import take_turn
from kit.diagnosis.interventions import installed
from kit.diagnosis.phases import Segment
from kit.diagnosis.profiling import record
from kit.diagnosis.trace import Trace
from kit.figures import Span
from kit.progress import Progress

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SECONDS = 2.0
MAIN, LOADER, DEVICE = "main thread", "waiting for data", "device {} stream {}"


class _Recorded(Protocol):
    """A `Profile`, or what another tool recorded."""

    @property
    def trace(self) -> Trace: ...
    @property
    def segments(self) -> Sequence[Segment]: ...
    @property
    def shares(self) -> Mapping[str, float]: ...


def timeline(
    experiment: object, /, *, steps: int = 3, on: None = None, **knobs: object
) -> Figure:
    """Draw who was busy when, over some whole steps of a profiled run.

    A lane for the main thread, for other threads (a backward pass has one of its own on
    a GPU), for waits for the loader, and for each stream of a device. The figure's
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
    check_arguments("timeline()", _SECONDS, 1)
    resolved = resolve("timeline()", experiment)
    bound = resolved.bind("timeline()", knobs)
    call, shared = describe(resolved.name, bound), SharedObjects(resolved, bound)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        with (
            Progress(f"recording {call}") as progress,
            take_turn(progress),
            installed(),
            contextlib.closing(shared),
        ):
            profile = record(
                *(resolved, bound, progress, shared),
                seconds=_SECONDS,
                steps=steps,
                path=str(path),
                caller="timeline()",
            )
        written = path.read_bytes()
    figure = draw(profile, call, steps)
    figure.save_trace = functools.partial(_save, written)  # type: ignore[attr-defined]
    return figure


def check_steps(steps: object) -> None:
    """Raise ExperimentError where this is not a number of steps."""
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ExperimentError(
            f"timeline(): steps={figures.format_value(steps)} is not a number of "
            "steps.\nUse a whole number, 1 or more."
        )


def _save(written: bytes, path: str | Path) -> Path:
    """Write the trace to a file, for https://ui.perfetto.dev or chrome://tracing."""
    target = Path(path)
    target.write_bytes(written)
    return target


def find_lanes(
    profile: _Recorded, steps: int
) -> tuple[dict[str, list[Span]], list[float]]:
    """Return what each lane did in the first whole steps, and when steps ended.

    Times are seconds from the first mark.
    """
    trace = profile.trace
    steps = min(steps, trace.steps)
    begin, end = trace.marks[0], trace.marks[steps]
    lanes: dict[str, list[Span]] = {MAIN: []}
    for segment in profile.segments:
        if segment.start < end:
            stop = min(segment.stop, end)
            lanes[MAIN].append(_span(segment, stop, begin))
    others = [thread for thread in trace.threads if thread != trace.main]
    for number, thread in enumerate(others, 1):
        until, spans = 0, []
        backward = False
        for event in trace.threads[thread]:
            if event.start >= until and event.start < end and not event.is_label:
                stop = min(event.stop, end)
                phase = "backward" if event.is_backward else ""
                backward = backward or event.is_backward
                spans.append(_make(event.start, stop, begin, phase, event.name))
                until = event.stop
        if spans:
            kind = "backward thread" if backward else "other thread"
            lanes[f"{kind} {number}" if len(others) > 1 else kind] = spans
    for made in trace.devices:
        if made.start < end:
            lane = lanes.setdefault(DEVICE.format(made.device, made.stream), [])
            phase = "copies" if "Memcpy" in made.name else ""
            lane.append(_make(made.start, min(made.stop, end), begin, phase, made.name))
    waits = [span for span in lanes[MAIN] if span.phase == "input"]
    if waits:
        lanes[LOADER] = waits
    marks = [(mark - begin) / 1e9 for mark in trace.marks[: steps + 1]]
    return lanes, marks


def _span(segment: Segment, stop: int, begin: int) -> Span:
    label = _shorten(segment.name)
    return _make(segment.start, stop, begin, segment.phase, label)


def _make(start: int, stop: int, begin: int, phase: str, label: str) -> Span:
    return Span((start - begin) / 1e9, (stop - begin) / 1e9, phase, _shorten(label))


def _shorten(name: str) -> str:
    """Write an event's name as a reader knows it."""
    if name.startswith("enumerate(DataLoader)#"):
        return "next batch"
    for prefix in ("kit: ", "aten::", "autograd::engine::evaluate_function: "):
        name = name.removeprefix(prefix)
    return name.partition("#")[2] or name


def summarize(shares: Mapping[str, float], call: str) -> str:
    """Say what takes most of a step.

    >>> summarize({"input": 0.7, "forward": 0.3}, "train()")
    'train(): 70% of a step is waiting for data'
    """
    phase = max(shares, key=lambda p: shares[p])
    return f"{call}: {shares[phase]:.0%} of a step is {figures.PHASES[phase]}"


def draw(profile: _Recorded, call: str, steps: int) -> Figure:
    """Draw the lanes of some steps of an experiment, under what takes most of them."""
    lanes, marks = find_lanes(profile, steps)
    title = summarize(profile.shares, call)
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
    busy = {name: _join(spans) for name, spans in lanes.items() if name != LOADER}
    for (a, first), (b, second) in itertools.combinations(busy.items(), 2):
        both = sum(
            max(0.0, min(x[1], y[1]) - max(x[0], y[0])) for x in first for y in second
        )
        time = f"for {figures.format_seconds(both)}" if both > 0 else "at no time"
        told.append(f"{a} and {b} are busy at once {time}.")
    return " ".join(told)


def _join(spans: Sequence[Span]) -> list[tuple[float, float]]:
    """Join spans that touch; waiting is not being busy."""
    joined: list[tuple[float, float]] = []
    for span in sorted(spans):
        if span.phase in ("input", "sync", "communication"):
            continue
        if joined and span.start <= joined[-1][1] + 1e-9:
            joined[-1] = joined[-1][0], max(joined[-1][1], span.stop)
        else:
            joined.append((span.start, span.stop))
    return joined
