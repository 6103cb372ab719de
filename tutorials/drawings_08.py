"""The drawings of chapter 08: host and device, trips to memory, graphs and breaks."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure
from traces_03 import LAUNCHES, find_step, read_events

from kit.figures import Drawing, Span, draw_timeline, show


def draw_host_and_device() -> Drawing:
    """Draw Python and a device with short work, and with long work."""
    drawing = Drawing(
        "Short work leaves the device idle, long work keeps it busy",
        columns=16,
        rows=4.4,
        alt=(
            "Four rows over time. In the first two, Python starts operations 1 to 7, "
            "each of which takes it 2; the device does each in 0.4 and is idle until "
            "the next one. In the other two, Python starts operations 1 to 7 as fast, "
            "and the device needs 4.5 for each: it works without a gap, far behind"
        ),
    )
    starts = [(2 * i, 2 * i + 2, f"start {i + 1}", "zone") for i in range(7)]
    short = [(2 * i + 2, 2 * i + 2.4, "", "measured") for i in range(7)]
    long = [(2 + 4.5 * i, 6.5 + 4.5 * i, f"work {i + 1}", "measured") for i in range(3)]
    drawing.lane(0, "Python", starts)
    drawing.lane(1, "device, short work", short)
    drawing.lane(2.4, "Python", starts)
    drawing.lane(3.4, "device, long work", long)
    return drawing


def draw_launches(path: str | Path, *, begin: float, length: float) -> Figure:
    """Draw a stretch of step 1 of a trace: operations, launches, and kernels.

    `begin` and `length` are in microseconds, from the beginning of the step.
    """
    events = read_events(path)
    first = find_step(events, 1)[0] + begin
    lanes: dict[str, list[Span]] = {"Python": [], "launches": [], "GPU": []}
    last_end = 0.0
    for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
        start = event["ts"] - first
        stop = min(start + event["dur"], length)
        seconds = start / 1e6, stop / 1e6
        if start < 0 or start >= length:
            continue
        if event["cat"] == "cpu_op" and start >= last_end:  # in no other operation
            last_end = stop
            name = event["name"].removeprefix("aten::")
            lanes["Python"].append(Span(*seconds, "forward", name))
        elif event["cat"] in LAUNCHES:
            lanes["launches"].append(Span(*seconds, "", "launch"))
        elif event["cat"] == "kernel":
            lanes["GPU"].append(Span(*seconds, "forward", ""))
    busy = sum(1e6 * (span.stop - span.start) for span in lanes["GPU"])
    number = len(lanes["GPU"])
    title = f"In {length:.0f} µs the GPU works for {busy:.0f} µs, in {number} kernels"
    return show(draw_timeline(lanes, title=title))


def draw_trips() -> Drawing:
    """Draw five operations that each go to memory and back, and one loop."""
    drawing = Drawing(
        "Five operations go to memory ten times, one loop goes twice",
        columns=15,
        rows=2,
        alt=(
            "Two rows of boxes. Five operations: read, times 2, write, read, plus 1, "
            "write, and so on for relu, square and minus 3. One loop: read, times 2, "
            "plus 1, relu, square, minus 3, write"
        ),
    )
    names = ["×2", "+1", "relu", "x²", "−3"]
    five = []
    one = [(0, 1, "read", "baseline"), (6, 7, "write", "baseline")]
    for number, name in enumerate(names):
        left = 3 * number
        five.append((left, left + 1, "read", "baseline"))
        five.append((left + 1, left + 2, name, "measured"))
        five.append((left + 2, left + 3, "write", "baseline"))
        one.append((number + 1, number + 2, name, "measured"))
    drawing.lane(0, "five operations", five)
    drawing.lane(1, "one loop", one)
    return drawing


def draw_breaks() -> Drawing:
    """Draw the graphs of a function with three breaks, and of its repair."""
    drawing = Drawing(
        "Three lines of Python cut one graph into four",
        columns=15,
        rows=2,
        alt=(
            "Two rows of boxes. broken: a graph with std, Python's .item(), a graph "
            "with a division, Python's print, a graph with abs and max, Python's if, "
            "a graph with clamp, exp and sum. repaired: one graph with std, division, "
            "clamp, exp and sum"
        ),
    )
    broken = [
        (0, 1.5, "std", "measured"),
        (1.5, 3.5, ".item()", "zone"),
        (3.5, 5, "/", "measured"),
        (5, 7, "print", "zone"),
        (7, 9.5, "abs, max", "measured"),
        (9.5, 11, "if", "zone"),
        (11, 15, "clamp, exp, sum", "measured"),
    ]
    drawing.lane(0, "broken", broken)
    drawing.lane(1, "repaired", [(0, 7, "std, /, clamp, exp, sum", "measured")])
    return drawing
