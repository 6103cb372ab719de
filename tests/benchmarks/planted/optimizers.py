"""Loops that spend their time between backward and the next forward."""

import copy
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adagrad, Adam, AdamW

from .parts import Blocks, Joined, batches, fit, mlp, numbers, plant, shown, whole


class Words(nn.Module):
    """A vector for each word, each a parameter of its own."""

    def __init__(self, words, width):
        super().__init__()
        rows = torch.randn(words, width).unbind()
        self.rows = nn.ParameterList([nn.Parameter(row.clone()) for row in rows])
        self.head = nn.Linear(width, 3)

    def forward(self, text):
        return self.head(torch.stack(list(self.rows))[text].mean(1))


def many_small_tensors(*, fused=None):
    """Train thousands of small tensors with Adam."""
    data = batches(64, whole(1200, 640, 20), whole(3, 640))
    yield from fit(Words(1200, 16), data, Adam, lr=1e-3, fused=fused)


class Both:
    """Two optimizers that step together."""

    def __init__(self, *optimizers):
        self.optimizers = optimizers

    def zero_grad(self):
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def step(self):
        for optimizer in self.optimizers:
            optimizer.step()


def adam_over_words(*, sparse=False):
    """Train a wide table of words with Adam, though a batch has few of them."""
    words = nn.Embedding.from_pretrained(
        numbers(20_000, 64).clone(), freeze=False, sparse=sparse
    )
    head = nn.Linear(64, 2)
    model = Joined(lambda text: head(words(text).mean(1)), words, head)
    data = batches(32, whole(20_000, 320, 30), whole(2, 320))

    def make(parameters):
        if not sparse:
            return Adam(parameters, lr=1e-3)
        table = torch.optim.SparseAdam(words.parameters(), lr=1e-3)
        return Both(table, Adam(head.parameters(), lr=1e-3))

    yield from fit(model, data, make)


def clip_by_hand(parameters):
    """Clip the gradients to norm 1, a tensor at a time."""
    total = 0.0
    for parameter in parameters:
        if torch.isnan(parameter.grad).any():
            parameter.grad.zero_()
        parameter.grad.clamp_(-1.0, 1.0)
        total += parameter.grad.norm().item() ** 2
    scale = 1.0 / (total**0.5 + 1e-6)
    for parameter in parameters:
        if scale < 1:
            parameter.grad.mul_(scale)


def clip_together(parameters):
    nn.utils.clip_grad_value_(parameters, 1.0, foreach=True)
    nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)


def clipped_by_hand(*, clip=clip_by_hand):
    """Clip the gradients of many tensors in a Python loop."""
    model = nn.Sequential(Blocks(400, 4), nn.LeakyReLU(), nn.Linear(1600, 8))
    data = batches(32, numbers(320, 1600), whole(8, 320))

    def find_loss(scores, labels):
        return 10 * F.cross_entropy(scores, labels)

    options = {"clip": clip, "lr": 0.1, "fused": True}
    yield from fit(model, data, SGD, find_loss=find_loss, **options)


@torch.no_grad()
def average_by_hand(average, model):
    """Move the average towards the model, a tensor of its state at a time."""
    state = model.state_dict()
    for name, value in average.state_dict().items():
        value.copy_(0.99 * value + 0.01 * state[name])


@torch.no_grad()
def average_together(average, model):
    slow, fast = list(average.parameters()), list(model.parameters())
    torch._foreach_lerp_(slow, fast, 0.01)


def weights_averaged(*, average=average_by_hand):
    """Average the weights in a Python loop after each step."""
    model = Words(900, 24)
    slow = copy.deepcopy(model).requires_grad_(False)
    data = batches(48, whole(900, 480, 16), whole(3, 480))
    for items in fit(model, data, Adagrad, lr=0.05, fused=True):
        average(slow, model)
        yield items


class HandwrittenAdam:
    """Adam as the paper says it, a tensor at a time."""

    def __init__(self, parameters, lr):
        self.parameters, self.lr, self.steps = list(parameters), lr, 0
        self.means = [torch.zeros_like(p) for p in self.parameters]
        self.squares = [torch.zeros_like(p) for p in self.parameters]

    def zero_grad(self):
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self):
        self.steps += 1
        rows = zip(self.parameters, self.means, self.squares, strict=True)
        for parameter, mean, square in rows:
            mean.copy_(0.9 * mean + 0.1 * parameter.grad)
            square.copy_(0.999 * square + 0.001 * parameter.grad**2)
            first = mean / (1 - 0.9**self.steps)
            second = square / (1 - 0.999**self.steps)
            parameter -= self.lr * first / (second.sqrt() + 1e-8)


def adam_by_hand(*, make_optimizer=HandwrittenAdam):
    """Train a block-diagonal network with an Adam written by hand."""
    model = nn.Sequential(Blocks(100, 8), nn.Sigmoid(), Blocks(100, 8))
    data = batches(64, numbers(640, 800), numbers(640, 800))
    yield from fit(model, data, make_optimizer, find_loss=F.l1_loss, lr=1e-3)


def wide_layers(*, fused=None):
    """Train wide layers with AdamW on a small batch."""
    model = mlp(800, 1200, 800, activation=nn.GELU)
    data = batches(4, numbers(80, 800), numbers(80, 800))
    yield from fit(model, data, AdamW, find_loss=F.mse_loss, lr=1e-4, fused=fused)


OPTIMIZER = [
    shown("E", "optimizer"),
    *plant("optimizer", many_small_tensors, wide_layers, fused=True),
    *plant("optimizer", clipped_by_hand, clip=clip_together),
    *plant("optimizer", weights_averaged, average=average_together),
    *plant("optimizer", adam_by_hand, make_optimizer=partial(Adam, fused=True)),
    *plant("optimizer", adam_over_words, sparse=True),
]
