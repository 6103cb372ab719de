"""Plausible wrong answers to the exercises of chapter 06: checks refuse them."""

import math

import torch
from torch import nn

from kit.costs import fit_line


def _in_proportion(sizes, amounts, budget):
    return math.floor(budget / (amounts[-1] / sizes[-1]))


def _rounded_up(sizes, amounts, budget):
    return max(0, math.ceil(fit_line(sizes, amounts).find_size(budget)))


def _below_zero(sizes, amounts, budget):
    return math.floor(fit_line(sizes, amounts).find_size(budget) + 1e-9)


def _first_two_only(sizes, amounts, budget):
    size = fit_line(sizes[:2], amounts[:2]).find_size(budget)
    return max(0, math.floor(size + 1e-9))


def _at_least_one(sizes, amounts, budget):
    return max(1, math.floor(fit_line(sizes, amounts).find_size(budget) + 1e-9))


def _from_zero(optimizer, k, steps):
    return torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda done: k * min(1, (done + 1) / steps)
    )


def _one_rate_for_all(optimizer, k, steps):
    first = optimizer.param_groups[0]["lr"]

    class Scheduler:
        done = 0

        def step(self):
            self.done += 1
            for group in optimizer.param_groups:
                group["lr"] = first * (1 + (k - 1) * min(1, self.done / steps))

    return Scheduler()


def _at_once(optimizer, k, steps):
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: k)


def _a_step_early(optimizer, k, steps):
    return torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda done: 1 + (k - 1) * min(1, (done + 1) / steps)
    )


def _goes_on_rising(optimizer, k, steps):
    return torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda done: 1 + (k - 1) * done / steps
    )


def _in_factors(optimizer, k, steps):
    return torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda done: k ** min(1, done / steps)
    )


def _whole_batch(x, n):
    return nn.functional.batch_norm(x, None, None, training=True)


def _every_nth(x, n):
    groups = math.ceil(len(x) / n)
    y = torch.empty_like(x)
    for first in range(groups):
        y[first::groups] = nn.functional.batch_norm(
            x[first::groups], None, None, training=True
        )
    return y


def _unbiased(x, n):
    groups = []
    for group in x.split(n):
        mean = group.mean((0, 2, 3), keepdim=True)
        groups.append(
            (group - mean) / (group.var((0, 2, 3), keepdim=True) + 1e-5).sqrt()
        )
    return torch.cat(groups)


def _detached(x, n):
    groups = []
    for group in x.split(n):
        mean = group.mean((0, 2, 3), keepdim=True).detach()
        var = group.var((0, 2, 3), keepdim=True, unbiased=False).detach()
        groups.append((group - mean) / (var + 1e-5).sqrt())
    return torch.cat(groups)


def _all_channels_together(x, n):
    return torch.cat([nn.functional.layer_norm(g, g.shape) for g in x.split(n)])


def _each_image(x, n):
    return nn.functional.instance_norm(x)


def _drops_the_rest(x, n):
    return torch.cat(
        [
            nn.functional.batch_norm(g, None, None, training=True)
            for g in x.split(n)
            if len(g) == n
        ]
        or [x]
    )


def _square(gradient, n, repeats):
    return sum(gradient(n).square().sum().item() for _ in range(repeats)) / repeats


def _signal_with_noise(gradient):
    rough, fine = _square(gradient, 4, 80), _square(gradient, 1000, 80)
    return (rough - fine) / (1 / 4 - 1 / 1000) / fine + 4 * 0


def _biased(gradient):
    rough, fine = _square(gradient, 8, 80), _square(gradient, 256, 80)
    return 8 * rough / fine


def _upside_down(gradient):
    rough, fine = _square(gradient, 4, 80), _square(gradient, 1000, 80)
    noise = (rough - fine) / (1 / 4 - 1 / 1000)
    return (fine - noise / 1000) / noise


def _of_the_batch(gradient):
    rough, fine = _square(gradient, 4, 80), _square(gradient, 1000, 80)
    return (rough - fine) / fine


def _too_many(gradient):
    rough, fine = _square(gradient, 1, 2000), _square(gradient, 10_000, 100)
    noise = (rough - fine) / (1 - 1 / 10_000)
    return noise / (fine - noise / 10_000)


WRONG = {
    "largest_batch": [
        _in_proportion,
        _rounded_up,
        _below_zero,
        _first_two_only,
        _at_least_one,
    ],
    "follow": [
        _from_zero,
        _one_rate_for_all,
        _at_once,
        _a_step_early,
        _goes_on_rising,
        _in_factors,
    ],
    "ghost_norm": [
        _whole_batch,
        _every_nth,
        _unbiased,
        _detached,
        _all_channels_together,
        _each_image,
        _drops_the_rest,
    ],
    "noise_scale": [
        _signal_with_noise,
        _biased,
        _upside_down,
        _of_the_batch,
        _too_many,
    ],
}
