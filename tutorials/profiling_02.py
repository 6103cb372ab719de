"""Chapter 02: photos and a network, a small sampler, and two questions to a profile."""

from __future__ import annotations

import linecache
import signal
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn
from torch.profiler import profile
from torch.utils.data import DataLoader, TensorDataset
from torchvision.transforms import v2

import kit

Seen = Counter[tuple[CodeType, int]]


def load_photos(size: int, device: torch.device) -> TensorDataset:
    """Return up to 1,024 photos of ten kinds and their labels, decoded, on a device."""
    steps = [v2.PILToTensor(), v2.Resize(size), v2.ToDtype(torch.float32, scale=True)]
    photos = kit.data.PhotoDataset(transform=v2.Compose(steps))
    images, labels = next(iter(DataLoader(photos, 1024)))
    return TensorDataset(images.to(device), labels.to(device))


def make_net(width: int) -> nn.Sequential:
    """Return a network of two linear layers for photos of 16 × 16 pixels."""
    layers = [nn.Flatten(), nn.Linear(768, width), nn.ReLU(), nn.Linear(width, 10)]
    return nn.Sequential(*layers)


def sample(
    steps: Iterator[Any], functions: Sequence[Callable[..., Any]], *, seconds: float
) -> Seen:
    """Run steps; count which line of these functions is at work.

    A timer sends a signal to the process, and Python calls `look` with the function
    that is active, its frame. What happens inside PyTorch counts for the line of
    `functions` that called it.
    """
    seen: Seen = Counter()
    ours = {function.__code__ for function in functions}

    def look(signal_number: int, frame: FrameType | None) -> None:
        for caller, line in traceback.walk_stack(frame):
            if caller.f_code in ours:
                seen[caller.f_code, line] += 1
                break

    before = signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, 0.0013, 0.0013)
    end = perf_counter() + (0.2 if kit.quick else seconds)
    while perf_counter() < end:
        next(steps)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
    return seen


def print_lines(seen: Seen, *, least: float = 0.05) -> None:
    """Print the lines that had at least this share of the looks, the largest first."""
    for (function, line), count in seen.most_common():
        share = count / seen.total()
        text = linecache.getline(function.co_filename, line).strip()
        if share >= least:
            print(f"{share:4.0%}  {function.co_name}, line {line}: {text}")


def print_callers(
    profiler: profile, operation: str, functions: Sequence[str], *, photos: int
) -> None:
    """Print how often each function asked for an operation, for each photo.

    A call belongs to the innermost of `functions` in its stack, whose entries read
    `file(line): function`.
    """
    counts = dict.fromkeys(functions, 0)
    for event in profiler.events() or []:
        if event.name == operation:
            names = [entry.rpartition(": ")[2] for entry in event.stack]
            callers = [name for name in names if name in counts]
            for caller in callers[:1]:
                counts[caller] += 1
    for function, count in counts.items():
        print(f"{function}: {count // photos} {operation} for each photo")


def count_calls(profiler: profile, name: str) -> int:
    """Return how often an operation was called while a profiler recorded."""
    return sum(row.count for row in profiler.key_averages() if row.key == name)


def total_ms(profiler: profile, name: str, *, steps: int) -> float:
    """Return the CPU total of a row of the profiler's table, in ms per step."""
    rows = [row for row in profiler.key_averages() if row.key == name]
    return sum(row.cpu_time_total for row in rows) / 1000 / steps
