"""Plausible wrong answers to the exercises of chapter 00: checks refuse them."""

import torch
from torch import nn


def _yield_before_the_step(*, batch_size=16):
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    while True:
        for numbers in torch.rand(8, batch_size, 4):
            yield len(numbers)
            optimizer.zero_grad()
            net(numbers).square().mean().backward()
            optimizer.step()


def _yield_one(*, batch_size=16):
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    while True:
        optimizer.zero_grad()
        net(torch.rand(batch_size, 4)).square().mean().backward()
        optimizer.step()
        yield 1


def _end_after_one_epoch(*, batch_size=16):
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for numbers in torch.rand(8, batch_size, 4):
        optimizer.zero_grad()
        net(numbers).square().mean().backward()
        optimizer.step()
        yield len(numbers)


def _no_warm_up(step, synchronize, clock):
    synchronize()
    start = clock()
    for _ in range(10):
        step()
    synchronize()
    return (clock() - start) / 10


def _not_waiting(step, synchronize, clock):
    step()
    synchronize()
    start = clock()
    for _ in range(10):
        step()
    return (clock() - start) / 10


def _one_step(step, synchronize, clock):
    step()
    synchronize()
    start = clock()
    step()
    synchronize()
    return clock() - start


def _evaluation_counts(train_step, evaluate):
    while True:
        for _ in range(3):
            train_step()
            yield 8
        evaluate()


def _bare_yield_too_early(train_step, evaluate):
    while True:
        for _ in range(3):
            train_step()
            yield 8
        yield
        evaluate()


WRONG = {
    "one_yield": [_yield_before_the_step, _yield_one, _end_after_one_epoch],
    "honest": [_no_warm_up, _not_waiting, _one_step],
    "bare_yield": [_evaluation_counts, _bare_yield_too_early],
}
