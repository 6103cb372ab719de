"""What chapter 06 trains, how it counts memory, and how it fits its formulas."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from memory_07 import Watcher
from torch import nn
from torch.nn import functional as F

import kit
from kit.tuning import Line, fit_line


def lenet(device: torch.device, norm: Any = nn.Identity) -> nn.Sequential:
    """Return the LeNet of 1998 for letters, with ReLU and random weights as by He."""
    net = nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        norm(120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, 10),
    )
    for layer in net:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight)
    return net.to(device)


def count_peak(make_net: Any, shape: Sequence[int]) -> int:
    """Return the most bytes that training takes, of two steps that allocate nothing.

    The device is "meta", where tensors have shapes and no numbers.
    """
    with torch.device("meta"), Watcher() as watcher:
        net = make_net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
        images = torch.empty(shape)
        labels = torch.empty(shape[0], dtype=torch.long)
        for _ in range(2):
            optimizer.zero_grad()
            F.cross_entropy(net(images), labels).backward()
            optimizer.step()
    return max(map(sum, watcher.rows))


class Race(NamedTuple):
    """Images to the target as a line over the batch size, and what seeds differ in.

    `critical` and `best` are ranges over seeds: of the critical batch size, and of the
    batch that reaches the target first.
    """

    images: Line
    critical: tuple[float, float]
    best: tuple[float, float]


def fit_race(
    sizes: Sequence[int], images: Sequence[Sequence[float]], step: Line
) -> Race:
    """Fit the images that seeds (columns) needed with batches of some sizes (rows).

    `step` is the time of a step, t(b). No best batch is beyond what was measured.
    """
    means = [sum(row) / len(row) for row in images]
    critical, best = [], []
    for column in zip(*images, strict=True):
        critical.append(fit_line(sizes, column).find_knee(0.5))
        lowest = math.sqrt(critical[-1] * step.find_knee(0.5))
        best.append(min(max(lowest, min(sizes)), max(sizes)))
    ranges = (min(critical), max(critical)), (min(best), max(best))
    return Race(fit_line(sizes, means), *ranges)


@functools.cache
def unseen_letters(device: torch.device) -> Any:
    """Return 500 letters, images and labels, with which nothing trains."""
    return kit.data.glyphs(train=False).to(device)[-500:]


@torch.no_grad()
def unseen_loss(net: nn.Module) -> float:
    """Return a network's loss on 500 letters that it has not seen."""
    images, labels = unseen_letters(next(net.parameters()).device)
    return F.cross_entropy(net(images), labels).item()


def take_losses(training: Any, steps: int) -> list[float]:
    """Return the losses of the first steps of a training loop that yields them."""
    taken = itertools.islice(training, steps)
    return [metrics["loss"].item() for _, metrics in taken]
