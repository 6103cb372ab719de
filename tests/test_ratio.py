"""Ratios and comparisons: values, verdicts, sentences, tables, from trials by hand."""

import copy
import dataclasses
import html
import math
import random
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from matplotlib.axes import Axes

from kit.comparison import Comparison, Ratio, compare_trials
from kit.machine import Machine
from kit.trial import COLD, Trial

# A remedy is a clause that begins with what to do.
REMEDY = re.compile(
    r"\bneeds\b|(?:^|[;:,.(] |\b(?:and|or) )(?:measure|ask|run|close|set|quiet|look"
    r"|compare|wait|let|leave|give|add|use|choose|repeat|start|pass|say|try)\b"
)


def make_machine(name="imaginary-2-cores"):
    values = {
        "name": name,
        "processor": "Imaginary 4000",
        "cores": 2,
        "memory_bytes": 8 * 2**30,
        "shared_memory_bytes": 2**26,
        "instruction_sets": ["avx2"],
        "accelerators": [],
        "operating_system": "Imaginary OS 7",
        "python": "3.11.1",
        "torch": "2.14.0",
        "threads": 2,
        "compiler": None,
        "reads_run_queue_delay": True,
        "start_method": "fork",
        "container": None,
    }
    return Machine.from_dict(
        {key: {"value": value, "reason": "made up"} for key, value in values.items()}
    )


def make_trial(**changes):
    """A trial of one block, with any field changed."""
    fields = {
        "experiment": "count",
        "title": "Count to a number.",
        "knobs": {"n": 1},
        "block_seconds": [1.0],
        "block_items": [10],
        "block_steps": [5],
        "block_setups": [0],
        "block_rounds": [0],
        "setup_seconds": [0.5],
        "start_setups": [-1],
        "start_memory_bytes": [None],
        "excluded_seconds": 0.0,
        "peak_memory_bytes": None,
        "metrics": {},
        "machine": make_machine(),
        "source": "def count(*, n=1):\n    while True:\n        yield n",
        "started": "2026-01-02T03:04:05+00:00",
        "outcome": "complete",
    } | changes
    fields.setdefault("block_wall_seconds", list(fields["block_seconds"]))
    fields.setdefault("block_device_seconds", [None] * len(fields["block_seconds"]))
    return Trial(**fields)


def rate_trial(seconds=1.0, *, pairs=5, rounds=3, first=0, items=10, **changes):
    """A trial by turns: two blocks per round, set-ups in pairs of both orders.

    `seconds` is a block's, or says it of (set-up, round, 0 or 1).
    """
    places = [
        (setup, number, block)
        for setup in range(first, first + 2 * pairs)
        for number in range(rounds)
        for block in (0, 1)
    ]
    times = [seconds(*p) if callable(seconds) else seconds for p in places]
    return make_trial(
        **{
            "block_seconds": times,
            "block_items": [items] * len(places),
            "block_steps": [5] * len(places),
            "block_setups": [setup for setup, _, _ in places],
            "block_rounds": [number for _, number, _ in places],
        }
        | changes
    )


def run_trial(seconds, **changes):
    """A trial of whole runs, one for each of the seconds."""
    count = len(seconds)
    return make_trial(
        **{
            "block_seconds": list(seconds),
            "block_items": [100] * count,
            "block_steps": [2] * count,
            "block_setups": list(range(count)),
            "block_rounds": [0] * count,
            "setup_seconds": [0.5] * count,
            "start_setups": list(range(count)),
            "start_memory_bytes": [None] * count,
            "whole_runs": True,
        }
        | changes
    )


def start_trial(setup_seconds=None, memory=None, **changes):
    """A trial of set-ups, the cold start first."""
    count = len(setup_seconds or memory)
    return rate_trial(
        **{
            "setup_seconds": setup_seconds or [0.5] * count,
            "start_memory_bytes": memory or [None] * count,
            "start_setups": list(range(-1, count - 1)),
        }
        | changes
    )


def noisy(seed, scale, middle=1.0):
    """Return block times that scatter by `scale`."""
    random = np.random.default_rng(seed)
    return lambda *place: middle * math.exp(random.normal(0, scale))


def metric_trial(values, name="accuracy"):
    """Whole runs of two steps each; the last value of each run is given."""
    column = [x for value in values for x in (0.0, value)]
    return run_trial([1.0] * len(values), metrics={name: column})


# Speeds


def test_ratio_is_variant_over_baseline():
    ratio = compare_trials(rate_trial(2.0), rate_trial(1.0))
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((2, 2, 2))
    assert ratio.verdict == "faster"
    back = compare_trials(rate_trial(1.0), rate_trial(2.0))
    assert back.value == pytest.approx(0.5)
    assert back.verdict == "slower"


def test_a_thing_is_the_same_as_itself():
    trial = rate_trial(noisy(0, 0.1))
    ratio = compare_trials(trial, trial)
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((1, 1, 1))
    assert ratio.verdict == "same"


def test_speed_is_in_items_not_in_blocks():
    # Twice the items in the same time.
    ratio = compare_trials(rate_trial(1.0, items=10), rate_trial(1.0, items=20))
    assert ratio.value == pytest.approx(2)


@pytest.mark.parametrize("pairs", [2, 5, 8])
def test_what_the_first_created_suffers_cancels(pairs):
    """In even set-ups the baseline was created first, in odd ones the challenger."""
    baseline = rate_trial(lambda s, r, b: 1.07 if s % 2 == 0 else 1.0, pairs=pairs)
    variant = rate_trial(lambda s, r, b: 1.07 if s % 2 == 1 else 1.0, pairs=pairs)
    ratio = compare_trials(baseline, variant)
    assert ratio.value == pytest.approx(1)
    if pairs >= 5:
        assert ratio.verdict == "same"
        assert ratio.low == pytest.approx(1)
        assert ratio.high == pytest.approx(1)


def test_drift_that_hits_both_cancels():
    def drift(setup, number, block):
        return 1 + 0.3 * setup + 0.05 * number

    baseline = rate_trial(drift)
    variant = rate_trial(lambda *place: drift(*place) / 1.5)
    ratio = compare_trials(baseline, variant)
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((1.5, 1.5, 1.5))


def test_blocks_that_were_not_measured_side_by_side_are_left_out():
    """Each challenger has baseline pairs of its own."""

    def speed(setup, number, block):
        return 1.0 if setup < 10 else 2.0  # something slowed the machine

    baseline = rate_trial(speed, pairs=10)
    first = rate_trial(1.0, pairs=5)
    second = rate_trial(2.0, pairs=5, first=10)
    assert compare_trials(baseline, first).value == pytest.approx(1)
    assert compare_trials(baseline, second).value == pytest.approx(1)
    assert compare_trials(baseline, second).verdict == "same"


def test_typical_steps_decide_where_there_are_no_rare_ones():
    """A few wild rounds in both are noise, not a difference."""
    baseline = rate_trial(lambda s, r, b: 9.0 if (s, r) == (3, 1) else 1.0, rounds=4)
    variant = rate_trial(lambda s, r, b: 4.5 if (s, r) == (3, 1) else 0.5, rounds=4)
    assert compare_trials(baseline, variant).value == pytest.approx(2)


def test_rare_slow_steps_of_one_variant_decide_and_are_named():
    def stumble(setup, number, block):
        return 6.0 if (number, block) == (4, 1) else 1.0  # one block in ten

    ratio = compare_trials(rate_trial(1.0, rounds=5), rate_trial(stumble, rounds=5))
    assert ratio.value == pytest.approx(10 / 15)
    assert ratio.verdict == "slower"
    assert "rare slow steps" in ratio.reason.lower()


def test_rare_slow_steps_below_the_zone_do_not_decide():
    def stumble(setup, number, block):
        return 1.1 if (number, block) == (4, 1) else 1.0

    ratio = compare_trials(rate_trial(1.0, rounds=5), rate_trial(stumble, rounds=5))
    assert ratio.value == pytest.approx(1)
    assert ratio.verdict == "same"


@pytest.mark.parametrize("pairs", [1, 2, 4])
def test_few_pairs_have_a_wider_interval_not_none(pairs):
    few = compare_trials(
        rate_trial(noisy(1, 0.02), pairs=pairs),
        rate_trial(noisy(2, 0.02), pairs=pairs),
    )
    many = compare_trials(
        rate_trial(noisy(1, 0.02), pairs=20), rate_trial(noisy(2, 0.02), pairs=20)
    )
    assert few.low < few.value < few.high
    assert few.high - few.low > many.high - many.low


# Simulated machines, through the whole computation

CONDITIONS = {
    "quiet": {"setup": 0.01, "block": 0.01, "burst": 0.0},
    "uneven": {"setup": 0.02, "block": 0.03, "burst": 0.0},
    "bursty": {"setup": 0.01, "block": 0.02, "burst": 0.015},
}


def simulate(random, speed, *, pairs=5, rounds=3, setup, block, burst):
    """Two trials on one machine: drift, order of creation, set-ups, noise, bursts."""
    machine = make_machine()
    drift = np.exp(random.normal(0, 0.2, 2 * pairs))
    trials = []
    for variant in (0, 1):
        order = np.array([0.07, 0.0] if variant == 0 else [0.0, 0.07])
        effect = np.exp(np.tile(order, pairs) + random.normal(0, setup, 2 * pairs))
        shape = (2 * pairs, rounds, 2)
        noise = np.exp(random.normal(0, block, shape))
        noise *= 1 + (random.random(shape) < burst) * random.exponential(2, shape)
        times = (drift * effect)[:, None, None] * noise / (speed if variant else 1)
        flat = times.ravel().tolist()
        trials.append(rate_trial(1.0, pairs=pairs, block_seconds=flat, machine=machine))
    return trials


def judge_many(seed, speed, cases, condition):
    random = np.random.default_rng(seed)
    ratios = [
        compare_trials(*simulate(random, speed, **condition)) for _ in range(cases)
    ]
    covered = sum(ratio.low <= speed <= ratio.high for ratio in ratios)
    return [ratio.verdict for ratio in ratios], covered / cases


@pytest.mark.parametrize("condition", CONDITIONS)
def test_false_alarms_are_rare_and_the_truth_is_covered(condition):
    verdicts, covered = judge_many(21, 1.0, 200, CONDITIONS[condition])
    alarms = sum(verdict in ("faster", "slower") for verdict in verdicts)
    assert alarms <= 0.05 * len(verdicts)
    assert covered >= 0.90


def test_a_true_five_percent_is_called_where_it_is_quiet():
    verdicts, covered = judge_many(22, 1.05, 100, CONDITIONS["quiet"])
    assert verdicts.count("faster") >= 90
    assert "slower" not in verdicts
    assert covered >= 0.90


# Other quantities


@pytest.mark.parametrize(
    ("factor", "verdict"), [(0.5, "less"), (2.0, "more"), (1.0, "same")]
)
def test_run_seconds(factor, verdict):
    seconds = [1.0, 1.1, 0.9, 1.05, 1.02]
    ratio = compare_trials(
        run_trial(seconds), run_trial([factor * s for s in seconds]), "run_seconds"
    )
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((factor,) * 3)
    assert ratio.verdict == verdict


def test_speed_of_whole_runs_has_words_for_speed():
    seconds = [1.0, 1.1, 0.9, 1.05, 1.02]
    ratio = compare_trials(run_trial(seconds), run_trial([s / 2 for s in seconds]))
    assert ratio.value == pytest.approx(2)
    assert ratio.verdict == "faster"


def test_runs_of_one_seed_belong_together():
    """A hard seed is hard for both: the interval is over pairs."""
    seconds = [1.0, 10.0, 3.0, 0.2, 5.0]
    close = [2 * s * x for s, x in zip(seconds, [1, 1.01, 0.99, 1, 1.02], strict=True)]
    ratio = compare_trials(run_trial(seconds), run_trial(close), "run_seconds")
    assert 1.9 < ratio.low < ratio.high < 2.1


def test_interval_of_runs_is_students_over_logarithms():
    ratio = compare_trials(
        run_trial([1.0, 1.0, 1.0]),
        run_trial([math.exp(1), math.exp(2), math.exp(3)]),
        "run_seconds",
    )
    half = 4.30265 / math.sqrt(3)
    expected = (math.exp(2), math.exp(2 - half), math.exp(2 + half))
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx(expected, rel=1e-4)


def test_set_up_seconds_leave_out_the_cold_start():
    """The cold start of the first variant loads libraries for both."""
    baseline = start_trial(setup_seconds=[30.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    variant = start_trial(setup_seconds=[3.0, 3.0, 3.0, 3.0, 3.0, 3.0])
    ratio = compare_trials(baseline, variant, "setup_seconds")
    assert ratio.value == pytest.approx(3)
    assert ratio.verdict == "more"


@pytest.mark.parametrize(("factor", "verdict"), [(0.5, "less"), (1, "same")])
def test_peak_memory(factor, verdict):
    memory = [2**20, 2**20, 2**20 + 4096, 2**20, 2**20 - 4096, 2**20]
    baseline = start_trial(memory=memory)
    variant = start_trial(memory=[int(factor * m) for m in memory])
    ratio = compare_trials(baseline, variant, "peak_memory_bytes")
    assert ratio.value == pytest.approx(factor, rel=1e-3)
    assert ratio.verdict == verdict


@pytest.mark.parametrize(
    ("shift", "verdict"), [(0.1, "more"), (-0.1, "less"), (0.0, "same")]
)
def test_metric_is_compared_by_its_difference(shift, verdict):
    values = [0.80, 0.82, 0.81, 0.79]
    ratio = compare_trials(
        metric_trial(values),
        metric_trial([value + shift for value in values]),
        "accuracy",
        within=0.01,
    )
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((shift,) * 3, abs=1e-9)
    assert ratio.verdict == verdict


def test_within_decides_what_is_the_same():
    baseline, variant = metric_trial([0.8] * 3), metric_trial([0.803] * 3)
    verdicts = [
        compare_trials(baseline, variant, "accuracy", within=within).verdict
        for within in (0.001, 0.01)
    ]
    assert verdicts == ["more", "same"]


# Cannot tell: with the reason, and with a remedy

BUSY = {"others_cores": 0.9, "cores_per_thread": 1.9, "waiting": 0.3, "cores": 2.0}


def wide():
    return rate_trial(noisy(3, 0.5)), rate_trial(noisy(4, 0.5))


def nearly():
    """A difference for sure, but it may be within 2 %."""
    factors = [1.01, 1.015, 1.02, 1.025, 1.03]
    return rate_trial(1.0), rate_trial(lambda s, r, b: 1 / factors[s // 2])


CANNOT_TELL = {
    "one pair": (
        lambda: (run_trial([1.0]), run_trial([0.5])),
        {"of": "run_seconds"},
        "one",
    ),
    "one set-up": (
        lambda: (
            rate_trial(2.0, rounds=1, block_setups=[0] * 20, block_rounds=[0] * 20),
            rate_trial(1.0, rounds=1, block_setups=[0] * 20, block_rounds=[0] * 20),
        ),
        {},
        "one",
    ),
    "wide interval": (wide, {}, "interval"),
    "nearly": (nearly, {}, "2 %"),
    "baseline stopped": (
        lambda: (rate_trial(2.0, outcome="stopped"), rate_trial(1.0)),
        {},
        "stopped",
    ),
    "variant stopped": (
        lambda: (rate_trial(2.0), rate_trial(1.0, outcome="stopped")),
        {},
        "stopped",
    ),
    "stopped runs": (
        lambda: (run_trial([2.0] * 5), run_trial([1.0] * 5, outcome="stopped")),
        {"of": "run_seconds"},
        "stopped",
    ),
    "not settled": (
        lambda: (rate_trial(2.0), rate_trial(1.0, outcome="not settled")),
        {},
        "settle",
    ),
    "busy neighbour of several threads": (
        lambda: (rate_trial(2.0), rate_trial(1.0, conditions=BUSY)),
        {},
        "set torch.set_num_threads(1)",
    ),
    "busy neighbour of ranks": (
        lambda: (
            rate_trial(2.0),
            rate_trial(1.0, conditions=BUSY, block_rank_seconds=[[1.0, 0.9]]),
        ),
        {},
        "several ranks were measured",
    ),
    "stopped by a quota, short blocks": (
        lambda: (rate_trial(0.02), rate_trial(0.01, conditions={"throttled": 0.3})),
        {},
        "quota",
    ),
    "zero memory": (
        lambda: (
            start_trial(memory=[2**20] * 6),
            start_trial(memory=[0] * 6),
        ),
        {"of": "peak_memory_bytes"},
        "zero",
    ),
    "unknown memory": (
        lambda: (start_trial(memory=[None] * 6), start_trial(memory=[2**20] * 6)),
        {"of": "peak_memory_bytes"},
        "measured",
    ),
    "nothing side by side": (
        lambda: (rate_trial(2.0), rate_trial(1.0, first=20)),
        {},
        "",
    ),
    "metric of one run": (
        lambda: (metric_trial([0.8]), metric_trial([0.9])),
        {"of": "accuracy", "within": 0.01},
        "accuracy",
    ),
    "metric that is nan": (
        lambda: (metric_trial([0.8] * 3), metric_trial([0.9, math.nan, 0.9])),
        {"of": "accuracy", "within": 0.01},
        "accuracy",
    ),
    "metric that scatters": (
        lambda: (metric_trial([0.8] * 3), metric_trial([0.7, 0.8, 0.9])),
        {"of": "accuracy", "within": 0.01},
        "interval",
    ),
}


@pytest.mark.parametrize("case", CANNOT_TELL)
def test_cannot_tell_says_why(case):
    make, how, word = CANNOT_TELL[case]
    ratio = compare_trials(*make(), **how)
    assert ratio.verdict == "cannot tell"
    assert word in ratio.reason.lower()
    assert ratio.reason


@pytest.mark.parametrize("case", CANNOT_TELL)
def test_cannot_tell_says_what_to_do(case):
    make, how, _ = CANNOT_TELL[case]
    reason = compare_trials(*make(), **how).reason
    assert REMEDY.search(reason), f"no remedy in {reason!r}"


@pytest.mark.parametrize("stolen", [0.1, 0.9])
def test_what_the_host_took_is_in_the_interval(stolen):
    shaky = rate_trial(0.5, conditions={"stolen": stolen})
    assert compare_trials(rate_trial(1.0), shaky).verdict == "faster"


def with_first_life(seconds, first):
    """A trial whose first life, of six blocks, took these seconds a block."""
    trial = rate_trial(seconds)
    return rate_trial(
        seconds,
        block_seconds=[*first, *trial.block_seconds],
        block_items=[10] * len(first) + trial.block_items,
        block_steps=[5] * len(first) + trial.block_steps,
        block_setups=[COLD] * len(first) + trial.block_setups,
        block_rounds=[0] * len(first) + trial.block_rounds,
    )


@pytest.mark.parametrize(
    ("ratio", "first", "verdict"),
    [
        (2.0, 2.0, "faster"),  # a first life like the others
        (2.0, 1.5, "faster"),  # 2 / (2 / 1.5)^2 = 1.1
        (2.0, 1.4, "cannot tell"),  # 2 / (2 / 1.4)^2 = 0.98
        (1.3, 1.05, "cannot tell"),
        (1.3, 2.0, "faster"),  # away from no difference at all
        (0.4, 0.5, "slower"),
        (0.4, 0.7, "cannot tell"),
        (0.8, 0.4, "slower"),
        (1.0, 1.4, "cannot tell"),
    ],
)
def test_a_first_life_that_differs_withholds_what_it_may_undo(ratio, first, verdict):
    base = with_first_life(1.0, [1.0] * 6)
    other = with_first_life(1 / ratio, [1 / first] * 6)
    found = compare_trials(base, other)
    assert found.verdict == verdict, found
    assert found.value == pytest.approx(ratio)  # the figure stays
    said = "its first, longer life as in later ones"
    if verdict == "cannot tell":
        assert said in found.reason
        assert REMEDY.search(found.reason)
    elif ratio != first:
        assert said in found.reason and "a long run may differ" in found.reason
    else:
        assert found.reason == ""


@pytest.mark.parametrize("first", [1.9, 1.7])
def test_the_end_of_a_first_life_counts_like_all_of_it(first):
    """A queue that starts full: fast at first, and in the end as slow as the other."""
    base = with_first_life(1.0, [1.0] * 9)
    queue = with_first_life(1 / 1.93, [1 / first] * 6 + [1.0] * 3)
    found = compare_trials(base, queue)
    assert found.verdict == "cannot tell"
    assert "end of its first, longer life" in found.reason


def test_a_large_ratio_is_written_out():
    found = compare_trials(rate_trial(1.0), rate_trial(1 / 1312.4))
    assert str(found) == "1,312 × [1,312, 1,312]"


def test_a_disturbed_trial_is_no_result():
    ratio = compare_trials(rate_trial(2.0), rate_trial(1.0, outcome="disturbed"))
    assert ratio.verdict == "cannot tell"
    assert ratio.reason


def test_remedies_are_recognised():
    assert REMEDY.search("the interval is wide; measure about 4 times as long")
    assert not REMEDY.search("zero in at least one run, so there is no ratio")
    assert not REMEDY.search("it was stopped before the end")


@pytest.mark.parametrize(
    "calm",
    [{"cores_per_thread": 1.0}, {"waiting": 0.01}],
    ids=["one thread", "nobody waited"],
)
def test_a_neighbour_matters_to_several_waiting_threads_only(calm):
    """With one thread the waiting is subtracted, and the ratio stands."""
    ratio = compare_trials(
        rate_trial(2.0), rate_trial(1.0, conditions={**BUSY, **calm})
    )
    assert ratio.verdict == "faster"


def test_a_wide_interval_asks_for_more_the_wider_it_is():
    def times(scale):
        signs = [1, -1, 0, 1, -1]
        variant = rate_trial(lambda s, r, b: math.exp(scale * signs[s // 2]))
        ratio = compare_trials(rate_trial(1.0), variant)
        return int(re.search(r"(\d+) times", ratio.reason)[1])

    assert times(0.04) < times(0.08)


def test_no_verdict_without_an_interval():
    ratio = compare_trials(run_trial([1.0]), run_trial([0.1]), "run_seconds")
    assert ratio.value == pytest.approx(0.1)
    assert math.isnan(ratio.low)
    assert math.isnan(ratio.high)


# Comparisons


def make_comparison(ratio=None, *, labels=("num_workers=0", "num_workers=2"), of=None):
    trials = [rate_trial(2.0, knobs={"num_workers": 0})]
    trials += [
        rate_trial(1 / n, knobs={"num_workers": 2 * n})
        for n, _ in enumerate(labels[1:], 1)
    ]
    made = Comparison(trials, list(labels), **({"of": of} if of else {}))
    if ratio is not None:
        # Figures that no trial by hand would give exactly.
        object.__setattr__(made, "ratios", {labels[1]: ratio})
    return made


def test_ratios_are_by_label_without_the_baseline():
    made = make_comparison(labels=("n=0", "n=2", "n=4"))
    assert list(made.ratios) == ["n=2", "n=4"]
    assert made.baseline is made.trials[0]
    assert made.ratios["n=4"].value == pytest.approx(4)


def test_ratio_of_two():
    made = make_comparison()
    assert made.ratio is made.ratios["num_workers=2"]
    assert made.ratio == compare_trials(*made.trials)


def test_ratio_of_several_raises_and_names_them():
    with pytest.raises(ValueError, match="ratios") as caught:
        _ = make_comparison(labels=("n=0", "n=2", "n=4")).ratio
    assert "n=2" in str(caught.value)
    assert "n=4" in str(caught.value)


def test_sentence_of_the_contract():
    made = make_comparison(Ratio(2.04, 1.98, 2.11, "faster"))
    assert made.sentence() == "num_workers=2 is 2.04 × as fast as 0 [1.98, 2.11]"


def test_slower_is_said_with_the_same_words():
    made = make_comparison(Ratio(0.5, 0.481, 0.522, "slower"))
    assert made.sentence() == "num_workers=2 is 0.5 × as fast as 0 [0.481, 0.522]"


def test_sentence_names_a_baseline_of_another_kind_in_full():
    made = make_comparison(Ratio(2.04, 1.98, 2.11, "faster"), labels=("plain", "fused"))
    assert made.sentence() == "fused is 2.04 × as fast as plain [1.98, 2.11]"


def test_sentence_of_two_knobs_names_both_in_full():
    labels = ("a=1, b=2", "a=1, b=3")
    made = make_comparison(Ratio(2.04, 1.98, 2.11, "faster"), labels=labels)
    assert made.sentence() == "a=1, b=3 is 2.04 × as fast as a=1, b=2 [1.98, 2.11]"


def test_the_same_is_not_called_faster():
    text = make_comparison(Ratio(1.004, 0.996, 1.012, "same")).sentence()
    assert "as fast as 0" in text
    assert "[0.996, 1.01]" in text
    assert "faster" not in text
    assert "1 × as fast" not in text


def test_a_sentence_without_a_verdict_says_cannot_tell_and_why():
    reason = "the interval is wide; measure longer"
    made = make_comparison(Ratio(1.1, 0.9, 1.3, "cannot tell", reason))
    text = made.sentence()
    assert text.lower().startswith("cannot tell")
    assert reason in text
    assert "is 1.1 ×" not in text


def test_a_sentence_without_any_figure_shows_no_nan():
    reason = "memory is zero; choose another quantity"
    made = make_comparison(Ratio(math.nan, math.nan, math.nan, "cannot tell", reason))
    assert "nan" not in made.sentence().lower().replace("cannot", "")
    assert reason in made.sentence()


@pytest.mark.parametrize(
    ("of", "word"),
    [
        ("run_seconds", "time"),
        ("setup_seconds", "set-up"),
        ("peak_memory_bytes", "memory"),
    ],
)
def test_sentences_of_other_quantities(of, word):
    make = {
        "run_seconds": lambda x: run_trial([x * s for s in (1, 1.1, 0.9)]),
        "setup_seconds": lambda x: start_trial(setup_seconds=[9.0, x, x, x]),
        "peak_memory_bytes": lambda x: start_trial(memory=[int(x * 2**20)] * 4),
    }[of]
    made = Comparison([make(1.0), make(0.5)], ["n=1", "n=2"], of)
    assert re.fullmatch(rf"n=2 .*0\.5 ×.*{word}.* 1 \[0\.5, 0\.5\]", made.sentence())
    assert "fast" not in made.sentence()


def test_sentence_of_a_metric_has_a_difference_not_a_factor():
    trials = [metric_trial([0.8, 0.8]), metric_trial([0.9, 0.9])]
    made = Comparison(trials, ["lr=0.1", "lr=0.2"], "accuracy", 0.01)
    assert "accuracy" in made.sentence()
    assert "+0.1" in made.sentence()
    assert "×" not in made.sentence()


def test_sentence_is_about_the_best_of_several_or_the_one_asked_for():
    made = make_comparison(labels=("n=0", "n=2", "n=4"))
    assert made.sentence().startswith("n=4 is 4 × as fast as 0")
    assert made.sentence("n=2").startswith("n=2 is 2 × as fast as 0")


def test_of_less_memory_the_least_is_the_best():
    trials = [start_trial(memory=[m] * 4) for m in (4096, 2048, 8192)]
    made = Comparison(trials, ["n=0", "n=2", "n=4"], "peak_memory_bytes")
    assert made.sentence().startswith("n=2")


def test_text_begins_with_the_sentence():
    made = make_comparison()
    assert repr(made).splitlines()[0] == made.sentence()


def test_table_has_a_row_per_trial():
    made = make_comparison(labels=("n=0", "n=2"))
    table = made.table()
    assert list(table.index) == ["n=0", "n=2"]
    columns = {"items_per_second", "ratio", "low", "high", "verdict", "reason"}
    assert columns | {"num_workers"} <= set(table.columns)
    assert table["ratio"].tolist() == pytest.approx([1, 2])
    assert table["low"].tolist()[1:] == pytest.approx([2])
    assert table["items_per_second"].tolist() == pytest.approx([5, 10])
    assert table["num_workers"].tolist() == [0, 2]
    assert table["verdict"].tolist()[1:] == ["faster"]
    assert table["verdict"].iloc[0] not in ("faster", "slower", "same", "cannot tell")


def test_table_of_several_is_sorted_by_ratio_best_first():
    made = make_comparison(labels=("n=0", "n=2", "n=4"))
    table = made.table()
    assert list(table.index) == ["n=4", "n=2", "n=0"]
    assert table["ratio"].tolist() == pytest.approx([4, 2, 1])
    assert table["verdict"].tolist() == ["faster", "faster", "baseline"]
    assert [row[0] for row in made.rows()] == ["n=4", "n=2", "n=0"]
    less = [start_trial(memory=[m] * 4) for m in (4096, 8192, 2048)]
    made = Comparison(less, ["n=0", "n=2", "n=4"], "peak_memory_bytes")
    assert list(made.table().index) == ["n=4", "n=0", "n=2"]


def test_intervals_of_several_hold_together_and_say_how():
    trials = [rate_trial(noisy(seed, 0.05)) for seed in range(5)]
    labels = [f"n={n}" for n in range(5)]
    alone, together = Comparison(trials[:2], labels[:2]), Comparison(trials, labels)
    assert together.ratios["n=1"].value == pytest.approx(alone.ratio.value)
    assert together.ratios["n=1"].low < alone.ratio.low
    assert together.ratios["n=1"].high > alone.ratio.high
    assert any("hold together" in remark for remark in together.remarks())
    assert not any("hold together" in remark for remark in alone.remarks())


def test_table_names_the_compared_quantity():
    trials = [run_trial([1.0, 1.0]), run_trial([3.0, 3.0])]
    table = Comparison(trials, ["n=1", "n=2"], "run_seconds").table()
    assert table["run_seconds"].tolist() == pytest.approx([1, 3])
    assert table["verdict"].tolist()[1] == "more"


@pytest.mark.parametrize("knob", ["label", "verdict", "low"])
def test_a_knob_may_be_called_like_a_column(knob):
    """These names are not reserved."""
    trials = [rate_trial(x, knobs={knob: x}) for x in (2.0, 1.0)]
    table = Comparison(trials, [f"{knob}=2.0", f"{knob}=1.0"]).table()
    assert list(table.index) == [f"{knob}=2.0", f"{knob}=1.0"]
    assert table["ratio"].tolist() == pytest.approx([1, 2])


# Pictures and HTML


def title_of(axes):
    titles = [axes.get_title(loc=place) for place in ("left", "center", "right")]
    return " ".join(" ".join(titles).split())


def curves_of(axes):
    return [
        (list(map(float, line.get_xdata())), pytest.approx(line.get_ydata().tolist()))
        if len(line.get_xdata()) > 1
        else (list(map(float, line.get_xdata())), list(map(float, line.get_ydata())))
        for line in axes.lines
    ]


def cold_start(trial, seconds):
    """The trial after a first life of this block time, alone."""
    count = 10
    return dataclasses.replace(
        trial,
        block_seconds=[seconds] * count + trial.block_seconds,
        block_wall_seconds=[seconds] * count + trial.block_wall_seconds,
        block_device_seconds=[None] * count + trial.block_device_seconds,
        block_items=[10] * count + trial.block_items,
        block_steps=[5] * count + trial.block_steps,
        block_setups=[COLD] * count + trial.block_setups,
        block_rounds=[0] * count + trial.block_rounds,
    )


def uneven(seed):
    """Times of blocks that differ from life to life, and within one."""
    luck = random.Random(seed)
    pace = {setup: luck.uniform(0.8, 1.2) for setup in range(99)}
    return lambda setup, *_: pace[setup] * luck.uniform(0.9, 1.1)


@pytest.mark.parametrize("of", ["items_per_second", "run_seconds", "loss"])
def test_figures_of_a_table_never_contradict_each_other(of):
    if of == "items_per_second":
        trials = [cold_start(rate_trial(uneven(0)), 0.3), rate_trial(uneven(1))]
        trials.append(rate_trial(uneven(2), pairs=2))
    else:
        luck = random.Random(1)
        draws = [[luck.uniform(1, 4) for _ in range(6)] for _ in range(3)]
        trials = [run_trial(d, metrics={"loss": [0.5, *d[1:]] * 2}) for d in draws]
    labels = ["a", "b", "c"]
    within = 0.1 if of == "loss" else None
    made = Comparison(trials, labels, of, within)
    table = made.table()
    base = table.loc["a", of]
    assert made.quantity(made.baseline)[0] == base
    for label, trial in zip(labels[1:], trials[1:], strict=True):
        ratio, shown = made.ratios[label], made.quantity(trial)
        beside = [ratio.value, ratio.low, ratio.high]
        if of == "loss":
            assert shown == pytest.approx([base + x for x in beside])
            assert table.loc[label, "difference"] == ratio.value
        else:
            assert shown == pytest.approx([base * x for x in beside])
            assert table.loc[label, "ratio"] == ratio.value
        assert table.loc[label, of] == shown[0]


def test_the_baseline_is_as_fast_as_its_lives_without_the_first_look():
    trial = cold_start(rate_trial(2.0), 0.5)
    assert trial.items_per_second == pytest.approx(5)
    made = Comparison([trial, rate_trial(2.0)], ["a", "b"])
    assert made.table()["items_per_second"].tolist() == pytest.approx([5, 5])


def several(*ratios, of="items_per_second", within=None, knob="workers="):
    """A comparison of several, whose ratios are as given."""
    labels = [f"{knob}{2 * n}" for n in range(len(ratios) + 1)]
    trials = [rate_trial(1.0, metrics={"loss": [1.0] * 300}) for _ in labels]
    made = Comparison(trials, labels, of, within)
    found = dict(zip(labels[1:], ratios, strict=True))
    object.__setattr__(made, "ratios", found)
    return made


@pytest.mark.parametrize(
    ("ratios", "sentence"),
    [
        (
            [Ratio(1.78, 1.7, 1.86, "faster"), Ratio(1.83, 1.74, 1.92, "faster")],
            "workers=2 or 4 is about 1.8 × as fast as 0 [1.7, 1.92]",
        ),
        (
            [Ratio(1.2, 1.15, 1.25, "faster"), Ratio(1.83, 1.74, 1.92, "faster")],
            "workers=4 is 1.83 × as fast as 0 [1.74, 1.92]",
        ),
        (
            # The luckiest, of which nothing is known, hides no finding.
            [Ratio(1.5, 1.45, 1.55, "faster"), Ratio(9, 1e-17, 4e18, "cannot tell")],
            "workers=2 is 1.5 × as fast as 0 [1.45, 1.55]",
        ),
        (
            [Ratio(1.0, 0.99, 1.01, "same"), Ratio(0.999, 0.99, 1.01, "same")],
            "workers=2 or 4 is as fast as 0: about 1 × [0.99, 1.01]",
        ),
        (
            [Ratio(n, n * 0.97, n * 1.03, "faster") for n in (1.9, 1.91, 1.92, 1.2)],
            "workers=2, 4 or 6 is about 1.9 × as fast as 0 [1.84, 1.98]",
        ),
    ],
)
def test_what_cannot_be_told_apart_is_named_together(ratios, sentence):
    made = several(*ratios)
    assert made.sentence() == made.headline() == sentence
    assert made.sentence("workers=2").startswith("workers=2 is ")


def test_metrics_that_cannot_be_told_apart_are_named_together():
    close = [
        Ratio(x, x - 0.02, x + 0.02, "less", unit="loss") for x in (-0.51, -0.5, -0.3)
    ]
    made = several(*close, of="loss", within=0.01, knob="")
    said = "loss of 2 or 4 is below that of 0: about -0.51 [-0.53, -0.48]"
    assert made.sentence() == said


def test_a_metric_has_a_column_called_difference():
    made = Comparison(
        [
            run_trial([1.0] * 5, metrics={"loss": [0.3, 0.2] * 5}),
            run_trial([1.0] * 5, metrics={"loss": [0.3, 0.6] * 5}),
        ],
        ["plain", "other"],
        "loss",
        0.1,
    )
    assert "difference" in made.table().columns
    assert "ratio" not in made.table().columns
    assert "difference" in repr(made) and "ratio" not in repr(made)
    assert "+0.4" in repr(made)


def test_a_title_stands_above_the_finding_and_in_the_picture():
    made = several(Ratio(1.83, 1.74, 1.92, "faster"))
    asked = dataclasses.replace(made, title="Do workers help?")
    assert repr(asked).splitlines()[0] == "Do workers help?"
    assert repr(asked).splitlines()[1] == asked.sentence()
    pieces = Words(asked._repr_html_()).pieces
    assert pieces[:2] == ["Do workers help?", asked.sentence()]
    assert title_of(asked.plot()) == "Do workers help?"
    assert title_of(made.plot(title="Here they do")) == "Here they do"
    assert title_of(made.plot()) == made.headline()


def test_a_reason_is_below_the_headline_and_no_part_of_a_title():
    reason = "the interval holds both a gain and a loss; measure longer (seconds=…)"
    made = several(Ratio(1.2, 0.9, 1.6, "cannot tell", reason))
    assert reason not in made.headline() and reason in made.sentence()
    assert title_of(made.plot()).replace("\n", " ") == made.headline()
    page = made._repr_html_()
    headline, why = Words(page).pieces[:2]
    assert headline == made.headline() and reason in why
    assert "<details" not in page.partition(reason)[0], "what to do is not folded away"


def test_how_sure_and_why_is_folded_away():
    made = make_comparison(labels=("n=0", "n=2", "n=4"))
    shown, _, folded = made._repr_html_().partition("<details")
    assert "How sure, and why" in folded
    assert "Šidák" in folded and "Šidák" not in shown
    assert all(remark in " ".join(Words(folded).pieces) for remark in made.remarks())


def test_plot_is_one_finding_in_axes():
    made = make_comparison()
    axes = made.plot()
    assert isinstance(axes, Axes)
    assert title_of(axes) == made.sentence()
    assert axes.get_xlabel() or axes.get_ylabel()


def test_plot_of_several_has_the_best_as_its_title():
    made = make_comparison(labels=("n=0", "n=2", "n=4"))
    axes = made.plot()
    assert title_of(axes) == made.sentence()


def test_plot_over_a_knob_with_a_model_over_it():
    made = make_comparison(labels=("num_workers=0", "num_workers=2", "num_workers=4"))
    axes = made.plot(x="num_workers", model=lambda workers: 5 + 3 * workers)
    assert isinstance(axes, Axes)
    assert title_of(axes) == made.sentence()
    assert "num_workers" in axes.get_xlabel()
    assert "items per second" in axes.get_ylabel()
    curves = curves_of(axes)
    assert any(curve == ([0, 2, 4], [5, 10, 20]) for curve in curves)
    assert any(curve == ([0, 2, 4], [5, 11, 17]) for curve in curves)


def test_plot_draws_a_line_for_each_choice_of_the_other_knobs():
    grid = [("a", 1), ("a", 64), ("b", 1), ("b", 64)]
    trials = [rate_trial(1.0 + n, knobs={"way": w, "n": n}) for w, n in grid]
    made = Comparison(trials, [f"way={w}, n={n}" for w, n in grid])
    asked = []

    def model(n, way):
        asked.append((way, n))
        return {"a": 5, "b": 7}[way] * n

    axes = made.plot(x="n", model=model)
    assert sorted(asked) == grid
    assert axes.get_xscale() == "log"
    curves = {line.get_label(): line for line in axes.lines}
    heights = {name: list(line.get_ydata()) for name, line in curves.items()}
    assert heights["predicted, way='a'"] == [5, 320]
    assert heights["predicted, way='b'"] == [7, 448]
    for way in "ab":
        wanted = [t.items_per_second for t in trials if t.knobs["way"] == way]
        assert heights[f"way='{way}'"] == pytest.approx(wanted)


def test_plot_over_a_knob_without_a_model():
    made = make_comparison(labels=("num_workers=0", "num_workers=2", "num_workers=4"))
    curves = curves_of(made.plot(x="num_workers"))
    assert any(curve == ([0, 2, 4], [5, 10, 20]) for curve in curves)
    assert all(curve != ([0, 2, 4], [5, 11, 17]) for curve in curves)


@pytest.mark.parametrize("x", ["no_such_knob", "mode"])
def test_plot_over_something_without_numbers_raises_and_names_it(x):
    trials = [rate_trial(s, knobs={"mode": m}) for s, m in ((2.0, "a"), (1.0, "b"))]
    made = Comparison(trials, ["mode='a'", "mode='b'"])
    with pytest.raises(ValueError, match=x):
        made.plot(x=x)


@pytest.mark.parametrize(
    "how",
    [{"of": "run_seconds"}, {"of": "accuracy", "within": 0.01}],
    ids=lambda how: how["of"],
)
def test_plot_of_other_quantities(how):
    trials = [metric_trial([0.8, 0.81, 0.8]), metric_trial([0.9, 0.91, 0.9])]
    made = Comparison(trials, ["n=1", "n=2"], **how)
    axes = made.plot()
    assert isinstance(axes, Axes)
    assert title_of(axes) == made.sentence()


def test_plot_of_what_cannot_be_told():
    trials = [rate_trial(1.0, pairs=1), rate_trial(1.0, pairs=1, first=8)]
    made = Comparison(trials, ["n=1", "n=2"])
    assert title_of(made.plot()) == made.sentence()


class Words(HTMLParser):
    """The pieces of text of a page, in order."""

    def __init__(self, page):
        super().__init__()
        self.pieces = []
        self.tags = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)

    def handle_data(self, data):
        if data.strip():
            self.pieces.append(data.strip())


def test_html_begins_with_the_sentence():
    made = make_comparison()
    assert Words(made._repr_html_()).pieces[0] == made.sentence()


def test_html_is_escaped():
    labels = ("transform=<lambda>", "transform=<script>alert('&')</script>")
    made = make_comparison(labels=labels)
    page = made._repr_html_()
    assert "<script" not in page
    assert "<lambda>" not in page
    assert html.escape(made.sentence()) in page
    assert Words(page).pieces[0] == made.sentence()
    assert "script" not in Words(page).tags


def test_html_says_the_reason():
    made = make_comparison(Ratio(1.1, 0.9, 1.3, "cannot tell", "wide; measure longer"))
    assert "wide; measure longer" in " ".join(Words(made._repr_html_()).pieces)


def test_trials_are_not_changed_by_being_looked_at():
    trials = [
        rate_trial(noisy(7, 0.1), knobs={"n": 0}, notes=["a note"]),
        rate_trial(noisy(8, 0.1), knobs={"n": 2}, conditions=dict(BUSY)),
        rate_trial(noisy(9, 0.1), knobs={"n": 4}, metrics={"loss": [0.5] * 300}),
    ]
    before = copy.deepcopy(trials)
    made = Comparison(trials, ["n=0", "n=2", "n=4"])
    made.sentence(), made.table(), made.plot(), made.plot(x="n")
    repr(made), made._repr_html_()
    [repr(trial) + trial._repr_html_() for trial in trials]
    assert trials == before
