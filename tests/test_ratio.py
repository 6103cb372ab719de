"""Ratios and comparisons: values, verdicts, sentences, tables, from trials by hand."""

import copy
import dataclasses
import html
import math
import random
import re
from html.parser import HTMLParser

import pytest
from trials import (
    make_machine,
    make_trial,
    metric_trial,
    noisy,
    rate_trial,
    run_trial,
    start_trial,
)

from kit.comparison import Comparison
from kit.ratio import Ratio, compare_trials

__all__ = ["make_comparison", "make_machine", "make_trial", "rate_trial"]
NAN = math.nan
# A remedy is a clause that begins with what to do.
REMEDY = re.compile(
    r"\bneeds\b|(?:^|[;:,.(] |\b(?:and|or) )(?:measure|ask|run|close|set|quiet|look"
    r"|compare|wait|let|leave|give|add|use|choose|repeat|start|pass|say|try)\b"
)


def exactly(ratio):
    return (ratio.value, ratio.low, ratio.high)


# Speeds


def drift(turn, number, block):
    return 1 + 0.3 * turn + 0.05 * number


def slowed(turn, *_):
    return 1.0 if turn < 10 else 2.0  # something slowed the machine


def wild(turn, number, block):
    return 9.0 if (turn, number) == (3, 1) else 1.0


def late(turn, number, block):
    return 1.1 if (number, block) == (2, 1) else 1.0


def first_suffers(parity):
    """In even turns the baseline was created first, in odd ones the challenger."""
    return lambda turn, *_: 1.07 if turn % 2 == parity else 1.0


def both(seconds, by, **how):
    """A trial, and one that is so many times as fast in each block."""
    return [rate_trial(lambda *x, n=n: seconds(*x) / n, **how) for n in (1, by)]


def each_first(pairs):
    return [rate_trial(first_suffers(parity), pairs=pairs) for parity in (0, 1)]


#: Trials without noise: whose interval is a point.
SPEEDS = {
    "variant over baseline": (rate_trial(2.0), rate_trial(1.0), 2, "faster"),
    "and back": (rate_trial(1.0), rate_trial(2.0), 0.5, "slower"),
    "items, not blocks": (rate_trial(items=10), rate_trial(items=20), 2, "faster"),
    "drift that hits both": (*both(drift, 1.5), 1.5, "faster"),
    "led alone": (*both(drift, 2, beside=False), 2, "faster"),
    "what the first one suffers": (*each_first(5), 1, "same"),
    "over eight pairs, too": (*each_first(8), 1, "same"),
    "first challenger": (rate_trial(slowed, pairs=10), rate_trial(1.0), 1, "same"),
    "the next": (rate_trial(slowed, pairs=10), rate_trial(2.0, first=10), 1, "same"),
    "wild blocks in both": (*both(wild, 2, rounds=4), 2, "faster"),
    "rare slow steps below 2 %": (rate_trial(), rate_trial(late), 1, "same"),
}


@pytest.mark.parametrize("case", SPEEDS)
def test_speed(case):
    baseline, variant, value, verdict = SPEEDS[case]
    ratio = compare_trials(baseline, variant)
    assert exactly(ratio) == pytest.approx((value,) * 3)
    assert (ratio.verdict, ratio.reason) == (verdict, "")


def test_a_thing_is_the_same_as_itself():
    trial = rate_trial(noisy(0, 0.1))
    assert exactly(compare_trials(trial, trial)) == pytest.approx((1, 1, 1))


def test_two_pairs_cancel_the_order_too():
    ratio = compare_trials(*each_first(2))
    assert ratio.value == pytest.approx(1) and ratio.low < 1 < ratio.high


@pytest.mark.parametrize("beside", [True, False])
def test_rare_slow_steps_of_one_variant_decide_and_are_named(beside):
    def stumble(turn, number, block):
        return 6.0 if (number, block) == (4, 1) else 1.0  # one block in ten

    ratio = compare_trials(
        rate_trial(1.0, rounds=5, beside=beside),
        rate_trial(stumble, rounds=5, beside=beside),
    )
    assert ratio.value == pytest.approx(10 / 15)
    assert ratio.verdict == "slower"
    assert ("rare slow steps" in ratio.reason) == beside


@pytest.mark.parametrize("pairs", [1, 2, 4])
def test_few_pairs_have_a_wider_interval_not_none(pairs):
    few, many = [
        compare_trials(*(rate_trial(noisy(seed, 0.02), pairs=n) for seed in (1, 2)))
        for n in (pairs, 20)
    ]
    assert few.low < few.value < few.high
    assert few.high / few.low > many.high / many.low


def test_a_large_ratio_is_written_out():
    found = compare_trials(rate_trial(1.0), rate_trial(1 / 1312.4))
    assert str(found) == "1,312 × [1,312, 1,312]"


# Other quantities

RUNS = [1.0, 1.1, 0.9, 1.05, 1.02]
#: The cold start of the first variant loads libraries for both.
COLD_FIRST = [30.0, 1.0, 1.0, 1.0, 1.0, 1.0]
MEMORY = [2**20, 2**20, 2**20 + 4096, 2**20, 2**20 - 4096, 2**20]
ACCURACY = [0.80, 0.82, 0.81, 0.79]


def times(factor, values):
    return [type(value)(factor * value) for value in values]


def runs(*factors):
    return [run_trial(times(factor, RUNS)) for factor in factors]


def starts(*setup_seconds):
    return [start_trial(each) for each in setup_seconds]


def memories(*factors):
    return [start_trial(memory=times(factor, MEMORY)) for factor in factors]


def accuracies(shift):
    return metric_trial(ACCURACY), metric_trial([x + shift for x in ACCURACY])


OTHERS = [
    ("run_seconds", None, runs(1, 0.5), 0.5, "less"),
    ("run_seconds", None, runs(1, 2), 2, "more"),
    ("run_seconds", None, runs(1, 1), 1, "same"),
    ("items_per_second", None, runs(1, 0.5), 2, "faster"),
    ("setup_seconds", None, starts(COLD_FIRST, [3.0] * 6), 3, "more"),
    ("peak_memory_bytes", None, memories(1, 0.5), 0.5, "less"),
    ("peak_memory_bytes", None, memories(1, 1), 1, "same"),
    ("accuracy", 0.01, accuracies(0.1), 0.1, "more"),
    ("accuracy", 0.01, accuracies(-0.1), -0.1, "less"),
    ("accuracy", 0.01, accuracies(0.0), 0, "same"),
    ("accuracy", 0.001, accuracies(0.003), 0.003, "more"),
    ("accuracy", 0.01, accuracies(0.003), 0.003, "same"),
]


@pytest.mark.parametrize(("of", "within", "trials", "value", "verdict"), OTHERS)
def test_other_quantities(of, within, trials, value, verdict):
    ratio = compare_trials(*trials, of, within)
    assert exactly(ratio) == pytest.approx((value,) * 3, rel=1e-3, abs=1e-9)
    assert ratio.verdict == verdict


def test_runs_of_one_seed_belong_together():
    """A hard seed is hard for both: the interval is over pairs."""
    seconds = [1.0, 10.0, 3.0, 0.2, 5.0]
    close = [2 * s * x for s, x in zip(seconds, [1, 1.01, 0.99, 1, 1.02], strict=True)]
    ratio = compare_trials(run_trial(seconds), run_trial(close), "run_seconds")
    assert 1.9 < ratio.low < ratio.high < 2.1


def test_interval_of_runs_is_students_over_logarithms():
    runs = run_trial([1.0] * 3), run_trial([math.exp(x) for x in (1, 2, 3)])
    half = 4.30265 / math.sqrt(3)
    expected = [math.exp(x) for x in (2, 2 - half, 2 + half)]
    found = compare_trials(*runs, "run_seconds")
    assert exactly(found) == pytest.approx(expected, rel=1e-4)


# Cannot tell: with the reason, and with a remedy

BUSY = {"others_cores": 0.9, "cores_per_thread": 1.9, "waiting": 0.3, "cores": 2.0}
THROTTLED = {"throttled": 0.3}


def spoilt(seconds=1.0, **changes):
    return rate_trial(2 * seconds), rate_trial(seconds, **changes)


def busy_ranks():
    baseline, variant = spoilt(conditions=BUSY)
    variant.blocks[0].rank_seconds = [1.0, 0.9]
    return baseline, variant


def nearly():
    """A difference for sure, but it may be within 2 %."""
    factors = [1.01, 1.015, 1.02, 1.025, 1.03]
    return rate_trial(1.0), rate_trial(lambda s, r, b: 1 / factors[s // 2])


def metrics(*values):
    return metric_trial([0.8] * len(values)), metric_trial(values)


WHOLE, BYTES = {"of": "run_seconds"}, {"of": "peak_memory_bytes"}
METRIC = {"of": "accuracy", "within": 0.01}
STOPPED = run_trial(RUNS, outcome="stopped")
CANNOT_TELL = {
    "one pair": ([run_trial([x]) for x in (1.0, 0.5)], WHOLE, "one"),
    "one turn": ([rate_trial([[x] * 6]) for x in (2.0, 1.0)], {}, "one"),
    "wide": ([rate_trial(noisy(s, 0.5)) for s in (3, 4)], {}, "interval"),
    "nearly": (nearly(), {}, "2 %"),
    "baseline stopped": (spoilt(outcome="stopped")[::-1], {}, "stopped"),
    "variant stopped": (spoilt(outcome="stopped"), {}, "stopped"),
    "stopped runs": ([*runs(2), STOPPED], WHOLE, "stopped"),
    "disturbed": (spoilt(outcome="disturbed"), {}, "other cells"),
    "not settled": (spoilt(outcome="not settled"), {}, "settle"),
    "busy, threads": (spoilt(conditions=BUSY), {}, "set torch.set_num_threads(1)"),
    "busy, ranks": (busy_ranks(), {}, "several ranks were measured"),
    "quota, short blocks": (spoilt(0.01, conditions=THROTTLED), {}, "quota"),
    "zero memory": (memories(1, 0), BYTES, "zero"),
    "unknown memory": ([start_trial([1.0] * 6), *memories(1)], BYTES, "measured"),
    "never together": ([rate_trial(2.0), rate_trial(1.0, first=20)], {}, ""),
    "metric of one run": (metrics(0.9), METRIC, "accuracy"),
    "metric that is nan": (metrics(0.9, NAN, 0.9), METRIC, "accuracy"),
    "metric that scatters": (metrics(0.7, 0.8, 0.9), METRIC, "interval"),
}


@pytest.mark.parametrize("case", CANNOT_TELL)
def test_cannot_tell_says_why_and_what_to_do(case):
    trials, how, word = CANNOT_TELL[case]
    ratio = compare_trials(*trials, **how)
    assert ratio.verdict == "cannot tell"
    assert word in ratio.reason.lower()
    assert REMEDY.search(ratio.reason), f"no remedy in {ratio.reason!r}"


def test_remedies_are_recognised():
    assert REMEDY.search("the interval is wide; measure about 4 times as long")
    assert not REMEDY.search("zero in at least one run, so there is no ratio")
    assert not REMEDY.search("it was stopped before the end")


STANDS = [{"stolen": 0.9}, {**BUSY, "cores_per_thread": 1.0}, {**BUSY, "waiting": 0.01}]


@pytest.mark.parametrize("conditions", STANDS)
def test_what_is_in_the_interval_withholds_nothing(conditions):
    """With one thread the waiting is subtracted, and the ratio stands."""
    assert compare_trials(*spoilt(conditions=conditions)).verdict == "faster"


def test_a_wide_interval_asks_for_more_the_wider_it_is():
    def longer(scale):
        signs = [1, -1, 0, 1, -1]
        variant = rate_trial(lambda s, r, b: math.exp(scale * signs[s // 2]))
        ratio = compare_trials(rate_trial(1.0), variant)
        return int(re.search(r"(\d+) times", ratio.reason)[1])

    assert longer(0.04) < longer(0.08)


def test_no_verdict_without_an_interval():
    ratio = compare_trials(run_trial([1.0]), run_trial([0.1]), "run_seconds")
    assert ratio.value == pytest.approx(0.1)
    assert math.isnan(ratio.low) and math.isnan(ratio.high)


@pytest.mark.parametrize(
    ("ratio", "first", "verdict"),
    [
        (2.0, [2.0] * 6, "faster"),  # a first life like the others
        (2.0, [1.5] * 6, "faster"),  # 2 / (2 / 1.5)^2 = 1.1
        (2.0, [1.4] * 6, "cannot tell"),  # 2 / (2 / 1.4)^2 = 0.98
        (1.3, [1.05] * 6, "cannot tell"),
        (1.3, [2.0] * 6, "faster"),  # away from no difference at all
        (0.4, [0.5] * 6, "slower"),
        (0.4, [0.7] * 6, "cannot tell"),
        (0.8, [0.4] * 6, "slower"),
        (1.0, [1.4] * 6, "cannot tell"),
        # A queue that starts full: in the end as slow as the other.
        (1.93, [1.9] * 6 + [1.0] * 3, "cannot tell"),
        (1.93, [1.7] * 6 + [1.0] * 3, "cannot tell"),
    ],
)
def test_a_first_life_that_differs_withholds_what_it_may_undo(ratio, first, verdict):
    base = rate_trial(1.0, cold=[1.0] * len(first))
    found = compare_trials(base, rate_trial(1 / ratio, cold=[1 / x for x in first]))
    assert found.verdict == verdict, found
    assert found.value == pytest.approx(ratio)  # the figure stays
    if ratio == first[0] == first[-1]:
        assert found.reason == ""
        return
    part = "its first" if first[0] == first[-1] else "the end of its first"
    assert f"{part}, longer life as in later ones" in found.reason
    if verdict == "cannot tell":
        assert REMEDY.search(found.reason)
    else:
        assert "a long run may differ" in found.reason


# Comparisons


def make_comparison(ratio=None, *, labels=("num_workers=0", "num_workers=2"), of=None):
    trials = [rate_trial(2.0, knobs={"num_workers": 0})]
    trials += [
        rate_trial(1 / n, knobs={"num_workers": 2 * n}) for n in range(1, len(labels))
    ]
    made = Comparison(trials, list(labels), **({"of": of} if of else {}))
    if ratio is not None:
        # Figures that no trial by hand would give exactly.
        object.__setattr__(made, "ratios", {labels[1]: ratio})
    return made


THREE = ("n=0", "n=2", "n=4")
WORKERS = ("num_workers=0", "num_workers=2", "num_workers=4")


def test_ratios_are_by_label_without_the_baseline():
    two, made = make_comparison(), make_comparison(labels=THREE)
    assert two.ratio is two.ratios["num_workers=2"]
    assert two.ratio == compare_trials(*two.trials)
    assert list(made.ratios) == ["n=2", "n=4"]
    assert made.baseline is made.trials[0]
    with pytest.raises(ValueError, match=r"ratios.*'n=2', 'n=4'"):
        _ = made.ratio


DOUBT = "the interval is wide; measure longer"
FASTER, SLOWER = Ratio(2.04, 1.98, 2.11, "faster"), Ratio(0.5, 0.481, 0.522, "slower")
SAME, WIDE = (
    Ratio(1.004, 0.996, 1.01, "same"),
    Ratio(1.1, 0.9, 1.3, "cannot tell", DOUBT),
)
UNKNOWN = Ratio(NAN, NAN, NAN, "cannot tell", DOUBT)
CANNOT = "Cannot tell how n=2 compares with 0"
SENTENCES = [
    ("n=0", "n=2", FASTER, "n=2 is 2.04 × as fast as 0 [1.98, 2.11]"),
    ("n=0", "n=2", SLOWER, "n=2 is 0.5 × as fast as 0 [0.481, 0.522]"),
    ("old", "new", FASTER, "new is 2.04 × as fast as old [1.98, 2.11]"),
    (
        "a=1, b=2",
        "a=1, b=3",
        FASTER,
        "a=1, b=3 is 2.04 × as fast as a=1, b=2 [1.98, 2.11]",
    ),
    ("n=0", "n=2", SAME, "n=2 is as fast as 0: 1 × [0.996, 1.01]"),
    ("n=0", "n=2", WIDE, f"{CANNOT}: 1.1 × [0.9, 1.3] ({DOUBT})"),
    ("n=0", "n=2", UNKNOWN, f"{CANNOT}: {DOUBT}"),
]


@pytest.mark.parametrize(("base", "name", "ratio", "sentence"), SENTENCES)
def test_the_finding_is_a_sentence(base, name, ratio, sentence):
    made = make_comparison(ratio, labels=(base, name))
    assert made.sentence() == repr(made).splitlines()[0] == sentence


@pytest.mark.parametrize(
    ("of", "word", "trials"),
    [
        ("run_seconds", "the time", runs(1, 0.5)),
        ("setup_seconds", "the set-up time", [start_trial([x] * 4) for x in (2.0, 1)]),
        ("peak_memory_bytes", "the memory", memories(2, 1)),
    ],
)
def test_sentences_of_other_quantities(of, word, trials):
    said = Comparison(list(trials), ["n=1", "n=2"], of).sentence()
    assert re.fullmatch(rf"n=2 .*0\.5 × {word} of 1 \[0\.5, 0\.5\]", said)


def test_sentence_of_a_metric_has_a_difference_not_a_factor():
    trials = [metric_trial([0.8, 0.8]), metric_trial([0.9, 0.9])]
    made = Comparison(trials, ["lr=0.1", "lr=0.2"], "accuracy", 0.01)
    assert (
        made.sentence() == "accuracy of lr=0.2 is above that of 0.1: +0.1 [+0.1, +0.1]"
    )


def test_the_best_of_several_comes_first_or_the_one_asked_for():
    made = make_comparison(labels=THREE)
    assert made.sentence().startswith("n=4 is 4 × as fast as 0")
    assert made.sentence("n=2").startswith("n=2 is 2 × as fast as 0")
    less = Comparison(memories(1, 2, 0.5), list(THREE), "peak_memory_bytes")
    assert less.sentence().startswith("n=4")
    assert list(less.table().index) == ["n=4", "n=0", "n=2"]


def test_table_has_a_row_per_trial_best_first():
    made = make_comparison(labels=THREE)
    table = made.table()
    assert [row[0] for row in made.rows()] == list(table.index) == ["n=4", "n=2", "n=0"]
    assert table["ratio"].tolist() == pytest.approx([4, 2, 1])
    assert table["low"].tolist() == pytest.approx([4, 2, NAN], nan_ok=True)
    assert table["items_per_second"].tolist() == pytest.approx([20, 10, 5])
    assert table["num_workers"].tolist() == [4, 2, 0]
    assert table["verdict"].tolist() == ["faster", "faster", "baseline"]
    assert {"high", "reason"} <= set(table.columns)
    assert list(make_comparison().table()["num_workers"]) == [0, 2], "two as asked for"


@pytest.mark.parametrize("knob", ["label", "verdict", "low"])
def test_a_knob_may_be_called_like_a_column(knob):
    """These names are not reserved."""
    trials = [rate_trial(x, knobs={knob: x}) for x in (2.0, 1.0)]
    table = Comparison(trials, [f"{knob}=2.0", f"{knob}=1.0"]).table()
    assert list(table.index) == [f"{knob}=2.0", f"{knob}=1.0"]
    assert table["ratio"].tolist() == pytest.approx([1, 2])


def test_intervals_of_several_hold_together_and_say_how():
    trials = [rate_trial(noisy(seed, 0.05)) for seed in range(5)]
    labels = [f"n={n}" for n in range(5)]
    alone, together = Comparison(trials[:2], labels[:2]), Comparison(trials, labels)
    found = compare_trials(*trials[:2], confidence=0.95 ** (1 / 4))
    assert exactly(together.ratios["n=1"]) == pytest.approx(exactly(found))
    assert found.low < alone.ratio.low and found.high > alone.ratio.high
    assert any("hold together" in remark for remark in together.remarks())
    assert not any("hold together" in remark for remark in alone.remarks())


def uneven(seed):
    """Times of blocks that differ from life to life, and within one."""
    luck = random.Random(seed)
    pace = {turn: luck.uniform(0.8, 1.2) for turn in range(99)}
    return lambda turn, *_: pace[turn] * luck.uniform(0.9, 1.1)


@pytest.mark.parametrize("of", ["items_per_second", "run_seconds", "loss"])
def test_figures_of_a_table_never_contradict_each_other(of):
    """The baseline is what it measured, of others it is that times their ratio."""
    trials = [rate_trial(uneven(0), cold=[0.3] * 10), rate_trial(uneven(1))]
    trials.append(rate_trial(uneven(2), pairs=2))
    if of != "items_per_second":
        luck = random.Random(1)
        draws = [[luck.uniform(1, 4) for _ in range(6)] for _ in range(3)]
        trials = [run_trial(draw, {"loss": [0.5, *draw[1:]] * 2}) for draw in draws]
    made = Comparison(trials, ["a", "b", "c"], of, 0.1 if of == "loss" else None)
    table = made.table()
    base = table.loc["a", of]
    assert made.quantity(made.baseline)[0] == base
    for label, trial in zip("bc", trials[1:], strict=True):
        ratio, shown = made.ratios[label], made.quantity(trial)
        column = "difference" if of == "loss" else "ratio"
        is_beside = [base + x if of == "loss" else base * x for x in exactly(ratio)]
        assert shown == pytest.approx(is_beside)
        assert table.loc[label, column] == ratio.value
        assert table.loc[label, of] == shown[0]


def test_the_baseline_is_as_fast_as_its_lives_without_the_first_look():
    made = Comparison([rate_trial(2.0, cold=[0.5] * 9), rate_trial(2.0)], ["a", "b"])
    assert made.baseline.items_per_second == pytest.approx(5)
    assert made.table()["items_per_second"].tolist() == pytest.approx([5, 5])


def several(*ratios, of="items_per_second", within=None, knob="workers="):
    """A comparison of several, whose ratios are as given."""
    labels = [f"{knob}{2 * n}" for n in range(len(ratios) + 1)]
    make = rate_trial if of == "items_per_second" else lambda: metric_trial([1.0], of)
    made = Comparison([make() for _ in labels], labels, of, within)
    found = dict(zip(labels[1:], ratios, strict=True))
    object.__setattr__(made, "ratios", found)
    return made


def near(value, verdict="faster", share=0.04):
    return Ratio(value, value * (1 - share), value * (1 + share), verdict)


UNSURE = Ratio(9, 1e-17, 4e18, "cannot tell")
TOGETHER = [
    ([1.78, 1.83], "faster", "2 or 4 is about 1.8 × as fast as 0 [1.71, 1.9]"),
    ([1.2, 1.83], "faster", "4 is 1.83 × as fast as 0 [1.76, 1.9]"),
    ([1.0, 0.999], "same", "2 or 4 is as fast as 0: about 1 × [0.959, 1.04]"),
    (
        [1.9, 1.91, 1.92, 1.2],
        "faster",
        "2, 4 or 6 is about 1.9 × as fast as 0 [1.82, 2]",
    ),
]


@pytest.mark.parametrize(("values", "verdict", "sentence"), TOGETHER)
def test_what_cannot_be_told_apart_is_named_together(values, verdict, sentence):
    made = several(*(near(value, verdict) for value in values))
    assert made.sentence() == made.headline() == f"workers={sentence}"
    assert made.sentence("workers=2").startswith("workers=2 is ")


def test_the_luckiest_of_which_nothing_is_known_hides_no_finding():
    said = "workers=2 is 1.5 × as fast as 0 [1.44, 1.56]"
    assert several(near(1.5), UNSURE).sentence() == said


def test_metrics_that_cannot_be_told_apart_are_named_together():
    close = [
        Ratio(x, x - 0.02, x + 0.02, "less", unit="loss") for x in (-0.51, -0.5, -0.3)
    ]
    made = several(*close, of="loss", within=0.01, knob="")
    said = "loss of 2 or 4 is below that of 0: about -0.51 [-0.53, -0.48]"
    assert made.sentence() == said
    assert "difference" in made.table().columns and "ratio" not in made.table().columns
    assert "difference" in repr(made) and "ratio" not in repr(made)


# Pictures and HTML


class Words(HTMLParser):
    """The pieces of text of a page, in order."""

    def __init__(self, page):
        super().__init__()
        self.pieces, self.tags = [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)

    def handle_data(self, data):
        if data.strip():
            self.pieces.append(data.strip())


def title_of(axes):
    return " ".join(axes.get_figure().get_suptitle().split())


def curves_of(axes):
    return {
        line.get_label(): (
            list(line.get_xdata()),
            pytest.approx(list(line.get_ydata())),
        )
        for line in axes.lines
        if len(line.get_xdata()) > 1
    }


def test_a_title_stands_above_the_finding_and_in_the_picture():
    made = several(Ratio(1.83, 1.74, 1.92, "faster"))
    asked = dataclasses.replace(made, title="Do workers help?")
    assert repr(asked).splitlines()[:2] == ["Do workers help?", asked.sentence()]
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
    made = make_comparison(labels=THREE)
    shown, _, folded = made._repr_html_().partition("<details")
    assert "How sure, and why" in folded
    assert "Šidák" in folded and "Šidák" not in shown
    assert all(remark in " ".join(Words(folded).pieces) for remark in made.remarks())


def test_html_begins_with_the_sentence_and_is_escaped():
    labels = ("transform=<lambda>", "transform=<script>alert('&')</script>")
    made = make_comparison(labels=labels)
    page = made._repr_html_()
    assert "<script" not in page and "<lambda>" not in page
    assert html.escape(made.sentence()) in page
    assert Words(page).pieces[0] == made.sentence()
    assert "script" not in Words(page).tags


def test_plot_over_a_knob_with_a_model_over_it():
    made = make_comparison(labels=WORKERS)
    plain, modelled = (
        made.plot(x="num_workers"),
        made.plot(x="num_workers", model=lambda num_workers: 5 + 3 * num_workers),
    )
    for axes in (plain, modelled, made.plot()):
        assert title_of(axes) == made.sentence()
    assert "num_workers" in modelled.get_xlabel()
    assert "items per second" in modelled.get_ylabel()
    assert list(curves_of(plain).values()) == [([0, 2, 4], [5, 10, 20])]
    assert curves_of(modelled)["predicted"] == ([0, 2, 4], [5, 11, 17])


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
    heights = {name: y for name, (_, y) in curves_of(axes).items()}
    assert heights["predicted, way='a'"] == [5, 320]
    assert heights["predicted, way='b'"] == [7, 448]
    for way in "ab":
        wanted = [t.items_per_second for t in trials if t.knobs["way"] == way]
        assert heights[f"way='{way}'"] == wanted


@pytest.mark.parametrize("x", ["no_such_knob", "mode"])
def test_plot_over_something_without_numbers_raises_and_names_it(x):
    trials = [rate_trial(s, knobs={"mode": m}) for s, m in ((2.0, "a"), (1.0, "b"))]
    made = Comparison(trials, ["mode='a'", "mode='b'"])
    with pytest.raises(ValueError, match=x):
        made.plot(x=x)


def test_a_line_for_each_experiment_is_named_by_it_alone():
    trials = [
        rate_trial(experiment=name, knobs={"n": n, "keep": keep})
        for name, keep in (("plain", "list"), ("better", "sum"))
        for n in (1, 2, 4)
    ]
    labels = [f"{trial.experiment}, n={trial.knobs['n']}" for trial in trials]
    axes = Comparison(trials, labels).plot(x="n")
    names = [line.get_label() for line in axes.lines]
    assert [name for name in names if name[0] != "_"] == ["plain", "better"]


PLOTS = [
    (runs(1, 2), WHOLE),
    (accuracies(0.1), METRIC),
    ([rate_trial(pairs=1), rate_trial(pairs=1, first=8)], {}),
]


@pytest.mark.parametrize(("trials", "how"), PLOTS)
def test_plot_of_other_quantities_and_of_nothing_known(trials, how):
    made = Comparison(list(trials), ["n=1", "n=2"], **how)
    assert title_of(made.plot()) == made.sentence()


def test_trials_are_not_changed_by_being_looked_at():
    trials = [
        rate_trial(noisy(7, 0.1), knobs={"n": 0}, notes=["a note"]),
        rate_trial(noisy(8, 0.1), knobs={"n": 2}, conditions=dict(BUSY)),
        rate_trial(noisy(9, 0.1), knobs={"n": 4}),
    ]
    before = copy.deepcopy(trials)
    made = Comparison(trials, ["n=0", "n=2", "n=4"])
    made.sentence(), made.table(), made.plot(), made.plot(x="n")
    repr(made), made._repr_html_()
    [repr(trial) + trial._repr_html_() for trial in trials]
    assert trials == before
