"""Loops that spend their time between backward and the next forward."""

from __future__ import annotations

import copy
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from .parts import Blocks, Planted, batches, mlp, numbers, shown, whole_numbers


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
    model = Words(1200, 16)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=fused)
    for text, labels in batches(
        64, whole_numbers(1200, 640, 20), whole_numbers(3, 640)
    ):
        loss = F.cross_entropy(model(text), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield len(text)


def adam_over_words():
    """Train a wide table of words with Adam, though a batch has few of them."""
    words, head = (
        nn.Embedding.from_pretrained(word_table(), freeze=False),
        nn.Linear(64, 2),
    )
    parameters = [*words.parameters(), *head.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=1e-3)
    for text, labels in batches(
        32, whole_numbers(20_000, 320, 30), whole_numbers(2, 320)
    ):
        optimizer.zero_grad()
        loss = F.cross_entropy(head(words(text).mean(1)), labels)
        loss.backward()
        optimizer.step()
        yield len(text)


def adam_over_words_used():
    """Train the same table where a batch has words, by a sparse Adam."""
    words = nn.Embedding.from_pretrained(word_table(), freeze=False, sparse=True)
    head = nn.Linear(64, 2)
    sparse = torch.optim.SparseAdam(words.parameters(), lr=1e-3)
    dense = torch.optim.Adam(head.parameters(), lr=1e-3)
    for text, labels in batches(
        32, whole_numbers(20_000, 320, 30), whole_numbers(2, 320)
    ):
        sparse.zero_grad()
        dense.zero_grad()
        loss = F.cross_entropy(head(words(text).mean(1)), labels)
        loss.backward()
        sparse.step()
        dense.step()
        yield len(text)


def word_table():
    return numbers(20_000, 64).clone()


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
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.1, fused=True)
    for inputs, labels in batches(32, numbers(320, 1600), whole_numbers(8, 320)):
        loss = 10 * F.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        clip(parameters)
        optimizer.step()
        yield len(inputs)


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
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05, fused=True)
    for text, labels in batches(48, whole_numbers(900, 480, 16), whole_numbers(3, 480)):
        loss = F.cross_entropy(model(text), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average(slow, model)
        yield len(text)


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
    optimizer = make_optimizer(model.parameters(), lr=1e-3)
    for inputs, targets in batches(64, numbers(640, 800), numbers(640, 800)):
        loss = F.l1_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield len(inputs)


def wide_layers(*, fused=None):
    """Train wide layers with AdamW on a small batch."""
    model = mlp(800, 1200, 800, activation=nn.GELU)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=fused)
    for inputs, targets in batches(4, numbers(80, 800), numbers(80, 800)):
        loss = F.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield len(inputs)


fused_adam = partial(torch.optim.Adam, fused=True)
_TABLE = [
    ("thousands of small tensors, Adam", many_small_tensors, {"fused": True}),
    ("clipped in a Python loop", clipped_by_hand, {"clip": clip_together}),
    ("averaged in a Python loop", weights_averaged, {"average": average_together}),
    ("Adam written by hand", adam_by_hand, {"make_optimizer": fused_adam}),
    ("AdamW over wide layers, a small batch", wide_layers, {"fused": True}),
]
OPTIMIZER = [
    shown("E", "foreach off, RMSprop", "optimizer"),
    *(
        Planted(name, "optimizer", bad, partial(bad, **fix))
        for name, bad, fix in _TABLE
    ),
    Planted(
        "Adam over a wide embedding", "optimizer", adam_over_words, adam_over_words_used
    ),
]
