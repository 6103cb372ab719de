"""How steps are timed, in exact numbers: a fake clock ticks where a step says so."""

import functools
import gc
import itertools
import math
import re
import statistics
import threading
import time

import numpy
import pytest
import torch
from helpers import JOURNAL, FakeClock, LazyTensor
from hypothesis import given, strategies as st
from trials import make_run, make_trial, rate_trial

import kit
from kit import recording
from kit.errors import ExperimentError

pytestmark = pytest.mark.usefixtures("tidy")


exactly = functools.partial(pytest.approx, abs=1e-7)  # it rounds to a nanosecond
#: So expensive a set-up that `measure` makes two runs, the least that it makes.
EXPENSIVE = 30.0
MILLISECONDS = st.integers(1, 60).map(lambda n: n / 1000)
#: How long a step takes, and how many items it says; none for a bare `yield`.
LOOPS = st.lists(st.tuples(MILLISECONDS, st.integers(0, 9)), min_size=1, max_size=12)
LOOPS = LOOPS.filter(lambda loop: any(items for _, items in loop))


def steps(clock, duration, *, setup=0.0, items=8, length=10**9, diary=None):
    """The diary gets when it was set up, and when closed."""
    diary = [] if diary is None else diary

    def train():
        clock.work(setup)
        diary.append(clock.now)
        try:
            for number in range(length):
                yield items
                clock.work(duration(number) if callable(duration) else duration)
        finally:
            diary.append(clock.now)

    return train


def total(blocks, what="wall_seconds"):
    return math.fsum(getattr(block, what) for block in blocks)


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
        excluded = total(run.blocks, "excluded_seconds")
        begun = end - total(run.blocks) - excluded
        timed = [(s, n) for at, s, n in yielded if begun + 1e-5 < at < end + 1e-5]
        assert total(run.blocks) == exactly(sum(s for s, n in timed if n))
        assert excluded == exactly(sum(s for s, n in timed if not n))
        assert total(run.blocks, "items") == sum(n for _, n in timed)
        assert total(run.blocks, "steps") == sum(n > 0 for _, n in timed)
        assert min(block.seconds for block in run.blocks) >= 0.02 - 1e-8


@given(loop=LOOPS, setup=MILLISECONDS, checkpoint=MILLISECONDS)
def test_a_complete_run_counts_from_its_first_yield_to_its_end(loop, setup, checkpoint):
    seeds = []

    def train():
        seeds.append(torch.initial_seed())
        clock.work(setup)
        yield 1_000_000
        for seconds, items in loop:
            clock.work(seconds)
            yield (items, {"even": items}) if items in (2, 4, 6, 8) else items or None
        clock.work(checkpoint)  # what follows the last yield belongs to the run

    gc.freeze()  # the kit collects garbage before it reads memory
    with FakeClock() as clock:
        trial = kit.measure(train, seconds=None, repeats=2)
    counted = [items for _, items in loop if items]
    spent = sum(seconds for seconds, items in loop if items) + checkpoint
    assert seeds == [0, 1]
    assert trial.setup_seconds == exactly([setup] * 2)
    assert trial.block_seconds == exactly([spent] * 2)
    assert [block.items for block in trial.blocks] == [sum(counted)] * 2
    assert [block.steps for block in trial.blocks] == [len(counted)] * 2
    bare = 2 * sum(seconds for seconds, items in loop if not items)
    assert trial.excluded_seconds == exactly(bare)
    assert ("excluded" in repr(trial)) == (bare > 0), "the report says it"
    even = [float(n) if n % 2 == 0 else math.nan for n in counted]
    expected = {} if all(map(math.isnan, even)) else {"even": even * 2}
    numpy.testing.assert_equal(trial.metrics, expected)


@pytest.mark.parametrize(
    ("cold", "later", "count"),
    [
        (0.05, 0.05, 5),
        (5.0, 0.01, 5),  # that libraries are loaded says nothing about later starts
        (0.01, 0.4, 4),
        (0.9, 0.9, 2),
        (5.0, 5.0, 2),  # one run has no range
    ],
)
def test_a_loop_that_is_slow_to_start_is_started_fewer_times(clock, cold, later, count):
    starts = []

    def train():
        clock.work(later if starts else cold)
        starts.append(True)
        yield from steps(clock, 0.005)()

    trial = kit.measure(train, seconds=2.0)
    assert trial.setup_seconds == exactly([cold, *[later] * (count - 1)])
    assert [run.round for run in trial.runs] == list(range(count))
    each = [total(run.blocks) for run in trial.runs]
    assert each == pytest.approx([0.4, *[1.6 / (count - 1)] * (count - 1)], abs=0.03)
    assert f"range of {count} runs" in repr(trial)


def test_a_speed_has_the_range_of_its_runs_which_are_not_equally_fast(clock):
    paces = [0.0100, 0.0110, 0.0095, 0.0105, 0.0102]
    coming = iter(paces)
    trial = kit.measure(lambda: steps(clock, next(coming), items=1)(), seconds=2.0)
    assert trial.spread == pytest.approx((1 / 0.0110, 1 / 0.0095), rel=1e-6)
    mean = numpy.exp(-numpy.log(paces).mean())
    assert trial.items_per_second == pytest.approx(mean, rel=1e-6)
    assert trial.step_seconds == pytest.approx(1 / mean, rel=1e-6)
    for text in (repr(trial), trial._repr_html_()):
        assert "[90.91, 105.3], range of 5 runs" in text and "95 %" not in text


def test_a_first_run_widens_no_range_unless_there_is_no_other():
    assert rate_trial([[1.0], [2.0]], first=[0.1]).spread == exactly((5, 10))
    assert rate_trial(pairs=0, first=[0.1]).spread == exactly((100, 100))
    assert all(map(math.isnan, make_trial([]).spread))


@pytest.mark.parametrize("way", ["complete", "quick"])
def test_one_run_has_no_range_and_says_so(clock, monkeypatch, way):
    if way == "quick":
        monkeypatch.setenv("KIT_QUICK", "1")
    uneven = steps(clock, lambda n: 0.03 + 0.002 * (n % 3), length=30)
    trial = kit.measure(uneven, seconds=None if way == "complete" else 2.0)
    (run,) = trial.runs
    assert run.items / run.seconds == pytest.approx(trial.items_per_second)
    assert trial.spread == pytest.approx([trial.items_per_second] * 2)
    assert "one run" in repr(trial) and "range" not in repr(trial)
    assert "nan" not in repr(trial)


@pytest.mark.parametrize(
    ("duration", "expected"),
    [
        (lambda n: 0.01 if n else 1.0, 0.01),
        (lambda n: 0.01 + 0.3 * 0.5**n, 0.01),
        (lambda n: (0.02, 0.04)[n % 2], 0.03),
        (lambda n: 0.03 if n % 8 else 1e-6, 0.02625),
    ],
    ids=["compiles first", "faster for a while", "gushes", "batches were ready"],
)
def test_warm_up_is_no_part_of_the_speed(clock, duration, expected):
    begun = clock.now
    trial = kit.measure(steps(clock, duration, setup=EXPENSIVE), seconds=10.0)
    assert trial.step_seconds == pytest.approx(expected, rel=0.02)
    assert trial.outcome == "finished"
    assert clock.now - begun < 2 * EXPENSIVE + 1.5 * 10.0


@pytest.mark.parametrize(
    ("seconds", "limits"),
    [(0.2, [0.5] * 2), (3.0, [3.0, *[0.5] * 4]), (60.0, [10.0, *[0.5] * 4])],
)
def test_a_speed_that_never_settles_is_said_and_not_waited_for(clock, seconds, limits):
    diary = []
    growing = steps(clock, lambda number: 0.02 * 1.12**number, diary=diary)
    trial = kit.measure(growing, seconds=seconds)
    assert trial.outcome == "not settled" and "settle" in repr(trial)
    times = zip(diary[::2], diary[1::2], trial.runs, limits, strict=True)
    for begun, closed, run, limit in times:
        spent = closed - begun - total(run.blocks)
        assert limit <= spent <= 1.12 * limit + 0.03  # a step was under way


def test_an_epoch_is_started_again_without_its_set_up_and_warm_up(clock):
    starts, has_ended = [], False

    def epoch():
        nonlocal has_ended
        clock.work(0.3 if has_ended else EXPENSIVE)
        starts.append(True)
        has_ended = False
        for number in range(1, 61):
            yield 1, {"number": number}
            clock.work(0.001)
            yield  # which no step is, either
            clock.work(0.005)
        has_ended = True

    trial = kit.measure(epoch, seconds=10.0)
    assert trial.setup_seconds == exactly([EXPENSIVE] * 2)
    for run in trial.runs:
        counted = run.metrics["number"]
        first, again = int(counted[0]), counted.count(counted[0])
        assert first > 2 and again > 2, "warm-up was counted"
        assert counted == (list(range(first, 61)) * again)[: len(counted)]
        assert len(counted) == run.items == run.steps
    # The last step of each start ends with its next yield, which never comes.
    spent = 0.005 * len(trial.metrics["number"])
    assert spent <= sum(trial.block_seconds) + 1e-6 <= spent + 0.005 * len(starts)
    assert min(trial.block_seconds) >= 0.02 - 1e-9


@pytest.mark.parametrize("length", [1, 2, 5, 12])
def test_a_generator_too_short_for_a_rate_is_told_what_to_do(clock, length):
    with pytest.raises(ExperimentError, match="train") as caught:
        kit.measure(steps(clock, 0.005, length=length), seconds=1.0)
    assert "while True:" in str(caught.value) and "seconds=None" in str(caught.value)


def test_a_metric_is_what_it_was_at_its_step(clock):
    def train():
        loss, row = torch.zeros((), requires_grad=True), {}
        for number in range(5):
            row |= {"loss": loss, "double": loss * 2, "number": number}
            yield 1, row
            with torch.no_grad():
                loss += 1

    metrics = kit.measure(train, seconds=None).metrics
    counted = [1, 2, 3, 4]
    assert metrics == {"loss": counted, "double": [2, 4, 6, 8], "number": counted}
    assert {type(value) for value in metrics["number"]} == {float}


def test_a_metric_has_the_last_value_that_was_given(quick, tmp_path):
    """Also where it was last given some steps ago, and where it is not a number."""
    given, diverged = [0.5, None, 0.3, None], [0.5, math.nan]
    for column, wanted in ((given, 0.3), (diverged, math.nan)):
        run = make_run(seconds=[1.0], metrics={"loss": column})
        recording.save([make_trial([run])], tmp_path / "a.json")
        (read,) = kit.load(tmp_path / "a.json")
        assert read.last_values("loss") == pytest.approx([wanted], nan_ok=True)
        assert re.search(rf"loss +{wanted:.4g} +last value", repr(read))

    def train(*, better=1):
        for step in range(7):
            yield (1, {"loss": 1 / better}) if step % 3 == 0 else 1

    made = kit.compare(train, of="loss", better=[1, 2], seconds=None, within=0.1)
    assert (made.ratio.value, made.ratio.verdict) == (-0.5, "less")


class CarelessTensor(LazyTensor):
    def __float__(self):
        value = super().__float__()
        self.device.enqueue(0.007)  # reading it leaves work behind
        return value


def queued(clock, device, *, length=10**9, setup=0.0, metric=None):
    def train():
        clock.work(setup)
        for number in range(length):
            clock.work(0.0001)
            device.enqueue(0.005)
            yield (1, {"loss": metric(device, float(number))}) if metric else 1

    return train


@pytest.mark.parametrize("metric", [None, LazyTensor, CarelessTensor])
def test_a_device_is_waited_for_once_a_block_and_read_untimed(clock, device, metric):
    trial = kit.measure(
        queued(clock, device, setup=EXPENSIVE, metric=metric), seconds=0.5
    )
    count, blocks = trial.blocks[0].steps, len(trial.runs[-1].blocks)
    letters = {"begin": "(", "end": ")", "synchronize": "s", "read": "r"}
    signs = "".join(letters.get(event, "") for event in clock.events)
    # What reading metrics has queued is waited for before the next block.
    block = "s(s)" + "r" * count if metric else "(s)"
    assert blocks > 5 and signs.endswith(block * blocks)
    assert trial.block_seconds == exactly([0.0001 + 0.005 * count] * len(trial.blocks))
    for run in trial.runs:
        losses = run.metrics.get("loss", [])
        assert len(losses) == (count * len(run.blocks) if metric else 0)
        assert losses == [losses[0] + n for n in range(len(losses))]


def test_what_is_queued_before_a_start_or_in_it_is_in_no_block(clock, device):
    starts = []

    def epoch():
        starts.append(True)
        device.enqueue(0.3)
        try:
            yield from queued(clock, device, length=60)()
        except GeneratorExit:
            device.enqueue(5.0)  # when it is closed
            raise

    trial = kit.measure(epoch, seconds=3.0)
    assert len(starts) > len(trial.runs) > 1
    assert trial.setup_seconds == exactly([0.305] * len(trial.runs))
    assert trial.step_seconds == pytest.approx(0.005, rel=0.02)
    assert max(trial.block_seconds) < 0.04


def test_a_bare_yield_does_not_exclude_work_that_steps_have_queued(clock, device):
    def train():
        yield from queued(clock, device, length=11)()
        clock.work(0.001)  # the evaluation, on the host
        yield

    trial = kit.measure(train, seconds=None)
    assert trial.excluded_seconds == exactly(0.001)
    assert trial.block_seconds[0] == pytest.approx(0.05, abs=0.0015)


@pytest.mark.parametrize(
    ("delay", "own", "has_thread", "expected"),
    [
        (0.01, 0.0, False, 0.03),  # others held the core
        (0.01, 0.004, False, 0.034),  # its own workers used part of it
        (0.01, 0.03, False, 0.04),  # its own workers explain it all
        (0.01, 0.0, True, 0.04),  # nobody can tell
        (math.nan, 0.0, False, 0.04),
    ],
)
def test_time_lost_to_other_programs_is_not_charged_to_the_loop(
    clock, delay, own, has_thread, expected
):
    over = threading.Event()

    def train():
        if has_thread:
            threading.Thread(target=over.wait, daemon=True).start()
        while True:
            clock.work(0.04, delay=delay, own=own)
            yield 1

    trial = kit.measure(train, seconds=1.0)
    over.set()
    assert trial.setup_seconds == exactly([expected] * len(trial.runs))
    assert trial.block_seconds == exactly([expected] * len(trial.blocks))
    walls = [block.wall_seconds for block in trial.blocks]
    assert walls == exactly([0.04] * len(walls)), "both are kept"
    assert trial.items_per_second == exactly(1 / expected)


def test_the_real_clock_keeps_sleeps_in_and_its_blocks_leave_no_gap(monkeypatch):
    """A loader's workers would read ahead in a gap, and its batches seem free."""
    gaps, left = [], []

    class Watched(kit.clock.Clock):
        def begin(self):
            gaps.extend(time.perf_counter() - at for at in left)
            return super().begin()

        def end(self):
            ticks = super().end()
            left[:] = [time.perf_counter()]
            return ticks

    def sleepy():
        while True:
            time.sleep(0.022)
            yield 1

    monkeypatch.setattr(kit.clock, "CLOCK", Watched())
    trial = kit.measure(sleepy, seconds=0.5)
    assert trial.step_seconds >= 0.021
    assert all(b.wall_seconds >= b.seconds - 1e-6 for b in trial.blocks)
    lower_quartile = statistics.quantiles(gaps)[0]  # a busy machine adds to some
    assert len(gaps) > len(trial.blocks) and lower_quartile < 0.002


def test_the_time_that_reading_the_clock_takes_is_in_no_block(monkeypatch):
    now = itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: next(now) / 1e6)
    begun, ended = kit.clock.CLOCK.begin(), kit.clock.CLOCK.end()
    assert ended.wall - begun.wall == pytest.approx(1e-6)


def test_a_report_has_figures_and_knobs_and_no_markup_of_the_readers(clock):
    def train(*, name="<b>bold</b>", batch_size=8):
        """Train a <script> & friends."""
        while True:
            yield batch_size, {"loss": 0.25}
            clock.work(0.01)

    trial = kit.measure(train, seconds=0.3)
    for text in (repr(trial), page := trial._repr_html_()):
        for part in ("train", "batch_size=8", "800", "10.0 ms", "peak memory", "0.25"):
            assert part in text
    assert "&lt;b&gt;" in page and "<b>" not in page and "<script>" not in page
    assert trial.machine == kit.this_machine() and "def train(" in trial.source
    assert JOURNAL[-1] is trial and "slow" not in repr(trial)


def test_quantiles_are_those_of_twenty_single_steps_or_more_in_run_time(clock):
    def train():
        while True:
            for seconds in [0.03] * 37 + [0.04, 0.04, 0.09]:
                clock.work(seconds + 0.01, delay=0.01)
                yield 1

    trial = kit.measure(train, seconds=20.0)
    assert trial.step_quantiles == exactly({50: 0.03, 95: 0.04, 99: 0.09})
    assert "p50 · p95 · p99" in repr(trial) and "30.0 ms · 40.0 ms" in repr(trial)
    assert "rare slow steps" in repr(trial).lower()
    for step, seconds, known in ((0.03, 0.6, 1), (0.03, 0.5, 0), (0.005, 2.0, 0)):
        trial = kit.measure(steps(clock, step, setup=EXPENSIVE), seconds=seconds)
        assert (trial.step_quantiles is None) == ("p99" not in repr(trial)) != known
