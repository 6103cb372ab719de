"""A verdict says what the runs show, why it cannot tell, and what to do then."""

import math
import re
from dataclasses import replace

import pytest
from trials import metric_trial, noisy, rate_trial

import kit
from kit.measuring.report import Comparison
from kit.measuring.verdict import compare_trials

BASE = rate_trial(1.0, first=[1.0] * 6)


def compared(*trials, **more):
    labels = [f"lr={number}" for number in range(len(trials))]
    return Comparison([*trials], labels, **more)


@pytest.mark.parametrize(
    ("seconds", "verdict"),
    [(0.5, "faster"), (2.0, "slower"), (1.0, "same"), (1.01, "same")],
)
def test_a_clear_difference_is_called_and_a_small_one_is_the_same(seconds, verdict):
    ratio = compare_trials(BASE, rate_trial(seconds))
    assert (ratio.verdict, ratio.reason) == (verdict, "")
    assert ratio.value == pytest.approx(1 / seconds)


@pytest.mark.parametrize("scale", [0.3, 0.01])
def test_what_may_be_the_same_and_may_be_another_speed_is_no_verdict(scale):
    one = rate_trial(noisy(1, scale))
    other = rate_trial(noisy(2, scale, 1 / 1.02))
    ratio = compare_trials(one, other)
    assert ratio.low < 1.02 < ratio.high and ratio.verdict == "cannot tell"


def test_a_pair_of_rounds_is_one_value_and_of_fewer_than_three_a_round_is():
    swings = [[1.1] * 6, [0.9] * 6]
    many = compare_trials(BASE, rate_trial(swings * 5))
    few = compare_trials(BASE, rate_trial(swings * 2))
    assert many.high / many.low < 1.001 and few.high / few.low > 1.2


def test_more_challengers_have_wider_intervals():
    trials = [rate_trial(noisy(seed, 0.02)) for seed in range(5)]
    alone = compared(*trials[:2]).ratio
    among = compared(*trials).ratios["lr=1"]
    assert among.low < alone.low and among.high > alone.high


@pytest.mark.parametrize("outcome", ["stopped", "quick"])
def test_a_stopped_or_quick_trial_has_no_verdict(outcome):
    ratio = compare_trials(BASE, rate_trial(0.5, outcome=outcome))
    assert ratio.verdict == "cannot tell" and ratio.reason


@pytest.mark.parametrize(("unsettled", "verdict"), [(4, "faster"), (6, "cannot tell")])
def test_more_than_half_unsettled_runs_leave_no_verdict(unsettled, verdict):
    fast = rate_trial(0.5)
    runs = [replace(run, settled=n >= unsettled) for n, run in enumerate(fast.runs)]
    assert compare_trials(BASE, replace(fast, runs=runs)).verdict == verdict


@pytest.mark.parametrize(
    ("cold", "verdict"),
    [(0.5, "faster"), (0.55, "faster"), (0.9, "cannot tell"), (0.2, "faster")],
)
def test_a_cold_start_that_would_change_the_verdict_leaves_none(cold, verdict):
    ratio = compare_trials(BASE, rate_trial(0.6, first=[cold] * 6))
    assert ratio.verdict == verdict


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([0.9] * 6, "more"),
        ([0.7] * 6, "less"),
        ([0.8] * 6, "same"),
        ([0.8], "cannot tell"),
        ([math.nan] * 6, "cannot tell"),
    ],
)
def test_a_metric_is_compared_by_its_difference(values, verdict):
    base = metric_trial([0.8] * 6)
    ratio = compare_trials(base, metric_trial(values), "accuracy", 0.01)
    assert ratio.verdict == verdict and bool(ratio.reason) == (verdict == "cannot tell")
    assert ratio.value == pytest.approx(values[0] - 0.8, nan_ok=True)


def test_zero_has_no_ratio():
    idle = rate_trial(1.0, items=0, first=[1.0])  # one of several ranks
    for pair in ((idle, BASE), (BASE, idle)):
        ratio = compare_trials(*pair)
        assert ratio.verdict == "cannot tell" and math.isnan(ratio.value)


# Headlines, tables and pictures


def test_a_table_is_in_the_order_asked_for_and_no_two_figures_contradict():
    pairs = [5, 4, 3]
    made = compared(*(rate_trial(noisy(n, 0.05, n), pairs=n) for n in pairs))
    table = made.table()
    assert [*table.index] == ["lr=0", "lr=1", "lr=2"]
    base = table["items_per_second"].iloc[0]
    for label, ratio in made.ratios.items():
        row = table.loc[label]
        assert row["items_per_second"] == pytest.approx(base * ratio.value)
        assert (row["low"], row["high"]) == (ratio.low, ratio.high)


@pytest.mark.parametrize(("unit", "shown"), [("ms per step", 200), ("steps/s", 5)])
def test_a_step_of_each_variant_has_its_own_items(unit, shown):
    small, large = rate_trial(1.0, items=10), rate_trial(1.0, items=40)
    made = compared(small, large)  # five steps a second each
    found = [made.show(trial, unit)[0] for trial in made.trials]
    assert found == pytest.approx([shown] * 2)


def test_no_cannot_tell_hides_a_clear_verdict():
    unclear = rate_trial(noisy(3, 0.6, 0.8))
    made = compared(BASE, unclear, rate_trial(1.4))
    assert made.ratios["lr=1"].verdict == "cannot tell"
    assert made.sentence().startswith("lr=2 is slower")
    made = compared(BASE, unclear, rate_trial(1.4), rate_trial(0.9))
    assert made.sentence().startswith("lr=3 is faster")


def test_a_picture_has_lines_over_a_knob_and_what_was_predicted():
    made = compared(*(rate_trial(1 / n, knobs={"n": n}) for n in (1, 2, 4)))
    lines = made.plot(x="n", predict=lambda n: 11.0 * n).lines
    heights = [line.get_ydata() for line in lines]
    for expected in ([10.0, 20.0, 40.0], [11.0, 22.0, 44.0]):
        assert any(expected == pytest.approx([*each]) for each in heights)
    with pytest.raises(ValueError, match="'m'"):
        made.plot(x="m")


# Advice


@pytest.mark.parametrize(
    ("how", "argument"),
    [({"seconds": 2.0}, "seconds"), ({"of": "loss", "within": 0.02}, "repeats")],
)
def test_the_advice_is_an_argument_that_narrows_the_interval(clock, how, argument):
    random = noisy(5, 0.04)

    def train(*, lr=1):
        """No two runs are alike."""
        pace = random() / 100
        for _ in range(4 if argument == "repeats" else 10**9):
            clock.work(pace)
            yield 1, {"loss": random()}

    how = {"seconds": None, "lr": [1, 2]} | how
    made = kit.compare(train, **how)
    assert made.ratio.verdict == "cannot tell"
    more = int(re.search(rf"{argument}=(\d+)", made.ratio.reason)[1])
    least = made.took_seconds if argument == "seconds" else 6
    assert more >= 2 * least
    again = kit.compare(train, **how | {argument: more}).ratio
    assert again.high - again.low < 0.8 * (made.ratio.high - made.ratio.low)
