"""What chapter 04 shows: waiting over steps, and copies in traces."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from matplotlib.figure import Figure
from traces_03 import describe, find_step, read_events

from kit.figures import COLORS, draw_lines, kit_look


@kit_look()
def draw_waits(waits: Sequence[float], *, ready: int) -> Figure:
    """Draw how many milliseconds each step waits; the first `ready` ones are shaded."""
    numbers = range(1, len(waits) + 1)
    waits = [1000 * wait for wait in waits]
    first = fmean(waits[:ready])
    later = fmean(waits[ready:])
    title = (
        f"The first {ready} steps wait {first:.1f} ms each, the others {later:.0f} ms"
    )
    line = {"waits": (numbers, waits, None, None, "measured")}
    figure = draw_lines(line, title=title, xlabel="step", ylabel="ms of waiting")
    axes = figure.axes[0]
    axes.axvspan(0.5, ready + 0.5, color=COLORS["zone"], zorder=0)
    place = {"transform": axes.get_xaxis_transform(), "ha": "left", "va": "center"}
    axes.text(
        ready + 0.8, 0.5, "shaded: loaded in advance", color=COLORS["muted"], **place
    )
    return figure


def print_traces(*names: str) -> None:
    """Print how long a step of each trace is, and what its copy to the GPU is."""
    for name in names:
        path = f"traces/{name}.json.gz"
        found = describe(path)
        step, idle = found["ms per step"], found["without a kernel"]
        print(f"{name}: {step} ms a step, {idle} of it without a kernel")
        print_copy(path)


def print_copy(path: str | Path) -> None:
    """Print the size and the speed of the largest copy to the GPU in step 1."""
    events = read_events(path)
    begin, end = find_step(events, 1)
    copies = []
    for event in events:
        if event["cat"] == "gpu_memcpy" and begin <= event["ts"] < end:
            copies.append((event["args"]["bytes"], event["dur"]))
    if copies:
        size, microseconds = max(copies)
        took, speed = microseconds / 1000, size / microseconds / 1000
        print(f"  {size / 1e6:.0f} MB copied in {took:.1f} ms, {speed:.1f} GB/s")
