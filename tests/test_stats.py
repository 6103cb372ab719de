"""Statistics: known answers, verdicts at the borders, simulated measurements."""

import math
from itertools import chain

import numpy as np
import pytest
from scipy import stats as reference

from kit import stats

NAN, INFINITE = math.nan, math.inf
BELOW, ABOVE = 1 / 1.02, 1.02


def just_over(value):
    return math.nextafter(value, INFINITE)


def just_under(value):
    return math.nextafter(value, -INFINITE)


def wilson(hits, cases, z=1.96):
    """The 95 % interval of a share."""
    share = hits / cases
    middle = share + z * z / (2 * cases)
    half = z * math.sqrt(share * (1 - share) / cases + z * z / (4 * cases**2))
    return tuple((middle + s * half) / (1 + z * z / cases) for s in (-1, 1))


# Student's t


@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.99])
@pytest.mark.parametrize("count", [2, 3, 5, 40])
def test_student_is_scipys(count, confidence):
    values = np.random.default_rng(count).normal(3, 2, count)
    found = stats.student_interval(values.tolist(), confidence)
    expected = reference.t.interval(
        confidence, count - 1, values.mean(), reference.sem(values)
    )
    assert found.value == pytest.approx(values.mean())
    assert (found.low, found.high) == pytest.approx(expected)


def test_student_by_hand():
    # A table of t: 4.3027 for two degrees of freedom, 95 %.
    found = stats.student_interval([1.0, 2.0, 3.0])
    assert found.value == 2
    assert found.high - found.value == pytest.approx(4.3027 / math.sqrt(3), rel=1e-4)
    assert found.value - found.low == pytest.approx(found.high - found.value)


def test_student_takes_95_percent_by_default():
    values = [0.3, 1.8, 2.2, 4.1]
    assert stats.student_interval(values) == stats.student_interval(values, 0.95)


def test_one_value_has_no_interval():
    value, low, high = stats.student_interval([1.5])
    assert value == 1.5
    assert math.isnan(low)
    assert math.isnan(high)


def test_equal_values_have_an_interval_without_width():
    assert stats.student_interval([2.0] * 4) == (2, 2, 2)


# Rates


def test_rate_is_total_items_over_total_seconds():
    items, seconds = [10, 20, 30], [1.0, 1.0, 4.0]
    found = stats.rate_interval(items, seconds)
    assert found.value == pytest.approx(60 / 6)
    assert found.value != pytest.approx(np.mean([10, 20, 7.5]))


def test_rate_counts_a_rare_slow_block_in_full():
    found = stats.rate_interval([1] * 100, [0.01] * 99 + [1.01])
    assert found.value == pytest.approx(50)
    assert found.low < 50 < found.high


def test_rate_interval_is_a_jackknife_on_the_log_scale():
    items, seconds = [8.0, 9.0, 11.0, 12.0], [1.0, 1.3, 1.1, 0.9]
    count, whole = len(items), math.log(sum(items) / sum(seconds))
    pseudo = []
    for one in range(count):
        some = [n for i, n in enumerate(items) if i != one]
        time = [t for i, t in enumerate(seconds) if i != one]
        left_out = math.log(sum(some) / sum(time))
        pseudo.append(count * whole - (count - 1) * left_out)
    half = reference.t.ppf(0.975, count - 1) * reference.sem(pseudo)
    found = stats.rate_interval(items, seconds)
    assert found.value == pytest.approx(math.exp(whole))
    assert found.low == pytest.approx(math.exp(whole - half))
    assert found.high == pytest.approx(math.exp(whole + half))


def test_rate_interval_has_no_opinion_about_units():
    items, seconds = [8, 9, 11, 12, 7], [1.0, 1.3, 1.1, 0.9, 1.0]
    once = stats.rate_interval(items, seconds)
    milliseconds = stats.rate_interval(items, [1000 * s for s in seconds])
    assert milliseconds == pytest.approx([x / 1000 for x in once])


def test_rate_interval_is_positive_even_where_blocks_scatter_wildly():
    found = stats.rate_interval([1] * 4, [0.01, 5.0, 0.02, 9.0])
    assert 0 < found.low < found.value < found.high


def test_equal_blocks_have_a_rate_without_doubt():
    found = stats.rate_interval([5] * 40, [0.5] * 40)
    assert tuple(found) == pytest.approx((10, 10, 10))


def test_rate_of_one_block_has_no_interval():
    found = stats.rate_interval([10], [2.0])
    assert found.value == 5
    assert math.isnan(found.low)
    assert math.isnan(found.high)


@pytest.mark.parametrize("correlation", [0.0, 0.5])
def test_rate_interval_covers_the_truth(correlation):
    """Also where neighbouring blocks resemble each other."""
    random, cases, blocks = np.random.default_rng(1), 300, 160
    covered = 0
    for _ in range(cases):
        shocks = random.normal(0, 0.1, blocks)
        noise = np.zeros(blocks)
        for i in range(blocks):
            before = noise[i - 1] if i else 0.0
            noise[i] = correlation * before + shocks[i]
        found = stats.rate_interval([1] * blocks, (0.02 * (1 + noise)).tolist())
        covered += found.low <= 50 <= found.high
    assert wilson(covered, cases)[1] >= 0.93
    assert covered / cases >= 0.90


# Verdicts


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (1.0, 1.0, "same"),
        (BELOW, ABOVE, "same"),
        (BELOW, just_over(ABOVE), "cannot tell"),
        (just_under(BELOW), ABOVE, "cannot tell"),
        (ABOVE, 1.5, "cannot tell"),
        (just_over(ABOVE), 1.5, "faster"),
        (0.5, BELOW, "cannot tell"),
        (0.5, just_under(BELOW), "slower"),
        (0.5, 2.0, "cannot tell"),
        (1.001, 1.019, "same"),
        (1.001, 1.5, "cannot tell"),
        (2.0, INFINITE, "faster"),
        (0.0, 0.5, "slower"),
        (NAN, NAN, "cannot tell"),
        (1.0, NAN, "cannot tell"),
        (NAN, 1.0, "cannot tell"),
    ],
)
def test_verdict_on_a_ratio(low, high, verdict):
    assert stats.judge_ratio(low, high) == verdict


def test_verdict_is_the_same_seen_from_the_other_side():
    swap = {"faster": "slower", "slower": "faster"}
    edges = [0.5, 0.97, 0.99, 1.0, 1.005, 1.03, 2.0]
    for low, high in [(a, b) for a in edges for b in edges if a <= b]:
        verdict = stats.judge_ratio(low, high)
        other = stats.judge_ratio(1 / high, 1 / low)
        assert other == swap.get(verdict, verdict), (low, high)


def test_verdict_takes_the_words_of_other_quantities():
    words = {"above": "more", "below": "less"}
    assert stats.judge_ratio(1.5, 1.6, **words) == "more"
    assert stats.judge_ratio(0.5, 0.6, **words) == "less"
    assert stats.judge_ratio(1.0, 1.0, **words) == "same"


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (-0.01, 0.01, "same"),
        (-0.01, just_over(0.01), "cannot tell"),
        (just_under(-0.01), 0.01, "cannot tell"),
        (0.01, 0.5, "cannot tell"),
        (just_over(0.01), 0.5, "more"),
        (-0.5, -0.01, "cannot tell"),
        (-0.5, just_under(-0.01), "less"),
        (-1.0, 1.0, "cannot tell"),
        (NAN, NAN, "cannot tell"),
    ],
)
def test_verdict_on_a_difference(low, high, verdict):
    assert stats.judge_difference(low, high, within=0.01) == verdict


# Rare slow steps


def blocks_with_one_slow(count, share):
    """Blocks of 1 s, one of which brings the mean `share` above the median."""
    return [1.0] * (count - 1) + [1.0 + share * count]


@pytest.mark.parametrize(
    ("share", "flagged"), [(0.0, False), (0.019, False), (0.021, True), (0.5, True)]
)
def test_rare_slow_steps_are_flagged_from_two_percent(share, flagged):
    seconds = blocks_with_one_slow(50, share)
    assert stats.has_rare_slow_steps([4] * 50, seconds) is flagged


def test_rare_slow_steps_are_judged_per_item():
    # The long block is long because it did more.
    items, seconds = [1] * 30 + [20], [1.0] * 30 + [20.0]
    assert not stats.has_rare_slow_steps(items, seconds)


def test_steady_noise_is_no_rare_slow_step():
    random = np.random.default_rng(3)
    seconds = (1 + random.normal(0, 0.02, 100)).tolist()
    assert not stats.has_rare_slow_steps([1] * 100, seconds)


def test_rare_fast_blocks_are_not_called_slow():
    assert not stats.has_rare_slow_steps([1] * 20, [1.0] * 18 + [0.1] * 2)


# What groups have in common


def test_pseudo_median_by_hand():
    # Means of pairs: 1, 1.5, 2, 2, 2.5, 3 have the median 2.
    assert stats.pseudo_median([1, 2, 3]) == 2
    assert stats.pseudo_median([5.0]) == 5.0
    assert stats.pseudo_median([0.0, 1.0]) == 0.5
    assert stats.pseudo_median([1.0, 1.0, 1.0, 1.0, 1e9]) == 1.0


def test_pseudo_median_ignores_order_and_follows_shift_and_scale():
    values = np.random.default_rng(1).normal(0, 1, 9)
    found = stats.pseudo_median(values.tolist())
    assert stats.pseudo_median(values[::-1].tolist()) == pytest.approx(found)
    assert stats.pseudo_median((3 + 2 * values).tolist()) == pytest.approx(
        3 + 2 * found
    )


def test_pseudo_median_scatters_less_than_the_median():
    random = np.random.default_rng(2)
    samples = random.normal(0, 1, (400, 8))
    pseudo = [stats.pseudo_median(sample.tolist()) for sample in samples]
    assert np.var(pseudo) < 0.9 * np.var(np.median(samples, axis=1))


def grouped_interval(groups, confidence=0.95):
    """What a comparison does with its pairs of turns: each is one value."""
    values = [stats.pseudo_median(group) for group in groups]
    return stats.student_interval(values, confidence)


def test_grouped_interval_is_exact_without_noise():
    assert tuple(grouped_interval([[0.3] * 3] * 5)) == pytest.approx([0.3] * 3)


def test_grouped_interval_is_students_over_the_groups():
    groups = [[1.0, 1.0, 40.0], [2.0], [3.0, 3.0], [2.0, 2.0]]
    middles = [stats.pseudo_median(group) for group in groups]
    assert middles[1:] == [2, 3, 2]
    for confidence in (0.8, 0.95, 0.99):
        found = grouped_interval(groups, confidence)
        assert found == stats.student_interval(middles, confidence)


def test_differences_between_set_ups_are_part_of_the_interval():
    """Many values within a set-up must not hide that there are few set-ups."""
    middles = [-0.05, -0.02, 0.0, 0.03, 0.06]
    found = grouped_interval([[middle] * 100 for middle in middles])
    assert found.low <= -0.02
    assert found.high >= 0.03


def test_differences_within_one_set_up_are_part_of_the_interval():
    random = np.random.default_rng(0)
    found = grouped_interval([random.normal(0, 0.1, 6).tolist() for _ in range(5)])
    assert found.low < -0.01 < 0.01 < found.high


# Simulated measurements: what a machine does to two variants
#
# Each set-up has an effect of its own (where the memory lies, which core), on the log
# scale, and the first-created of two suffers; each round of blocks has noise; now and
# then something bursts in. Set-ups come in pairs of both orders, which are averaged.

CASES = 400
NOISE = {
    "quiet": {"setup": 0.01, "block": 0.02, "burst": 0.0},
    "uneven set-ups": {"setup": 0.03, "block": 0.03, "burst": 0.0},
    "bursts": {"setup": 0.02, "block": 0.02, "burst": 0.03},
}
FIRST_CREATED = 0.07


def simulate(random, truth, *, pairs, rounds, setup, block, burst):
    """Return log-ratios per pair of set-ups and round, both orders averaged."""
    shape = (pairs, 2, rounds)
    order = np.array([1, -1]).reshape(1, 2, 1) * FIRST_CREATED
    effects = random.normal(0, setup, (pairs, 2, 1))
    noise = random.normal(0, block, shape)
    hit = random.random(shape) < burst
    size = random.choice([-1, 1], shape) * random.exponential(0.5, shape)
    logs = truth + order + effects + noise + hit * size
    return logs.mean(axis=1).tolist()


def judge_many(seed, truth, *, pairs=5, rounds=3, cases=CASES, **noise):
    """Return the verdicts, and how often the interval held the truth."""
    random, verdicts, covered = np.random.default_rng(seed), [], 0
    for _ in range(cases):
        found = grouped_interval(
            simulate(random, truth, pairs=pairs, rounds=rounds, **noise)
        )
        verdicts.append(stats.judge_ratio(math.exp(found.low), math.exp(found.high)))
        covered += found.low <= truth <= found.high
    return verdicts, covered


@pytest.mark.parametrize("pairs", [5, 8])
@pytest.mark.parametrize("condition", NOISE)
def test_a_thing_is_not_called_faster_than_itself(condition, pairs):
    verdicts, covered = judge_many(11, 0.0, pairs=pairs, **NOISE[condition])
    alarms = sum(verdict in ("faster", "slower") for verdict in verdicts)
    assert alarms / CASES <= 0.05
    assert wilson(covered, CASES)[1] >= 0.93, covered
    assert covered / CASES >= 0.90


@pytest.mark.parametrize("condition", NOISE)
def test_a_true_difference_is_covered(condition):
    _, covered = judge_many(12, math.log(1.3), **NOISE[condition])
    assert wilson(covered, CASES)[1] >= 0.93, covered
    assert covered / CASES >= 0.90


def test_set_ups_that_differ_more_than_blocks_are_covered_too():
    """Five pairs are few: nearly all that is known comes from five numbers."""
    noise = {"setup": 0.03, "block": 0.01, "burst": 0.0}
    _, covered = judge_many(16, 0.0, cases=1500, **noise)
    assert wilson(covered, 1500)[1] >= 0.93, covered


@pytest.mark.parametrize(("truth", "verdict"), [(1.05, "faster"), (1 / 1.05, "slower")])
def test_five_percent_are_called_at_five_pairs_of_three_rounds(truth, verdict):
    verdicts, _ = judge_many(
        13, math.log(truth), cases=200, setup=0.01, block=0.01, burst=0.0
    )
    assert verdicts.count(verdict) / len(verdicts) >= 0.90
    wrong = {"faster": "slower", "slower": "faster"}[verdict]
    assert wrong not in verdicts


def test_the_same_is_called_the_same_where_it_is_quiet():
    verdicts, _ = judge_many(14, 0.0, cases=200, setup=0.005, block=0.005, burst=0.0)
    assert verdicts.count("same") / len(verdicts) >= 0.90


def test_pooling_rounds_without_their_set_ups_would_raise_false_alarms():
    """Why there are two levels: the simulation must be able to fail."""
    random, alarms = np.random.default_rng(15), 0
    for _ in range(200):
        groups = simulate(
            random, 0.0, pairs=5, rounds=12, setup=0.08, block=0.01, burst=0.0
        )
        pooled = [[value] for value in chain.from_iterable(groups)]
        found = grouped_interval(pooled)
        verdict = stats.judge_ratio(math.exp(found.low), math.exp(found.high))
        alarms += verdict in ("faster", "slower")
    assert alarms / 200 > 0.10
