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
from calibration.report import wilson_interval

import kit

UNITS = 20, 21
SECONDS = 4.0
SHARE = 0.93


def repeat(unit, units):
    """Yield after so many units of work."""
    while True:
        for _ in range(units):
            unit()
        yield 1


def memory(*, units=20):
    """Add one to 4 MB."""
    a = torch.zeros(1 << 20)
    yield from repeat(lambda: a.add_(1), units)


def products(*, units=20):
    """Multiply matrices."""
    a, b, out = torch.rand(160, 160), torch.rand(160, 160), torch.empty(160, 160)
    yield from repeat(lambda: torch.mm(a, b, out=out), units)


def convolutions(*, units=20):
    """Convolve a few small images."""
    layer, images = torch.nn.Conv2d(8, 8, 3), torch.rand(4, 8, 16, 16)
    with torch.no_grad():
        layer(images)
    yield from repeat(lambda: layer(images), units)


def python(*, units=20):
    """Add numbers in plain Python."""
    yield from repeat(lambda: sum(number % 7 for number in range(1000)), units)


def small_operations(*, units=20):
    """Start tiny operations."""
    a = torch.zeros(8)
    yield from repeat(lambda: [a.add_(1) for _ in range(20)], units)


WORKS = [memory, products, convolutions, python, small_operations]


def compare_once(work):
    """Make one comparison, and print it as JSON: what the fresh process does."""
    torch.set_num_threads(1)
    ratio = kit.compare(work, units=list(UNITS), seconds=SECONDS).ratio
    print(json.dumps([ratio.value, ratio.low, ratio.high, ratio.verdict]))


def compare_afresh(work, count):
    """Return what so many fresh processes found."""
    found = []
    for _ in range(count):
        command = [sys.executable, __file__, work.__name__]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found.append(json.loads(done.stdout.splitlines()[-1]))
    return found


def judge(work, count):
    """Print and return how many intervals held the truth."""
    truth, found = UNITS[0] / UNITS[1], compare_afresh(work, count)
    held = sum(low <= truth <= high for _, low, high, _ in found)
    values = sorted(value for value, *_ in found)
    widths = sorted((high / low - 1) / 2 for _, low, high, _ in found)
    print(
        f"{work.__name__}: {held} of {count} intervals hold {truth:.4f}; "
        f"values {values[0]:.3f} to {values[-1]:.3f}, "
        f"half-width {widths[count // 2]:.2%} (median)",
        flush=True,
    )
    return held


@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.__name__)
def test_the_interval_holds_the_truth_in_fresh_processes(work):
    count = 6
    assert wilson_interval(judge(work, count), count)[1] >= SHARE


def main(words):
    """Judge every work by so many processes each, or make one comparison."""
    if not words[0].isdecimal():
        return compare_once(next(w for w in WORKS if w.__name__ == words[0]))
    print(kit.this_machine(), flush=True)
    count = int(words[0])
    held = {work.__name__: judge(work, count) for work in WORKS}
    low, high = wilson_interval(sum(held.values()), count * len(WORKS))
    print(f"all: {sum(held.values())} of {count * len(WORKS)} [{low:.1%}, {high:.1%}]")
    return None


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    main(sys.argv[1:])
