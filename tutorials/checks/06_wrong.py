"""Plausible wrong answers to the exercises of chapter 06: the checks refuse them."""

import math

import torch
from torch import nn

from kit.tuning import fit_line


def in_proportion(sizes, amounts, budget):
    return math.floor(budget / (amounts[-1] / sizes[-1]))


def rounded_up(sizes, amounts, budget):
    return max(0, math.ceil(fit_line(sizes, amounts).find_size(budget)))


def below_zero(sizes, amounts, budget):
    return math.floor(fit_line(sizes, amounts).find_size(budget) + 1e-9)


def from_zero(optimizer, k, steps):
    return torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda done: k * min(1, (done + 1) / steps)
    )


def at_once(optimizer, k, steps):
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: k)


def goes_on_rising(optimizer, k, steps):
    return torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda done: 1 + (k - 1) * done / steps
    )


def whole_batch(x, n):
    return nn.functional.batch_norm(x, None, None, training=True)


def every_nth(x, n):
    groups = math.ceil(len(x) / n)
    y = torch.empty_like(x)
    for first in range(groups):
        some = x[first::groups]
        y[first::groups] = nn.functional.batch_norm(some, None, None, training=True)
    return y


def detached(x, n):
    groups = []
    for group in x.split(n):
        mean = group.mean((0, 2, 3), keepdim=True).detach()
        var = group.var((0, 2, 3), keepdim=True, unbiased=False).detach()
        groups.append((group - mean) / (var + 1e-5).sqrt())
    return torch.cat(groups)


def mean_square(gradient, n, repeats):
    return sum(gradient(n).square().sum().item() for _ in range(repeats)) / repeats


def biased(gradient):
    rough, fine = mean_square(gradient, 8, 80), mean_square(gradient, 256, 80)
    return 8 * rough / fine


def upside_down(gradient):
    rough, fine = mean_square(gradient, 4, 80), mean_square(gradient, 1000, 80)
    noise = (rough - fine) / (1 / 4 - 1 / 1000)
    return (fine - noise / 1000) / noise


def too_many(gradient):
    rough, fine = mean_square(gradient, 1, 500), mean_square(gradient, 10_000, 100)
    noise = (rough - fine) / (1 - 1 / 10_000)
    return noise / (fine - noise / 10_000)


WRONG = {
    "largest_batch": [in_proportion, rounded_up, below_zero],
    "follow": [from_zero, at_once, goes_on_rising],
    "ghost_norm": [whole_batch, every_nth, detached],
    "noise_scale": [biased, upside_down, too_many],
}
