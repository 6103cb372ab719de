"""Small training loops with a planted fault are diagnosed in earnest, once a night.

`make test` has the same causes on a fake clock: `test_diagnosing.py`. How often a
verdict is right, over many more loops, is judged by `make bench`.
"""

import pytest
import slow_loops
import torch
from benchmarks.planted.compute import image_smoothed
from benchmarks.planted.settings import anomaly_left_on, hooks_left_on

import kit
from kit.diagnosis.causes import CAUSES

pytestmark = [pytest.mark.usefixtures("tidy"), pytest.mark.nightly]


def sort_scores():
    """Sort: useful work, neither a product nor bound by memory."""
    scores = slow_loops.numbers(500_000)
    while True:
        scores.sort()
        yield 1


PLANTED = {
    "overhead": slow_loops.LOOPS["A"],
    "python": slow_loops.LOOPS["B"],
    "compute": slow_loops.LOOPS["C"],
    "input": slow_loops.LOOPS["D"],
    "optimizer": slow_loops.LOOPS["E"],
    "threads": slow_loops.LOOPS["F"],
    "settings": anomaly_left_on,
    "hooks": hooks_left_on,
    "memory": image_smoothed,
    "healthy": sort_scores,
}


@pytest.mark.timeout(240)
@pytest.mark.parametrize("cause", PLANTED)
def test_a_planted_loop_gets_the_right_verdict(cause):
    # The others need a device: `test_diagnosing.py`.
    assert {*CAUSES} - {*PLANTED} == {"transfer", "sync"}
    torch.set_num_threads(kit.this_machine().cores)  # as chapter 03 does
    found = kit.diagnose(PLANTED[cause])
    assert found.verdict == cause, found
