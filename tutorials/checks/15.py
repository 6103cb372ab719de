"""Checks of chapter 15's exercises: a plan played, stages, parts of a layer."""

import runpy
from pathlib import Path

import torch
from torch.nn import functional as F

_PIPELINES = runpy.run_path(str(Path(__file__).parents[1] / "pipelines.py"))

# 1. A plan that three ranks play


def conduct(score):
    """Every action once, nobody waits forever, little is kept, the end comes early."""
    orders = [line.split() for line in score]
    assert len(orders) == 3, f"it has {len(orders)} lines; there are three ranks."
    right = sorted(f"{kind}{i}" for kind in "FB" for i in range(4))
    for rank, most in enumerate((3, 2, 1)):
        order = orders[rank]
        assert sorted(order) == right, (
            f"rank {rank} does {', '.join(sorted(order))}; {', '.join(right)} are "
            "right, each once."
        )
        kept = [sum(1 if a[0] == "F" else -1 for a in order[:i]) for i in range(9)]
        assert max(kept) <= most, (
            f"rank {rank} keeps {max(kept)} micro-batches at once; {most} would do."
        )
    plan = [[f"{rank}{action}" for action in orders[rank]] for rank in (0, 1, 2)]
    lanes = _PIPELINES["simulate"](plan, {"F": 1, "B": 2})
    for rank, lane in enumerate(lanes):
        assert len(lane) == 8, (
            "the ranks wait for each other forever: "
            f"rank {rank} at {orders[rank][len(lane)]}."
        )
    last = max(lane[-1].stop for lane in lanes)
    assert last == 18, (
        f"it takes {last:g} units of time, where F is one and B is two; 18 are enough."
    )
    return "the smallest bubble there is, and as little kept as can be."


# 2. Stages of unequal cost


def balance(balance):
    """The most expensive of the stages is as cheap as any cut makes it."""
    cases = [
        ([3], 1, 3),
        ([5, 1, 1, 1], 2, 5),
        ([1, 1, 1, 5], 2, 5),
        ([1, 1, 1, 1, 1, 8], 4, 8),
        ([2, 9, 2, 2, 2, 2, 9], 3, 11),
        ([7, 2, 5, 1, 8, 3, 3, 6, 2], 4, 11),
        ([0.5, 0.25, 0.25, 1.5], 2, 1.5),
    ]
    for costs, p, right in cases:
        stages = balance(list(costs), p)
        case = f"costs {costs}, {p} stages: it returns {stages}"
        assert len(stages) == p and all(map(len, stages)), (
            f"{case}, not {p} stages with something in each."
        )
        joined = [cost for stage in stages for cost in stage]
        assert joined == costs, f"{case}; together they are not the costs in order."
        slowest = max(map(sum, stages))
        assert slowest <= right, (
            f"{case}; its slowest stage costs {slowest}, and {right} can be reached."
        )
    return "no other cut has a cheaper slowest stage."


# 3. Rows or columns


def cut(cut):
    """What the ranks have adds up to the whole, each with its part of all weights."""
    torch.manual_seed(0)
    names = ("gate", "up", "down")
    weights = torch.randn(12, 6), torch.randn(12, 6), torch.randn(6, 12)
    x = torch.randn(5, 6)
    for n in (2, 3):
        total = torch.zeros(5, 6)
        for rank in range(n):
            parts = cut(*(weight.clone() for weight in weights), rank, n)
            for name, part, weight in zip(names, parts, weights, strict=True):
                assert part.numel() * n == weight.numel(), (
                    f"n={n}, rank {rank}: of `{name}`, {tuple(weight.shape)}, it keeps "
                    f"{tuple(part.shape)}; that is not one of {n} equal parts."
                )
            total += _feed(x, *parts)
        off = (total - _feed(x, *weights)).abs().max()
        assert off < 1e-3, (
            f"n={n}: the sum of what the ranks have is off by {off:.2f}. Do the parts "
            "of `up` and `down` belong to the same hidden numbers as that of `gate`?"
        )
    return "each rank has its part of every weight, and one sum gives the whole."


def _feed(x, gate, up, down):
    return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)
