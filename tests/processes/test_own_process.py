"""Your loop allocates as it does without the kit, and stays compiled in each run."""

import os
import platform
import subprocess
import sys

import pytest
import torch
from torch import nn

import kit

QUICK = os.environ | {"KIT_QUICK": "1"}
#: Where malloc begins to map a block of its own, found without freeing one.
THRESHOLD = """
import ctypes, torch, matplotlib.figure, pandas, scipy.special, kit
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
def find_threshold(size=100_000):
    while size < 40_000_000:
        place = libc.malloc(size)
        if place % 4096 == 16:
            return size
        libc.free(place)
        size = int(1.2 * size)
def count(*, n=1):
    while True:
        yield sum(range(1000))
found = [find_threshold()]
kit.measure(count, seconds=0.1)
made = kit.compare(count, n=[1, 2], seconds=0.1)
repr(made), made.plot()
print(*found, find_threshold())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another malloc")
def test_the_kit_makes_memory_no_cheaper_to_allocate_than_in_a_plain_loop():
    """Freeing a large block would spare it the page faults of its own tensors."""
    command = [sys.executable, "-c", THRESHOLD]
    before, after = subprocess.check_output(command, text=True, env=QUICK).split()
    assert before == after


def test_compiled_code_does_not_fall_back_to_eager_in_the_ninth_run(clock):
    """An optimizer is another one in each run, so each run compiles anew."""
    steps = []

    def note(graph, inputs):
        def run(*inputs):
            steps[-1] += 1
            return graph(*inputs)

        return run

    def train(*, n=1):
        weight = nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([weight], 0.1)

        def step():
            weight.grad = torch.ones(2)
            optimizer.step()

        compiled = torch.compile(step, backend=note)
        steps.append(0)
        while True:
            compiled()
            clock.work(0.01)
            yield 1

    torch.compiler.reset()
    kit.compare(train, n=[1, 2], seconds=0.1)
    assert len(steps) > 12 and all(steps)
    torch.compiler.reset()
