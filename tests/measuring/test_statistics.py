"""Intervals hold the truth as often as they say."""

import math

import numpy as np
import pytest

from kit.measuring.verdict import share_confidence, student_interval


def test_an_interval_holds_the_mean_in_95_of_100_samples():
    random = np.random.default_rng(0)
    held = 0
    for _ in range(2000):
        _, low, high = student_interval(random.normal(3.0, 1.0, 5))
        held += low <= 3.0 <= high
    assert held / 2000 == pytest.approx(0.95, abs=0.015)


def test_several_intervals_hold_together_in_95_of_100_samples():
    random = np.random.default_rng(1)
    confidence = share_confidence(4)
    held = 0
    for _ in range(2000):
        samples = random.normal(0.0, 1.0, (4, 6))
        intervals = [student_interval(each, confidence) for each in samples]
        held += all(low <= 0 <= high for _, low, high in intervals)
    assert held / 2000 == pytest.approx(0.95, abs=0.015)


def test_one_value_has_no_interval_and_no_values_have_no_mean():
    assert student_interval([2.0]).value == 2.0
    assert math.isnan(student_interval([2.0]).low)
    assert math.isnan(student_interval([]).value)
