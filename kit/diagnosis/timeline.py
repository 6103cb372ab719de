"""`timeline`: who was busy when, as a picture, in words, and as a file for Perfetto."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kit import figures
from kit.diagnosis.profiling import EXCHANGES, Profile, record_alone
from kit.errors import ExperimentError, naming
from kit.figures import Span
from kit.measuring.experiment import describe, resolve
from kit.measuring.request import check_place
from kit.measuring.variant import Place
from kit.progress import Progress, take_turn

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAIN, LOADER, EXCHANGE = "main thread", "waiting for data", "exchange"
#: What is left out of names.
_PREFIXES = "kit: ", "aten::", "autograd::engine::evaluate_function: ", *EXCHANGES


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
    with naming("timeline()"):
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
            raise ExperimentError(
                f"steps={figures.format_value(steps)} is not a number of steps.\n"
                "Use a whole number, 1 or more."
            )
        check_place(on)
        resolved = resolve(experiment)
        own = resolved.bind(knobs)
        call = describe(resolved.name, own)
        with Progress(f"recording {call}") as progress, take_turn(progress):
            profiles = record_alone(
                resolved, own, progress, seconds=2.0, on=on, steps=steps
            )
    lanes, marks = find_lanes(profiles)
    shares = profiles[0].shares
    most = max(shares, key=lambda phase: shares[phase])
    title = f"{call}: {shares[most]:.0%} of a step is {figures.PHASES[most]}"
    figure = figures.draw_timeline(lanes, title=title, marks=marks[:-1])
    figure.alt += " " + describe_overlaps(lanes)  # type: ignore[attr-defined]
    traces = [profile.trace.written for profile in profiles]
    figure.save_trace = functools.partial(_save, traces)  # type: ignore[attr-defined]
    return figure


def _save(traces: Sequence[str], path: str | Path) -> Path:
    """Write the trace to a file, for https://ui.perfetto.dev or chrome://tracing.

    Of several processes, the events of all.
    """
    content, *others = map(json.loads, traces)
    for other in others:
        content["traceEvents"] += other["traceEvents"]
    Path(path).write_text(json.dumps(content), encoding="utf-8")
    return Path(path)


def find_lanes(
    profiles: Sequence[Profile],
) -> tuple[dict[str, list[Span]], list[float]]:
    """Return what each lane did in all steps, and when steps ended.

    Times are seconds from the first mark of the first process.
    """
    marks = profiles[0].trace.marks
    lanes: dict[str, list[Span]] = {}
    for rank, profile in enumerate(profiles):
        prefix = f"rank {rank}: " * (len(profiles) > 1)
        for lane, start, stop, phase, name in _list_spans(profile):
            start, stop = max(start, marks[0]), min(stop, marks[-1])
            if start < stop:
                begin, end = ((time - marks[0]) / 1e9 for time in (start, stop))
                span = Span(begin, end, phase, _shorten(name))
                lanes.setdefault(prefix + lane, []).append(span)
    return lanes, [(mark - marks[0]) / 1e9 for mark in marks]


def _list_spans(profile: Profile) -> Iterator[tuple[str, int, int, str, str]]:
    """Yield (lane, start, stop, phase, name) of all that one process did."""
    trace = profile.trace
    for start, stop, phase, name in profile.segments:
        yield MAIN, start, stop, phase, name
        if phase == "input":
            yield LOADER, start, stop, phase, name
    for start, stop, name, *_ in trace.main + trace.others:
        if name.startswith(EXCHANGES):
            yield EXCHANGE, start, stop, "communication", name
    until = 0
    for start, stop, name, _, is_label, is_backward in trace.others:
        if start >= until and not is_label and not name.startswith(EXCHANGES):
            until = stop
            phase = "backward" if is_backward else ""
            yield f"{phase or 'other'} thread", start, stop, phase, name
    for start, stop, name, lane, *_ in trace.devices:
        yield lane, start, stop, "copies" if "Memcpy" in name else "", name


def _shorten(name: str) -> str:
    """Write an event's name as a reader knows it."""
    if name.startswith("enumerate(DataLoader)#"):
        return "next batch"
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name.partition("#")[2] or name


def describe_overlaps(lanes: Mapping[str, Sequence[Span]]) -> str:
    """Say how long any two lanes were busy at once, each pair in a sentence.

    >>> a, b = [Span(0.0, 2.0, "", "")], [Span(1.0, 3.0, "", "")]
    >>> describe_overlaps({"a": a, "b": b})
    'a and b are busy at once for 1.00 s.'
    """
    told = []
    busy = {
        name: _find_busy(spans, waits=not name.endswith(EXCHANGE))
        for name, spans in lanes.items()
        if not name.endswith(LOADER)
    }
    for (a, first), (b, second) in itertools.combinations(busy.items(), 2):
        pairs = itertools.product(first, second)
        both = sum(max(0.0, min(x[1], y[1]) - max(x[0], y[0])) for x, y in pairs)
        time = f"for {figures.format_seconds(both)}" if both > 0 else "at no time"
        told.append(f"{a} and {b} are busy at once {time}.")
    return " ".join(told)


def _find_busy(spans: Sequence[Span], *, waits: bool) -> list[list[float]]:
    """Join spans that touch; waiting, where a lane knows it, is not being busy."""
    joined: list[list[float]] = []
    for start, stop, phase, _ in sorted(spans):
        if waits and phase in ("input", "sync", "communication"):
            continue
        if joined and start <= joined[-1][1] + 1e-9:
            joined[-1][1] = max(joined[-1][1], stop)
        else:
            joined.append([start, stop])
    return joined
