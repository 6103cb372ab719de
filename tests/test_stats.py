"""Middles, intervals of a rate, rare slow steps; verdicts: `test_verdicts.py`."""

import itertools
import math
import statistics

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy import stats as scipy_stats

from kit import statistics

SAMPLES = st.lists(st.floats(-100, 100), min_size=2, max_size=40)


@given(SAMPLES)
def test_the_pseudo_median_is_the_middle_of_all_pairs(values):
    """With a value and itself as a pair, too."""
    pairs = itertools.combinations_with_replacement(values, 2)
    expected = statistics.median((first + second) / 2 for first, second in pairs)
    assert statistics.pseudo_median(values) == pytest.approx(expected, abs=1e-9)


BLOCKS = st.tuples(st.integers(1, 50), st.floats(0.02, 5))


@given(st.lists(BLOCKS, min_size=2, max_size=60), st.floats(0.001, 1000))
def test_a_rate_counts_all_items_and_all_seconds_in_any_unit(blocks, unit):
    items, seconds = zip(*blocks, strict=True)
    found = statistics.rate_interval(items, seconds)
    assert found.value == pytest.approx(sum(items) / sum(seconds))
    assert 0 < found.low <= found.value <= found.high
    other = statistics.rate_interval(items, [unit * each for each in seconds])
    assert tuple(other) == pytest.approx([each / unit for each in found])
    assert math.isnan(statistics.rate_interval(items[:1], seconds[:1]).low)


@given(st.integers(0, 99), st.sampled_from([8, 16, 80]))
def test_a_rates_interval_is_students_over_eight_stretches(seed, count):
    """Where noise is small: neighbours resemble each other, stretches hardly do."""
    seconds = 0.02 * np.exp(np.random.default_rng(seed).normal(0, 0.01, count))
    stretches = np.log(seconds.reshape(8, -1).mean(axis=1))
    half = scipy_stats.t.ppf(0.975, 7) * scipy_stats.sem(stretches)
    found = statistics.rate_interval([1] * count, seconds.tolist())
    assert math.log(found.high / found.value) == pytest.approx(half, rel=0.05)
    assert math.log(found.value / found.low) == pytest.approx(half, rel=0.05)


def test_rare_slow_steps_are_told_from_two_percent_on():
    typical = [1.0] * 49
    assert not statistics.has_rare_slow_steps([4] * 50, [*typical, 1 + 0.019 * 50])
    assert statistics.has_rare_slow_steps([4] * 50, [*typical, 1 + 0.021 * 50])
    assert not statistics.has_rare_slow_steps([1] * 49 + [20], [*typical, 20.0])
    assert not statistics.has_rare_slow_steps([4] * 50, [*typical, 0.01])
