"""What the loops share: data in memory, made once, plain models, the usual step."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import slow_loops  # which chapter 03 shows
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD


class Planted(NamedTuple):
    """A training loop, what slows it down, and the same training without that.

    `cause` is None where the loop is healthy; `repaired` where nothing is to repair.
    """

    name: str
    cause: str | None
    loop: Callable
    repaired: Callable | None = None


numbers, whole = slow_loops.numbers, slow_loops.whole_numbers
batches, mlp, Blocks = slow_loops.batches, slow_loops.mlp, slow_loops.Blocks


def shown(letter, cause):
    """Return a loop of the gallery in chapter 03, which tells its letter only."""
    loop, repaired = slow_loops.LOOPS[letter], slow_loops.REPAIRED[letter]
    is_ill = repaired is not loop
    return Planted(letter, cause, loop, repaired if is_ill else None)


def plant(cause, *loops, **repair):
    """Return loops; a repair is another value of a knob."""

    def repaired(loop):
        return partial(loop, **repair) if repair else None

    return [
        Planted(loop.__name__.replace("_", " "), cause, loop, repaired(loop))
        for loop in loops
    ]


def fit(model, data, make=SGD, *, find_loss=F.cross_entropy, clip=None, **options):
    """Train as most loops do, for ever: forward, loss, backward, update."""
    parameters = list(model.parameters())
    optimizer = make(parameters, **options)
    for inputs, targets in epochs(data):
        loss = find_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        if clip is not None:
            clip(parameters)
        optimizer.step()
        yield len(inputs)


def clip_to_one(parameters):
    nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)


def epochs(data):
    """Yield what a loader has, again and again."""
    while True:
        yield from data


class Joined(nn.Module):
    """Modules, and the function that joins them."""

    def __init__(self, forward, *modules):
        super().__init__()
        self.join, self.parts = forward, nn.ModuleList(modules)

    def forward(self, inputs):
        return self.join(inputs)


class Watch:
    """A loss that remembers what it was of."""

    def __init__(self, find_loss=F.cross_entropy):
        self.find_loss = find_loss

    def __call__(self, outputs, targets):
        self.outputs, self.targets = outputs.detach(), targets
        self.loss = self.find_loss(outputs, targets)
        return self.loss


def convolve(*layers, classes=10):
    """Make a network of these convolutions with ReLU between, pooled and classified."""
    pools = {1: nn.AdaptiveAvgPool1d, 2: nn.AdaptiveAvgPool2d, 3: nn.AdaptiveAvgPool3d}
    pool = pools[layers[0].weight.dim() - 2](1)
    rows = [part for layer in layers for part in (layer, nn.ReLU())]
    head = nn.Linear(layers[-1].out_channels, classes)
    return nn.Sequential(*rows, pool, nn.Flatten(), head)


def cnn(channels):
    """Make a small convolutional network for images of three channels."""
    first = nn.Conv2d(3, channels, 3, stride=2, padding=1)
    return convolve(first, nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1))
