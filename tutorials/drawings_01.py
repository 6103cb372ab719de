"""The pictures of chapter 01, and a queue that notes who was busy when."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from drawing import Drawing
from matplotlib.figure import Figure

from kit.figures import Span, draw_lines

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
    title: str,
) -> Figure:
    """Draw the microseconds of a call over its numbers, measured and predicted."""
    lines = {
        "measured": (sizes, times, None, None, "measured"),
        "predicted": (sizes, predicted, None, None, "predicted"),
    }
    names = {"xlabel": "numbers", "ylabel": "microseconds per call"}
    return draw_lines(lines, title=title, logx=True, **names)


class Queue:
    """A thread that works through calls as a GPU does; `lanes`: who was busy when."""

    def __init__(self) -> None:
        self._queue = ThreadPoolExecutor(
            1, initializer=torch.set_num_threads, initargs=(1,)
        )
        self._queue.submit(torch.mm, torch.ones(9, 9), torch.ones(9, 9)).result()
        self._begun = time.perf_counter()
        self.lanes: dict[str, list[Span]] = {"Python": [], "device": []}

    def launch(self, function: Callable[..., Any], *inputs: Any) -> Future[Any]:
        """Put a call into the queue and go on at once."""
        with self._noting("Python", "python", "launch"):
            return self._queue.submit(self._run, function, inputs)

    def item(self, launched: Future[Any]) -> float:
        """Wait until a call has ended, and return a number of its result."""
        with self._noting("Python", "sync", "item"):
            return float(launched.result().flatten()[0])

    def be_busy(self, milliseconds: float) -> None:
        """Let Python do something else, which leaves Python's lock to the device."""
        with self._noting("Python", "python", "busy"):
            time.sleep(milliseconds / 1000)

    def find_idle_share(self) -> float:
        """Return which share of the time the device had nothing to do."""
        busy = sum(span.stop - span.start for span in self.lanes["device"])
        return 1 - busy / max(span.stop for span in self.lanes["Python"])

    def _run(self, function: Callable[..., Any], inputs: Any) -> Any:
        with self._noting("device", "forward", function.__name__):
            return function(*inputs)

    @contextlib.contextmanager
    def _noting(self, lane: str, phase: str, name: str) -> Iterator[None]:
        start = time.perf_counter() - self._begun
        yield
        stop = time.perf_counter() - self._begun
        self.lanes[lane].append(Span(start, stop, phase, name))
