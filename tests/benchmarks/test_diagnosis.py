"""`diagnose` on training loops with planted faults: `make bench`.

Each loop is diagnosed, knowing nothing of its fault; then the same loop with the fault
repaired is measured beside it. Beside it stands what a rule of thumb says about the
same profile: TensorBoard's profiler plugin, which PyTorch shipped until 2026, called a
loop bound by its loader from 5 % of a step on
(https://github.com/pytorch/kineto, tb_plugin/torch_tb_profiler).
"""

import math
import statistics
import time

import planted
import pytest
from helpers import children
from scipy.stats import binomtest

import kit
from kit import figures
from kit.diagnosis.causes import saved

pytestmark = pytest.mark.usefixtures("tidy")

SECONDS, REPAIR_SECONDS = 8.0, 4.0
PLUGIN_SHARE = 0.05
RIGHT, HEALTHY, MOST_ERROR, WRONG_SAVING = 0.95, 0.95, 0.10, 0.10


def examine(loop):
    """Diagnose one planted loop, and measure its repair."""
    begun = time.perf_counter()
    diagnosis = kit.diagnose(loop.loop, seconds=SECONDS)
    row = {
        "loop": loop,
        "diagnosis": diagnosis,
        "took": time.perf_counter() - begun,
        "gain": math.nan,
    }
    if loop.repaired is not None:
        beside = {"as it is": loop.loop, "repaired": loop.repaired}
        row["gain"] = saved(kit.compare(beside, seconds=REPAIR_SECONDS).ratio).value
    return row


def predicted(row):
    """Return the saving that was predicted for the planted cause; nan without one."""
    ratio = row["diagnosis"].savings.get(row["loop"].cause)
    return saved(ratio).value if ratio else math.nan


def is_right(row):
    allowed = {row["loop"].cause} if row["loop"].cause else {"healthy", "compute"}
    return row["diagnosis"].verdict in allowed


def claimed(row):
    """Return the saving that a verdict claims; none where there is nothing to save."""
    ratio = row["diagnosis"].savings.get(row["diagnosis"].verdict)
    return saved(ratio).value if ratio else 0.0


def plugin(row):
    """Return what the old plugin's threshold says."""
    share = row["diagnosis"].shares.get("input", 0.0)
    return "input" if share > PLUGIN_SHARE else None


@pytest.fixture(scope="module")
def table():
    """Examine every loop; print and return a row for each."""
    print(f"\n{kit.this_machine()}\n")
    rows = []
    for loop in planted.make_planted():
        rows.append(examine(loop))
        print(describe(rows[-1]), flush=True)
    print("\n" + summarise(rows))
    return rows


def describe(row):
    diagnosis = row["diagnosis"]
    marks = "✓" if is_right(row) else "✗"
    shares = ", ".join(f"{p} {s:.0%}" for p, s in diagnosis.shares.items() if s > 0.02)
    savings = ", ".join(
        f"{c} {saved(r).value:.0%}" for c, r in diagnosis.savings.items()
    )
    return (
        f"{marks} {row['loop'].cause or 'healthy'}: {row['loop'].name}: "
        f"{diagnosis.verdict}; {diagnosis.reason} "
        f"[{figures.format_seconds(diagnosis.profile.step_seconds)}; {shares}; "
        f"saves: {savings}; predicted {predicted(row):.0%}, gained {row['gain']:.0%}; "
        f"bandwidth {diagnosis.profile.bandwidth:.0%}; "
        f"{row['took']:.0f} s]"
    )


def summarise(rows):
    lines = []
    for cause in dict.fromkeys(row["loop"].cause for row in rows):
        some = [row for row in rows if row["loop"].cause == cause]
        errors = [e for e in map(error_of, some) if not math.isnan(e)]
        lines.append(
            (
                cause or "healthy",
                str(len(some)),
                str(sum(map(is_right, some))),
                str(sum(plugin(r) == cause for r in some)),
                f"{statistics.median(errors):.0%}" if errors else "–",
                f"{statistics.median(r['took'] for r in some):.0f} s",
            )
        )
    headers = ["cause", "loops", "right", "plugin's rule right", "error", "took"]
    return figures.text_table(headers, lines)


def error_of(row):
    """Return how far the predicted saving is from the gain, as a fraction of it."""
    return abs(predicted(row) / row["gain"] - 1) if row["gain"] else math.nan


def holds(successes, cases, bar):
    """A bar over many cases holds unless the 95 % interval excludes it."""
    interval = binomtest(successes, cases).proportion_ci(method="wilson")
    return interval.high >= bar


def test_the_verdict_is_right(table):
    ill = [row for row in table if row["loop"].cause]
    assert holds(sum(map(is_right, ill)), len(ill), RIGHT)


def test_no_wrong_verdict_claims_a_large_saving(table):
    wrong = [row for row in table if not is_right(row)]
    assert not {r["loop"].name: claimed(r) for r in wrong if claimed(r) > WRONG_SAVING}


def test_healthy_loops_are_left_alone(table):
    healthy = [row for row in table if row["loop"].cause is None]
    assert holds(sum(map(is_right, healthy)), len(healthy), HEALTHY)


def test_the_predicted_saving_is_what_the_repair_gains(table):
    errors = [e for e in map(error_of, table) if not math.isnan(e)]
    assert statistics.median(errors) <= MOST_ERROR


def test_the_plugins_rule_is_not_as_good(table):
    ours = sum(map(is_right, table))
    assert ours > sum(plugin(row) == row["loop"].cause for row in table)
    assert not children()
