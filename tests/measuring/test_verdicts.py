"""A verdict says what the runs show, why it cannot tell, and what to do then."""

import math
import re
from dataclasses import replace

import pytest
from trials import (
    make_run,
    make_trial,
    metric_trial,
    noisy,
    rate_trial,
    run_trial,
    start_trial,
)

import kit
from kit.errors import ExperimentError
from kit.measuring.records import COLD, Run
from kit.measuring.report import Comparison
from kit.measuring.units import read_unit
from kit.measuring.verdict import compare_trials

BASE = rate_trial(1.0, first=[1.0] * 6)


@pytest.mark.parametrize(
    "seconds, verdict",
    [(0.5, "faster"), (2.0, "slower"), (1.0, "same"), (1.01, "same")],
)
def test_a_clear_difference_is_called_and_a_small_one_is_the_same(seconds, verdict):
    ratio = compare_trials(BASE, rate_trial(seconds))
    assert (ratio.verdict, ratio.reason) == (verdict, "")
    assert ratio.value == pytest.approx(1 / seconds)


def test_noise_that_hides_a_difference_is_no_verdict():
    one, other = rate_trial(noisy(1, 0.3)), rate_trial(noisy(2, 0.3, 1.02))
    ratio = compare_trials(one, other)
    assert ratio.low < 1 < ratio.high and ratio.verdict == "cannot tell"


def test_drift_that_is_linear_in_time_cancels_over_a_pair():
    def drifting(is_first):
        def seconds(round, turn, number):
            place = round * 2 + (is_first == (round % 2 == 0))
            return math.exp(-0.05 * place)

        return seconds

    ratio = compare_trials(rate_trial(drifting(True)), rate_trial(drifting(False)))
    assert ratio.value == pytest.approx(1.0) and ratio.verdict == "same"


def test_a_pair_of_rounds_is_one_value_and_of_fewer_than_three_a_round_is():
    swings = [[1.1] * 6, [0.9] * 6]
    many = compare_trials(BASE, rate_trial(swings * 5))
    few = compare_trials(BASE, rate_trial(swings * 2))
    assert many.high / many.low < 1.001 and few.high / few.low > 1.2


def test_more_challengers_have_wider_intervals():
    trials = [rate_trial(noisy(seed, 0.02), knobs={"n": seed}) for seed in range(5)]
    labels = [f"n={seed}" for seed in range(5)]
    alone = Comparison(trials[:2], labels[:2]).ratio
    among = Comparison(trials, labels).ratios["n=1"]
    assert among.low < alone.low and among.high > alone.high


def test_a_stopped_unsettled_or_quick_trial_has_no_verdict():
    fast = rate_trial(0.5)
    for outcome in ("stopped", "quick"):
        ratio = compare_trials(BASE, replace(fast, outcome=outcome))
        assert ratio.verdict == "cannot tell" and ratio.reason
    for share, verdict in ((0.4, "faster"), (0.6, "cannot tell")):
        count = share * len(fast.runs)
        runs = [replace(run, settled=n >= count) for n, run in enumerate(fast.runs)]
        assert compare_trials(BASE, replace(fast, runs=runs)).verdict == verdict


@pytest.mark.parametrize(
    "cold, verdict",
    [(0.5, "faster"), (0.55, "faster"), (0.9, "cannot tell"), (0.2, "faster")],
)
def test_a_cold_start_that_would_change_the_verdict_leaves_none(cold, verdict):
    ratio = compare_trials(BASE, rate_trial(0.6, first=[cold] * 6))
    assert ratio.verdict == verdict


@pytest.mark.parametrize(
    "values, verdict",
    [([0.9] * 6, "more"), ([0.7] * 6, "less"), ([0.8] * 6, "same"), ([0.8], "")],
)
def test_a_metric_is_compared_by_its_difference(values, verdict):
    made = compare_trials(
        metric_trial([0.8] * 6), metric_trial(values), "accuracy", 0.01
    )
    assert made.verdict == (verdict or "cannot tell")
    assert made.value == pytest.approx(values[0] - 0.8)


def test_a_loss_that_diverged_is_said_to_have():
    made = compare_trials(
        metric_trial([0.8] * 6), metric_trial([math.nan] * 6), "accuracy", 0.01
    )
    assert made.verdict == "cannot tell" and "diverged" in made.reason


def test_run_times_and_memory_are_more_or_less():
    times = compare_trials(run_trial([1.0] * 6), run_trial([2.0] * 6), "run_seconds")
    memory = start_trial([9, 100, 100, 100]), start_trial([9, 50, 50, 50])
    peak = compare_trials(*memory, "peak_memory_bytes")
    assert (times.verdict, peak.verdict) == ("more", "less")
    assert (times.value, peak.value) == pytest.approx((2.0, 0.5))


def test_zero_has_no_ratio():
    memory = start_trial([9, 100, 100, 100]), start_trial([9, 0, 0, 0])
    ratio = compare_trials(*memory, "peak_memory_bytes")
    assert ratio.verdict == "cannot tell" and "zero" in ratio.reason
    assert math.isnan(ratio.value)
    idle = rate_trial(1.0, items=0, first=[1.0])  # one of several ranks
    assert compare_trials(idle, BASE).verdict == "cannot tell"
    assert compare_trials(BASE, idle).verdict == "cannot tell" and "count" in repr(idle)


# Headlines and tables


def compared(trials, of="items_per_second", within=None, labels=None):
    labels = labels or [f"lr={n}" for n in range(1, 1 + len(trials))]
    return Comparison(trials, labels, of, within)


def test_a_metric_has_neutral_words_and_a_table_in_the_order_asked_for():
    trials = [metric_trial([value] * 6) for value in (0.8, 0.9, 0.7)]
    made = compared(trials, "accuracy", 0.01)
    assert "highest: lr=2" in made.sentence() and "lowest: lr=3" in made.sentence()
    assert [*made.table().index] == made.labels == ["lr=1", "lr=2", "lr=3"]


def test_no_cannot_tell_hides_a_clear_verdict():
    open_ = rate_trial(noisy(3, 0.6, 0.8))
    made = compared([BASE, open_, rate_trial(1.4)])
    assert made.ratios["lr=2"].verdict == "cannot tell"
    assert made.sentence().startswith("lr=3 is slower")
    faster = compared([BASE, open_, rate_trial(1.4), rate_trial(0.9)])
    assert faster.sentence().startswith("lr=4 is faster")


def test_rows_are_the_baseline_times_their_ratio():
    made = compared([rate_trial(noisy(1, 0.05)), rate_trial(noisy(2, 0.05, 0.5))])
    base, other = (made.quantity(trial) for trial in made.trials)
    ratio = made.ratio
    expected = [base[0] * each for each in (ratio.value, ratio.low, ratio.high)]
    assert other == pytest.approx(expected)


def test_a_picture_has_lines_over_a_knob_and_what_was_predicted(own_folder):
    trials = [rate_trial(1 / n, knobs={"n": n}) for n in (1, 2, 4)]
    made = compared(trials, labels=["n=1", "n=2", "n=4"])
    lines = made.plot(x="n", predict=lambda n: 10.0 * n).lines
    assert [10.0, 20.0, 40.0] in [pytest.approx([*x.get_ydata()]) for x in lines]
    bars = made.plot(predict=lambda n: 11.0 * n)
    assert [bar.get_width() for bar in bars.patches] == pytest.approx([10, 20, 40])
    marks = [mark.get_segments()[0][0][0] for mark in bars.collections]
    assert {11.0, 22.0, 44.0} <= {*marks}
    with pytest.raises(ValueError, match="is not a knob with numbers"):
        made.plot(x="m")


# Advice and units


WAYS = {
    "items_per_second": ({"seconds": 2.0}, "seconds"),
    "run_seconds": ({"seconds": None}, "repeats"),
    "loss": ({"within": 0.02, "seconds": None}, "repeats"),
    "peak_memory_bytes": ({}, "repeats"),
}


def scattered(clock, device, of):
    """An experiment of which no two runs are alike."""
    noise = noisy(5, 0.06)
    steps = 4 if of in ("run_seconds", "loss") else 10**9

    def train(*, lr=1):
        size, pace = int(1e6 * noise()), noise() / 100
        device.allocate(size)
        for _ in range(steps):
            clock.work(pace)
            yield 1, {"loss": noise()}
        device.allocate(-size)

    return train


def follow_advice(clock, device, of):
    """Compare, and compare again as it says; return both."""
    train, (how, argument) = scattered(clock, device, of), WAYS[of]
    made = kit.compare(train, of=of, lr=[1, 2], **how)
    assert made.ratio.verdict == "cannot tell", made
    more = int(re.search(rf"{argument}=(\d+)", made.ratio.reason)[1])
    assert more > (made.took_seconds if argument == "seconds" else 6)
    return made, kit.compare(train, of=of, lr=[1, 2], **how | {argument: more})


@pytest.mark.parametrize("of", WAYS)
def test_the_advice_is_an_argument_that_compare_takes(clock, device, of):
    made, again = follow_advice(clock, device, of)
    assert len(again.baseline.runs) > len(made.baseline.runs)
    assert again.ratio.is_known


def test_more_seconds_narrow_the_interval_of_starts_that_are_unequally_fast(clock):
    def measure_width(seed, seconds):
        pace = noisy(seed, 0.06, 0.01)

        def train(*, lr=1):
            own = pace()
            while True:
                clock.work(own)
                yield 1

        ratio = kit.compare(train, lr=[1, 2], seconds=seconds).ratio
        return ratio.high - ratio.low

    few, many = (
        sum(measure_width(seed, seconds) for seed in range(6)) for seconds in (2, 60)
    )
    assert many < 0.6 * few


@pytest.mark.parametrize(
    "unit",
    ["ms per batch", "ms per steps", "step/s", "it/s", "batches/s", "ktokens/s", 3],
)
def test_a_unit_that_is_not_known_is_refused(unit):
    with pytest.raises(ExperimentError, match="is no unit of a rate"):
        read_unit(unit)


@pytest.mark.parametrize(
    "unit, value",
    [
        ("ms per step", 40.0),
        ("steps/s", 25.0),
        ("images/s", 100.0),
        ("µs per image", 10_000.0),
        ("kB/s", 0.1),
        ("GB/s", 1e-7),
    ],
)
def test_a_unit_shows_the_same_speed(unit, value):
    shown = read_unit(unit).show((100.0, 80.0, 125.0), items_per_step=4.0)
    low, high = sorted(shown[1:])
    assert shown[0] == pytest.approx(value) and low < value < high


def test_a_trial_is_shown_with_what_was_not_measured():
    assert "nothing was timed" in repr(make_trial([]))
    one = repr(make_trial([make_run(COLD, [1.0])]))
    assert "5 steps" in one and "1 run" in one and "1 runs" not in one
    only_memory = repr(make_trial([Run(COLD, 0.5, memory_bytes=2_000_000)]))
    assert "2 MB" in only_memory and "items/s" not in only_memory
