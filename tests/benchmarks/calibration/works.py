"""Work whose truth is known: a ratio of speeds, or a number of bytes.

A step is `units` equal units: the speed of units=a over that of units=b is b/a. What a
step costs besides is below 0.2 % of it from 20 units on. Set-up allocates, and every
step yields 1. None of this sets a thread count: whoever measures does.
"""

import contextlib
import mmap
import multiprocessing
import time

import torch
from torch.utils.data import DataLoader, Dataset

#: A unit takes about a tenth of a millisecond on one core of a server of today.
_SIDE = 160  # three matrices stay in a core's own cache
_FLOATS = 1 << 19  # three vectors of 2 MiB do not
_ADDITIONS = 4000
_THREADS_SIDE = 320
#: Handing over a batch costs as much as half a unit: it must hold many.
_ITEMS_PER_BATCH = 16
#: In whole pages; so much that what a fork itself costs, some megabytes, is small.
BYTES = 400 * 1000 * 1000 // mmap.PAGESIZE * mmap.PAGESIZE


def repeat(unit, units):
    """Yield after so many units, for ever."""
    while True:
        for _ in range(units):
            unit()
        yield 1


def matmul(*, units=20, side=_SIDE):
    """Multiply small matrices."""
    a, b, out = torch.rand(side, side), torch.rand(side, side), torch.empty(side, side)
    yield from repeat(lambda: torch.mm(a, b, out=out), units)


def matmul_threads(*, units=20):
    """Multiply matrices that are large enough for several threads."""
    yield from matmul(units=units, side=_THREADS_SIDE)


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
WORKS = {**ONE_THREAD, "loader": loader, "matmul_threads": matmul_threads}

# A known number of bytes


def rest():
    while True:
        time.sleep(0.002)
        yield 1


def tensor():
    """Fill one tensor."""
    filled = torch.ones(BYTES, dtype=torch.uint8)
    for _ in rest():
        yield len(filled)


def workers():
    """Let two child processes fill half of the bytes each, of their own."""
    with _children(lambda: bytearray(b"1") * (BYTES // 2)):
        yield from rest()


def shared_pages():
    """Fill shared memory that two child processes read as well."""
    memory = mmap.mmap(-1, BYTES)  # shared with whoever is forked from here
    filled = torch.frombuffer(memory, dtype=torch.uint8)
    filled.fill_(1)
    with _children(filled.numpy().max):
        yield from rest()


@contextlib.contextmanager
def _children(act):
    """Let two processes do something and live until the end of the context."""
    context, kept = multiprocessing.get_context("fork"), []
    ready = context.Barrier(3)

    def begin():
        kept.append(act())
        ready.wait(60)

    with context.Pool(2, begin):
        ready.wait(60)  # an error where a child process did not fill its memory
        yield


ALLOCATIONS = {"tensor": tensor, "workers": workers, "shared_pages": shared_pages}
