"""Verdicts: value, interval, sentence, table and picture, or why there is none."""

import copy
import dataclasses
import html
import math
import re

import numpy as np
import pytest
from helpers import FakeClock, refused
from hypothesis import given, strategies as st
from trials import metric_trial, noisy, rate_trial, run_trial, start_trial

import kit
from kit.errors import ExperimentError
from kit.measuring import plan
from kit.measuring.comparison import Comparison
from kit.measuring.finding import write_headline
from kit.measuring.ratio import Ratio, compare_trials
from kit.records import Block

NAN = math.nan


def exactly(ratio):
    return (ratio.value, ratio.low, ratio.high)


BUSY = {"others_cores": 0.9, "cores_per_thread": 1.9, "waiting": 0.3}
THROTTLED = {"throttled": 0.3}


def first_suffers(parity, **changes):
    """In even rounds the baseline was started first, in odd ones the challenger."""
    seconds = (1.07, 1.0)
    return rate_trial(lambda round, *_: seconds[(round + parity) % 2], **changes)


def faster(seconds=1.0, **changes):
    """Trials of which the second is twice as fast."""
    return rate_trial(2 * seconds), rate_trial(seconds, **changes)


def stumbling(rounds=range(10), by=5.0, **changes):
    """Trials of which the second has one slow block in ten, in these rounds."""
    hit = [(round, 4, 1) for round in rounds]
    slow = rate_trial(lambda *x: 1.0 + by * (x in hit), turns=5, **changes)
    return rate_trial(turns=5, **changes), slow


def with_first_runs(ratio, *first, again=None):
    """Trials of this ratio, with these ratios in the blocks of their first runs.

    Beside the baseline's second first run it is `again`, if there is one.
    """
    second = [again / each for each in first] if again else []
    baseline = rate_trial(1.0, first=[1.0] * len(first), again=second)
    return baseline, rate_trial(1 / ratio, first=[1 / each for each in first])


def told(ratio):
    return f"The first, longer runs told {ratio} ×: a long run may differ."


#: Something slowed the machine on the way.
LONG = rate_trial(lambda round, *_: 1.0 if round < 10 else 2.0, pairs=10)
FEW = {"pairs": 4, "first": [1.0]}
RARE = "Rare slow steps move it by over 2 %: without them, 1 ×."
SPEEDS = [
    (rate_trial(2.0), rate_trial(1.0), 2, "faster", ""),
    (rate_trial(items=20), rate_trial(items=10), 0.5, "slower", ""),
    (first_suffers(0), first_suffers(1), 1, "same", ""),
    (LONG, rate_trial(1.0), 1, "same", ""),
    (LONG, rate_trial(2.0, first_round=10), 1, "same", ""),
    (rate_trial(items=20, **FEW), rate_trial(**FEW), 0.5, "slower", ""),
    # Slow steps count where they matter: all time differs from typical time by 2 %.
    (*stumbling(), 2 / 3, "slower", RARE),
    (*stumbling(by=0.21), 1 / 1.021, "slower", RARE),
    (*stumbling(by=0.19), 1, "same", ""),
    # One run after the other has no neighbors: all time counts, whatever it was.
    (*stumbling(interleaved=False), 2 / 3, "slower", ""),
    (*stumbling(by=0.19, interleaved=False), 1 / 1.019, "same", ""),
    # What is in the interval, or was subtracted, withholds nothing.
    (*faster(conditions={"stolen": 0.9}), 2, "faster", ""),
    (*faster(conditions=BUSY | {"cores_per_thread": 1}), 2, "faster", ""),
    (*faster(conditions=BUSY | {"waiting": 0.01}), 2, "faster", ""),
    (*faster(conditions=THROTTLED), 2, "faster", ""),
    # First runs tell another ratio, which may undo the verdict or not.
    (*with_first_runs(2.0, *[2.0] * 6), 2, "faster", ""),
    (*with_first_runs(2.0, *[1.7] * 6), 2, "faster", ""),
    (*with_first_runs(2.0, *[1.5] * 6), 2, "faster", told(1.5)),  # 2 (1.5 / 2)^2 = 1.1
    (*with_first_runs(1.3, *[2.0] * 6), 1.3, "faster", told(2)),
    # The baseline's second one tells as much, less, nothing, or the opposite.
    (*with_first_runs(2.0, *[1.5] * 6, again=1.4), 2, "faster", told(1.5)),
    (*with_first_runs(2.0, *[1.4] * 6, again=1.6), 2, "faster", told(1.6)),
    (*with_first_runs(2.0, *[1.4] * 6, again=2.0), 2, "faster", ""),
    (*with_first_runs(2.0, *[1.4] * 6, again=2.8), 2, "faster", ""),
]


@pytest.mark.parametrize(("baseline", "variant", "value", "verdict", "reason"), SPEEDS)
def test_speeds_are_compared_round_by_round(baseline, variant, value, verdict, reason):
    ratio = compare_trials(baseline, variant)
    assert exactly(ratio) == pytest.approx((value,) * 3)
    assert (ratio.verdict, ratio.reason) == (verdict, reason)


def test_slow_steps_that_were_seen_too_seldom_leave_it_open():
    ratio = compare_trials(*stumbling([0, 1]))  # in one pair of five
    assert ratio.value == pytest.approx((2 / 3) ** (1 / 5))
    assert ratio.verdict == "cannot tell"
    assert ratio.low < 0.8 and ratio.high > 1.1, "with them and without"


def judge(seconds, *first_runs, **changes):
    """Judge trials of these blocks, and of these in first runs of both."""
    rows = zip(seconds, *first_runs, strict=True)
    trials = (rate_trial(s, first=f, again=a, **changes) for s, f, a in rows)
    return compare_trials(*trials)


@given(
    *(st.integers(0, 10**6), st.sampled_from([1, 2, 5, 8]), st.booleans()),
    *(st.sampled_from([0.001, 0.02, 0.3]), st.sampled_from([0, 0.1])),
)
def test_a_verdict_is_the_same_from_either_side(seed, pairs, is_mixed, noise, slow):
    """And on a machine whose speed changes from round to round, in any unit of items.

    One of the two has a second first run.
    """
    luck = np.random.default_rng(seed)
    logs = luck.normal(0, noise, (2, 2 * pairs, 6)) + np.log([[[1]], [[1.2]]])
    logs += np.log(9) * (luck.random(logs.shape) < slow)
    pace = luck.uniform(0.5, 5, (2 * pairs, 1))
    seconds, first = np.exp(logs), np.exp(luck.normal(0, 0.5, (2, 9 * (seed % 2))))
    again = [np.exp(luck.normal(0, 0.5, 9 * (seed % 4 == 1))), []]
    there = judge(seconds, first, again, interleaved=is_mixed)
    back = judge(seconds[::-1], first[::-1], again[::-1], interleaved=is_mixed)
    drifting = judge(seconds * pace, first, again, interleaved=is_mixed, items=7)
    assert exactly(drifting) == pytest.approx(exactly(there), nan_ok=True)
    other = [1 / exactly(back)[n] for n in (0, 2, 1)]
    assert exactly(there) == pytest.approx(other, nan_ok=True)
    swap = {"faster": "slower", "slower": "faster"}
    assert drifting.verdict == there.verdict == swap.get(back.verdict, back.verdict)


RUNS = [1.0, 1.1, 0.9, 1.05, 1.02]
#: The cold start of the first variant loads libraries for both.
MEMORY = [2**20, 2**20, 2**20 + 4096, 2**20, 2**20 - 4096, 2**20]
LABELS = ["n=0", "n=2", "n=4"]
TWO = LABELS[:2]


def title_of(axes):
    return " ".join(axes.get_figure().get_suptitle().split())


def runs(*factors):
    return [run_trial([factor * x for x in RUNS]) for factor in factors]


def memories(*factors):
    rows = [[int(factor * x) for x in MEMORY] for factor in factors]
    rows[0][0] += 30 * 2**20
    return [start_trial(row) for row in rows]


def accuracies(shift):
    return [metric_trial([x + n for x in (0.8, 0.82, 0.79)]) for n in (0, shift)]


SPEED, TIME, BYTES = "items_per_second", "run_seconds", "peak_memory_bytes"
ACC = "accuracy"
BEYOND, BELOW, WITHIN = accuracies(0.003), accuracies(-0.1), accuracies(-0.003)
OTHERS = [
    (TIME, None, runs(1, 0.5), 0.5, "less", "n=2 takes less time: 0.5 × the time of 0"),
    (TIME, None, runs(1, 3), 3, "more", "n=2 takes longer: 3 × the time of 0"),
    (TIME, None, runs(1, 1), 1, "same", "n=2 takes as long as 0: 1 × the time"),
    (SPEED, None, runs(1, 0.5), 2, "faster", "n=2 is faster: 2 × the speed of 0"),
    (
        BYTES,
        None,
        memories(2, 1),
        0.5,
        "less",
        "n=2 uses less memory: 0.5 × as much as 0",
    ),
    (BYTES, None, memories(1, 3), 3, "more", "n=2 uses more memory: 3 × as much as 0"),
    (BYTES, None, memories(1, 1), 1, "same", "n=2 uses as much memory as 0: 1 ×"),
    (ACC, 0.01, BELOW, -0.1, "less", "accuracy is lower with n=2 than with 0: -0.1"),
    (
        ACC,
        0.01,
        BEYOND,
        0.003,
        "same",
        "accuracy is the same with n=2 as with 0: +0.003",
    ),
    (
        ACC,
        0.01,
        WITHIN,
        -0.003,
        "same",
        "accuracy is the same with n=2 as with 0: -0.003",
    ),
    (
        ACC,
        0.001,
        BEYOND,
        0.003,
        "more",
        "accuracy is higher with n=2 than with 0: +0.003",
    ),
]


@pytest.mark.parametrize(("of", "within", "trials", "value", "verdict", "said"), OTHERS)
def test_other_quantities_have_own_verdicts(of, within, trials, value, verdict, said):
    made = Comparison(trials, TWO, of, within)
    assert exactly(made.ratio) == pytest.approx((value,) * 3, rel=1e-3, abs=1e-9)
    assert made.ratio.verdict == verdict
    assert made.sentence() == made.headline() == f"{said} {made.ratio.interval}"
    assert title_of(made.plot()) == made.headline()


def scattered(*logs, **changes):
    """Trials with these log-ratios, one in each pair of rounds."""
    return rate_trial(1.0), rate_trial(lambda r, *_: math.exp(-logs[r // 2]), **changes)


def wide(scale=0.05, **changes):
    return scattered(scale, -scale, 0, scale, -scale, **changes)


def metrics(*values):
    return metric_trial([0.8] * len(values)), metric_trial(values)


COMPLETE, MEMORIES = {"of": TIME}, {"of": BYTES}
METRIC = {"of": ACC, "within": 0.01}


def open_for(times, why=""):
    """Return the reason where an interval is wide; so many times as long helps."""
    advice = "Quiet the machine, or look for what changes from step to step."
    if times:
        advice = f"Measure about {times} times as long (seconds=…)."
    return f"The interval holds both a gain and a loss. {advice} {why}".rstrip()


def doubted(verdict, doubt):
    return f"The interval says *{verdict}*. But {doubt}."


CHANGES = (
    "so the interval is not to be trusted: a speed changes on the way, or a start "
    "leaves something behind. Measure much longer, or compare runs that end (a loop "
    "over range(n), seconds=None)"
)
STOPPED = "the measurement was stopped before its end: run it again"
ONE_VALUE = "One value has no interval. Give more seconds or repeats."
NO_VALUES = "accuracy has no interval: it needs two runs or more with values."
SMALL = (0.01, 0.015, 0.02, 0.025, 0.03)
CANNOT_TELL = {
    "one pair": ([run_trial([x]) for x in (1.0, 0.5)], COMPLETE, ONE_VALUE),
    "one round": ([rate_trial([[x] * 6]) for x in (2.0, 1.0)], {}, ONE_VALUE),
    # With so few pairs, each round is a value.
    "four pairs": ([first_suffers(n, pairs=4) for n in (0, 1)], {}, open_for(10)),
    "wide": (wide(), {}, open_for(10)),
    "hopeless": (wide(0.5), {}, open_for(None)),
    "one stumble": (stumbling([4]), {}, open_for(33, RARE)),
    "near": (
        *(scattered(*SMALL), {}),
        "There is a difference, but it may be below 2 %. "
        "Measure longer (seconds=…) if that matters.",
    ),
    "baseline stopped": (
        *(faster(outcome="stopped")[::-1], {}),
        doubted("slower", STOPPED),
    ),
    "variant stopped": (faster(outcome="stopped"), {}, doubted("faster", STOPPED)),
    "complete runs stopped": (
        *([*runs(2), run_trial(RUNS, outcome="stopped")], COMPLETE),
        doubted("less", STOPPED),
    ),
    "wide and stopped": (
        *(wide(outcome="stopped"), {}),
        "The measurement was stopped before its end: run it again.",
    ),
    "metric stopped": (
        *([*accuracies(0.1)[:1], metric_trial([0.9] * 3, outcome="stopped")], METRIC),
        doubted("more", STOPPED),
    ),
    "disturbed": (
        *(faster(outcome="disturbed"), {}),
        doubted("faster", "other cells ran meanwhile: run it again alone"),
    ),
    "changing": (
        *(faster(outcome="not settled"), {}),
        doubted(
            "faster", "count · n=1 never settled, its speed changed: measure longer"
        ),
    ),
    "first runs": (
        *(with_first_runs(2.0, *[1.4] * 6), {}),  # 2 (1.4 / 2)^2 = 0.98
        doubted("faster", f"the first, longer runs told 1.4 ×, {CHANGES}"),
    ),
    "first runs, slower": (
        *(with_first_runs(0.4, *[0.7] * 6), {}),
        f"first, longer runs told 0.7 ×, {CHANGES}.",
    ),
    "both first runs of the baseline": (
        *(with_first_runs(2.0, *[1.2] * 6, again=1.4), {}),
        doubted("faster", f"the first, longer runs told 1.4 ×, {CHANGES}"),
    ),
    "first runs, rare slow steps": (
        *(stumbling(first=[1.0] * 6), {}),
        doubted("slower", f"the first, longer runs told 1 ×, {CHANGES}") + f" {RARE}",
    ),
    # A queue that starts full: in the end as slow as the other.
    "full": (
        *(with_first_runs(1.93, *[1.9] * 4, *[1.0] * 2), {}),
        doubted("faster", f"the ends of the first, longer runs told 1 ×, {CHANGES}"),
    ),
    "busy": (
        *(faster(conditions=BUSY), {}),
        doubted(
            "faster",
            "other programs used 0.9 cores while several threads were measured: close "
            "them, or set torch.set_num_threads(1)",
        ),
    ),
    "quota": (
        *(faster(0.01, conditions=THROTTLED), {}),
        doubted(
            "faster",
            "a quota stopped this process 30% of the time, in blocks too short to tell "
            "whom it hit: use fewer threads or workers",
        ),
    ),
    "wide, others": (
        *(wide(conditions={"others_cores": 0.9}), {}),
        open_for(10, "Other programs used 0.9 cores: close them."),
    ),
    "wide, guests": (
        *(wide(conditions={"stolen": 0.1}), {}),
        open_for(10, "The host gave time to other guests: measure at another time."),
    ),
    "wide, quota": (
        *(wide(conditions=THROTTLED), {}),
        open_for(10, "A quota stopped this process: use fewer threads."),
    ),
    "wilder": ([rate_trial([2, 1]), rate_trial([2e-40, 1e40])], {}, open_for(None)),
    "no memory": (
        *(memories(1, 0), MEMORIES),
        "peak_memory_bytes is zero in at least one run, so there is no ratio. Compare "
        "experiments that add some.",
    ),
    "unknown": (
        *([start_trial([None] * 6), *memories(1)], MEMORIES),
        "Nothing was measured in both. Run it again for longer.",
    ),
    "never together": (
        *([rate_trial(2.0), rate_trial(1.0, first_round=20)], {}),
        "Nothing was measured in both. Run it again for longer.",
    ),
    "one value": (metrics(0.9), METRIC, NO_VALUES),
    "nan": (metrics(0.9, NAN, 0.9), METRIC, NO_VALUES),
    "luck": (
        *(metrics(0.7, 0.8, 0.9), METRIC),
        "The interval is wider than ±0.01. Ask for more repeats.",
    ),
}
WHETHER = {
    SPEED: "n=2 is faster or slower than 0",
    TIME: "n=2 takes more or less time than 0",
    BYTES: "n=2 uses more or less memory than 0",
    ACC: "accuracy is higher or lower with n=2 than with 0",
}


@pytest.mark.parametrize("case", CANNOT_TELL)
def test_cannot_tell_says_why_and_what_to_do(case):
    trials, how, reason = CANNOT_TELL[case]
    made = Comparison([*trials], TWO, **how)
    assert made.ratio.verdict == "cannot tell"
    whether = "n=2 is over 2 % faster than 0" if case == "near" else WHETHER[made.of]
    assert made.headline() == f"Cannot tell whether {whether}"
    assert made.sentence().startswith(made.headline())
    assert made.sentence().endswith(f". {made.ratio.reason}")
    assert made.ratio.reason.endswith(reason)


def make_comparison(labels=LABELS):
    """5 items per second, then 10, 20 …"""
    knobs = [{"workers": 2 * n} for n in range(len(labels))]
    trials = [rate_trial(2.0 / 2**n, knobs=each) for n, each in enumerate(knobs)]
    return Comparison(trials, labels)


def several(labels, *ratios, of="items_per_second"):
    """A comparison whose ratios are as given: figures that no trial gives exactly."""
    made = Comparison([rate_trial() for _ in labels], labels, of)
    object.__setattr__(made, "ratios", dict(zip(labels[1:], ratios, strict=True)))
    return made


def near(value, verdict="faster", share=0.04):
    return Ratio(value, value * (1 - share), value * (1 + share), verdict)


DOUBT = "The interval is wide. Measure longer."
FASTER, SLOWER = Ratio(2.04, 1.98, 2.11, "faster"), Ratio(0.5, 0.481, 0.522, "slower")
LARGE, SAME = Ratio(1312.4, 1300, 1320, "faster"), Ratio(1.004, 0.996, 1.01, "same")
WIDE = Ratio(1.1, 0.9, 1.3, "cannot tell", DOUBT)
UNKNOWN = Ratio(NAN, NAN, NAN, "cannot tell", DOUBT)
UNSURE = Ratio(9, 1e-17, 4e18, "cannot tell")
MORE, LESS = Ratio(3, 2.9, 3.1, "more"), Ratio(0.3, 0.29, 0.31, "less")
HIGHER = Ratio(0.2, 0.1, 0.3, "more", unit="loss")
LOWER = Ratio(-0.2, -0.3, -0.1, "less", unit="loss")
EQUAL = Ratio(0.0, -0.01, 0.01, "same", unit="loss")
EITHER = Ratio(0.1, -0.1, 0.3, "cannot tell", DOUBT, unit="loss")
GRID, CLOSE = ["a=1, b=2", "a=1, b=3"], near(1.8, share=0.001)
FIVE, NAMES = [f"n={n}" for n in (0, 2, 4, 6, 8)], ["plain", "fused"]
ALIKE, THREE = [near(1.0, "same")] * 2, [near(x) for x in (1.9, 1.91, 1.92, 1.2)]
OPEN = "Cannot tell whether"
SENTENCES = [
    (SPEED, TWO, [FASTER], "n=2 is faster: 2.04 × the speed of 0 [1.98, 2.11]"),
    (SPEED, TWO, [SLOWER], "n=2 is slower: 0.5 × the speed of 0 [0.481, 0.522]"),
    (SPEED, NAMES, [FASTER], "fused is faster: 2.04 × the speed of plain [1.98, 2.11]"),
    (
        *(SPEED, GRID, [FASTER]),
        "a=1, b=3 is faster: 2.04 × the speed of a=1, b=2 [1.98, 2.11]",
    ),
    (SPEED, TWO, [LARGE], "n=2 is faster: 1,312 × the speed of 0 [1,300, 1,320]"),
    (SPEED, TWO, [SAME], "n=2 is as fast as 0: 1 × the speed [0.996, 1.01]"),
    (SPEED, TWO, [WIDE], f"{OPEN} n=2 is faster or slower than 0: 1.1 × [0.9, 1.3]."),
    (SPEED, TWO, [UNKNOWN], f"{OPEN} n=2 is faster or slower than 0."),
    (TIME, TWO, [MORE], "n=2 takes longer: 3 × the time of 0 [2.9, 3.1]"),
    (TIME, TWO, [LESS], "n=2 takes less time: 0.3 × the time of 0 [0.29, 0.31]"),
    (TIME, TWO, [SAME], "n=2 takes as long as 0: 1 × the time [0.996, 1.01]"),
    (
        TIME,
        TWO,
        [WIDE],
        f"{OPEN} n=2 takes more or less time than 0: 1.1 × [0.9, 1.3].",
    ),
    (TIME, TWO, [UNKNOWN], f"{OPEN} n=2 takes more or less time than 0."),
    (BYTES, TWO, [MORE], "n=2 uses more memory: 3 × as much as 0 [2.9, 3.1]"),
    (BYTES, TWO, [LESS], "n=2 uses less memory: 0.3 × as much as 0 [0.29, 0.31]"),
    (BYTES, TWO, [SAME], "n=2 uses as much memory as 0: 1 × [0.996, 1.01]"),
    (
        BYTES,
        TWO,
        [WIDE],
        f"{OPEN} n=2 uses more or less memory than 0: 1.1 × [0.9, 1.3].",
    ),
    (BYTES, TWO, [UNKNOWN], f"{OPEN} n=2 uses more or less memory than 0."),
    ("loss", TWO, [HIGHER], "loss is higher with n=2 than with 0: +0.2 [+0.1, +0.3]"),
    ("loss", TWO, [LOWER], "loss is lower with n=2 than with 0: -0.2 [-0.3, -0.1]"),
    ("loss", TWO, [EQUAL], "loss is the same with n=2 as with 0: +0 [-0.01, +0.01]"),
    (
        *("loss", TWO, [EITHER]),
        f"{OPEN} loss is higher or lower with n=2 than with 0: +0.1 [-0.1, +0.3].",
    ),
    ("loss", TWO, [UNKNOWN], f"{OPEN} loss is higher or lower with n=2 than with 0."),
    # What cannot be told apart is named together; the luckiest hides no finding.
    (
        *(SPEED, LABELS, [CLOSE, near(1.83, share=0.001)]),
        "n=2 or 4 is faster: about 1.8 × the speed of 0 [1.8, 1.83]",
    ),
    (SPEED, LABELS, THREE[-2:], "n=2 is faster: 1.92 × the speed of 0 [1.84, 2]"),
    (
        SPEED,
        LABELS,
        ALIKE,
        "n=2 or 4 is as fast as 0: about 1 × the speed [0.96, 1.04]",
    ),
    (SPEED, FIVE, THREE, "n=2, 4 or 6 is faster: about 1.9 × the speed of 0 [1.82, 2]"),
    (
        SPEED,
        LABELS,
        [near(1.5), UNSURE],
        "n=2 is faster: 1.5 × the speed of 0 [1.44, 1.56]",
    ),
]


@pytest.mark.parametrize(("of", "labels", "ratios", "sentence"), SENTENCES)
def test_the_sentence_never_says_faster_for_slower_or_more_for_less(
    of, labels, ratios, sentence
):
    made = several(labels, *ratios, of=of)
    headline = sentence
    if sentence.startswith(OPEN):
        headline = re.sub(r"(: .*)?\.$", "", sentence)
        sentence = f"{sentence} {DOUBT}"
    assert made.sentence() == repr(made).splitlines()[0] == sentence
    assert made.headline() == headline
    assert labels[1] in made.sentence(labels[1])


@pytest.mark.parametrize(
    ("of", "low", "wanted"),
    [
        (SPEED, 1.01, "n=2 is over 2 % faster than n=1"),
        (SPEED, 0.95, "n=2 is over 2 % slower than n=1"),
        (TIME, 1.01, "n=2 takes over 2 % more time than n=1"),
        (BYTES, 0.95, "n=2 uses over 2 % less memory than n=1"),
    ],
)
def test_a_sure_difference_is_not_said_to_be_a_gain_or_a_loss(of, low, wanted):
    reason = CANNOT_TELL["near"][-1]
    ratio = Ratio(low + 0.02, low, low + 0.04, "cannot tell", reason)
    assert write_headline(of, "n=2", "n=1", ratio) == f"Cannot tell whether {wanted}"


def test_each_challenger_has_its_own_ratio_and_a_row_best_first():
    two, made = make_comparison(TWO), make_comparison()
    table = made.table()
    assert two.ratio == two.ratios["n=2"] == compare_trials(*two.trials)
    with pytest.raises(ValueError, match=r"ratios.*'n=2', 'n=4'"):
        _ = made.ratio
    assert made.sentence() == "n=4 is faster: 4 × the speed of 0 [4, 4]"
    assert made.sentence("n=2") == "n=2 is faster: 2 × the speed of 0 [2, 2]"
    assert [row[0] for row in made.rows()] == list(table.index) == ["n=4", "n=2", "n=0"]
    assert table["items_per_second"].tolist() == pytest.approx([20, 10, 5])
    assert table["workers"].tolist() == [4, 2, 0]
    assert table["verdict"].tolist() == ["faster", "faster", "baseline"]
    assert list(two.table().index) == TWO, "two as asked for"
    less = Comparison(memories(1, 2, 0.5), LABELS, BYTES)
    assert list(less.table().index) == ["n=4", "n=0", "n=2"]


def test_a_knob_called_like_a_column_hides_no_result():
    taken = {"low": 7, "verdict": "no", "items_per_second": 3, "difference": 1}
    trials = [rate_trial(2.0, knobs=taken), rate_trial(1.0, knobs={"low": 8})]
    table = Comparison(trials, TWO).table()
    names = ["low (knob)", "verdict (knob)", "items_per_second (knob)", "difference"]
    names += ["items_per_second", "ratio", "low", "high", "verdict", "reason"]
    assert [*table.columns] == names
    assert table["low (knob)"].tolist() == [7, 8]
    assert tuple(table.loc["n=2", ["low", "verdict"]]) == (pytest.approx(2), "faster")


def test_a_remark_names_whose_it_is_and_what_all_have_in_common_is_said_once():
    notes = [["torch.compile was reset."], ["torch.compile was reset.", "Shared: net."]]
    trials = [rate_trial(notes=each) for each in [*notes, notes[1]]]
    remarks = Comparison(trials, LABELS).remarks()
    assert remarks[-2:] == ["torch.compile was reset.", "n=2, n=4: Shared: net."]


def test_intervals_of_several_hold_together_and_say_how():
    trials = [rate_trial(noisy(seed, 0.05)) for seed in range(5)]
    alone, together = Comparison(trials[:2], TWO), Comparison(trials, FIVE)
    found = compare_trials(*trials[:2], confidence=0.95 ** (1 / 4))
    assert exactly(together.ratios["n=2"]) == pytest.approx(exactly(found))
    assert found.low < alone.ratio.low and found.high > alone.ratio.high
    assert "hold together" in str(together.remarks())
    assert "hold together" not in str(alone.remarks())


@pytest.mark.parametrize("of", ["items_per_second", "run_seconds", "loss"])
@given(seed=st.integers(0, 999))
def test_figures_of_a_table_never_contradict_each_other(of, seed):
    """The baseline is what it measured, of others it is that times their ratio."""
    first, *others = [noisy(seed + n, 0.2) for n in range(3)]
    trials = [rate_trial(first, first=[0.3] * 10), *map(rate_trial, others)]
    expected = rate_trial(noisy(seed, 0.2)).items_per_second  # without the first look
    if of != "items_per_second":
        draws = np.random.default_rng(seed).uniform(1, 4, (3, 6))
        trials = [run_trial(x, {"loss": np.repeat(x, 2).tolist()}) for x in draws]
        expected = draws[0].mean()
    before = copy.deepcopy(trials)
    made = Comparison(trials, LABELS, of, 0.1 if of == "loss" else None)
    table = made.table()
    base, column = table.loc["n=0", of], "difference" if of == "loss" else "ratio"
    assert table.loc["n=0", column] == (of != "loss"), "it differs from itself by 0"
    assert made.quantity(made.baseline)[0] == base == pytest.approx(expected)
    assert all(map(math.isnan, made.quantity(made.baseline)[1:])), "told beside itself"
    for label, trial in zip(LABELS[1:], trials[1:], strict=True):
        ratio, shown = made.ratios[label], made.quantity(trial)
        is_beside = [base + x if of == "loss" else base * x for x in exactly(ratio)]
        assert shown == pytest.approx(is_beside)
        assert tuple(table.loc[label, [column, of]]) == (ratio.value, shown[0])
    assert repr(made) and trials == before, "looking changes nothing"


def texts_of(page):
    """Return the pieces of text of a page, in order."""
    pieces = re.sub("<[^>]*>", "\n", page).splitlines()
    return [html.unescape(piece) for piece in pieces if piece.strip()]


def test_a_card_says_what_was_asked_then_the_finding_and_folds_how_sure_it_is():
    made, doubtful = make_comparison([*TWO, "f=<script>('&')"]), several(TWO, WIDE)
    asked = dataclasses.replace(made, title="Do workers help?")
    for lines in (repr(asked).splitlines(), texts_of(asked._repr_html_())):
        assert lines[:2] == [asked.title, asked.sentence()]
    assert title_of(asked.plot()) == asked.title
    assert title_of(asked.plot(title="Here they do")) == "Here they do"
    headline, why = texts_of(doubtful._repr_html_())[:2]
    assert headline == title_of(doubtful.plot()) and DOUBT not in headline
    assert DOUBT in why
    shown, _, folded = made._repr_html_().partition("<details")
    assert texts_of(shown)[0] == made.sentence() and "<script" not in shown
    assert "Šidák" in folded and "Šidák" not in shown


def test_a_plot_over_a_knob_has_a_line_of_what_was_measured_and_one_of_the_model():
    trials = [rate_trial(1.0 + n, knobs={"n": n, "way": "a"}) for n in (1, 64)]
    made = Comparison(trials, TWO)
    lines = made.plot(x="n", predict=lambda n: 5 * n).lines
    found = {line.get_label().partition(",")[0]: line.get_ydata() for line in lines}
    assert list(found.pop("predicted")) == [5, 320]
    speeds = pytest.approx([trial.items_per_second for trial in trials])
    assert speeds in [list(each) for each in found.values()]
    with pytest.raises(ValueError, match="way"):
        made.plot(x="way")


#: Of 5 items in a second, in steps of two.
UNITS = {
    None: ("items per second", 5.0),
    "images/s": ("images/s", 5.0),
    "kB/s": ("kB/s", 0.005),
    "GB/s": ("GB/s", 5e-9),
    "TFLOP/s": ("TFLOP/s", 5e-12),
    "s per step": ("s per step", 0.4),
    "ms per step": ("ms per step", 400.0),
    "µs per image": ("µs per image", 200_000.0),
    "ns per item": ("ns per item", 2e8),
}


@pytest.mark.parametrize("unit", UNITS)
def test_a_rate_is_shown_in_the_unit_that_was_asked_for(unit):
    trials = [rate_trial(2.0), rate_trial(noisy(0, 0.1))]
    name, base = UNITS[unit]
    plain, made = Comparison(trials, TWO), Comparison(trials, TWO, unit=unit)
    for shown in (repr(made).splitlines()[1], made._repr_html_()):
        assert name in shown
    ratio, is_time = plain.ratio, " per " in (unit or "")
    values = [1, *exactly(ratio)]
    expected = [base / x if is_time else base * x for x in values]
    written = [float(row[1].replace(",", "")) for row in made.rows()]
    assert written == pytest.approx(expected[:2], rel=1e-3)
    for axes in (made.plot(), plain.plot(unit=unit)):
        assert axes.get_xlabel() == name
        widths = [bar.get_width() for bar in axes.patches]
        assert widths == pytest.approx(expected[:2])
        ((low, _), (high, _)) = axes.collections[0].get_segments()[0]
        assert [low, high] == pytest.approx(sorted(expected[2:])), "low, then high"
    assert made.table().equals(plain.table()), "for whoever computes with it"
    assert made.sentence() == plain.sentence(), "the ratio is that of speeds"


def test_time_per_step_is_not_that_of_another_variants_steps():
    """Twice as many items in each step, which takes as long."""
    trials = [rate_trial(2.0), rate_trial(2.0, items=20)]
    for unit, shown in {"ms per step": [400, 400], "ms per image": [200, 100]}.items():
        made = Comparison(trials, TWO, unit=unit)
        assert made.ratio.value == pytest.approx(2)
        assert [row[1] for row in made.rows()] == [f"{value}" for value in shown]
        assert [bar.get_width() for bar in made.plot().patches] == pytest.approx(shown)


def train(*, n=1):
    while True:
        kit.clock.CLOCK.work(0.01 * n)
        yield 2


WORDS = ("miles", "h per step", "ms per ", "", "1/s per step", 3)
NO_UNITS = [({"unit": word}, [repr(word), "ms per step"]) for word in WORDS]
PER_STEP = {"unit": "ms per step"}
NO_UNITS += [(PER_STEP | {"of": TIME, "seconds": None}, [TIME, "Leave it out"])]
NO_UNITS += [(PER_STEP | {"of": BYTES}, [BYTES, "Leave it out"])]
NO_UNITS += [(PER_STEP | METRIC | {"seconds": None}, [ACC, "Leave it out"])]


@pytest.mark.parametrize(("asked", "words"), NO_UNITS)
def test_what_is_no_unit_of_a_rate_is_refused_before_anything_runs(asked, words):
    refused(lambda: kit.compare(train, n=[1, 2], **asked), "compare()", "unit=", *words)


def test_a_comparison_is_asked_for_in_a_unit_and_a_plot_of_it_in_another(monkeypatch):
    monkeypatch.setenv("KIT_QUICK", "1")
    with FakeClock():
        made = kit.compare(train, n=[1, 2], seconds=0.5, unit="ms per step")
    assert made.unit == "ms per step"
    assert [row[1] for row in made.rows()] == ["10", "20"]
    assert made.plot().get_xlabel() == "ms per step"
    assert made.plot(unit="images/s").get_xlabel() == "images/s"
    assert made.plot(x="n").get_ylabel() == "ms per step"
    with pytest.raises(ExperimentError, match="furlongs"):
        made.plot(unit="furlongs")


def test_a_rank_that_handled_no_items_gives_cannot_tell_and_no_crash():
    some = [Block(1.0, 1.0, items, 1) for items in (4, 0, 4)]
    assert not plan.is_as_fast_as_before(some[:2])
    assert plan.is_as_fast_as_before(some)
    assert plan.is_as_fast_as_before([Block(1.0, 1.0, 0, 1)])
    idle = rate_trial(1.0, items=0)
    assert compare_trials(idle, rate_trial(1.0)).verdict == "cannot tell"
    assert "count" in repr(idle)
