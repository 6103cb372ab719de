"""Chapters 02 and 03: read a trace of PyTorch's profiler, and draw some steps of it.

Also the photos and the network of chapter 03's loop.

The files in `traces/` were recorded on an H100 by `more/00_on_a_gpu.ipynb`. A trace is
a list of events, each with a time and a duration in microseconds.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import nn
from torchvision.transforms import v2

import kit
from kit.figures import Span, draw_timeline, show

Event = dict[str, Any]
Lanes = dict[str, list[Span]]

#: Labels that the loops set with `record_function`, and the phase that each belongs to.
PHASES = {
    "load": "input",
    "copy": "copies",
    "forward": "forward",
    "backward": "backward",
    "update": "optimizer",
    "loss.item": "sync",
    "score": "python",
}
LAUNCHES = "cuda_runtime", "cuda_driver"
#: What the device does.
DEVICE_WORK = "kernel", "gpu_memcpy", "gpu_memset"
#: A call of the driver that is shorter than this is no wait that anybody could see.
SHORTEST_WAIT = 200
#: A step is drawn down to so many lanes.
MOST_LANES = 4


def make_photos() -> kit.data.PhotoDataset:
    """Return photos that are decoded and made small whenever one is read."""
    to_small = [v2.PILToTensor(), v2.Resize(96), v2.ToDtype(torch.float32, scale=True)]
    return kit.data.PhotoDataset(transform=v2.Compose(to_small))


def make_net() -> nn.Sequential:
    """Return a small network for such photos."""
    layers = [nn.Conv2d(3, 16, 3), nn.ReLU(), nn.MaxPool2d(4)]
    layers += [nn.Conv2d(16, 32, 3), nn.ReLU(), nn.MaxPool2d(4)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(800, 10))


def read_events(path: str | Path) -> list[Event]:
    """Return the complete events of a trace file, those with a beginning and an end."""
    with gzip.open(path) as file:
        content = json.load(file)
    return [event for event in content["traceEvents"] if event["ph"] == "X"]


def find_step(events: Iterable[Event], number: int) -> tuple[float, float]:
    """Return when a step begins and when the next one does, in microseconds."""
    labels = {e["name"]: e for e in events if e["cat"] == "user_annotation"}
    step = labels[f"step {number}"]
    if f"step {number + 1}" in labels:
        return step["ts"], labels[f"step {number + 1}"]["ts"]
    return step["ts"], find_end(step)


def find_end(event: Event) -> float:
    """Return when an event ends."""
    return event["ts"] + event["dur"]


def make_span(
    event: Event, begin: float, end: float, phase: str, label: str = ""
) -> Span:
    """Return the part of an event between two times, in seconds after the first."""
    start = max(event["ts"], begin) - begin
    stop = min(find_end(event), end) - begin
    return Span(start / 1e6, stop / 1e6, phase, label)


def find_launches(events: Iterable[Event]) -> dict[int, float]:
    """Return when each kernel or copy was launched, by its correlation."""
    calls = [event for event in events if event["cat"] in LAUNCHES]
    return {call["args"].get("correlation"): call["ts"] for call in calls}


def tabulate_device_times(path: str | Path, *, step: int) -> pd.DataFrame:
    """Return what each operation of a step had the device do, most time first.

    A kernel or copy belongs to the innermost `aten::` operation around the call that
    launched it. The columns are how many an operation launched, their time on the
    device, and the time of the launching calls.
    """
    events = read_events(path)
    begin, end = find_step(events, step)
    calls, operations, work = {}, [], []
    for event in events:
        if event["cat"] in LAUNCHES and begin <= event["ts"] < end:
            calls[event["args"].get("correlation")] = event
        elif event["name"].startswith("aten::"):
            operations.append(event)
        elif event["cat"] in DEVICE_WORK:
            work.append(event)
    rows = []
    for event in work:
        call = calls.get(event["args"]["correlation"])
        if call:
            innermost = find_innermost(operations, call)
            rows.append((innermost, event["dur"], call["dur"]))
    table = pd.DataFrame(rows, columns=["operation", "µs on the GPU", "µs to launch"])
    groups = table.groupby("operation")
    times = groups.sum()
    times.insert(0, "kernels and copies", groups.size())
    return times.sort_values("µs on the GPU", ascending=False).round().astype(int)


def find_innermost(operations: Iterable[Event], call: Event) -> str:
    """Return the name of the last operation to begin of those around a call."""
    name, latest = "", float("-inf")
    for operation in operations:
        around = operation["ts"] <= call["ts"] <= find_end(operation)
        if around and operation["tid"] == call["tid"] and operation["ts"] > latest:
            name, latest = operation["name"], operation["ts"]
    return name


def find_lanes(events: Sequence[Event], begin: float, end: float) -> Lanes:
    """Return what Python, the driver and the device did between two times.

    A kernel has the color of the part of the step in which Python launched it.
    """
    labels = [
        e for e in events if e["cat"] == "user_annotation" and e["name"] in PHASES
    ]
    launched = find_launches(events)
    lanes: Lanes = {"Python": [], "long calls": [], "GPU": []}
    for event in events:
        if find_end(event) <= begin or event["ts"] >= end:
            continue
        name, kind = event["name"], event["cat"]
        if event in labels:
            lanes["Python"].append(make_span(event, begin, end, PHASES[name], name))
        elif kind in LAUNCHES and event["dur"] > SHORTEST_WAIT:
            lanes["long calls"].append(make_span(event, begin, end, "sync", name))
        elif kind == "gpu_memcpy" and "HtoD" in name:
            lanes["GPU"].append(make_span(event, begin, end, "copies"))
        elif kind in DEVICE_WORK and "DtoH" not in name:  # a number for Python
            time = launched[event["args"]["correlation"]]
            around = [e["name"] for e in labels if e["ts"] <= time <= find_end(e)]
            phase = PHASES[around[0]] if around else ""
            lanes["GPU"].append(make_span(event, begin, end, phase))
    if not lanes["long calls"]:
        del lanes["long calls"]
    return lanes


def describe(path: str | Path) -> dict[str, Any]:
    """Return what the device did in steps 1 and 2, from the end of step 0 on it."""
    events = read_events(path)
    begin, _ = find_step(events, 1)
    _, end = find_step(events, 2)
    launched = find_launches(events)
    earlier, kernels, waits = [], [], 0
    for event in events:
        if event["cat"] == "kernel":
            time = launched[event["args"]["correlation"]]
            if time < begin:
                earlier.append(event)
            elif time < end:
                kernels.append(event)
        elif "Synchronize" in event["name"] and begin <= event["ts"] < end:
            waits += 1
    length = max(map(find_end, kernels)) - max(map(find_end, earlier))
    busy = sum(kernel["dur"] for kernel in kernels)
    return {
        "ms per step": round(length / 2000, 1),
        "kernels per step": len(kernels) // 2,
        "µs per kernel": round(busy / len(kernels), 1),
        "without a kernel": f"{1 - busy / length:.0%}",
        "waits per step": waits // 2,
    }


def draw_nested(path: str | Path, *, first: int) -> Figure:
    """Draw a step of the main thread as Perfetto does: who called whom, downwards."""
    events = read_events(path)
    begin, end = find_step(events, first)
    mine = []
    for event in events:
        is_call = event["cat"] in ("user_annotation", "cpu_op")
        if is_call and begin <= event["ts"] < end and event["tid"] == event["pid"]:
            mine.append(event)
    mine.sort(key=lambda event: (event["ts"], -event["dur"]))
    lanes: Lanes = {}
    around: list[float] = []  # when each event ends that the current one lies in
    for event in mine:
        while around and around[-1] <= event["ts"]:
            around.pop()
        if len(around) < MOST_LANES:
            lane = f"level {len(around) + 1}"
            span = make_span(event, begin, end, *find_phase(event["name"]))
            lanes.setdefault(lane, []).append(span)
        around.append(find_end(event))
    title = "One step of the main thread: what an operation calls lies below it"
    return drop_counts(draw_timeline(lanes, title=title))


def drop_counts(figure: Figure) -> Figure:
    """Take away how many blocks there are: numbers of kernels are no finding here."""
    for text in figure.legends[0].get_texts():
        text.set_text(text.get_text().rpartition(" (")[0])
    figure.axes[0].set_xlabel("time")
    alt: str = getattr(figure, "alt", "")
    return show(figure, alt.partition(" Narrow:")[0])


def find_phase(name: str) -> tuple[str, str]:
    """Return the phase of an operation, and its name without what helps nobody."""
    if name.startswith("enumerate(DataLoader)"):
        return "input", "enumerate(DataLoader)"
    if name.startswith("autograd::engine"):
        return "backward", name.removeprefix("autograd::engine::evaluate_function: ")
    if name.startswith("Optimizer."):
        return "optimizer", name.partition("#")[0]
    return "", name


def draw_trace(path: str | Path, *, title: str) -> Figure:
    """Draw step 1 of a trace file: Python, the driver's long calls, the device."""
    events = read_events(path)
    lanes = find_lanes(events, *find_step(events, 1))
    return drop_counts(draw_timeline(lanes, title=title))
