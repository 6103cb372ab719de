"""False alarms, coverage and power of the statistics, on simulated machines.

Nothing is timed: block times are drawn from a model of a machine whose truth is known,
and judged as measured ones are. A bar holds unless the 95 % Wilson interval of the
share excludes it.
"""

import functools
import itertools
import math
from typing import NamedTuple

import numpy as np
import pytest
from trials import make_machine, metric_trial, rate_trial, run_trial, start_trial

from kit import stats
from kit.comparison import Comparison
from kit.ratio import compare_trials

ALARMS, COVERED = 0.05, 0.93
MACHINE = make_machine()
#: Speeds of the variant over the baseline: equal, and 20:21, 10:13, 1:2 units of work.
TRUTHS = {"1": 1.0, "20/21": 20 / 21, "10/13": 10 / 13, "1/2": 1 / 2}


class Noise(NamedTuple):
    """Log standard deviations of set-ups and of blocks, share of slow blocks, bursts.

    `burst` is by how much the strongest burst slows down what it hits.
    """

    setup: float
    block: float
    slow: float
    burst: float = 0.0


CONDITIONS = {
    # Of the blocks recorded on a quiet machine, under one in a hundred is slow.
    "quiet": Noise(setup=0.01, block=0.01, slow=0.002),
    "busy neighbour": Noise(setup=0.02, block=0.05, slow=0.01),
    "bursty": Noise(setup=0.03, block=0.02, slow=0.02, burst=0.3),
}
#: Quieter than the others: its intervals come near ±0.5 % within ten pairs.
STILL = Noise(setup=0.005, block=0.005, slow=0.02)


# The model


def draw_bursts(random, count, strength):
    """Log slowdowns of consecutive blocks of 20 ms: 0–300 ms on, 0–300 ms off."""
    ends = np.cumsum(random.uniform(0, 15, count + 20))
    burst = np.searchsorted(ends, np.arange(count))
    return (burst % 2) * np.log1p(random.uniform(0, strength, count + 20))[burst]


def draw_seconds(random, truth, noise, pairs=5, rounds=3):
    """Block seconds of (baseline, variant), shape (2, turns, rounds, 2)."""
    setups = 2 * pairs
    shape = (2, setups, rounds, 2)
    # What both share in order of time, four blocks a round: ABBA, or else BAAB.
    count = setups * rounds * 4
    shared = np.cumsum(random.normal(0, 0.003, count))
    shared += draw_bursts(random, count, noise.burst)
    turns = shared.reshape(setups, rounds, 4)
    outer, inner = turns[..., [0, 3]], turns[..., [1, 2]]
    swapped = random.random((setups, rounds, 1)) < 0.5
    logs = np.stack([np.where(swapped, *x) for x in ((inner, outer), (outer, inner))])
    # The baseline was created first in even set-ups, the variant in odd ones.
    first = np.arange(2)[:, None] == np.arange(setups) % 2
    effects = random.uniform(0, 0.03) * first
    effects = effects + random.normal(0, noise.setup, (2, setups))
    logs = logs + effects[:, :, None, None] + random.normal(0, noise.block, shape)
    slow = random.random(shape) < noise.slow
    logs = logs + slow * np.log(random.uniform(1.2, 3, shape))
    logs[1] -= math.log(truth)
    return 0.02 * np.exp(logs)


def make_trials(seconds, **changes):
    """Trials of block seconds, shape (variants, turns, rounds, 2)."""
    return [rate_trial(each, machine=MACHINE, **changes) for each in seconds]


class Case(NamedTuple):
    """A kind of comparison; `count` of them are drawn."""

    count: int
    truth: float
    noise: Noise
    pairs: int = 5
    rounds: int = 3


@functools.cache
def judge_many(case):
    """Judge comparisons of one kind; tests that ask for the same share them."""
    count, truth, noise, pairs, rounds = case
    random = np.random.default_rng([count, pairs, rounds, round(1000 * truth)])
    return [
        compare_trials(*make_trials(draw_seconds(random, truth, noise, pairs, rounds)))
        for _ in range(count)
    ]


# The bars


def wilson_interval(hits, count):
    """Return the 95 % interval of a share (Wilson 1927)."""
    z2 = 1.959964**2
    middle = (hits + z2 / 2) / (count + z2)
    half = math.sqrt(z2 * hits * (count - hits) / count + z2 * z2 / 4) / (count + z2)
    return middle - half, middle + half


def assert_at_least(bar, found):
    hits, count = sum(found), len(found)
    assert wilson_interval(hits, count)[1] >= bar, f"{hits} of {count}, bar {bar:.0%}"


def assert_at_most(bar, found):
    hits, count = sum(found), len(found)
    assert wilson_interval(hits, count)[0] <= bar, f"{hits} of {count}, bar {bar:.0%}"


def holds(ratios, truth):
    return [ratio.low <= truth <= ratio.high for ratio in ratios]


def says(ratios, *verdicts):
    return [ratio.verdict in verdicts for ratio in ratios]


@pytest.mark.parametrize(
    ("hits", "count", "expected"),
    [(0, 10, (0.0, 0.2775)), (93, 100, (0.8625, 0.9657)), (5, 5, (0.5655, 1.0))],
)
def test_wilson_interval(hits, count, expected):
    assert wilson_interval(hits, count) == pytest.approx(expected, abs=1e-4)


# Speeds: false alarms, coverage, power

KINDS = {"two alike": {"count": 600, "truth": 1.0}}
KINDS |= {t: {"count": 200, "truth": TRUTHS[t]} for t in TRUTHS if t != "1"}
KINDS |= {
    f"{pairs} pairs": {"count": 200, "truth": 1.0, "pairs": pairs}
    for pairs in (1, 2, 3, 4, 6, 8, 10)
}
KINDS |= {
    f"{rounds} rounds": {"count": 150, "truth": 1.0, "rounds": rounds}
    for rounds in (1, 2, 10, 30)
}


def covered(kind, condition):
    case = Case(noise=CONDITIONS[condition], **KINDS[kind])
    return holds(judge_many(case), case.truth)


@pytest.mark.parametrize("condition", CONDITIONS)
def test_two_alike_raise_few_alarms(condition):
    ratios = judge_many(Case(noise=CONDITIONS[condition], **KINDS["two alike"]))
    assert_at_most(ALARMS, says(ratios, "faster", "slower"))


@pytest.mark.parametrize("kind", KINDS)
def test_the_interval_holds_the_truth(kind):
    """In each condition, and pooled, which sees what is too small for one."""
    cells = [covered(kind, condition) for condition in CONDITIONS]
    for cell in [*cells, [*itertools.chain(*cells)]]:
        assert_at_least(COVERED, cell)


@pytest.mark.parametrize("condition", CONDITIONS)
def test_the_intervals_of_a_condition_hold_the_truth(condition):
    """Pooled over five pairs and more; with fewer they are wide."""
    many = [kind for kind in KINDS if KINDS[kind].get("pairs", 5) >= 5]
    found = itertools.chain.from_iterable(covered(kind, condition) for kind in many)
    assert_at_least(COVERED, list(found))


def test_five_pairs_that_differ_keep_coverage():
    """Where only set-ups differ, and what their blocks say of the error is nothing."""
    ratios = judge_many(Case(600, 1.0, Noise(setup=0.02, block=0.002, slow=0.0)))
    assert_at_least(COVERED, holds(ratios, 1.0))


def test_a_true_five_percent_is_called_where_it_is_quiet():
    """With what about 5 s buy."""
    ratios = judge_many(Case(300, 20 / 21, CONDITIONS["quiet"], pairs=8))
    assert_at_least(0.90, says(ratios, "slower"))


@pytest.mark.parametrize("condition", ["quiet", "busy neighbour"])
def test_a_true_twenty_percent_is_called(condition):
    """With what about 2 s buy."""
    ratios = judge_many(Case(300, 1.2, CONDITIONS[condition]))
    assert_at_least(0.95, says(ratios, "faster"))


def test_what_slows_both_alike_changes_nothing():
    """The machine's own speed may change from set-up to set-up and round to round."""
    random = np.random.default_rng(21)
    even = draw_seconds(random, 20 / 21, Noise(setup=0.01, block=0.01, slow=0.0))
    drift = random.normal(0, 0.1, (10, 1, 1)) + random.normal(0, 0.1, (10, 3, 1))
    found = [compare_trials(*make_trials(x)) for x in (even, even * np.exp(drift))]
    assert len({ratio.verdict for ratio in found}) == 1
    for bound in ("value", "low", "high"):
        steady, drifting = (getattr(ratio, bound) for ratio in found)
        assert drifting == pytest.approx(steady)


# Rare slow steps


def judge_rare(seed, sides, rounds, *, regular=True, count=150):
    """Let one block in 60 of these sides (0: baseline, 1: variant) take 100 × longer.

    Every 60th from a random one on, or each by chance.
    """
    random = np.random.default_rng(seed)
    ratios = []
    for _ in range(count):
        seconds = draw_seconds(random, 1.0, CONDITIONS["quiet"], rounds=rounds)
        for side in sides:
            blocks = seconds[side].reshape(-1)
            every = (np.arange(blocks.size) + random.integers(60)) % 60 == 0
            rare = every if regular else random.random(blocks.size) < 1 / 60
            blocks[rare] *= 100
        ratios.append(compare_trials(*make_trials(seconds)))
    return ratios


@pytest.mark.parametrize(
    ("rounds", "regular"), [(3, True), (6, True), (12, False)], ids=str
)
def test_rare_slow_steps_are_never_called_wrong(rounds, regular):
    """The truth is the ratio of mean times, 1 : 2.65."""
    ratios = judge_rare(31, [1], rounds, regular=regular)
    assert_at_least(0.95, says(ratios, "slower", "cannot tell"))


def test_rare_slow_steps_of_both_raise_few_alarms():
    ratios = judge_rare(32, [0, 1], 6, regular=False)
    assert_at_most(ALARMS, says(ratios, "faster", "slower"))


# Several challengers, and stopping


def test_intervals_of_four_challengers_hold_together():
    random, together = np.random.default_rng(41), []
    for case in range(300):
        noise = list(CONDITIONS.values())[case % 3]
        parts, challengers = [], []
        for number, truth in enumerate(TRUTHS.values()):
            seconds = draw_seconds(random, truth, noise)
            parts.append(seconds[0])
            challengers += make_trials(seconds[1:], first=10 * number)
        baseline = make_trials(np.concatenate(parts)[None])
        made = Comparison(baseline + challengers, ["base", *TRUTHS])
        together.append(
            all(
                holds([made.ratios[label]], truth)[0] for label, truth in TRUTHS.items()
            )
        )
    assert_at_least(0.95, together)


def test_more_confidence_gives_a_wider_interval():
    trials = make_trials(
        draw_seconds(np.random.default_rng(42), 1.0, CONDITIONS["quiet"])
    )
    levels = (0.8, 0.95, 0.99)
    made = [compare_trials(*trials, confidence=level) for level in levels]
    widths = [math.log(ratio.high / ratio.low) for ratio in made]
    assert widths == sorted(set(widths))


def stop_when_narrow(seconds):
    """Judge from the 5th pair on, until the interval is within ±0.5 % or 10 pairs."""
    for pairs in range(5, 11):
        ratio = compare_trials(*make_trials(seconds[:, : 2 * pairs]))
        if math.log(ratio.high / ratio.low) < math.log(1.01):
            break
    return ratio, pairs


def test_stopping_on_width_keeps_coverage():
    random = np.random.default_rng(43)
    seconds = [draw_seconds(random, 1.0, STILL, pairs=10) for _ in range(300)]
    ratios, pairs = zip(*map(stop_when_narrow, seconds), strict=True)
    assert 5 in pairs
    assert 10 in pairs
    assert_at_least(COVERED, holds(ratios, 1.0))


# Other quantities


@pytest.mark.parametrize("repeats", [3, 5, 10])
@pytest.mark.parametrize("shift", [0.0, 0.03])
def test_metric_differences(shift, repeats):
    """A seed is lucky or not for both; what is left scatters by itself."""
    random, found = np.random.default_rng([51, repeats]), []
    for _ in range(1000):
        luck = 0.8 + random.normal(0, 0.05, repeats)
        own = random.normal(0, 0.01, (2, repeats))
        trials = metric_trial(luck + own[0]), metric_trial(luck + own[1] + shift)
        found.append(compare_trials(*trials, "accuracy", within=0.005))
    assert_at_least(COVERED, holds(found, shift))
    if not shift:
        assert_at_most(ALARMS, says(found, "more", "less"))
    elif repeats == 10:
        # Without pairs, luck would hide it.
        assert_at_least(0.90, says(found, "more"))


def draw_whole(random, truth, repeats, noise):
    """Seconds of whole runs of both: shared luck, own noise, a few slow ones."""
    luck = random.normal(0, 0.2, repeats)
    logs = luck + random.normal(0, noise.setup, (2, repeats))
    slow = random.random((2, repeats)) < noise.slow
    logs = logs + slow * np.log(random.uniform(1.2, 3, (2, repeats)))
    logs[1] += math.log(truth)
    return np.exp(logs).tolist()


def compare_whole(of, a, b):
    """Judge whole runs, or starts, whose cold ones say nothing."""
    cold = [9.0, *a], [1.0, *b]
    if of == "setup_seconds":
        return compare_trials(*map(start_trial, cold), of)
    if of == "peak_memory_bytes":
        sizes = [[int(1e8 * value) for value in values] for values in cold]
        return compare_trials(*(start_trial(memory=x) for x in sizes), of)
    return compare_trials(run_trial(a), run_trial(b), of)


@pytest.mark.parametrize("truth", [1.0, 1.3])
@pytest.mark.parametrize(
    "of", ["run_seconds", "items_per_second", "setup_seconds", "peak_memory_bytes"]
)
def test_whole_runs_set_ups_and_memory(of, truth):
    random, found = np.random.default_rng([52, len(of)]), []
    for case in range(210):
        noise = list(CONDITIONS.values())[case % 3]
        repeats = (3, 5, 10)[case // 3 % 3]
        pair = draw_whole(random, truth, repeats, noise)
        found.append(compare_whole(of, *pair))
    expected = 1 / truth if of == "items_per_second" else truth
    assert_at_least(COVERED, holds(found, expected))
    if truth == 1.0:
        assert_at_most(ALARMS, says(found, "more", "less", "faster", "slower"))
    else:
        # Three repeats are often too few; without pairs, luck would hide it from all.
        verdict = "slower" if of == "items_per_second" else "more"
        assert_at_least(0.75, says(found, verdict))


@pytest.mark.parametrize("blocks", [100, 400])
def test_interval_of_one_rate_holds_it_where_neighbours_resemble_each_other(blocks):
    """With 100 blocks, what `measure` takes in 2 s, and more."""
    random, found = np.random.default_rng([53, blocks]), []
    long_run = [np.exp(draw_bursts(random, 1000, 0.3)).mean() for _ in range(1000)]
    truth = 10 / (0.02 * np.mean(long_run) * math.exp(0.02**2 / 2))
    for _ in range(2000):
        logs = draw_bursts(random, blocks, 0.3) + random.normal(0, 0.02, blocks)
        found.append(stats.rate_interval([10] * blocks, 0.02 * np.exp(logs)))
    assert_at_least(0.90, [f.low <= truth <= f.high for f in found])
