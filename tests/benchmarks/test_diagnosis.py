"""`diagnose` on training loops with planted faults.

Each loop is diagnosed as a reader does it; then the same loop with its fault repaired
is measured beside it. `make bench` takes some of the loops, always the same;
`python tests/benchmarks/test_diagnosis.py` all of them, or those that are named.
"""

import contextlib
import math
import random
import statistics
import sys
import time
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))  # for a run as a script
sys.path.insert(0, str(Path(__file__).parents[2] / "tutorials"))
import planted
from calibration.neighbours import CONDITIONS
from calibration.report import wilson_interval
from helpers import children

import kit
from kit import figures
from kit.diagnosis.repairs import list_remedies

pytestmark = pytest.mark.usefixtures("tidy")

REPAIR_SECONDS = 4.0
SEED, BUSY = 0, 12
#: How many loops of each cause are taken, and of those without a fault.
TAKEN = {"input": 3, "python": 3, "overhead": 3, "optimizer": 3, None: 6}
LEAST_TAKEN = 2
#: An interval misses the repair where it is further from it than this.
MISSES, MOST_MISSES, MOST_GAP = 0.05, 0.05, 0.07


def choose_loops():
    """Return 24 of the loops: some of each cause, and six without a fault."""
    loops = planted.make_planted()
    order = random.Random(SEED)
    chosen = []
    for cause in dict.fromkeys(loop.cause for loop in loops):
        same = [loop for loop in loops if loop.cause == cause]
        chosen += order.sample(same, TAKEN.get(cause, LEAST_TAKEN))
    return chosen


class Row:
    """A loop, what was said of it, and what its repair gains."""

    def __init__(self, loop, *, verifies=True):
        self.name, self.cause = loop.name, loop.cause or "healthy"
        torch.set_num_threads(kit.this_machine().cores)
        begun = time.perf_counter()
        self.found = kit.diagnose(loop.loop)
        self.seconds = time.perf_counter() - begun
        self.verdict, self.gain = self.found.verdict, None
        if loop.repaired is not None and verifies:
            beside = {"as it is": loop.loop, "repaired": loop.repaired}
            ratio = kit.compare(beside, seconds=REPAIR_SECONDS).ratio
            self.gain = [1 - 1 / x for x in (ratio.value, ratio.low, ratio.high)]
        # As `verify` does: a repair that was tried, or else what is left out.
        tried = [self.found.tried.get(name) for name in list_remedies(self.cause)]
        gains = [each for each in tried if each is not None and each.is_sure]
        self.predicted = max(gains, key=lambda each: each.value, default=None)
        self.predicted = self.predicted or self.found.savings.get(self.cause)
        fine = ["healthy", "compute"] if self.cause == "healthy" else [self.cause]
        if self.found.profile.is_busy:
            # Then fewer threads gain in all loops, and one thread is no fault.
            fine.append("threads")
            if self.cause == "threads":
                fine += ["healthy", "compute"]
        self.is_right = self.verdict in fine

    @property
    def gap(self):
        """How far the prediction is from what the repair gains."""
        if self.gain is None or self.predicted is None or not self.predicted.is_known:
            return math.nan
        return abs(self.predicted.value - self.gain[0])

    @property
    def misses(self):
        """Whether a measured interval is far from the repair's."""
        if math.isnan(self.gap) or not self.predicted.measured:
            return False
        _, low, high = self.gain
        above = self.predicted.low > high + MISSES
        return above or self.predicted.high < low - MISSES

    def __str__(self):
        shares = ", ".join(f"{p} {s:.0%}" for p, s in self.found.shares.items())
        mark = "✓" if self.is_right else "?" if self.verdict is None else "✗"
        gain = ""
        if self.gain:
            gain = "; gained " + figures.format_saving(*self.gain)
        saved = {**self.found.savings, **self.found.tried}
        told = ", ".join(f"{cause} {each}" for cause, each in saved.items())
        return (
            f"{mark} {self.cause}: {self.name}: {self.verdict} {self.found.reason} "
            f"[{shares}; {told}]{gain}; {self.seconds:.0f} s"
        )


def diagnose_all(loops, **how):
    print(f"\n{kit.this_machine()}\n")
    rows = []
    for loop in loops:
        rows.append(Row(loop, **how))
        print(rows[-1], flush=True)
    lines = []
    for cause in dict.fromkeys(row.cause for row in rows):
        some = [row for row in rows if row.cause == cause]
        gaps = [row.gap for row in some if not math.isnan(row.gap)]
        gap = f"{100 * statistics.median(gaps):.0f}" if gaps else "–"
        unsure = sum(row.verdict is None for row in some)
        right = sum(row.is_right for row in some)
        lines.append((cause, len(some), right, unsure, gap))
    headers = ["cause", "loops", "right", "cannot tell", "gap in points"]
    print("\n" + figures.text_table(headers, lines), flush=True)
    return rows


@pytest.fixture(scope="module")
def table():
    return diagnose_all(choose_loops())


def test_the_verdict_is_right_or_cannot_tell_once(table):
    wrong = [row for row in table if not row.is_right]
    assert len(wrong) <= 1 and all(row.verdict is None for row in wrong)


def test_beside_a_busy_neighbour_no_verdict_is_wrong():
    loops = choose_loops()
    some = random.Random(SEED).sample(loops, BUSY)
    with CONDITIONS["busy"]():
        rows = diagnose_all(some, verifies=False)
    assert not [row.name for row in rows if not row.is_right and row.verdict]
    assert 2 * sum(row.is_right for row in rows) >= len(rows)


def test_a_setting_that_costs_is_found_and_no_other_repair_is_invented():
    rows = diagnose_all(planted.make_settings())
    wrong = [row for row in rows if not row.is_right]
    assert len(wrong) <= 1 and all(row.verdict is None for row in wrong)
    missed = [row.name for row in rows if row.misses]
    assert not missed


def test_the_predicted_saving_is_what_the_repair_gains(table):
    gaps = [row.gap for row in table if not math.isnan(row.gap)]
    assert statistics.median(gaps) <= MOST_GAP
    measured = [row for row in table if not math.isnan(row.gap)]
    misses = sum(row.misses for row in measured)
    assert wilson_interval(misses, len(measured))[0] <= MOST_MISSES
    assert not children()


if __name__ == "__main__":
    names = sys.argv[1:]
    how = "busy" if names[:1] == ["busy"] else "quiet"
    names = names[how == "busy" :]
    loops = planted.make_planted()
    if names == ["settings"]:
        loops = planted.make_settings()
    elif names == ["some"]:
        loops = choose_loops()
    elif names:
        loops = [x for x in loops + planted.make_settings() if x.name in names]
    with CONDITIONS[how]() if how == "busy" else contextlib.nullcontext():
        diagnose_all(loops, verifies=how == "quiet")
