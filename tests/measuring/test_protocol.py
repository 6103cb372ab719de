"""How one experiment is timed, in exact numbers: a fake clock ticks where it says."""

import functools
import gc
import itertools
import math
import time

import numpy
import pytest
import torch
from helpers import JOURNAL, FakeClock
from hypothesis import given, strategies as st
from trials import make_trial, rate_trial

import kit
from kit.errors import ExperimentError

pytestmark = pytest.mark.usefixtures("tidy")

exactly = functools.partial(pytest.approx, abs=1e-7)
MILLISECONDS = st.integers(1, 60).map(lambda n: n / 1000)
#: How long a step takes, and how many items it says; none for a bare `yield`.
LOOPS = st.lists(st.tuples(MILLISECONDS, st.integers(0, 9)), min_size=1, max_size=12)
LOOPS = LOOPS.filter(lambda loop: any(items for _, items in loop))


def steps(clock, duration, *, head=0.0, tail=0.0, items=8, length=10**9):
    """An experiment: seconds of set-up, of each step, and after the last yield."""

    def train():
        clock.work(head)
        for number in range(length):
            yield items
            clock.work(duration(number) if callable(duration) else duration)
        clock.work(tail)

    return train


def excluded(run):
    return math.fsum(stretch.excluded_seconds for stretch in run.stretches)


# A rate


@given(first=LOOPS, loop=LOOPS, setup=MILLISECONDS)
def test_no_item_and_no_second_of_a_loop_is_lost_or_counted_twice(first, loop, setup):
    yielded, closed = [], []

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

    gc.freeze()  # the kit collects garbage before it reads memory
    with FakeClock() as clock:
        trial = kit.measure(train, seconds=0.5)
    for run, end in zip(trial.runs, closed, strict=True):
        assert run.setup_seconds == exactly(setup)
        begun = end - run.seconds - excluded(run)
        timed = [(s, n) for at, s, n in yielded if begun + 1e-5 < at < end + 1e-5]
        assert run.seconds == exactly(sum(s for s, n in timed if n))
        assert excluded(run) == exactly(sum(s for s, n in timed if not n))
        assert run.items == sum(n for _, n in timed)
        assert run.steps == sum(n > 0 for _, n in timed)
        assert run.seconds >= 0.1 - 1e-8, "its share of what was asked for"


@pytest.mark.parametrize("where", [{"head": 0.5}, {"tail": 0.5}, {}])
def test_work_before_the_first_and_after_the_last_yield_is_no_part_of_a_rate(
    clock, where
):
    """Each epoch is a generator that ends, and is started again."""
    epoch = steps(clock, 0.01, length=60, **where)
    trial = kit.measure(epoch, seconds=10.0)
    assert trial.items_per_second == pytest.approx(800, rel=1e-6)
    assert trial.step_seconds == exactly(0.01)


def test_an_epoch_is_started_again_without_its_set_up_and_warm_up(clock):
    starts = []

    def epoch():
        clock.work(0.5)
        starts.append(True)
        for number in range(1, 61):
            yield 1, {"number": number}
            clock.work(0.001)
            yield  # which no step is, either
            clock.work(0.005)

    trial = kit.measure(epoch, seconds=10.0)
    assert len(starts) > 5 * 3 and trial.setup_seconds == exactly([0.5] * 5)
    for run in trial.runs:
        counted = run.metrics["number"]
        assert counted[0] > 2, "warm-up was counted"
        # What ends set-up at a later start is no step.
        again = itertools.cycle(range(2, 61))
        expected = itertools.chain(range(int(counted[0]), 61), again)
        assert counted == [*itertools.islice(expected, run.steps)]
        assert run.seconds == exactly(0.005 * run.steps)


@pytest.mark.parametrize(
    ("duration", "expected"),
    [
        (lambda n: 0.01 if n else 1.0, 0.01),
        (lambda n: 0.01 + 0.3 * 0.3**n, 0.01),
        (lambda n: (0.02, 0.04)[n % 2], 0.03),
        (lambda n: 0.03 if n % 8 else 1e-6, 0.02625),
    ],
    ids=["compiles first", "faster for a while", "gushes", "batches were ready"],
)
def test_warm_up_is_no_part_of_the_speed(clock, duration, expected):
    begun = clock.now
    trial = kit.measure(steps(clock, duration), seconds=30.0)
    assert trial.step_seconds == pytest.approx(expected, rel=0.02)
    assert trial.outcome == "finished" and clock.now - begun < 1.5 * 30


def test_a_speed_that_never_settles_is_said_and_not_waited_for(clock):
    starts, begun = [], clock.now

    def growing():
        starts.append(clock.now)
        yield from steps(clock, lambda number: 0.02 * 1.2**number)()

    trial = kit.measure(growing, seconds=1.0)
    assert trial.outcome == "not settled" and "settle" in repr(trial)
    assert not any(run.settled for run in trial.runs)
    assert clock.now - begun < 5.0, "eight windows, then a share of the second"


def test_a_speed_has_the_range_of_its_runs_which_are_not_equally_fast(clock):
    paces = [0.0100, 0.0110, 0.0095, 0.0105, 0.0102]
    coming = iter(paces)
    trial = kit.measure(lambda: steps(clock, next(coming), items=1)(), seconds=2.0)
    assert trial.spread == pytest.approx((1 / 0.0110, 1 / 0.0095), rel=1e-6)
    mean = numpy.exp(-numpy.log(paces).mean())
    assert trial.items_per_second == pytest.approx(mean, rel=1e-6)
    assert "[90.91, 105.3]" in repr(trial)
    assert len(kit.measure(steps(clock, 0.01), repeats=3).runs) == 3


def test_a_cold_start_widens_no_range_unless_there_is_no_other():
    assert rate_trial([[1.0], [2.0]], first=[0.1]).spread == exactly((5, 10))
    assert rate_trial(pairs=0, first=[0.1]).spread == exactly((100, 100))
    assert all(map(math.isnan, make_trial([]).spread))
    assert make_trial([]).peak_memory_bytes is None and repr(make_trial([]))


@pytest.mark.parametrize("length", [0, 1])
def test_a_generator_that_makes_no_step_is_told_what_to_do(clock, length):
    with pytest.raises(ExperimentError, match="train") as caught:
        kit.measure(steps(clock, 0.005, length=length), seconds=1.0)
    assert length == 0 or all(
        words in str(caught.value) for words in ("while True:", "seconds=None")
    )


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
            yield (items, {"even": items}) if items in (2, 4, 6, 8) else items or None
        clock.work(tail)

    with FakeClock() as clock:
        trial = kit.measure(train, seconds=None, repeats=2)
    counted = [items for _, items in loop if items] + ([] if is_bare else [7])
    spent = sum(seconds for seconds, items in loop if items) + tail
    assert seeds == [0, 1] and trial.setup_seconds == exactly([head] * 2)
    for run in trial.runs:
        assert run.seconds == exactly(spent + (0 if is_bare else head))
        assert (run.items, run.steps) == (sum(counted), len(counted))
    column = [math.nan] * (not is_bare)
    column += [float(n) if n % 2 == 0 else math.nan for _, n in loop if n]
    expected = {} if all(map(math.isnan, column)) else {"even": column * 2}
    numpy.testing.assert_equal(trial.metrics, expected)


def test_a_fit_that_yields_once_at_its_end_is_a_complete_run(clock):
    def fit(*, epochs=3):
        clock.work(0.2)
        for _ in range(epochs):
            clock.work(0.3)
        yield 100, {"accuracy": 0.9 + epochs / 100}

    trial = kit.measure(fit, seconds=None)
    assert [run.seconds for run in trial.runs] == exactly([1.1] * 5)
    assert trial.items_per_second == pytest.approx(100 / 1.1)
    made = kit.compare(fit, of="run_seconds", seconds=None, epochs=[3, 7])
    assert (made.ratio.value, made.ratio.verdict) == (pytest.approx(2.3 / 1.1), "more")
    how = {"of": "accuracy", "seconds": None, "within": 0.1}
    assert kit.compare(fit, epochs=[3, 7], **how).ratio.verdict == "same"


# Metrics


def test_a_metric_is_what_it_was_at_its_step(clock):
    """A running mean is updated in place."""

    def train():
        loss, row = torch.zeros((), requires_grad=True), {}
        for number in range(1, 5):
            with torch.no_grad():
                loss += 1
            row |= {"loss": loss, "double": loss * 2, "number": number}
            yield 1, row

    metrics = kit.measure(train, seconds=None, repeats=1).metrics
    counted = [1, 2, 3, 4]
    assert metrics == {"loss": counted, "double": [2, 4, 6, 8], "number": counted}
    assert {type(value) for value in metrics["number"]} == {float}


def test_a_metric_of_numpys_that_is_updated_in_place_is_what_it_was(clock):
    def train():
        mean = numpy.zeros(())
        for _ in range(3):
            mean += 1
            yield 1, {"mean": mean}

    assert kit.measure(train, seconds=None, repeats=1).metrics == {"mean": [1, 2, 3]}


def test_a_metric_has_the_last_value_that_was_given(clock):
    """Also where it was last given some steps ago, and where it is not a number."""

    def train(*, better=1):
        for step in range(7):
            clock.work(0.01)
            yield (1, {"loss": 1 / better}) if step % 3 == 0 else 1

    trial = kit.measure(train, seconds=None, repeats=2)
    assert trial.last_values("loss") == [1.0, 1.0] and "loss: 1" in repr(trial)
    made = kit.compare(train, of="loss", better=[1, 2], seconds=None, within=0.1)
    assert (made.ratio.value, made.ratio.verdict) == (-0.5, "less")
    diverged = kit.measure(train, better=math.nan, seconds=None)
    assert math.isnan(diverged.last_values("loss")[-1])


class Token:
    """What a graph keeps alive."""

    alive = 0

    def __init__(self):
        Token.alive += 1

    def __del__(self):
        Token.alive -= 1


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.token = Token()
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


def test_a_thousand_losses_keep_no_graph_alive(clock):
    weight, most = torch.ones((), requires_grad=True), []

    def train():
        while True:
            clock.work(0.0001)
            loss = Double.apply(weight)
            most.append(Token.alive)
            yield 1, {"loss": loss}

    trial = kit.measure(train, seconds=0.1, repeats=1)
    assert trial.runs[0].steps >= 1000 and len(trial.runs[0].stretches) == 1
    assert trial.metrics["loss"] == [2.0] * trial.runs[0].steps
    assert max(most) <= 3


# Around it


def test_the_real_clock_counts_what_a_loop_waits_for():
    def sleepy():
        while True:
            time.sleep(0.022)
            yield 1

    assert 0.0219 <= kit.measure(sleepy, seconds=0.1, repeats=2).step_seconds < 1


def test_a_report_has_figures_knobs_and_memory(clock, device):
    def train(*, batch_size=8):
        device.allocate(2_000_000)
        try:
            while True:
                yield batch_size, {"loss": 0.25}
                clock.work(0.01)
        finally:
            device.allocate(-2_000_000)

    trial = kit.measure(train, seconds=0.3)
    for part in ("train", "batch_size=8", "800", "10.0 ms", "2 MB", "0.25"):
        assert part in repr(trial)
    assert trial.peak_memory_bytes == 2_000_000
    assert trial.machine == kit.this_machine() and JOURNAL[-1] is trial


def test_quick_mode_makes_two_steps_of_everything(quick):
    made = []

    def train(*, n=1):
        for _ in range(1000):
            made.append(n)
            yield 1, {"loss": 0.5}

    for seconds in (2.0, None):
        made.clear()
        trial = kit.measure(train, seconds=seconds)
        assert trial.outcome == "quick" and len(trial.runs) == 1
        assert 2 <= len(made) <= 3 and trial.runs[0].steps == 2
    metric = {"of": "loss", "seconds": None, "within": 1}
    for how in ({}, {"of": "peak_memory_bytes"}, metric):
        made.clear()
        both = kit.compare(train, n=[1, 2, 3], **how)
        assert set(made) == {1, 2, 3} and len(made) <= 9
        assert {trial.outcome for trial in both.trials} == {"quick"}
        assert {ratio.verdict for ratio in both.ratios.values()} == {"cannot tell"}
        assert "KIT_QUICK" in repr(both) and len(both.table()) == 3
