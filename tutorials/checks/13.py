"""Checks of chapter 13's exercises: sums of parts, and a crossing."""

from collections import Counter
from itertools import islice

import torch

from kit.teaching import expect

# 1. Two halves


def halves(halves):
    """Part r's sum on rank r, then all sums everywhere, and no message too many."""
    for n in (1, 2, 3, 4, 7):
        # How often the value of each rank is in what a rank has: rank, part, value.
        has = torch.eye(n, dtype=torch.int64)[:, None].repeat(1, n, 1)
        first, second = halves(n)
        _carry_out(first, has, n, f"n={n}, first half")
        for rank in range(n):
            finished = has[rank].eq(1).all(dim=1).nonzero().flatten().tolist()
            assert finished == [rank], (
                f"n={n}: after the first half rank {rank} has the finished sums of "
                f"parts {finished}; {[rank]} is right."
            )
        _carry_out(second, has, n, f"n={n}, second half")
        for rank, part in (has != 1).any(dim=2).nonzero().tolist():
            raise AssertionError(
                f"n={n}: after both halves part {part} on rank {rank} has the ranks' "
                f"values {has[rank, part].tolist()} times; each once is right."
            )
    return "each half sends what it must, and the sums are where they belong."


def _carry_out(plan, has, n, case):
    """Change what the ranks have, and look at each message.

    What a step sends is what was there when the step began.
    """
    sent = Counter()
    for step in islice(plan, n * n):  # it may never end
        before = has.clone()
        for message in step:
            sender, receiver, part, parts, adds = message
            assert sender != receiver and parts == n, (
                f"{case}: {message} is not one of {n} parts, from one rank to another."
            )
            sent[sender] += 1
            has[receiver, part] = before[sender, part] + adds * has[receiver, part]
    assert max(sent.values(), default=0) < n, (
        f"{case}: a rank sends {max(sent.values())} parts; {n - 1} are enough."
    )


# 2. Your own crossover


def crossover(crossover):
    """The last crossing of two broken lines, between the sizes."""
    sizes = [1000, 2000, 10_000, 100_000, 1_000_000]
    slow = [2, 3, 4, 10, 50]
    fast = [1, 2, 3, 9, 40]
    late = [3, 4, 5, 9, 40]  # crosses slow once, at an even distance
    expect(
        crossover,
        [
            ((sizes, slow, fast), 1000),
            ((sizes, fast, slow), None),
            ((sizes, slow, late), 55_000),
            ((sizes, slow, [5, 2, 3, 9, 40]), 1750),
            ((sizes, [4, 5, 6, 7, 8], [5, 4, 9, 6, 7]), 77_500),
            ((sizes, [2, 3, 4, 5, 6], [1, 2, 3, 4, 7]), None),
        ],
        rel=0.01,
        hint="From there on the second one is quicker, up to the largest size.",
    )
    return "it finds the last crossing, and says where there is none."
