"""Small training loops with a planted fault are diagnosed in earnest.

A wrong verdict is red; "cannot tell" is printed, and red in `make test-all`. How often
a verdict is right, over many more loops, is judged by `make bench`.
"""

import pytest
import slow_loops
import torch
from benchmarks.planted.compute import image_smoothed
from rank_faults import train_in_parallel

import kit
from kit.diagnosis.causes import CAUSES

#: The second is how long the benchmark looks.
SECONDS, MORE_SECONDS = 3.0, 8.0
LONGER = pytest.param(MORE_SECONDS, marks=pytest.mark.nightly)

pytestmark = pytest.mark.usefixtures("tidy")


def sort_scores():
    """Sort: useful work, neither a product nor near to the speed of memory."""
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
    "memory": image_smoothed,
    "healthy": sort_scores,
}


@pytest.mark.timeout(240)
@pytest.mark.parametrize("seconds", [SECONDS, LONGER])
@pytest.mark.parametrize("cause", PLANTED)
def test_no_planted_loop_gets_a_wrong_verdict(cause, seconds, capsys):
    # The others: `test_diagnosis.py`, and the last one below in earnest.
    assert {*CAUSES} - {*PLANTED} == {"transfer", "sync", "communication"}
    torch.set_num_threads(kit.this_machine().cores)  # as chapter 02 does
    found = kit.diagnose(PLANTED[cause], seconds=seconds)
    with capsys.disabled():
        print(f"\n{cause}: {found.verdict} {found.reason}")
    known = {cause} if seconds == MORE_SECONDS else {cause, None}
    assert found.verdict in known, found


@pytest.mark.nightly
def test_an_exchange_between_ranks_is_found_to_take_the_time():
    with kit.start_ranks(2) as ranks:
        found = kit.diagnose(train_in_parallel, on=ranks, seconds=20.0)
        assert found.verdict == "communication", found
        verified = found.verify(train_in_parallel, seconds=2.0)
    assert verified.trials[0].knobs["ranks"] == found.profile.processes == 2
