"""Chapter 03: read a trace that PyTorch's profiler wrote, and draw some steps of it.

The files in `traces/` were recorded on an H100 by `more/00_on_a_gpu.ipynb`.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from kit.figures import Span, draw_timeline, show

#: Labels that the loops set with `record_function`, and the phase that each belongs to.
PHASES = {
    "load": "input",
    "copy": "copies",
    "forward": "forward",
    "backward": "backward",
    "update": "optimizer",
    "loss.item()": "sync",
    "score": "python",
}
LAUNCHES = "cuda_runtime", "cuda_driver"
ON_DEVICE = "kernel", "gpu_memcpy", "gpu_memset"
#: A call of the driver that is shorter than this is no wait that anybody could see.
SECONDS_OF_A_WAIT = 0.2e-3


def read_events(path: str | Path) -> list[dict[str, Any]]:
    """Return the complete events of a trace file, those with a beginning and an end."""
    with gzip.open(path) as file:
        content = json.load(file)
    return [event for event in content["traceEvents"] if event["ph"] == "X"]


def find_step(events: Sequence[dict[str, Any]], number: int) -> tuple[float, float]:
    """Return when a step begins and when the next one does, in microseconds."""
    starts = {e["name"]: e["ts"] for e in events if e["cat"] == "user_annotation"}
    ends = {
        e["name"]: e["ts"] + e["dur"] for e in events if e["cat"] == "user_annotation"
    }
    end = starts.get(f"step {number + 1}", ends[f"step {number}"])
    return starts[f"step {number}"], end


def find_lanes(
    events: Sequence[dict[str, Any]], begin: float, end: float
) -> dict[str, list[Span]]:
    """Return what Python, the driver and the device did between two times.

    A kernel has the color of the part of the step in which Python launched it.
    """
    labels = [
        event
        for event in events
        if event["cat"] == "user_annotation" and event["name"] in PHASES
    ]
    launched = {
        event["args"].get("correlation"): event["ts"]
        for event in events
        if event["cat"] in LAUNCHES
    }

    def find_phase(time: float) -> str:
        for label in labels:
            if label["ts"] <= time <= label["ts"] + label["dur"]:
                return PHASES[label["name"]]
        return ""

    lanes: dict[str, list[Span]] = {"Python": [], "long calls": [], "GPU": []}
    for event in events:
        start, stop = event["ts"], event["ts"] + event["dur"]
        if stop <= begin or start >= end:
            continue
        start, stop = max(start, begin), min(stop, end)
        seconds = (start - begin) / 1e6, (stop - begin) / 1e6
        if event in labels:
            span = Span(*seconds, PHASES[event["name"]], event["name"])
            lanes["Python"].append(span)
        elif event["cat"] in LAUNCHES and event["dur"] > 1e6 * SECONDS_OF_A_WAIT:
            lanes["long calls"].append(Span(*seconds, "sync", event["name"]))
        elif event["cat"] in ON_DEVICE:
            phase = find_phase(launched.get(event["args"].get("correlation"), start))
            if event["cat"] == "gpu_memcpy":
                phase = "copies"
            lanes["GPU"].append(Span(*seconds, phase, ""))
    return lanes


def describe(path: str | Path) -> dict[str, Any]:
    """Return what the device did in steps 1 and 2, from the end of step 0 on it."""
    events = read_events(path)
    labels = {e["name"]: e for e in events if e["cat"] == "user_annotation"}
    begin = labels["step 1"]["ts"]
    end = labels["step 2"]["ts"] + labels["step 2"]["dur"]
    calls = [event for event in events if event["cat"] in LAUNCHES]
    called = {call["args"]["correlation"]: call["ts"] for call in calls}
    earlier, kernels = [], []
    for event in events:
        if event["cat"] == "kernel":
            launched = called[event["args"]["correlation"]]
            if launched < begin:
                earlier.append(event)
            elif launched < end:
                kernels.append(event)
    length = find_end(kernels) - find_end(earlier)
    busy = sum(kernel["dur"] for kernel in kernels)
    waits = [c for c in calls if "Synchronize" in c["name"] and begin <= c["ts"] < end]
    return {
        "ms per step": round(length / 2000, 1),
        "kernels per step": len(kernels) // 2,
        "µs per kernel": round(busy / len(kernels), 1),
        "without a kernel": f"{1 - busy / length:.0%}",
        "waits per step": len(waits) // 2,
    }


def find_end(events: Sequence[dict[str, Any]]) -> float:
    """Return when the last of these events ends."""
    return max(event["ts"] + event["dur"] for event in events)


def draw_nested(path: str | Path, *, first: int, depth: int = 4) -> Figure:
    """Draw a step of the main thread as Perfetto does: who called whom, downwards."""
    events = read_events(path)
    begin, end = find_step(events, first)
    mine = [
        event
        for event in events
        if event["cat"] in ("user_annotation", "cpu_op")
        and begin <= event["ts"] < end
        and event["tid"] == event["pid"]
    ]
    mine.sort(key=lambda event: (event["ts"], -event["dur"]))
    lanes: dict[str, list[Span]] = {}
    around: list[float] = []  # when each event ends that the current one lies in
    for event in mine:
        start, stop = event["ts"], min(event["ts"] + event["dur"], end)
        while around and around[-1] <= start:
            around.pop()
        if len(around) < depth:
            lane = f"{len(around)} further down" if around else "main thread"
            seconds = (start - begin) / 1e6, (stop - begin) / 1e6
            span = Span(*seconds, find_color(event["name"]), shorten(event["name"]))
            lanes.setdefault(lane, []).append(span)
        around.append(stop)
    title = "One step, as Perfetto shows it: what an operation calls lies below it"
    return show(draw_timeline(lanes, title=title))


def find_color(name: str) -> str:
    """Return the phase that an operation of the main thread belongs to."""
    if name.startswith("enumerate(DataLoader)"):
        return "input"
    if name.startswith("autograd::engine"):
        return "backward"
    return "optimizer" if name.startswith("Optimizer.") else ""


def shorten(name: str) -> str:
    """Return an event's name without what does not help a reader."""
    if name.startswith("enumerate(DataLoader)"):
        return "enumerate(DataLoader)"
    return name.removeprefix("autograd::engine::evaluate_function: ").partition("#")[0]


def draw_trace(
    path: str | Path, *, title: str, first: int = 1, steps: int = 1
) -> Figure:
    """Draw some steps of a trace file: Python, the driver's long calls, the device."""
    events = read_events(path)
    begin, _ = find_step(events, first)
    _, end = find_step(events, first + steps - 1)
    lanes = find_lanes(events, begin, end)
    return show(draw_timeline(lanes, title=title))
