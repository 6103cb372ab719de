"""`timeline`: who was busy when, as a picture, in words, and as a file for Perfetto."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kit import figures
from kit.diagnosis.profiling import EXCHANGES, Profile, record_alone
from kit.errors import ExperimentError, naming
from kit.figures import Span
from kit.measuring.experiment import check_place, describe, resolve
from kit.progress import Progress

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAIN, LOADER, EXCHANGE = "main thread", "waiting for data", "exchange"
#: What is left out of names.
_PREFIXES = "kit: ", "aten::", "autograd::engine::evaluate_function: ", *EXCHANGES


class Timeline:
    """Who was busy when, over some whole steps of a profiled run.

    `lanes` has the blocks of each lane, and `marks` the times at which steps begin, in
    seconds from the first one. `title` is what the picture shows, as a sentence. It
    shows itself in a notebook.
    """

    def __init__(
        self,
        title: str,
        lanes: Mapping[str, Sequence[Span]],
        marks: Sequence[float],
        traces: Sequence[str],
    ) -> None:
        self.title = title
        self.lanes = lanes
        self.marks = marks
        self._traces = traces

    def plot(self, title: str | None = None) -> Axes:
        """Draw a row of blocks for each lane; return the Axes.

        `title` stands in place of the finding.
        """
        title = title or self.title
        figure = figures.draw_timeline(self.lanes, title=title, marks=self.marks)
        return figures.show(figure, figure.alt).axes[0]  # type: ignore[attr-defined]

    def save(self, path: str | Path) -> Path:
        """Write the run to a file that https://ui.perfetto.dev opens; return its path.

        Of several processes, it has the events of all.
        """
        content, *others = map(json.loads, self._traces)
        for other in others:
            content["traceEvents"] += other["traceEvents"]
        Path(path).write_text(json.dumps(content), encoding="utf-8")
        return Path(path)

    def __repr__(self) -> str:
        figure = self.plot().get_figure(root=True)
        return figure.alt  # type: ignore[union-attr]

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        figure: Any = self.plot().get_figure(root=True)
        page = figures.to_html(figure, figure.alt)
        return {"text/html": page, "text/plain": figure.alt}


def timeline(
    experiment: object,
    /,
    *,
    steps: int = 3,
    on: Any = None,
    title: str | None = None,
    **knobs: object,
) -> Timeline:
    """Record who was busy when, over some whole steps of a profiled run.

    A lane for the main thread, for other threads (a backward pass has one of its own on
    a GPU), for waits for the loader, and for each stream of a device; with `on=ranks`
    for each of these on every rank. The result draws itself; its `save(path)` writes
    the same run as a file that https://ui.perfetto.dev opens. `title` stands above the
    picture in place of the finding.
    Raises ExperimentError where the experiment cannot be run or profiled.

    >>> def train():
    ...     import torch
    ...     while True:
    ...         torch.ones(64, 64, requires_grad=True).sum().backward()
    ...         yield 64
    >>> "main thread" in repr(timeline(train, steps=2))
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
        bound = resolved.bind(knobs)
        call = describe(resolved.name, bound)
        with Progress(f"recording {call}") as progress:
            profiles = record_alone(resolved, bound, progress, on=on, steps=steps)
    lanes, marks = find_lanes(profiles)
    title = title or f"{resolved.name}: {describe_largest(lanes, marks)}"
    traces = [profile.trace.written for profile in profiles]
    return Timeline(title, lanes, marks[:-1], traces)


def describe_largest(
    lanes: Mapping[str, Sequence[Span]], marks: Sequence[float]
) -> str:
    """Say what fills most of the first main thread, as it is drawn.

    >>> lanes = {"main thread": [Span(0, 3, "input", ""), Span(3, 4, "forward", "")]}
    >>> describe_largest(lanes, [0, 4])
    '75 % of a step is waiting for data'
    """
    first = next(lane for name, lane in lanes.items() if name.endswith(MAIN))
    seconds = Counter[str]()
    for start, stop, phase, _ in first:
        seconds[phase] += stop - start
    phase, longest = seconds.most_common(1)[0]
    part = figures.format_saving(longest / (marks[-1] - marks[0]), None, None)
    return f"{part} of a step is {figures.PHASES.get(phase, 'other')}"


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
    until = Counter[str]()
    for start, stop, name, thread, is_label, is_backward in trace.others:
        if start >= until[thread] and not is_label and not name.startswith(EXCHANGES):
            until[thread] = stop
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
