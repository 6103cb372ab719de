"""Work of one thread, whose ratio of speeds is known.

A step is `units` equal units: the speed of units=a over that of units=b is b/a. What a
step costs besides is below 0.2 % of it from 20 units on. Set-up allocates, and every
step yields 1. None of this sets a thread count: whoever measures does.
"""

import torch

#: A unit takes about a tenth of a millisecond on one core of a server of today.
_SIDE = 160  # three matrices stay in a core's own cache
_FLOATS = 1 << 19  # three vectors of 2 MiB do not
_ADDITIONS = 4000


def repeat(unit, units):
    """Yield after so many units, for ever."""
    while True:
        for _ in range(units):
            unit()
        yield 1


def matmul(*, units=20):
    """Multiply small matrices."""
    a, b = torch.rand(_SIDE, _SIDE), torch.rand(_SIDE, _SIDE)
    out = torch.empty(_SIDE, _SIDE)
    yield from repeat(lambda: torch.mm(a, b, out=out), units)


def memory(*, units=20):
    """Add vectors that do not fit into a core's own cache."""
    a, b, out = torch.rand(_FLOATS), torch.rand(_FLOATS), torch.empty(_FLOATS)
    yield from repeat(lambda: torch.add(a, b, out=out), units)


def add_numbers():
    total = 0
    for number in range(_ADDITIONS):
        total += number % 7
    return total


def python(*, units=20):
    """Add numbers in plain Python."""
    yield from repeat(add_numbers, units)


WORKS = {"matmul": matmul, "memory": memory, "python": python}
