"""What the loops share: data in memory, made once, and two plain models."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import nn


class Planted(NamedTuple):
    """A training loop, what slows it down, and the same training without that.

    `cause` is None where the loop is healthy; `repaired` where nothing is to repair.
    """

    name: str
    cause: str | None
    loop: Callable
    repaired: Callable | None = None


@functools.cache
def numbers(*shape: int) -> torch.Tensor:
    """Return normally distributed numbers of this shape, always the same."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


@functools.cache
def whole_numbers(below: int, *shape: int) -> torch.Tensor:
    """Return whole numbers from 0 to `below` - 1, always the same."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(below, shape, generator=generator)


def batches(size: int, *tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield whole batches out of memory, for ever; slices, so nothing is copied."""
    while True:
        yield from zip(*(tensor.split(size) for tensor in tensors), strict=True)


def mlp(*widths: int, activation: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    """Make a multilayer perceptron with these widths, the input's first."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), activation()]
    return nn.Sequential(*layers[:-1])


def cnn(channels: int, classes: int = 10) -> nn.Sequential:
    """Make a small convolutional network for images of three channels."""
    return nn.Sequential(
        nn.Conv2d(3, channels, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * channels, classes),
    )
