"""What the kit does to its process, and a plain loop does not."""

import os
import platform
import subprocess
import sys

import pytest

QUICK = os.environ | {"KIT_QUICK": "1"}
#: Where malloc begins to map a block of its own, found without freeing one.
THRESHOLD = """
import ctypes, torch, kit
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
def test_what_a_loop_allocates_costs_what_it_costs_without_the_kit():
    """Freeing a large block would spare it the page faults of its own tensors."""
    command = [sys.executable, "-c", THRESHOLD]
    before, after = subprocess.check_output(command, text=True, env=QUICK).split()
    assert before == after
