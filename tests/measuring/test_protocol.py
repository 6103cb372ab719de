"""How one experiment is timed, in exact numbers: a fake clock ticks where it says."""

import functools
import gc
import itertools
import math
import time
import weakref

import numpy
import pytest
import torch
from helpers import FakeClock
from hypothesis import given, strategies as st

import kit

pytestmark = pytest.mark.usefixtures("tidy")

exactly = functools.partial(pytest.approx, abs=1e-7)
MILLISECONDS = st.integers(1, 60).map(lambda n: n / 1000)
#: How long a step takes, and how many items it says; none for a bare `yield`.
LOOPS = st.lists(st.tuples(MILLISECONDS, st.integers(0, 9)), min_size=1, max_size=12)
LOOPS = LOOPS.filter(lambda loop: any(items for _, items in loop))


def steps(clock, duration):
    """An experiment of steps of 8 items that take `duration(number)` seconds."""

    def train():
        for number in itertools.count():
            yield 8
            clock.work(duration(number))

    return train


# A rate


@given(first=LOOPS, loop=LOOPS, setup=MILLISECONDS)
def test_no_item_and_no_second_of_a_loop_is_lost_or_counted_twice(first, loop, setup):
    """Set-up, warm-up, close, and what precedes a bare yield belong to no step."""
    yielded = []
    closed = []

    def train():
        clock.work(setup)
        yield 1_000_000  # ends set-up, and counts for nothing
        try:
            for seconds, items in itertools.chain(first, itertools.cycle(loop)):
                clock.work(seconds)
                yielded.append((clock.now, seconds, items))
                yield items or None
        finally:
            closed.append(clock.now)
            clock.work(5.0)

    gc.freeze()  # the kit collects garbage before it reads memory
    with FakeClock() as clock:
        trial = kit.measure(train, seconds=0.5)
    for run, end in zip(trial.runs, closed, strict=True):
        assert run.setup_seconds == exactly(setup)
        excluded = math.fsum(stretch.excluded_seconds for stretch in run.stretches)
        begun = end - run.seconds - excluded
        timed = [(s, n) for at, s, n in yielded if begun + 1e-5 < at < end + 1e-5]
        assert run.seconds == exactly(sum(s for s, n in timed if n))
        assert excluded == exactly(sum(s for s, n in timed if not n))
        assert run.items == sum(n for _, n in timed)
        assert run.steps == sum(n > 0 for _, n in timed)
        assert run.seconds >= 0.1 - 1e-8, "its share of what was asked for"


def test_an_epoch_is_started_again_without_its_set_up_and_its_end(clock):
    def epoch():
        clock.work(0.5)
        for number in range(60):
            yield 1, {"number": number}
            clock.work(0.005)
        clock.work(0.5)

    trial = kit.measure(epoch, seconds=10.0)
    assert trial.setup_seconds == exactly([0.5] * 5)
    for run in trial.runs:
        counted = run.metrics["number"]
        assert counted[0] > 2, "warm-up was counted"
        # What ends set-up at a later start is no step.
        again = itertools.cycle(range(1, 60))
        expected = itertools.chain(range(int(counted[0]), 60), again)
        assert counted == [*itertools.islice(expected, run.steps)]
        assert run.seconds == exactly(0.005 * run.steps)


@pytest.mark.parametrize(
    ("duration", "expected"),
    [
        (lambda n: 0.01 if n else 1.0, 0.01),
        (lambda n: 0.01 + 0.3 * 0.3**n, 0.01),
        (lambda n: (0.02, 0.03, 0.04, 0.06)[n % 4], 0.0375),
    ],
    ids=["compiles first", "faster for a while", "batches come in gushes"],
)
def test_warm_up_is_no_part_of_the_speed(clock, duration, expected):
    begun = clock.now
    trial = kit.measure(steps(clock, duration), seconds=30.0)
    assert trial.step_seconds == pytest.approx(expected, rel=0.02)
    assert trial.outcome == "finished" and clock.now - begun < 1.5 * 30


def test_warm_up_goes_on_while_a_loop_still_gets_faster(clock):
    loop = steps(clock, lambda number: 0.01 + 0.3 * 0.3**number)
    trial = kit.measure(loop, seconds=3.0)
    assert trial.step_seconds == pytest.approx(0.01, rel=0.02)


def test_a_speed_that_never_settles_is_said_and_not_waited_for(clock):
    begun = clock.now
    trial = kit.measure(steps(clock, lambda number: 0.02 * 1.2**number), seconds=1.0)
    assert trial.outcome == "not settled" and trial.remarks()
    assert clock.now - begun < 5.0, "eight windows, then a share of the second"


def test_a_speed_has_the_range_of_its_runs_which_are_not_equally_fast(clock):
    paces = iter([0.0100, 0.0110, 0.0095])

    def train():
        pace = next(paces)
        yield from steps(clock, lambda _: pace)()

    trial = kit.measure(train, seconds=2.0, repeats=3)
    assert trial.spread == pytest.approx((8 / 0.0110, 8 / 0.0095), rel=1e-6)
    mean = (0.0100 * 0.0110 * 0.0095) ** (1 / 3)
    assert trial.step_seconds == pytest.approx(mean, rel=1e-6)
    assert "[727.3, 842.1]" in repr(trial)


def test_the_real_clock_counts_what_a_loop_waits_for():
    def sleepy():
        while True:
            time.sleep(0.022)
            yield 1

    assert kit.measure(sleepy, seconds=0.1, repeats=2).step_seconds >= 0.0219


# A complete run


@given(loop=LOOPS, head=MILLISECONDS, tail=MILLISECONDS, is_bare=st.booleans())
def test_a_complete_run_lasts_from_its_start_to_its_end(loop, head, tail, is_bare):
    """Less what precedes a bare yield; what the first yield ends is part of it."""
    seeds = []

    def train():
        seeds.append(torch.initial_seed())
        clock.work(head)
        yield None if is_bare else 7
        for seconds, items in loop:
            clock.work(seconds)
            yield items or None
        clock.work(tail)

    with FakeClock() as clock:
        trial = kit.measure(train, seconds=None, repeats=2)
    counted = [items for _, items in loop if items] + ([] if is_bare else [7])
    spent = sum(seconds for seconds, items in loop if items) + tail
    assert seeds == [0, 1] and trial.setup_seconds == exactly([head] * 2)
    for run in trial.runs:
        assert run.seconds == exactly(spent + (0 if is_bare else head))
        assert (run.items, run.steps) == (sum(counted), len(counted))


def test_a_fit_that_yields_once_at_its_end_is_a_complete_run(clock):
    def fit():
        clock.work(1.1)
        yield 100, {"accuracy": 0.9}

    trial = kit.measure(fit, seconds=None, repeats=2)
    assert [run.seconds for run in trial.runs] == exactly([1.1, 1.1])
    assert trial.last_values("accuracy") == [0.9, 0.9]


# Metrics


@pytest.mark.parametrize("make_zero", [torch.zeros, numpy.zeros])
def test_a_metric_is_what_it_was_at_its_step(clock, make_zero):
    """A running mean is updated in place, and a metric is not given in each step."""

    def train():
        mean = make_zero(())
        for number in range(4):
            mean += 1
            rare = {"rare": float(number)} if number % 3 == 0 else {}
            yield 1, {"mean": mean, **rare}

    trial = kit.measure(train, seconds=None, repeats=1)
    assert trial.metrics["mean"] == [1, 2, 3, 4]
    numpy.testing.assert_equal(trial.metrics["rare"], [0, math.nan, math.nan, 3])
    assert trial.last_values("rare") == [3.0]


class Loss:
    """A loss with its graph; without it, it is a plain number."""

    def detach(self):
        return torch.zeros(())

    def __float__(self):
        return 0.0


def test_a_thousand_losses_keep_no_graph_alive(clock):
    alive = weakref.WeakSet()
    counts = []

    def train():
        while True:
            clock.work(0.0001)
            loss = Loss()
            alive.add(loss)
            counts.append(len(alive))
            yield 1, {"loss": loss}

    trial = kit.measure(train, seconds=0.1, repeats=1)
    assert trial.runs[0].steps >= 1000 and len(trial.runs[0].stretches) == 1
    assert max(counts) <= 3


# Quick mode


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"of": "peak_memory_bytes"},
        {"of": "loss", "seconds": None, "within": 1},
    ],
)
def test_quick_mode_makes_two_steps_of_everything_and_no_verdict(quick, how):
    made = []

    def train(*, n=1):
        for _ in range(1000):
            made.append(n)
            yield 1, {"loss": 0.5}

    both = kit.compare(train, n=[1, 2, 3], **how)
    assert set(made) == {1, 2, 3} and len(made) <= 9
    assert {trial.outcome for trial in both.trials} == {"quick"}
    assert {ratio.verdict for ratio in both.ratios.values()} == {"cannot tell"}
    assert len(both.table()) == 3
