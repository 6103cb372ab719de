"""Plausible wrong answers to the exercises of chapter 19: the checks refuse them."""

import torch
from torch import nn
from torch.nn import functional as F


def _draw(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def _learn(net, rate, batches):
    """Train on batches for ever: inputs and what the loss makes of the outputs."""
    optimizer = torch.optim.SGD(net.parameters(), lr=rate)
    for items, inputs, find_loss in batches:
        loss = find_loss(net(inputs))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield items, {"loss": loss}


def _classes(numbers):
    return lambda out: F.cross_entropy(out, torch.tensor([n % 10 for n in numbers]))


def all_in_one_batch(*, lines=None):
    def make():
        rows = torch.tensor([lines.read(number) for number in range(256)])
        while True:
            yield 32, rows, _classes(range(256))

    yield from _learn(nn.Linear(64, 10), 0.1, make())


def reads_each_epoch(*, lines=None):
    def make():
        while True:
            rows = torch.tensor([lines.read(number) for number in range(256)])
            for first in range(0, 256, 32):
                some = range(first, first + 32)
                yield 32, rows[first : first + 32], _classes(some)

    yield from _learn(nn.Linear(64, 10), 0.1, make())


def keeps_the_first_batch(*, lines=None):
    def make():
        rows = torch.tensor([lines.read(number) for number in range(32)])
        while True:
            yield 32, rows, _classes(range(32))

    yield from _learn(nn.Linear(64, 10), 0.1, make())


def _learn_pairs(join):
    def make():
        x, y = _draw(64, 16), _draw(64, 1)
        while True:
            yield 64, join(x), lambda out: F.mse_loss(out, y)
            x = 0.99 * x

    yield from _learn(nn.Linear(136, 1), 0.01, make())


def shorter_code():
    def join(x):
        columns = x.unbind(1)
        pairs = [columns[i] * columns[j] for i in range(16) for j in range(i, 16)]
        return torch.stack(pairs, dim=1)

    yield from _learn_pairs(join)


def another_order():
    def join(x):
        i, j = torch.tril_indices(16, 16)
        return x[:, i] * x[:, j]

    yield from _learn_pairs(join)


def pairs_of_the_first_step():
    i, j = torch.triu_indices(16, 16)
    kept = []

    def join(x):
        kept.append(x[:, i] * x[:, j])
        return kept[0]

    yield from _learn_pairs(join)


def _learn_places(find_squares):
    (here, there), net = _draw(2, 256, 64), nn.Linear(64, 64)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    while True:
        squares = find_squares(net(here), net(there))
        loss = F.cross_entropy(-squares, torch.arange(256))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield 256, {"loss": loss}


def row_by_row():
    def find_squares(here, there):
        return torch.stack([(row - there).square().sum(dim=1) for row in here])

    yield from _learn_places(find_squares)


def distances_without_squares():
    yield from _learn_places(torch.cdist)


def only_the_products():
    yield from _learn_places(lambda here, there: -2 * here @ there.T)


WRONG = {
    "lines": [all_in_one_batch, reads_each_epoch, keeps_the_first_batch],
    "pairs": [shorter_code, another_order, pairs_of_the_first_step],
    "places": [row_by_row, distances_without_squares, only_the_products],
}
