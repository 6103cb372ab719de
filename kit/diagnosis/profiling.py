"""One life of an experiment under the profiler: what it shows, and what that costs."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kit.choices import Place, make_variant
from kit.diagnosis import lines, operations, phases, places, trace
from kit.diagnosis.interventions import Intervention, intervene
from kit.diagnosis.lines import Call, Line
from kit.diagnosis.peaks import Peaks, measure_peaks
from kit.diagnosis.phases import Segment
from kit.diagnosis.trace import Trace
from kit.experiment import Experiment, ExperimentError, smoke
from kit.life import Block, Life
from kit.measurement import longest_warm_up
from kit.progress import Progress
from kit.variant import Variant

#: A step without the profiler is timed for so long before and after, in seconds.
_PLAIN_SECONDS = 0.3
#: Steps are recorded for about so long, if their events are not too many.
_RECORDED_SECONDS, _MOST_STEPS, _LEAST_STEPS = 1.0, 60, 5
_LOOK_SECONDS, _READ_STEPS = 0.2, 3
#: An event of a real step may cost more than one of the smallest operation.
_MARGIN = 1.5


class Profile(NamedTuple):
    """What one profiled life of an experiment showed.

    `counts` are floating-point operations and bytes moved by other operations, per
    step.
    """

    trace: Trace
    segments: Sequence[Segment]
    shares: Mapping[str, float]
    shares_by_step: Mapping[str, Sequence[float]]
    work: operations.Work
    counts: tuple[float, float]
    peaks: Peaks
    optimizers: Sequence[str]
    lines: Sequence[Line]
    reads: Sequence[Call]
    children: int
    threads: int
    notes: Sequence[str]


def record(
    variant: Variant,
    progress: Progress,
    *,
    seconds: float,
    steps: int | None = None,
    as_file: bool = False,
    caller: str = "diagnose()",
) -> list[Profile]:
    """Let an experiment live once: plain steps, recorded steps, plain steps.

    The variant is one of `watched`. `steps` is how many are recorded, by default as
    many as about a second holds and memory has room for. Returns a profile of each
    process. Raises ExperimentError where it cannot be profiled.
    """
    import torch

    ask = functools.partial(places.ask, variant, progress)
    during = functools.partial(places.during, variant, progress)
    ask(trace.refuse_second_profiler, caller)
    call, notes = variant.call, []
    read = functools.partial(trace.read, caller=f"{caller}: {call}")
    with variant.lead(0, progress) as life:
        life.open()
        life.settle(longest_warm_up(seconds))
        if any(ask(trace.is_profiling)):
            raise ExperimentError(
                f"{caller}: {call} runs a profiler of its own, and PyTorch "
                "has one only.\nLeave it out of the experiment: the kit records "
                "the same events."
            )
        children = len(progress.find_children())
        plain = _drive_for(life, _PLAIN_SECONDS)
        progress.doing = "recording shapes"
        looks = _count_steps(life, _LOOK_SECONDS)
        profiling = functools.partial(trace.profiling, caller=caller)
        with (
            during(lines.sampling, list) as samples,
            during(functools.partial(profiling, shapes=True), read) as shaped,
        ):
            _drive(life, looks + 1)
        progress.doing = "recording"
        if steps is None:
            steps = _choose_steps(life, shaped[0], notes)
        with during(functools.partial(profiling, as_file=as_file), read) as made:
            _drive(life, steps + 1)
        plain += _drive_for(life, _PLAIN_SECONDS)
        threads = ask(torch.get_num_threads)
        event_costs = ask(trace.measure_event_cost)
        peaks = ask(measure_peaks, "cuda" if made[0].devices else "cpu")
        with during(lines.listing_reads, list) as calls:
            _drive(life, _READ_STEPS)
    seconds = math.fsum(block.wall_seconds for block in plain)
    step_seconds = seconds / sum(block.steps for block in plain)
    profiles = []
    for number, (quick, slow) in enumerate(zip(made, shaped, strict=True)):
        quick.step_seconds = slow.step_seconds = step_seconds
        # What is longer than events explain has other reasons: the machine's speed.
        quick.most_event_cost = _MARGIN * event_costs[number]
        slow.most_event_cost = 1e9 * peaks[number].operation_seconds
        profile = Profile(
            **_read(quick, slow, samples[number], peaks[number], list(notes)),
            reads=lines.sum_reads(calls[number], _READ_STEPS),
            children=children,
            threads=threads[number],
        )
        profiles.append(profile)
    return profiles


def watched(
    on: Place | None, experiment: Experiment, knobs: Mapping[str, object]
) -> Variant:
    """Make a variant whose steps are marked, as `record` needs it."""
    what = Intervention("as it is", marked=True)
    return make_variant(intervene(experiment, what), knobs, on)


def _drive(life: Life, steps: int) -> list[Block]:
    life.variant.steps, life.variant.block_seconds = steps, 0.0
    return [life.block()]


def _drive_for(life: Life, seconds: float) -> list[Block]:
    life.progress.doing = "timing plain steps"
    return _drive(life, 1 if smoke() else max(3, _count_steps(life, seconds)))


def _count_steps(life: Life, seconds: float) -> int:
    if smoke():
        return 1
    per_step = max(life.variant.step_seconds, 1e-6)
    return min(_MOST_STEPS, math.ceil(seconds / per_step))


def _choose_steps(life: Life, shaped: Trace, notes: list[str]) -> int:
    """Return how many steps to record: about a second's, as far as memory allows."""
    wanted = max(1 if smoke() else _LEAST_STEPS, _count_steps(life, _RECORDED_SECONDS))
    events = math.ceil(sum(map(len, shaped.threads.values())) / shaped.steps)
    room = max(1, trace.MOST_EVENTS // max(1, events))
    if room < min(wanted, _LEAST_STEPS):
        number = "one step was" if room == 1 else f"{room} steps were"
        notes.append(f"A step has about {events:,} events, so only {number} recorded.")
    return min(wanted, room)


def _read(
    made: Trace,
    shaped: Trace,
    samples: Sequence[tuple[int, lines.Place]],
    peaks: Peaks,
    notes: list[str],
) -> dict[str, Any]:
    """Make of two traces, one quick and one with shapes, what they show together."""
    segments = phases.part(made, peaks.operation_seconds, phases.learn(shaped))
    counts = phases.count_events(segments, made)
    corrects = operations.is_inflated(made)
    cost = {p: made.event_cost * n * corrects for p, n in counts.items()}
    if corrects:
        notes.append(
            f"Recording made the steps {made.inflation:.0%} longer: the shares are "
            f"corrected by {made.event_cost / 1000:.2g} µs for each event."
        )
    names = {
        event.name.partition("#")[2].partition(".")[0]
        for event in made.events
        if event.name.startswith("Optimizer.step#")
    }
    shaped_segments = phases.part(shaped, peaks.operation_seconds)
    work = operations.weigh(made, segments, peaks)
    by_step = _shares_by_step(made, segments, peaks, made.event_cost * corrects)
    # What other threads do meanwhile is no code outside PyTorch, or not known to be.
    waits = lines.count_waits(samples, shaped_segments, "python")
    by_step["python"] = [share * (1 - waits) for share in by_step["python"]]
    if made.devices:
        by_step["overhead"] = [work.overhead / made.step_seconds] * made.steps
    return {
        "trace": made,
        "segments": segments,
        "shares": phases.shares(segments, cost),
        "shares_by_step": by_step,
        "work": work,
        "counts": operations.count(shaped, shaped_segments, peaks),
        "peaks": peaks,
        "optimizers": sorted(names),
        "lines": lines.find_lines(samples, shaped_segments, "python"),
        "notes": notes,
    }


def _shares_by_step(
    made: Trace, segments: Sequence[Segment], peaks: Peaks, cost: float
) -> dict[str, list[float]]:
    """Return the shares that have no counterfactual, step by step."""
    found: dict[str, list[float]] = {"python": [], "overhead": [], "loops": []}
    work = operations.work_by_segment(made, segments, peaks, cost)
    edges = list(zip(made.marks, made.marks[1:], strict=False))
    times = [Counter[str]() for _ in edges]
    number = 0
    for segment, (worked, events) in zip(segments, work, strict=True):
        while number < len(edges) - 1 and segment.start >= edges[number][1]:
            number += 1
        took = max(0.0, segment.stop - segment.start - cost * events)
        now = times[number]
        now["all"] += took  # type: ignore[assignment]
        if segment.phase == "python":
            now["python"] += took  # type: ignore[assignment]
        elif segment.phase in ("forward", "backward"):
            now["overhead"] += max(0.0, took - worked)  # type: ignore[assignment]
        elif segment.phase == "optimizer" and not segment.name.startswith("Optimizer."):
            now["loops"] += took  # type: ignore[assignment]
    for now in times:
        for name, column in found.items():
            column.append(now[name] / (now["all"] or 1))
    return found
