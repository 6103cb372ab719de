"""Three slow training loops, without a hint: the exercises of chapter 19.

Each is an experiment: a generator with one `yield` per step. What they learn from is
random numbers of the right shape. Nothing random happens but the start of the weights.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


def draw(*shape: int) -> torch.Tensor:
    """Return normally distributed numbers of this shape, always the same."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


class Lines:
    """256 lines of a text file, each with 64 numbers."""

    def __init__(self) -> None:
        self.lines = [" ".join(map(str, row)) for row in draw(256, 64).tolist()]

    def __len__(self) -> int:
        return len(self.lines)

    def read(self, number: int) -> list[float]:
        """Return the numbers of a line."""
        return [float(word) for word in self.lines[number].split()]


def learn_lines(*, lines=None):
    """Learn what class each line has: its number, modulo 10."""
    lines, net = lines or Lines(), nn.Linear(64, 10)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    while True:
        for first in range(0, len(lines), 32):
            numbers = range(first, first + 32)
            rows = torch.tensor([lines.read(number) for number in numbers])
            classes = torch.tensor([number % 10 for number in numbers])
            loss = F.cross_entropy(net(rows), classes)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield 32, {"loss": loss}


def learn_pairs():
    """Learn from the products of all pairs of 16 numbers."""
    x, y, net = draw(64, 16), draw(64, 1), nn.Linear(136, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    while True:
        pairs = []
        for i in range(16):
            for j in range(i, 16):
                pairs.append(x[:, i] * x[:, j])
        loss = F.mse_loss(net(torch.stack(pairs, dim=1)), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        x = 0.99 * x
        yield 64, {"loss": loss}


def learn_places():
    """Learn to put the two halves of each of 256 pairs into one place."""
    (here, there), net = draw(2, 256, 64), nn.Linear(64, 64)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    while True:
        apart = net(here)[:, None, :] - net(there)[None, :, :]
        squares = apart.square().sum(dim=2)
        loss = F.cross_entropy(-squares, torch.arange(256))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield 256, {"loss": loss}
