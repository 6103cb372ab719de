"""`diagnose` on training loops with planted faults.

Each loop is diagnosed; then the same loop with its fault repaired is measured beside
it.
"""

import math
import statistics

import planted
import pytest
from calibration.report import wilson_interval
from helpers import children

import kit
from kit import figures
from kit.diagnosis.causes import saved

pytestmark = pytest.mark.usefixtures("tidy")

SECONDS, REPAIR_SECONDS = 8.0, 4.0
RIGHT, HEALTHY, MOST_ERROR, WRONG_SAVING = 0.95, 0.95, 0.10, 0.10


class Row:
    def __init__(self, loop):
        self.name, self.cause = loop.name, loop.cause or "healthy"
        self.found = kit.diagnose(loop.loop, seconds=SECONDS)
        self.verdict, self.gain = self.found.verdict, math.nan
        if loop.repaired is not None:
            beside = {"as it is": loop.loop, "repaired": loop.repaired}
            self.gain = saved(kit.compare(beside, seconds=REPAIR_SECONDS).ratio).value
        savings = self.found.savings
        known = {cause: saved(ratio).value for cause, ratio in savings.items()}
        # What was predicted for its cause, and what the verdict claims.
        self.predicted = known.get(self.cause, math.nan)
        self.claimed = known.get(self.verdict, 0.0)
        self.error = abs(self.predicted / self.gain - 1) if self.gain else math.nan
        fine = ("healthy", "compute") if self.cause == "healthy" else (self.cause,)
        self.is_right = self.verdict in fine

    def __str__(self):
        shares = ", ".join(f"{p} {s:.0%}" for p, s in self.found.shares.items())
        return (
            f"{'✓' if self.is_right else '✗'} {self.cause}: {self.name}: "
            f"{self.verdict}; {self.found.reason} [{shares}; predicted "
            f"{self.predicted:.0%}, gained {self.gain:.0%}; bandwidth "
            f"{self.found.profile.bandwidth:.0%}]"
        )


@pytest.fixture(scope="module")
def table():
    print(f"\n{kit.this_machine()}\n")
    rows, lines = [], []
    for loop in planted.make_planted():
        rows.append(Row(loop))
        print(rows[-1], flush=True)
    for cause in dict.fromkeys(row.cause for row in rows):
        some = [row for row in rows if row.cause == cause]
        errors = [row.error for row in some if not math.isnan(row.error)]
        error = f"{statistics.median(errors):.0%}" if errors else "–"
        lines.append((cause, len(some), sum(row.is_right for row in some), error))
    print("\n" + figures.text_table(["cause", "loops", "right", "error"], lines))
    return rows


@pytest.mark.parametrize(("is_ill", "bar"), [(True, RIGHT), (False, HEALTHY)])
def test_the_verdict_is_right(table, is_ill, bar):
    """A bar over many cases holds unless the 95 % interval excludes it."""
    right = [row.is_right for row in table if (row.cause != "healthy") == is_ill]
    assert wilson_interval(sum(right), len(right))[1] >= bar


def test_no_wrong_verdict_claims_a_large_saving(table):
    wrong = {row.name: row.claimed for row in table if not row.is_right}
    assert not {name: claim for name, claim in wrong.items() if claim > WRONG_SAVING}


def test_the_predicted_saving_is_what_the_repair_gains(table):
    errors = [row.error for row in table if not math.isnan(row.error)]
    assert statistics.median(errors) <= MOST_ERROR
    assert not children()
