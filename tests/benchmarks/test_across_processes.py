"""Does the interval hold the truth in a fresh process, again and again?

Comparisons of one process share its addresses, so a calibration within one cannot see
what they do. Here each comparison has a process of its own. `make bench` makes a few,
`python tests/benchmarks/test_across_processes.py 20` as many as the gate asks for.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))  # for a run as a script
from calibration import works
from calibration.report import wilson_interval
from calibration.works import repeat

import kit

UNITS, SECONDS, SHARE = (20, 21), 4.0, 0.93
TRUTH = UNITS[0] / UNITS[1]


def memory(*, units=20):
    """Add one to 4 MB."""
    a = torch.zeros(1 << 20)
    yield from repeat(lambda: a.add_(1), units)


def convolutions(*, units=20):
    """Convolve a few small images."""
    layer, images = torch.nn.Conv2d(8, 8, 3), torch.rand(4, 8, 16, 16)
    layer.requires_grad_(False)
    yield from repeat(lambda: layer(images), units)


def small_operations(*, units=20):
    """Start tiny operations."""
    a = torch.zeros(8)
    yield from repeat(lambda: [a.add_(1) for _ in range(20)], units)


WORKS = {
    work.__name__: work
    for work in (memory, works.matmul, convolutions, works.python, small_operations)
}


def compare_once(name):
    torch.set_num_threads(1)
    ratio = kit.compare(WORKS[name], units=list(UNITS), seconds=SECONDS).ratio
    print(json.dumps([ratio.value, ratio.low, ratio.high]))


def judge(name, count):
    """Return in how many of so many fresh processes the interval held the truth."""
    found = []
    for _ in range(count):
        said = subprocess.check_output([sys.executable, __file__, name], text=True)
        found.append(json.loads(said.splitlines()[-1]))
    held = sum(low <= TRUTH <= high for _, low, high in found)
    values = sorted(value for value, *_ in found)
    print(f"{name}: {held} of {count} hold {TRUTH:.4f}; values {values}", flush=True)
    return held


@pytest.mark.parametrize("name", WORKS)
def test_the_interval_holds_the_truth_in_fresh_processes(name):
    assert wilson_interval(judge(name, 6), 6)[1] >= SHARE


if __name__ == "__main__":
    if sys.argv[1].isdecimal():
        count = int(sys.argv[1])
        held = sum(judge(name, count) for name in WORKS)
        print(f"{kit.this_machine()}\nall: {held} of {count * len(WORKS)}")
    else:
        compare_once(sys.argv[1])
