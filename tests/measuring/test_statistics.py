"""Intervals and verdicts are right as often as they promise, where the truth is known.

Times of stretches are drawn from a model of a machine, and judged. A promise holds
unless the 95 % Wilson interval of the share that was found excludes it.
"""

from dataclasses import dataclass

import numpy as np
import pytest
from scipy import stats as scipy_stats
from trials import make_machine, rate_trial

from kit.measuring.verdict import compare_trials, share_confidence, student_interval

PLACE = make_machine()


@dataclass(frozen=True)
class Machine:
    """How far logarithms of seconds scatter, and how often a stretch is disturbed."""

    start: float
    stretch: float
    disturbed: float
    drift: float = 0.003


MACHINES = {
    "quiet": Machine(start=0.01, stretch=0.01, disturbed=0.002),
    "busy": Machine(start=0.03, stretch=0.05, disturbed=0.02, drift=0.01),
    "starts differ": Machine(start=0.02, stretch=0.002, disturbed=0.0),
}


def draw_seconds(random, machine, truth, pairs):
    """Seconds of stretches, of the baseline and of a variant: (rounds, turns × 2)."""
    rounds = 2 * pairs
    turns = 3
    drift = np.cumsum(random.normal(0, machine.drift, rounds * turns * 4))
    drift = drift.reshape(rounds, turns, 4)
    drawn = []
    for places in ([0, 3], [1, 2]):  # A B B A
        logs = drift[..., places].reshape(rounds, 2 * turns)
        logs = logs + random.normal(0, machine.start, (rounds, 1))
        logs = logs + random.normal(0, machine.stretch, logs.shape)
        disturbed = random.random(logs.shape) < machine.disturbed
        drawn.append(logs + disturbed * np.log(random.uniform(1.2, 3, logs.shape)))
    baseline, variant = drawn
    return 0.02 * np.exp(baseline), 0.02 * np.exp(variant) / truth


def judge_many(machine, *, count=300, truth=1.0, pairs=5):
    """Return the ratios of so many comparisons on one machine."""
    random = np.random.default_rng([count, pairs, round(1000 * truth)])
    ratios = []
    for _ in range(count):
        drawn = draw_seconds(random, machine, truth, pairs)
        ratios.append(compare_trials(*(rate_trial(x, machine=PLACE) for x in drawn)))
    return ratios


def assert_share(found, least=0.0, most=1.0):
    test = scipy_stats.binomtest(int(sum(found)), len(found))
    low, high = test.proportion_ci(method="wilson")
    assert low <= most and least <= high, f"{sum(found)} of {len(found)}"


@pytest.mark.parametrize("machine", MACHINES)
def test_a_thing_is_not_called_faster_than_itself(machine):
    ratios = judge_many(MACHINES[machine], count=600)
    assert_share([ratio.verdict in ("faster", "slower") for ratio in ratios], most=0.05)


@pytest.mark.parametrize("pairs", [3, 8])
@pytest.mark.parametrize("machine", MACHINES)
def test_an_interval_holds_the_truth(machine, pairs):
    ratios = judge_many(MACHINES[machine], truth=1.3, pairs=pairs)
    assert_share([ratio.low <= 1.3 <= ratio.high for ratio in ratios], least=0.95)


@pytest.mark.parametrize("machine", MACHINES)
def test_a_fifth_is_seen_in_nine_of_ten_comparisons(machine):
    ratios = judge_many(MACHINES[machine], truth=1.2, pairs=8)
    assert_share([ratio.verdict == "faster" for ratio in ratios], least=0.9)


def test_several_intervals_hold_together_in_95_of_100_comparisons():
    random = np.random.default_rng(1)
    confidence = share_confidence(4)
    held = []
    for _ in range(2000):
        samples = random.normal(0.0, 1.0, (4, 6))
        intervals = [student_interval(each, confidence) for each in samples]
        held.append(all(low <= 0 <= high for _, low, high in intervals))
    assert_share(held, least=0.95, most=0.95)
