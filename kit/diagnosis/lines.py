"""Which lines of the reader's code the time goes into, and which wait for a device."""

from __future__ import annotations

import contextlib
import functools
import linecache
import os
import sys
import sysconfig
import threading
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kit import clock
from kit.diagnosis.effects import find_effect
from kit.diagnosis.phases import Segment

#: Seconds between looks at what the main thread executes.
_SECONDS_BETWEEN_LOOKS = 0.002
#: Calls that read a tensor's numbers: on an accelerator they wait for its queue.
_READS = ("item", "tolist", "numpy", "cpu", "__float__", "__int__", "__bool__")
_MOST_TEXT = 60
_KIT = str(Path(__file__).resolve().parents[1])

#: A file's name and a number of a line.
Place = tuple[str, int]
WAITING: Place = ("other threads", 0)


class Line(NamedTuple):
    """A line of code, and the fraction of a phase that it takes."""

    place: str
    share: float


class Call(NamedTuple):
    """A call that reads a tensor: what, where, how often and how long per step."""

    name: str
    place: str
    times: float
    seconds: float


@contextlib.contextmanager
def sampling() -> Generator[list[tuple[int, Place]], None, None]:
    """Look from another thread at which line the calling thread executes.

    The list holds (time in nanoseconds, place) of the innermost line that is not
    PyTorch's, the standard library's or this package's; `WAITING` where it waits for
    another thread.
    """
    samples: list[tuple[int, Place]] = []
    watched, done = threading.get_ident(), threading.Event()

    def look() -> None:
        while not done.wait(_SECONDS_BETWEEN_LOOKS):
            place = WAITING if _waits(watched) else find_place(watched)
            if place is not None:
                samples.append((clock.epoch_nanoseconds(), place))

    thread = threading.Thread(target=look, name="kit: lines", daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        done.set()
        thread.join()


def find_place(thread: int) -> Place | None:
    """Return file and line of the innermost frame of a thread in the reader's code.

    None while this package's code runs: what called it is not the experiment.
    """
    frame = sys._current_frames().get(thread)
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    while frame is not None and not frame.f_code.co_filename.startswith(_KIT):
        if _is_own(frame.f_code.co_filename):
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return None


def _waits(thread: int) -> bool:
    """Return whether a thread waits for another: for its lock, its end, its result."""
    frame = sys._current_frames().get(thread)
    return frame is not None and frame.f_code.co_filename == threading.__file__


@functools.cache
def _is_own(filename: str) -> bool:
    if filename.startswith("<"):
        return False
    libraries = {sysconfig.get_path(kind) for kind in ("stdlib", "purelib", "platlib")}
    packages = ("site-packages", "dist-packages")
    if filename.startswith((*libraries,)):
        return False
    return not any(package in filename for package in packages)


def write_place(place: Place) -> str:
    """Write a place as "train.py:41: the line", a notebook's as "cell:3: the line"."""
    filename, number = place
    name = "cell" if "ipykernel" in filename else os.path.basename(filename)
    text = linecache.getline(filename, number).strip()
    text = text if len(text) <= _MOST_TEXT else text[: _MOST_TEXT - 1] + "…"
    return f"{name}:{number}: {text}" if text else f"{name}:{number}"


def find_lines(
    samples: Sequence[tuple[int, Place]], segments: Sequence[Segment], phase: str
) -> list[Line]:
    """Return the lines that were seen during a phase, the most frequent first.

    Their shares are of that phase.
    """
    counts = _count_places(samples, segments, phase)
    total = max(1, counts.total())
    del counts[WAITING]
    most = counts.most_common(3)
    return [Line(write_place(line), count / total) for line, count in most]


def count_waits(
    samples: Sequence[tuple[int, Place]], segments: Sequence[Segment], phase: str
) -> float:
    """Return for which share of a phase the thread waits for others."""
    counts = _count_places(samples, segments, phase)
    return counts[WAITING] / max(1, counts.total())


def _count_places(
    samples: Sequence[tuple[int, Place]], segments: Sequence[Segment], phase: str
) -> Counter[Place]:
    counts: Counter[Place] = Counter()
    place = 0
    for when, line in samples:
        while place < len(segments) - 1 and when >= segments[place].stop:
            place += 1
        within = segments and segments[place].start <= when
        if within and segments[place].phase == phase:
            counts[line] += 1
    return counts


@contextlib.contextmanager
def listing_reads() -> Generator[list[tuple[str, Place | None, float]], None, None]:
    """List each call of an experiment that reads a tensor: (name, place, seconds)."""
    import torch

    calls: list[tuple[str, Place | None, float]] = []
    cls: Any = torch.Tensor
    own = {name: vars(cls)[name] for name in _READS if name in vars(cls)}

    def listed(name: str, read: Callable[..., Any]) -> Callable[..., Any]:
        def call(tensor: Any, *arguments: Any, **options: Any) -> Any:
            if find_effect() is None:  # a cell that runs meanwhile
                return read(tensor, *arguments, **options)
            begun = clock.CLOCK.wall()
            try:
                return read(tensor, *arguments, **options)
            finally:
                spent = clock.CLOCK.wall() - begun
                calls.append((name, find_place(threading.get_ident()), spent))

        return call

    for name in _READS:
        setattr(cls, name, listed(name, getattr(cls, name)))
    try:
        yield calls
    finally:
        for name in _READS:
            if name in own:
                setattr(cls, name, own[name])
            else:
                delattr(cls, name)


def sum_reads(
    calls: Sequence[tuple[str, Place | None, float]], steps: int
) -> list[Call]:
    """Sum up calls by name and place, per step, those that took longest first."""
    seconds: Counter[tuple[str, Place]] = Counter()
    times: Counter[tuple[str, Place]] = Counter()
    for name, place, took in calls:
        if place:
            seconds[name, place] += took  # type: ignore[assignment]
            times[name, place] += 1
    return [
        Call(
            name.strip("_") if name.startswith("_") else f".{name}",
            write_place(place),
            times[name, place] / steps,
            spent / steps,
        )
        for (name, place), spent in seconds.most_common()
    ]
