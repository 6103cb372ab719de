"""Plausible wrong answers to the exercises of chapter 08: the checks refuse them."""

import torch
from torch import nn


def still_branches(x, limit):
    mean = x.mean()
    x = x - mean if mean > limit else x * 2
    return x / x.norm()


def one_way_only(x, limit):
    x = x - x.mean()
    return x / x.norm()


def decides_for_each_number(x, limit):
    x = torch.where(x > limit, x - x.mean(), x * 2)
    return x / x.norm()


class StillCounts(nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = 0
        self.register_buffer("average", torch.zeros(()))

    def forward(self, x):
        self.steps += 1
        self.average = 0.9 * self.average + 0.1 * x.mean()
        return x - self.average / (1 - 0.9**self.steps)


class ForgetsTheStart(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("average", torch.zeros(()))

    def forward(self, x):
        self.average = 0.9 * self.average + 0.1 * x.mean()
        return x - self.average


class CountsOneLate(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.ones(()))
        self.register_buffer("average", torch.zeros(()))

    def forward(self, x):
        self.steps = self.steps + 1
        self.average = 0.9 * self.average + 0.1 * x.mean()
        return x - self.average / (1 - 0.9**self.steps)


NAMES = ["chain", "product", "loader", "restless", "normalise"]

WRONG = {
    "one_graph": [still_branches, one_way_only, decides_for_each_number],
    "at_rest": [StillCounts, ForgetsTheStart, CountsOneLate],
    "five_loops": [
        dict.fromkeys(NAMES, True),
        dict.fromkeys(NAMES, False),
        {name: name != "loader" for name in NAMES},
    ],
}
