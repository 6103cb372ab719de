"""Intervals, rare slow steps and the end of warm-up are what their formulas say."""

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy import stats as scipy_stats

from kit import statistics

SAMPLES = st.lists(st.floats(-100, 100), min_size=2, max_size=40)


@given(SAMPLES, st.floats(0.5, 0.999))
def test_an_interval_of_a_mean_is_students(values, confidence):
    found = statistics.student_interval(values, confidence)
    half = scipy_stats.t.ppf((1 + confidence) / 2, len(values) - 1)
    half *= scipy_stats.sem(values)
    expected = (np.mean(values), np.mean(values) - half, np.mean(values) + half)
    assert tuple(found) == pytest.approx(expected, abs=1e-9)
    assert found.half_width == pytest.approx(half, abs=1e-9)
    assert statistics.student_interval(values[:1], confidence).value == values[0]
    for few in (values[:1], []):
        assert math.isnan(statistics.student_interval(few, confidence).half_width)


@pytest.mark.parametrize("count", [1, 2, 9])
def test_many_variants_bring_no_more_false_alarms_than_two(count):
    each = statistics.hold_together(count, 0.9)
    assert each**count == pytest.approx(0.9)
    assert statistics.hold_together(0, 0.9) == 0.9


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
def test_a_rates_interval_is_students_over_eight_groups_of_blocks(seed, count):
    """Where noise is small: neighbors resemble each other, groups hardly do."""
    seconds = 0.02 * np.exp(np.random.default_rng(seed).normal(0, 0.01, count))
    groups = np.log(seconds.reshape(8, -1).mean(axis=1))
    half = scipy_stats.t.ppf(0.975, 7) * scipy_stats.sem(groups)
    found = statistics.rate_interval([1] * count, seconds.tolist())
    assert math.log(found.high / found.value) == pytest.approx(half, rel=0.05)
    assert math.log(found.value / found.low) == pytest.approx(half, rel=0.05)


def test_rare_slow_steps_are_told_from_two_percent_on():
    typical = [1.0] * 49
    assert not statistics.has_rare_slow_steps([4] * 50, [*typical, 1 + 0.019 * 50])
    assert statistics.has_rare_slow_steps([4] * 50, [*typical, 1 + 0.021 * 50])
    assert not statistics.has_rare_slow_steps([1] * 49 + [20], [*typical, 20.0])
    assert not statistics.has_rare_slow_steps([4] * 50, [*typical, 0.01])


def test_warm_up_is_over_where_its_windows_agree_one_by_one_or_in_gushes():
    agree = statistics.find_agreement
    assert agree([1.0], 0.1) is None and agree([3.0, 1.0], 0.1) is None
    assert agree([3.0, 1.0, 1.05], 0.1) == 1.05
    assert agree([1.0, 3.0, 1.0], 0.1) is None
    assert agree([1.0, 3.0, 1.0, 3.0], 0.1) == 2, "what comes in gushes agrees, too"
    assert agree([4.0, 1.0, 1.0, 0.0, 4.0, 1.0, 1.0, 0.0], 0.1) == 1.5
    assert agree([4.0, 3.0, 2.0, 1.0], 0.1) is None, "it still becomes faster"
