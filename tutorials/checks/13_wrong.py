"""Plausible wrong answers to the exercises of chapter 13: the checks refuse them."""

import itertools
from collections import namedtuple

Message = namedtuple(
    "Message", "sender receiver part parts adds", defaults=(0, 1, True)
)


def let_parts_go_round(n, first, adds):
    """Let parts go round a ring: in the first step rank r sends part r + first."""
    return [
        [Message(r, (r + 1) % n, (r + first - s) % n, n, adds) for r in range(n)]
        for s in range(n - 1)
    ]


def cuts_the_ring(n):
    return let_parts_go_round(n, 0, adds=True), let_parts_go_round(n, 1, adds=False)


def adds_in_both(n):
    return let_parts_go_round(n, -1, adds=True), let_parts_go_round(n, 0, adds=True)


def whole_tensors(n):
    gather = [Message(r, 0) for r in range(1, n)]
    return [gather], [[Message(0, r, adds=False) for r in range(1, n)]]


def received(plan, n, size):
    total = [0.0] * n
    for message in itertools.chain(*plan(n)):
        total[message.receiver] += size / message.parts
    return total


def messages(plan, n, size):
    total = [0] * n
    for message in itertools.chain(*plan(n)):
        total[message.sender] += 1
    return total


def like_a_ring(plan, n, size):
    return [2 * (n - 1) / n * size] * n


def find_crossings(sizes, first, second):
    """Yield where the second one becomes quicker."""
    gaps = [b - a for a, b in zip(first, second, strict=True)]
    for (x, d), (y, e) in itertools.pairwise(zip(sizes, gaps, strict=True)):
        if d >= 0 > e:
            yield x + (y - x) * d / (d - e)


def first_crossing(sizes, first, second):
    if second[-1] >= first[-1]:
        return None
    return next(find_crossings(sizes, first, second), sizes[0])


def size_after(sizes, first, second):
    quicker = [b < a for a, b in zip(first, second, strict=True)]
    count = len(list(itertools.takewhile(bool, reversed(quicker))))
    return sizes[-count] if count else None


def never_none(sizes, first, second):
    return [sizes[0], *find_crossings(sizes, first, second)][-1]


WRONG = {
    "halves": [cuts_the_ring, adds_in_both, whole_tensors],
    "bytes_sent": [received, messages, like_a_ring],
    "crossover": [first_crossing, size_after, never_none],
}
