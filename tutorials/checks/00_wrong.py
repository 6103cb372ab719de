"""Plausible wrong answers to the exercises of chapter 00: the checks refuse them."""

import torch
from torch import nn


def yields_before_the_step(*, batch_size=16):
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    while True:
        for numbers in torch.rand(8, batch_size, 4):
            yield len(numbers)
            optimizer.zero_grad()
            net(numbers).square().mean().backward()
            optimizer.step()


def yields_one(*, batch_size=16):
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    while True:
        optimizer.zero_grad()
        net(torch.rand(batch_size, 4)).square().mean().backward()
        optimizer.step()
        yield 1


def ends_after_one_epoch(*, batch_size=16):
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for numbers in torch.rand(8, batch_size, 4):
        optimizer.zero_grad()
        net(numbers).square().mean().backward()
        optimizer.step()
        yield len(numbers)


def time_steps(step, steps, clock):
    start = clock()
    for _ in range(steps):
        step()
    return clock() - start


def one_after_the_other(a, b, clock):
    return time_steps(a, 20, clock) / time_steps(b, 20, clock)


def always_a_first(a, b, clock):
    pairs = [(time_steps(a, 5, clock), time_steps(b, 5, clock)) for _ in range(10)]
    return sum(pair[0] for pair in pairs) / sum(pair[1] for pair in pairs)


def upside_down(a, b, clock):
    first, second = time_steps(a, 5, clock), time_steps(b, 5, clock)
    second += time_steps(b, 5, clock)
    return second / (first + time_steps(a, 5, clock))


def evaluation_counts(train_step, evaluate):
    while True:
        for _ in range(3):
            train_step()
            yield 8
        evaluate()


def bare_yield_too_early(train_step, evaluate):
    while True:
        for _ in range(3):
            train_step()
            yield 8
        yield
        evaluate()


WRONG = {
    "one_yield": [yields_before_the_step, yields_one, ends_after_one_epoch],
    "turns": [one_after_the_other, always_a_first, upside_down],
    "bare_yield": [evaluation_counts, bare_yield_too_early],
}
