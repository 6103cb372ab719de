"""Plausible wrong answers to the exercises of chapter 15: the checks refuse them."""

from itertools import pairwise

import torch

TURNS = ["F0 B0 F1 B1 F2 B2 F3 B3"] * 2
GPIPE = ["F0 F1 F2 F3 B0 B1 B2 B3"] * 2
NEVER_ENDS = ["F0 B0 F1 B1 F2 B2 F3 B3", "F1 B1 F0 B0 F2 B2 F3 B3"]


def equal_numbers(costs, p):
    ends = [len(costs) * stage // p for stage in range(p + 1)]
    return [costs[a:b] for a, b in pairwise(ends)]


def up_to_the_mean(costs, p):
    stages, mean = [[]], sum(costs) / p
    for number, cost in enumerate(costs):
        needed = p - len(stages)
        is_full = stages[-1] and sum(stages[-1]) + cost > mean
        if needed and (is_full or len(costs) - number <= needed):
            stages.append([])
        stages[-1].append(cost)
    return stages


def all_by_outputs(gate, up, down, rank, n):
    return [weight.chunk(n)[rank] for weight in (gate, up, down)]


def all_by_inputs(gate, up, down, rank, n):
    return [weight.chunk(n, dim=1)[rank] for weight in (gate, up, down)]


def other_hidden_numbers(gate, up, down, rank, n):
    return gate[rank::n], up[rank::n], down.chunk(n, dim=1)[rank]


class EveryState:
    def __init__(self, parameters, rank, n):
        self.owners = [number % n for number in range(len(parameters))]
        self.optimizer = torch.optim.AdamW(parameters, lr=0.1)

    def step(self):
        self.optimizer.step()


class ByTurns:
    def __init__(self, parameters, rank, n):
        self.owners = [number % n for number in range(len(parameters))]
        own = [p for p, o in zip(parameters, self.owners, strict=True) if o == rank]
        self.optimizer = torch.optim.AdamW(own, lr=0.1)

    def step(self):
        self.optimizer.step()


WRONG = {
    "conduct": [TURNS, GPIPE, NEVER_ENDS],
    "balance": [equal_numbers, up_to_the_mean],
    "cut": [all_by_outputs, all_by_inputs, other_hidden_numbers],
    "sharded": [EveryState, ByTurns],
}
