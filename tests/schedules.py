"""All-reduces as lists of messages, for tests that draw or simulate them."""

from kit.costs import Message


def ring(n):
    for step in range(2 * (n - 1)):
        yield [
            Message(rank, (rank + 1) % n, (rank - step) % n, n, step < n - 1)
            for rank in range(n)
        ]


def through_root(n):
    for rank in range(1, n):
        yield [Message(rank, 0)]
    for rank in range(1, n):
        yield [Message(0, rank, adds=False)]


def tree(n):
    hops = [2**i for i in range((n - 1).bit_length())]
    for hop in hops:
        yield [Message(r, r - hop) for r in range(hop, n, 2 * hop)]
    for hop in hops[::-1]:
        yield [Message(r - hop, r, adds=False) for r in range(hop, n, 2 * hop)]
