"""The pictures of chapter 01, memory in use, and a queue that notes who was busy."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import psutil
import torch
from drawing import Drawing
from matplotlib.figure import Figure

from kit.figures import Span, draw_lines, draw_timeline

#: The stations of an operation, and what each does.
STATIONS = {
    "Python": "finds the method,\nenters C++",
    "dispatcher": "reads arguments,\nchooses the code",
    "autograd": "notes how to go\nback, if needed",
    "allocator": "makes a tensor,\nfinds its memory",
    "kernel": "does the\narithmetic",
}


def draw_path(title: str, prices: Sequence[float]) -> Drawing:
    """Draw the stations of an operation, with the price of each in µs under it.

    The kernel's price is that of one number.
    """
    *fixed, number = prices
    texts = [f"{price:.2f} µs" for price in fixed] + [f"{1e3 * number:.3g} ns a number"]
    pairs = zip(STATIONS, texts, strict=True)
    costs = "; ".join(f"{name}: {text}" for name, text in pairs)
    alt = f"Five boxes in a row: {', '.join(STATIONS)}; {costs}"
    drawing = Drawing(title, columns=15, rows=3.4, alt=alt)
    for place, (name, does) in enumerate(STATIONS.items()):
        left = 3 * place
        role = "measured" if name == "kernel" else "zone"
        drawing.box(left, 0.1, 2.6, 0.8, name, role)
        drawing.box(left, 1.0, 2.6, 1.2, does)
        drawing.box(left, 2.4, 2.6, 0.8, texts[place], "baseline")
        if place > 0:
            drawing.arrow((left - 0.4, 0.5), (left, 0.5))
    return drawing


def draw_curve(
    sizes: Sequence[int],
    times: Sequence[float],
    predicted: Sequence[float],
    *,
    knee: float,
) -> Figure:
    """Draw the microseconds of a call over its numbers, and mark the knee."""
    lines = {
        "measured": (sizes, times, None, None, "measured"),
        "predicted": (sizes, predicted, None, None, "predicted"),
    }
    names = {"xlabel": "numbers", "ylabel": "microseconds per call"}
    title = (
        f"Above about {float(f'{knee:.1g}'):,.0f} numbers, they cost more than the call"
    )
    figure = draw_lines(lines, title=title, logx=True, **names)
    axes = figure.axes[0]
    axes.axvline(knee, color="gray", linestyle=":")
    axes.text(knee, axes.get_ylim()[1], "knee ", ha="right", va="top")
    return figure


def find_megabytes(device: torch.device) -> float:
    """Return what this process holds on a CPU, or what its tensors hold elsewhere."""
    if device.type == "cpu":
        return psutil.Process().memory_info().rss / 1e6
    return torch.accelerator.memory_allocated() / 1e6


class Queue:
    """A thread that works through kernels as a GPU does; `lanes`: who was busy when.

    A kernel sleeps, so it takes no core from Python, as on a GPU.
    """

    def __init__(self) -> None:
        self._queue = ThreadPoolExecutor(1)
        self._queue.submit(time.sleep, 0).result()  # the thread begins
        self._begun = time.perf_counter()
        self.lanes: dict[str, list[Span]] = {"Python": [], "device": []}

    def launch(self, milliseconds: float) -> Future[None]:
        """Put a kernel into the queue and go on at once."""
        with self._noting("Python", "python", "launch"):
            return self._queue.submit(self._run, milliseconds)

    def item(self, launched: Future[None]) -> None:
        """Wait until a kernel has ended, as whoever reads a number of it must."""
        with self._noting("Python", "sync", "item"):
            launched.result()

    def be_busy(self, milliseconds: float) -> None:
        """Let Python do something else."""
        with self._noting("Python", "python", "busy"):
            time.sleep(milliseconds / 1000)

    def _run(self, milliseconds: float) -> None:
        with self._noting("device", "forward", "kernel"):
            time.sleep(milliseconds / 1000)

    @contextlib.contextmanager
    def _noting(self, lane: str, phase: str, name: str) -> Iterator[None]:
        start = time.perf_counter() - self._begun
        yield
        stop = time.perf_counter() - self._begun
        self.lanes[lane].append(Span(start, stop, phase, name))


def draw_queue(queue: Queue, where: str) -> Figure:
    """Draw who was busy when, titled with the time and the device's idle share."""
    end = max(span.stop for span in queue.lanes["Python"])
    idle = 1 - sum(span.stop - span.start for span in queue.lanes["device"]) / end
    title = f".item() {where}: {1000 * end:.0f} ms, the device is idle for {idle:.0%}"
    return draw_timeline(queue.lanes, title=title)
