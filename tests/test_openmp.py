"""OpenMP's pools: idle threads go, and come back when they are needed."""

import os
import sys

import pytest
import torch
from helpers import wait_until

from kit.cells import release_threads

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="only Linux tells which library it is"
)


def count_threads():
    return len(os.listdir("/proc/self/task"))


def test_idle_threads_go_and_come_back():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        a = torch.rand(512, 512)
        product, many = a @ a, count_threads()
        if not release_threads():
            pytest.skip("this PyTorch does not compute with GNU's OpenMP")
        wait_until(lambda: count_threads() <= many - 2)
        assert torch.equal(a @ a, product)
        assert torch.get_num_threads() == 3
        assert count_threads() >= many
    finally:
        torch.set_num_threads(before)
