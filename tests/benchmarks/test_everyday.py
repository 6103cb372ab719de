"""Everyday questions against plain loops: does the kit say what they say?

Some 17 minutes on two cores. For single questions say this, from the repository's root:

    python -m tests.benchmarks.everyday --pairs attention,compile
"""

import math

import pytest
from everyday import judging, running
from everyday.pairs import ALL_PAIRS

import kit


@pytest.fixture(scope="module")
def rows():
    print(f"\n{kit.this_machine()}\n")
    found = running.run(ALL_PAIRS)
    print(f"\n{judging.render(found)}")
    return found


def test_every_question_is_answered(rows):
    assert not judging.find_failed(rows)


def test_intervals_overlap_what_plain_loops_find(rows):
    assert len(judging.find_missed(rows)) <= judging.MOST_MISSES


def test_no_verdict_is_contradicted_by_plain_loops(rows):
    assert not judging.find_contradicted(rows)


# The judge


PLAIN = [1.08, 1.10, 1.12]


def make_row(low, high, verdict="cannot tell"):
    value = (low + high) / 2
    told = {"value": value, "low": low, "high": high, "verdict": verdict, "reason": ""}
    return judging.judge("some", PLAIN, told)


@pytest.mark.parametrize(
    ("low", "high", "overlaps"),
    [
        (1.09, 1.11, True),
        (1.00, 1.08, True),
        (1.12, 1.20, True),
        (1.00, 1.20, True),
        (1.00, 1.07, False),
        (1.13, 1.20, False),
        (math.nan, math.nan, False),
    ],
)
def test_an_interval_overlaps_or_misses_the_range(low, high, overlaps):
    row = make_row(low, high)
    assert row["overlaps"] is overlaps
    assert judging.find_missed([row]) == ([] if overlaps else [row])


@pytest.mark.parametrize(
    ("verdict", "plain", "contradicted"),
    [
        ("faster", [0.97, 0.98, 0.99], True),
        ("faster", [0.97, 0.98, 1.01], False),
        ("slower", [1.01, 1.02, 1.03], True),
        ("slower", [0.99, 1.02, 1.03], False),
        ("same", [0.95, 1.03, 1.05], True),
        ("same", [0.95, 1.01, 1.05], False),
        ("cannot tell", [1.5, 1.6, 1.7], False),
    ],
)
def test_a_verdict_is_contradicted_by_all_plain_loops_or_not(
    verdict, plain, contradicted
):
    assert judging.is_contradicted(verdict, plain) is contradicted


def test_the_table_counts_and_names_what_is_wrong():
    missed = make_row(1.2, 1.3, "faster")
    undecided = make_row(1.0, 1.2) | {"reason": "too few"}
    failed = {"pair": "other", "error": "other, kit: hung"}
    table = judging.render([missed, undecided, failed])
    assert "1.080 to 1.120  1.250 [1.200, 1.300]" in table
    assert "some, cannot tell: too few" in table
    assert "failed: other, kit: hung" in table
    assert "miss the plain ratios in 1 (at most 1)" in table
    assert "contradicted in 0 (never), the kit cannot tell in 1." in table
