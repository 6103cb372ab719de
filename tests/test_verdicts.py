"""Verdicts: value, interval, sentence, table and picture, or why there is none."""

import copy
import dataclasses
import html
import math
import re

import numpy as np
import pytest
from hypothesis import given, strategies as st
from trials import metric_trial, noisy, rate_trial, run_trial, start_trial

from kit.measuring.comparison import Comparison
from kit.measuring.ratio import Ratio, compare_trials

NAN = math.nan


def exactly(ratio):
    return (ratio.value, ratio.low, ratio.high)


def tells(text, *words):
    """Return whether a text has these words, in this order."""
    return re.search(".*".join(map(re.escape, words)), text, re.DOTALL)


BUSY = {"others_cores": 0.9, "cores_per_thread": 1.9, "waiting": 0.3}
THROTTLED = {"throttled": 0.3}


def first_suffers(parity):
    """In even rounds the baseline was started first, in odd ones the challenger."""
    return rate_trial(lambda round, *_: 1.07 if round % 2 == parity else 1.0)


def disturbed_trials(seconds=1.0, **changes):
    return rate_trial(2 * seconds), rate_trial(seconds, **changes)


def stumbling(rounds=range(10), **changes):
    """Trials of which the second has one slow block in ten, in these rounds."""
    hit = [(round, 4, 1) for round in rounds]
    slow = rate_trial(lambda *x: 1.0 + 5 * (x in hit), turns=5, **changes)
    return rate_trial(turns=5, **changes), slow


def with_first_runs(ratio, *first):
    """Trials of this ratio, with these ratios in the blocks of their first runs."""
    baseline = rate_trial(1.0, first=[1.0] * len(first))
    return baseline, rate_trial(1 / ratio, first=[1 / each for each in first])


#: Something slowed the machine on the way.
LONG = rate_trial(lambda round, *_: 1.0 if round < 10 else 2.0, pairs=10)
FIRST, FEW = ["its first, longer life", "may differ"], {"pairs": 4, "first": [1.0]}
SPEEDS = [
    (rate_trial(2.0), rate_trial(1.0), 2, "faster", []),
    (rate_trial(items=20), rate_trial(items=10), 0.5, "slower", []),
    (first_suffers(0), first_suffers(1), 1, "same", []),
    (LONG, rate_trial(1.0), 1, "same", []),
    (LONG, rate_trial(2.0, first_round=10), 1, "same", []),
    (rate_trial(items=20, **FEW), rate_trial(**FEW), 0.5, "slower", ["8 turns"]),
    (*stumbling(), 2 / 3, "slower", ["rare"]),
    (*stumbling(interleaved=False), 2 / 3, "slower", []),  # alone, only totals count
    # What is in the interval, or was subtracted, withholds nothing.
    (*disturbed_trials(conditions={"stolen": 0.9}), 2, "faster", []),
    (*disturbed_trials(conditions=BUSY | {"cores_per_thread": 1}), 2, "faster", []),
    (*disturbed_trials(conditions=BUSY | {"waiting": 0.01}), 2, "faster", []),
    (*disturbed_trials(conditions=THROTTLED), 2, "faster", []),
    # First runs tell another ratio, which may undo the verdict or not.
    (*with_first_runs(2.0, *[2.0] * 6), 2, "faster", []),
    (*with_first_runs(2.0, *[1.5] * 6), 2, "faster", FIRST),  # 2 / (2 / 1.5)^2 = 1.1
    (*with_first_runs(1.3, *[2.0] * 6), 1.3, "faster", FIRST),
]


@pytest.mark.parametrize(("baseline", "variant", "value", "verdict", "words"), SPEEDS)
def test_speeds_are_compared_turn_by_turn(baseline, variant, value, verdict, words):
    ratio = compare_trials(baseline, variant)
    assert exactly(ratio) == pytest.approx((value,) * 3)
    assert ratio.verdict == verdict
    assert tells(ratio.reason, *words) and bool(ratio.reason) == bool(words)


def test_slow_steps_that_were_seen_too_seldom_leave_it_open():
    ratio = compare_trials(*stumbling([0, 1]))
    assert ratio.value == pytest.approx(1) and ratio.verdict == "cannot tell"
    assert ratio.low < 0.8 and ratio.high > 1.1, "with them and without"


def judge(seconds, cold, **changes):
    pairs = zip(seconds, cold, strict=True)
    return compare_trials(*(rate_trial(s, first=c, **changes) for s, c in pairs))


@given(
    *(st.integers(0, 10**6), st.sampled_from([1, 2, 5, 8]), st.booleans()),
    *(st.sampled_from([0.001, 0.02, 0.3]), st.sampled_from([0, 0.1])),
)
def test_a_verdict_is_the_same_from_either_side(seed, pairs, beside, noise, slow):
    """And on a machine whose speed changes from turn to turn, in any unit of items."""
    luck = np.random.default_rng(seed)
    logs = luck.normal(0, noise, (2, 2 * pairs, 6)) + np.log([[[1]], [[1.2]]])
    logs += np.log(9) * (luck.random(logs.shape) < slow)
    pace = luck.uniform(0.5, 5, (2 * pairs, 1))
    seconds, cold = np.exp(logs), np.exp(luck.normal(0, 0.5, (2, 9 * (seed % 2))))
    there = judge(seconds, cold, interleaved=beside)
    back = judge(seconds[::-1], cold[::-1], interleaved=beside)
    drifting = judge(seconds * pace, cold, interleaved=beside, items=7)
    assert exactly(drifting) == pytest.approx(exactly(there), nan_ok=True)
    other = [1 / exactly(back)[n] for n in (0, 2, 1)]
    assert exactly(there) == pytest.approx(other, nan_ok=True)
    swap = {"faster": "slower", "slower": "faster"}
    assert drifting.verdict == there.verdict == swap.get(back.verdict, back.verdict)


RUNS = [1.0, 1.1, 0.9, 1.05, 1.02]
#: The cold start of the first variant loads libraries for both.
COLD_FIRST = [30.0, 1.0, 1.0, 1.0, 1.0, 1.0]
MEMORY = [2**20, 2**20, 2**20 + 4096, 2**20, 2**20 - 4096, 2**20]
LABELS = ["n=0", "n=2", "n=4"]
TWO = LABELS[:2]


def title_of(axes):
    return " ".join(axes.get_figure().get_suptitle().split())


def runs(*factors):
    return [run_trial([factor * x for x in RUNS]) for factor in factors]


def starts(*setup_seconds):
    return [start_trial(each) for each in setup_seconds]


def memories(*factors):
    return [start_trial(memory=[int(n * x) for x in MEMORY]) for n in factors]


def accuracies(shift):
    return [metric_trial([x + n for x in (0.8, 0.82, 0.79)]) for n in (0, shift)]


SETUP, BYTES, ACCURACY = "setup_seconds", "peak_memory_bytes", "accuracy"
OTHERS = [
    ("run_seconds", None, runs(1, 0.5), 0.5, "less", ["n=2", "0.5 ×", "time", "0"]),
    ("run_seconds", None, runs(1, 1), 1, "same", ["n=2", "1 ×", "time", "0"]),
    ("items_per_second", None, runs(1, 0.5), 2, "faster", ["n=2", "2 ×", "fast", "0"]),
    (SETUP, None, starts(COLD_FIRST, [3.0] * 6), 3, "more", ["n=2", "3 ×", "set-up"]),
    (BYTES, None, memories(1, 0.5), 0.5, "less", ["n=2", "0.5 ×", "memory", "0"]),
    (ACCURACY, 0.01, accuracies(-0.1), -0.1, "less", ["n=2", "below", "0", "-0.1 [-"]),
    (ACCURACY, 0.01, accuracies(0.003), 0.003, "same", ["n=2", "same", "0", "+0.003"]),
    (ACCURACY, 0.01, accuracies(-0.003), -0.003, "same", ["n=2", "same", "0", "-0.0"]),
    (ACCURACY, 0.001, accuracies(0.003), 0.003, "more", ["n=2", "above", "0"]),
]


@pytest.mark.parametrize(("of", "within", "trials", "value", "verdict", "said"), OTHERS)
def test_other_quantities_have_own_verdicts(of, within, trials, value, verdict, said):
    made = Comparison(trials, TWO, of, within)
    assert exactly(made.ratio) == pytest.approx((value,) * 3, rel=1e-3, abs=1e-9)
    assert made.ratio.verdict == verdict
    assert tells(made.sentence(), *said)
    assert title_of(made.plot()) == made.headline()


def scattered(*logs, **changes):
    """Trials with these log-ratios, one in each pair of turns."""
    return rate_trial(1.0), rate_trial(lambda t, *_: math.exp(-logs[t // 2]), **changes)


def wide(scale=0.05, **changes):
    return scattered(scale, -scale, 0, scale, -scale, **changes)


def metrics(*values):
    return metric_trial([0.8] * len(values)), metric_trial(values)


WHOLE, MEMORIES = {"of": "run_seconds"}, {"of": BYTES}
METRIC = {"of": ACCURACY, "within": 0.01}
ONE_THREAD = "set torch.set_num_threads(1)"
AGAIN, LATER = ["stopped", "run it again"], ["longer life", "measure much longer"]
CANNOT_TELL = {
    "one pair": ([run_trial([x]) for x in (1.0, 0.5)], WHOLE, ["one", "more"]),
    "one turn": ([rate_trial([[x] * 6]) for x in (2.0, 1.0)], {}, ["one", "more"]),
    "wide": (wide(), {}, ["interval", "about 10 times as long (seconds=…)"]),
    "hopeless": (wide(0.5), {}, ["interval", "quiet the machine"]),
    "one stumble": (stumbling([4]), {}, ["interval holds", "measure about"]),
    "near": (scattered(0.01, 0.015, 0.02, 0.025, 0.03), {}, ["2 %", "measure longer"]),
    "baseline stopped": (disturbed_trials(outcome="stopped")[::-1], {}, AGAIN),
    "variant stopped": (disturbed_trials(outcome="stopped"), {}, AGAIN),
    "runs": ([*runs(2), run_trial(RUNS, outcome="stopped")], WHOLE, AGAIN),
    "disturbed": (disturbed_trials(outcome="disturbed"), {}, ["other cells", "alone"]),
    "changing": (disturbed_trials(outcome="not settled"), {}, ["count", "settle", "longer"]),
    "first life": (with_first_runs(2.0, *[1.4] * 6), {}, ["its first", *LATER]),  # 0.98
    "slower": (with_first_runs(0.4, *[0.7] * 6), {}, ["its first", *LATER]),
    # A queue that starts full: in the end as slow as the other.
    "full": (with_first_runs(1.93, *[1.9] * 4, *[1.0] * 2), {}, ["end of its", *LATER]),
    "busy": (disturbed_trials(conditions=BUSY), {}, ["0.9 cores", ONE_THREAD]),
    "quota": (disturbed_trials(0.01, conditions=THROTTLED), {}, ["30%", "fewer threads"]),
    "wide, others": (wide(conditions={"others_cores": 0.9}), {}, ["0.9", "close them"]),
    "wide, guests": (wide(conditions={"stolen": 0.1}), {}, ["guests", "another time"]),
    "wide, quota": (wide(conditions=THROTTLED), {}, ["quota", "use fewer threads"]),
    "wilder": ([rate_trial([2, 1]), rate_trial([2e-40, 1e40])], {}, ["quiet"]),
    "no memory": (memories(1, 0), MEMORIES, ["zero", "compare experiments that add"]),
    "unknown": ([*starts([1.0] * 6), *memories(1)], MEMORIES, ["nothing", "again"]),
    "never together": ([rate_trial(2.0), rate_trial(1.0, first_round=20)], {}, ["more"]),
    "one run": (metrics(0.9), METRIC, ["accuracy", "two runs or more"]),
    "nan": (metrics(0.9, NAN, 0.9), METRIC, ["accuracy", "runs", "with values"]),
    "luck": (metrics(0.7, 0.8, 0.9), METRIC, ["0.01", "ask for more repeats"]),
}


@pytest.mark.parametrize("case", CANNOT_TELL)
def test_cannot_tell_says_why_and_what_to_do(case):
    trials, how, words = CANNOT_TELL[case]
    made = Comparison([*trials], TWO, **how)
    assert made.ratio.verdict == "cannot tell"
    assert tells(made.sentence(), "annot tell", "n=2", "0", *words), made.ratio.reason


def make_comparison(labels=LABELS):
    """5 items per second, then 10, 20 …"""
    knobs = [{"workers": 2 * n} for n in range(len(labels))]
    trials = [rate_trial(2.0 / 2**n, knobs=each) for n, each in enumerate(knobs)]
    return Comparison(trials, labels)


def several(labels, *ratios):
    """A comparison whose ratios are as given: figures that no trial gives exactly."""
    made = Comparison([rate_trial() for _ in labels], labels)
    object.__setattr__(made, "ratios", dict(zip(labels[1:], ratios, strict=True)))
    return made


def near(value, verdict="faster", share=0.04):
    return Ratio(value, value * (1 - share), value * (1 + share), verdict)


DOUBT = "the interval is wide; measure longer"
FASTER, SLOWER = Ratio(2.04, 1.98, 2.11, "faster"), Ratio(0.5, 0.481, 0.522, "slower")
LARGE, SAME = Ratio(1312.4, 1300, 1320, "faster"), Ratio(1.004, 0.996, 1.01, "same")
WIDE = Ratio(1.1, 0.9, 1.3, "cannot tell", DOUBT)
UNKNOWN = Ratio(NAN, NAN, NAN, "cannot tell", DOUBT)
UNSURE = Ratio(9, 1e-17, 4e18, "cannot tell")
SPEED, GRID, CLOSE = "as fast as", ["a=1, b=2", "a=1, b=3"], near(1.8, share=0.001)
FIVE = [f"n={n}" for n in (0, 2, 4, 6, 8)]
SENTENCES = [
    (TWO, [FASTER], ["n=2 ", "2.04 ×", SPEED, " 0 ", "[1.98, 2.11]"]),
    (TWO, [SLOWER], ["n=2 ", "0.5 ×", SPEED, " 0 ", "[0.481, 0.522]"]),
    (GRID, [FASTER], ["a=1, b=3", "2.04 ×", "a=1, b=2"]),
    (TWO, [LARGE], ["n=2 ", "1,312 ×", "[1,300, 1,320]"]),
    (TWO, [SAME], ["n=2 ", SPEED, " 0", "1 ×", "[0.996, 1.01]"]),
    (TWO, [WIDE], ["annot tell", "n=2 ", " 0", "1.1 ×", "[0.9, 1.3]", DOUBT]),
    (TWO, [UNKNOWN], ["annot tell", "n=2 ", " 0", DOUBT]),
    # What cannot be told apart is named together; the luckiest hides no finding.
    (LABELS, [CLOSE, near(1.83, share=0.001)], ["n=2 or 4 ", "about 1.8", "1.83]"]),
    (LABELS, [near(1.2), near(1.83)], ["n=4 ", "1.83 ×", " 0 ", "[1.76, 1.9]"]),
    (LABELS, [near(1.0, "same"), near(1.0, "same")], ["n=2 or 4 ", SPEED, "[0.96, "]),
    (FIVE, [near(x) for x in (1.9, 1.91, 1.92, 1.2)], ["n=2, 4 or 6 ", "about 1.9 ×"]),
    (LABELS, [near(1.5), UNSURE], ["n=2 ", "1.5 ×", " 0 "]),
]


@pytest.mark.parametrize(("labels", "ratios", "words"), SENTENCES)
def test_the_finding_is_a_sentence_that_swaps_nothing(labels, ratios, words):
    made = several(labels, *ratios)
    said = made.sentence()
    assert tells(said, *words) and "nan" not in said
    assert said == repr(made).splitlines()[0]
    assert labels[1] in made.sentence(labels[1])


def test_each_challenger_has_its_own_ratio_and_a_row_best_first():
    two, made = make_comparison(TWO), make_comparison()
    table = made.table()
    assert two.ratio == two.ratios["n=2"] == compare_trials(*two.trials)
    with pytest.raises(ValueError, match=r"ratios.*'n=2', 'n=4'"):
        _ = made.ratio
    assert tells(made.sentence(), "n=4", "4 ×", "0")
    assert tells(made.sentence("n=2"), "n=2", "2 ×", "0")
    assert [row[0] for row in made.rows()] == list(table.index) == ["n=4", "n=2", "n=0"]
    assert table["items_per_second"].tolist() == pytest.approx([20, 10, 5])
    assert table["workers"].tolist() == [4, 2, 0]
    assert table["verdict"].tolist() == ["faster", "faster", "baseline"]
    assert list(two.table().index) == TWO, "two as asked for"
    less = Comparison(memories(1, 2, 0.5), LABELS, BYTES)
    assert list(less.table().index) == ["n=4", "n=0", "n=2"]


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
