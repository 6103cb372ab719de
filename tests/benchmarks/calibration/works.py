"""Work whose truth is known: a ratio of speeds, or a number of bytes.

A step is `units` equal units: the speed of units=a over that of units=b is b/a. What a
step costs besides is below 0.2 % of it from 20 units on. Set-up allocates, and every
step yields 1. None of this sets a thread count: whoever measures does.
"""

import mmap
import time

import torch
from torch.utils.data import DataLoader, Dataset

#: A unit takes about a tenth of a millisecond on one core of a server of today.
_SIDE = 160  # three matrices stay in a core's own cache
_FLOATS = 1 << 19  # three vectors of 2 MiB do not
_ADDITIONS = 4000
#: Handing over a batch costs as much as half a unit: it must hold many.
_ITEMS_PER_BATCH = 16
#: In whole pages.
BYTES = 400 * 1000 * 1000 // mmap.PAGESIZE * mmap.PAGESIZE


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


class Items(Dataset):
    """Each item takes `units` units of plain Python; more of them than are ever read.

    A loader that came to its end would start its workers again.
    """

    def __init__(self, units):
        self.units = units

    def __len__(self):
        return 10_000_000

    def __getitem__(self, index):
        for _ in range(self.units):
            add_numbers()
        return index


def loader(*, units=20):
    """Wait for two workers of a DataLoader."""
    # A batch is its length only: sending tensors would be work beside the units.
    batches = DataLoader(
        Items(units), batch_size=_ITEMS_PER_BATCH, num_workers=2, collate_fn=len
    )
    while True:
        for _ in batches:
            yield 1


#: Work that one thread does, and work that worker processes do.
ONE_THREAD = {"matmul": matmul, "memory": memory, "python": python}
WORKS = {**ONE_THREAD, "loader": loader}

# A known number of bytes


def rest():
    while True:
        time.sleep(0.002)
        yield 1


def kept():
    """Fill one tensor and keep it."""
    filled = torch.ones(BYTES, dtype=torch.uint8)
    for _ in rest():
        yield len(filled)


def freed():
    """Fill one tensor and free it before the first step."""
    torch.ones(BYTES, dtype=torch.uint8)
    yield from rest()


ALLOCATIONS = {"kept": kept, "freed": freed}
