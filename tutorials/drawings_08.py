"""What chapter 08 shows of a trace: a stretch as a picture."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure
from traces_03 import LAUNCHES, find_step, read_events

from kit.figures import Span, draw_timeline


def draw_launches(path: str | Path, *, begin: float, length: float) -> Figure:
    """Draw a stretch of step 1 of a trace: operations, driver calls, and kernels.

    `begin` and `length` are in microseconds, from the beginning of the step.
    """
    events = read_events(path)
    first = find_step(events, 1)[0] + begin
    lanes: dict[str, list[Span]] = {"Python": [], "driver calls": [], "GPU": []}
    last_end = 0.0
    for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
        start = event["ts"] - first
        stop = min(start + event["dur"], length)
        if not 0 <= start < length:
            continue
        seconds = start / 1e6, stop / 1e6
        if event["cat"] == "cpu_op" and start >= last_end:  # in no other operation
            last_end = stop
            name = event["name"].removeprefix("aten::")
            lanes["Python"].append(Span(*seconds, "forward", name))
        elif event["cat"] in LAUNCHES:
            lanes["driver calls"].append(Span(*seconds, "", "call"))
        elif event["cat"] == "kernel":
            lanes["GPU"].append(Span(*seconds, "forward", ""))
    busy = sum(1e6 * (span.stop - span.start) for span in lanes["GPU"])
    number = len(lanes["GPU"])
    title = f"In {length:.0f} µs the GPU works for {busy:.0f} µs, in {number} kernels"
    return draw_timeline(lanes, title=title)
