"""One profiled run: what the main thread does when, and what it is spent on.

A step is parted by place: what comes before its last backward pass is "forward", what
lies between that and the last `optimizer.step()` is "optimizer", the rest is the
reader's own code. Waits and exchanges are known by their names.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import psutil

from kit import figures
from kit.diagnosis import tracing
from kit.diagnosis.once import OnceVariant, RunEnded, refuse_short_run
from kit.diagnosis.tracing import WAITING, WAITING_FOR_QUEUE, Event, Sample, Trace
from kit.diagnosis.wrapping import (
    BACKWARD,
    LOADER,
    WAIT,
    Work,
    change,
    labels,
)
from kit.machine import this_machine
from kit.measuring.experiment import Experiment
from kit.measuring.run import Driver, Variant
from kit.mode import is_quick
from kit.progress import Progress

#: Seconds of plain steps before and after, and of recorded ones; most of these, and
#: of their events, which have to be read.
_PLAIN_SECONDS = 0.3
_RECORDED_SECONDS = 0.5
_LEAST_STEPS = 5
_MOST_STEPS = 60
_MOST_EVENTS = 100_000
#: Of steps that are longer, single ones are recorded.
_LONG_STEP_SECONDS = 0.5
#: A pause between operations that is so many operations long is the reader's own code.
_LONG_PAUSE = 20
_LABELS = {
    "enumerate(DataLoader)#": "input",
    LOADER: "input",
    WAIT: "communication",
    "Optimizer.": "optimizer",
    BACKWARD: "backward",
    "Torch-Compiled Region": "forward",
}
_STEP = "Optimizer.step#"
EXCHANGES = ("gloo:", "nccl:")
_CALLS = ("c10d::", "record_param_comms", *EXCHANGES)
_WAITS = {"cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize"}
_COPIES = {"cudaMemcpyAsync", "cudaMemcpyAsync HtoD", "cudaMemcpyAsync DtoH"}
_COPIES |= {"cudaMemcpy", "cudaMemcpy HtoD", "cudaMemcpy DtoH"}
_READS = {"aten::item", "aten::_local_scalar_dense", "aten::is_nonzero", "aten::equal"}
_ARITHMETIC = re.compile(
    r"aten::_?(addmm|mm|bmm|baddbmm|addmv|mv|dot|sparse_addmm|scaled_mm|int_mm"
    r"|(mkldnn_|cudnn_|slow_|thnn_)?conv\w*|mkldnn_rnn_layer(_backward)?"
    r"|cudnn_rnn(_backward)?|scaled_dot_product_\w+_attention\w*)"
    r"|mkldnn::_?(linear|convolution)\w*|Torch-Compiled Region.*|CompiledFunction\w*"
)
#: Operations that are neither products nor bound by what memory can move.
_OTHER = re.compile(
    r"aten::_?(sort|argsort|topk|kthvalue|median|nanmedian|mode|cum\w+|logcumsumexp"
    r"|unique\w*|nonzero|histc|bincount|searchsorted|bucketize|multinomial|randperm"
    r"|linalg_(?!vector_norm)\w+|lu_\w+|cholesky\w*|fft_\w+|random|normal|uniform"
    r"|bernoulli|exponential)_?"
)
_KERNELS = re.compile(
    r"(?!triton_(poi|red|per))"
    r".*(gemm|nvjet|cutlass|conv|xmma|wgrad|dgrad|flash|fmha|attention|cudnn|triton_tem)",
    re.I,
)
_TRAINING = ("forward", "backward")
_ACROSS = ("compute", "memory", "other", "overhead", "waiting")


class Segment(NamedTuple):
    """A stretch of the main thread's time in one phase; a pause has an empty name."""

    start: int
    stop: int
    phase: str
    name: str = ""


class Profile(NamedTuple):
    """What one profiled run showed in one process.

    `shares` part the main thread's wall time. Across them lie, as fractions of it,
    "compute" (matrix products and the like), "memory" (operations that mostly move
    numbers), "other" (sorting and the like), "overhead" (what operations cost before
    they do anything) and "waiting" (for other threads). `lines` are the reader's, by
    phase, with their shares of it; `inner` are a framework's below them. `slowest` is
    the operation that took most of forward and backward, with its share of the step.
    """

    trace: Trace
    segments: list[Segment]
    shares: dict[str, float]
    across: dict[str, float]
    slowest: str
    lines: dict[str, list[str]]
    inner: dict[str, list[str]]
    step_seconds: float
    threads: int
    children: int
    processes: int

    @property
    def other_threads(self) -> int:
        """Which other number of threads to try: that of the cores, or one."""
        return 1 if self.fits_cores else self.cores

    @property
    def fits_cores(self) -> bool:
        """Whether threads are as many as cores, or as the cores that are no siblings.

        PyTorch takes one thread for each of those.
        """
        whole = psutil.cpu_count(logical=False) or self.cores
        return self.threads in (self.cores, min(self.cores, whole // self.processes))

    @property
    def cores(self) -> int:
        """How many cores each process has; as many as threads where that is unknown."""
        return max(1, (this_machine().cores or self.threads) // self.processes)


# Recording


def record_alone(
    experiment: Experiment,
    knobs: Mapping[str, object],
    progress: Progress,
    *,
    on: Any = None,
    steps: int | None = None,
) -> list[Profile]:
    """Run an experiment once, to record it; return a profile of each process.

    Raises ExperimentError where it cannot be profiled.
    """
    work = Work()
    watched = change(experiment, labels, work=work)
    variant: Variant = OnceVariant(watched, knobs)
    if on is not None:
        variant = on.prepare(change(experiment, labels), knobs)
    with variant.drive(0) as driver:
        try:
            progress.show(0.0)
            driver.open()
            driver.warm_up()
            return record(driver, steps)
        except RunEnded:
            raise refuse_short_run(variant, len(work.steps)) from None


def record(driver: Any, steps: int | None = None) -> list[Profile]:
    """Run plain steps, recorded steps, and plain steps of a run that is warm.

    `driver` drives a run that is started once, or one on ranks. `steps` is how many are
    recorded, by default as many as half a second holds, or fewer where that would be
    very many events. Returns a profile of each process. Raises ExperimentError where it
    cannot be profiled.
    """
    children = len(driver.find_children())
    plain = _count_steps(driver, _PLAIN_SECONDS)
    before = driver.time(plain)
    is_long = driver.step_seconds > _LONG_STEP_SECONDS
    if is_long:
        steps = steps or 1
    elif not steps:
        [first, *_] = driver.on_each(functools.partial(_record_steps, steps=2))
        most = max(1, _MOST_EVENTS // max(1, len(first.main)))
        steps = min(most, _count_steps(driver, _RECORDED_SECONDS))
    looks = driver.on_each(functools.partial(_watch_steps, steps=steps + 1))
    traces = [look.trace for look in looks]
    if not is_long:
        # The sampler is a thread, which makes pauses: it looks at steps of its own.
        traces = driver.on_each(functools.partial(_record_steps, steps=steps + 1))
        before.extend(driver.time(plain))
    here = driver.on_each(look_around)
    seconds = before.seconds / before.steps
    facts = {"step_seconds": seconds, "children": children, "processes": len(looks)}
    is_script = driver.variant.experiment.is_script
    return [
        _make_profile(trace, look, *around, facts, is_script)
        for trace, look, around in zip(traces, looks, here, strict=True)
    ]


class Look(NamedTuple):
    """What was recorded of some steps, and the lines that were executed meanwhile."""

    trace: Trace
    samples: list[Sample]


def _watch_steps(driver: Driver, steps: int) -> Look:
    """Record steps while a sampler looks at lines, in the process that makes them."""
    with tracing.sampling() as samples:
        trace = _record_steps(driver, steps)
    return Look(trace, samples)


def _record_steps(driver: Driver, steps: int) -> Trace:
    """Record steps in the process that makes them; of the first one nothing is kept."""
    with tracing.profiling() as written:
        driver.time(steps)
    return tracing.read_trace(written)


def look_around(_: object = None) -> tuple[float, int]:
    """Return what an operation costs here, in seconds, and the number of threads."""
    import torch

    return tracing.measure_operation(), torch.get_num_threads()


def _count_steps(driver: Driver, seconds: float) -> int:
    per_step = max(driver.step_seconds, 1e-6)
    if is_quick() or per_step > _LONG_STEP_SECONDS:
        return 1
    return min(_MOST_STEPS, max(_LEAST_STEPS, math.ceil(seconds / per_step)))


# What the main thread does when


def part(
    trace: Trace, long_pause: float, *, ends_with_update: bool = False
) -> list[Segment]:
    """Part the main thread's wall time between the marks into phases, without a gap.

    An operation is an event that no other holds; the reader's own labels are looked
    through. Pauses belong to what follows; those longer than `long_pause`, in
    nanoseconds, are the reader's own code. A script's step ends with its update: what
    comes after that, such as metrics, opens the next one.
    """
    found = _place([*_find_operations(trace)], trace, ends_with_update)
    begin, end = trace.marks[0], trace.marks[-1]
    segments: list[Segment] = []
    for event, phase in [*found, (Event(end, end, "", ""), "forward")]:
        start, stop = max(event.start, begin), min(event.stop, end)
        pause = "python" if start - begin > long_pause else phase
        while begin < start:  # a step's pauses end with it
            cut = min(start, trace.marks[bisect.bisect(trace.marks, begin)])
            segments.append(Segment(begin, cut, pause))
            begin = cut
        if stop > start:
            segments.append(Segment(start, stop, phase, event.name))
        begin = max(begin, stop)
    return segments


def _find_operations(trace: Trace) -> Iterator[tuple[Event, str]]:
    """Yield what no other event holds, with its phase as far as its name tells it.

    An update that holds a backward pass calls a closure: it is looked through.
    """
    starts = [event.start for event in trace.main]
    until = 0
    for number, event in enumerate(trace.main):
        if event.start < until:
            continue
        inner = trace.main[number : bisect.bisect_left(starts, event.stop)]
        names = {event.name, *(each.name for each in inner)}
        if event.name.startswith(_STEP) and BACKWARD in names:
            continue
        if phase := _name_phase(event, names, bool(trace.devices)):
            yield event, phase
            until = event.stop


def _name_phase(event: Event, names: set[str], has_device: bool) -> str | None:
    for start, phase in _LABELS.items():
        if event.name.startswith(start):
            return phase
    if event.name.startswith(_CALLS):
        return "communication"
    if event.is_label:
        return None
    if has_device and names & _COPIES:
        is_read = event.name in _READS or any("DtoH" in name for name in names)
        return "sync" if is_read else "copies"
    if has_device and names & _WAITS:
        return "sync"
    return "forward"


def _place(
    found: Sequence[tuple[Event, str]], trace: Trace, ends_with_update: bool
) -> Iterator[tuple[Event, str]]:
    """Yield operations with their phase by their place in the step.

    What follows the last backward pass belongs to the update that comes after it, such
    as clipping gradients; what follows the last update is the reader's own code.
    """
    groups = itertools.groupby(found, lambda f: bisect.bisect(trace.marks, f[0].start))
    for _, group in groups:
        step = [*group]
        passes = [n for n, (_, phase) in enumerate(step) if phase == "backward"]
        names = [event.name for event, _ in step]
        updates = [n for n, name in enumerate(names) if name.startswith(_STEP)]
        inputs = [n for n, (_, phase) in enumerate(step) if phase == "input"]
        backward = max(passes, default=len(step))
        update = max(updates, default=0)
        begin = inputs[0] if inputs and ends_with_update else 0
        for number, (event, phase) in enumerate(step):
            if phase == "forward" and number > backward:
                phase = "optimizer" if number < update else "python"
            elif phase == "forward" and number < begin:
                phase = "python"
            yield event, phase


class Lines(NamedTuple):
    """The lines that were seen most in each phase, with their shares of it.

    `inner` are those of a framework that trains, where it is most of them.
    `waiting` and `queue` are the shares of the reader's own code that only wait for
    other threads, and for a queue.
    """

    own: dict[str, list[str]]
    inner: dict[str, list[str]]
    waiting: float
    queue: float


def find_lines(samples: Sequence[Sample], segments: Sequence[Segment]) -> Lines:
    """Return the lines that were seen most in each phase."""
    starts = [segment.start for segment in segments]
    by_phase: dict[str, list[Sample]] = {}
    for sample in samples:
        if starts[0] <= sample.when < segments[-1].stop:
            phase = segments[bisect.bisect(starts, sample.when) - 1].phase
            by_phase.setdefault(phase, []).append(sample)
    lines = Lines({}, {}, 0.0, 0.0)
    for phase, seen in by_phase.items():
        lines.own[phase] = write_most(sample.line for sample in seen)
        inner = [sample.inner for sample in seen if sample.inner != sample.line]
        if 2 * len(inner) > len(seen):
            lines.inner[phase] = write_most(inner)
    python = Counter(sample.line for sample in by_phase.get("python", []))
    whole = max(1, python.total())
    queue = python[WAITING_FOR_QUEUE] / whole
    return lines._replace(waiting=python[WAITING] / whole, queue=queue)


def write_most(lines: Iterable[str]) -> list[str]:
    """Write the three lines that were seen most, with their shares.

    >>> write_most(["a.py:1", "a.py:1", "b.py:2", "a.py:1"])
    ['a.py:1 (75%)', 'b.py:2 (25%)']
    """
    counts = Counter(lines)
    whole = counts.total()
    for wait in (WAITING, WAITING_FOR_QUEUE):
        del counts[wait]
    return [f"{line} ({count / whole:.0%})" for line, count in counts.most_common(3)]


# What it is spent on


def _own_times(events: Sequence[Event]) -> list[float]:
    """Return what each event took without those inside it, in nanoseconds."""
    own = [float(event.stop - event.start) for event in events]
    holders: list[int] = []
    for number, event in enumerate(events):
        while holders and events[holders[-1]].stop <= event.start:
            holders.pop()
        if holders:
            own[holders[-1]] -= event.stop - event.start
        # Labels of the reader's own hold what lies between operations, too.
        if event.is_label and not event.name.startswith("Torch-Compiled"):
            own[number] = 0.0
        else:
            holders.append(number)
    return own


class Weights(NamedTuple):
    """Nanoseconds of each phase and across them, and of each operation of training."""

    phases: Any
    operations: Counter[str]


def weigh(
    trace: Trace, segments: Sequence[Segment], cost: float, least: float
) -> Weights:
    """Return the nanoseconds of each phase, and across the phases.

    Across: "compute" is matrix products and the like, "memory" and "other" all other
    operations of forward and backward, "overhead" what operations cost there before
    they do anything: an operation's own time up to `least`, and the pauses. What
    recording an event costs is taken off each.
    """
    now: Any = Counter[str]()
    operations: Any = Counter[str]()
    events = [*zip(trace.main, _own_times(trace.main), strict=True)]
    number = 0
    for segment in segments:
        took, worked = float(segment.stop - segment.start), 0.0
        while number < len(events) and events[number][0].start < segment.stop:
            event, own = events[number]
            work = max(0.0, own - cost - least)
            if segment.phase in _TRAINING:
                now[name_kind(event.name)] += work
                operations[event.name] += own
            took, worked, number = took - cost, worked + work, number + 1
        now[segment.phase] += max(0.0, took)
        if segment.phase in _TRAINING:
            now["overhead"] += max(0.0, took - worked)
    if trace.devices:
        _weigh_devices(trace, now)
    return Weights(now, operations)


def name_kind(operation: str) -> str:
    """Return what an operation's time goes into: "compute", "memory" or "other".

    >>> name_kind("aten::addmm"), name_kind("aten::relu"), name_kind("aten::sort")
    ('compute', 'memory', 'other')
    """
    if _ARITHMETIC.fullmatch(operation):
        return "compute"
    return "other" if _OTHER.fullmatch(operation) else "memory"


def _weigh_devices(trace: Trace, now: Any) -> None:
    """Tell by what a device did: its kernels' time, and what the host takes beyond it.

    Where the host needs longer for forward, backward and update than the device is
    busy, the device waits for operations to be started.
    """
    for kind in ("compute", "memory", "other"):
        now[kind] = 0
    until = busy = 0
    for event in trace.devices:
        took = max(0, event.stop - max(event.start, until))
        until = max(until, event.stop)
        if not event.name.startswith(("Memcpy", "Memset", "nccl")):
            now["compute" if _KERNELS.match(event.name) else "memory"] += took
            busy += took
    host = now["forward"] + now["backward"] + now["optimizer"]
    now["overhead"] = max(0, host - busy)


def _make_profile(
    trace: Trace,
    look: Look,
    operation_seconds: float,
    threads: int,
    facts: Mapping[str, Any],
    is_script: bool,
) -> Profile:
    """Make of what was recorded what it shows."""
    recorded = (trace.marks[-1] - trace.marks[0]) / 1e9
    plain = facts["step_seconds"] * (len(trace.marks) - 1)
    least = 1e9 * operation_seconds
    pause = _LONG_PAUSE * least
    segments = part(trace, pause, ends_with_update=is_script)
    looked_at = part(look.trace, pause, ends_with_update=is_script)
    # What is longer than events explain has other reasons: the machine's speed.
    extra = 1e9 * max(0.0, recorded - plain) / max(1, len(trace.main))
    now, operations = weigh(trace, segments, min(extra, least), least)
    lines = find_lines(look.samples, looked_at)
    # What other threads do meanwhile is not the main one's.
    now["waiting"] = lines.waiting * now["python"]
    queue = lines.queue * now["python"]
    now["python"] -= now["waiting"] + queue
    now["forward"] += now["waiting"]
    now["input"] += queue
    whole = sum(now[phase] for phase in figures.PHASES) or 1
    slowest = ""
    if operations and not trace.devices:  # what the host calls says little of these
        name, took = operations.most_common(1)[0]
        short = name.removeprefix("autograd::engine::evaluate_function: ")
        slowest = f"{short} ({took / whole:.0%})"
    return Profile(
        trace=trace,
        segments=segments,
        shares={p: now[p] / whole for p in figures.PHASES if now[p]},
        across={name: now[name] / whole for name in _ACROSS},
        slowest=slowest,
        lines=lines.own,
        inner=lines.inner,
        threads=threads,
        **facts,
    )
