"""The protocol in exact numbers: a fake clock ticks only where a step says so."""

import dataclasses
import functools
import io
import itertools
import math
import os
import random
import re
import signal
import sys
import threading
import time

import numpy
import pytest
import torch
from helpers import (
    LazyTensor,
    change_everything,
    reader_state,
    stretches,
    wait_until,
)

import kit
from kit import progress
from kit.clock import Ticks
from kit.experiment import ExperimentError, resolve
from kit.progress import Progress
from kit.trial import JOURNAL
from kit.variant import Variant

pytestmark = pytest.mark.usefixtures("tidy")


def exactly(value):
    """Return a value to compare with; the clock rounds to a nanosecond."""
    return pytest.approx(value, abs=1e-7)


def steps(clock, *, of=0.005, items=8, setup=0.3):
    """An experiment whose every step takes as long."""

    def train(*, batch_size=items):
        clock.work(setup)
        while True:
            yield batch_size
            clock.work(of)

    return train


def finite(clock, *, length, of=0.005, bare=False):
    """An experiment that ends; its metric is the number of the step."""

    def epoch():
        clock.work(0.3)
        for number in range(1, length + 1):
            yield 1, {"number": number}
            if bare:
                clock.work(0.001)
                yield
            clock.work(of)

    return epoch


def steps_of(trial):
    """How many steps each block has."""
    return [block.steps for block in trial.blocks]


def walls_of(trial):
    """The wall time of each block."""
    return [block.wall_seconds for block in trial.blocks]


# Rates


def test_seconds_steps_and_items_are_exact(clock):
    trial = kit.measure(steps(clock), seconds=1.0)
    assert trial.block_items == [8 * n for n in steps_of(trial)]
    assert trial.block_seconds == exactly([0.005 * n for n in steps_of(trial)])
    assert walls_of(trial) == exactly(trial.block_seconds)
    assert trial.items_per_second == exactly(8 / 0.005)
    assert trial.step_seconds == exactly(0.005)
    assert trial.outcome == "complete"


@pytest.mark.parametrize("step", [0.00001, 0.0007, 0.005, 0.019, 0.02, 0.5])
def test_a_block_lasts_at_least_20_ms(clock, step):
    trial = kit.measure(steps(clock, of=step), seconds=0.5)
    assert min(trial.block_seconds) >= 0.02 - 1e-9
    assert max(trial.block_seconds) < max(0.04, 2 * step)


def test_timed_part_is_as_long_as_asked(clock):
    trial = kit.measure(steps(clock), seconds=1.5)
    assert 1.5 <= sum(trial.block_seconds) < 1.6


def once(clock, experiment, seconds=30.0):
    """The experiment with a set-up so dear that `measure` starts it only once."""

    def train():
        clock.work(seconds)
        yield from experiment()

    return train


@pytest.mark.parametrize("repeats", [1, 3])
def test_five_starts_share_the_seconds_and_repeats_do_nothing(clock, repeats):
    trial = kit.measure(steps(clock, setup=0.05), seconds=2.0, repeats=repeats)
    assert trial.setup_seconds == exactly([0.05] * 5)
    assert [life.turn for life in trial.lives] == [0, 1, 2, 3, 4]
    each = [sum(block.seconds for block in life.blocks) for life in trial.lives]
    assert each == pytest.approx([0.4] * 5, abs=0.03)
    assert "over 5 starts" in repr(trial)


@pytest.mark.parametrize(("setup", "lives"), [(0.4, 3), (0.9, 2), (5.0, 1)])
def test_dear_starts_are_as_many_as_the_seconds_would_pay(clock, setup, lives):
    trial = kit.measure(steps(clock, setup=setup), seconds=1.5)
    assert len(trial.setup_seconds) == lives
    assert sum(trial.block_seconds) == pytest.approx(1.5, abs=0.03 * lives)
    assert ("of this start" in repr(trial)) == (lives == 1)


def test_a_cold_start_does_not_make_the_others_dear(clock):
    starts = []

    def train():
        clock.work(0.01 if starts else 1.4)  # libraries are loaded
        starts.append(True)
        while True:
            yield 1
            clock.work(0.005)

    trial = kit.measure(train, seconds=2.0)
    assert trial.setup_seconds == exactly([1.4, *[0.01] * 4])
    assert "over 5 starts" in repr(trial)


def uneven(clock, luck):
    """Each start has a pace of its own, by about 5 %."""
    pace = 0.01 * math.exp(luck.gauss(0, 0.05))
    while True:
        yield 1
        clock.work(pace)


def test_the_interval_holds_what_other_starts_of_the_same_code_will_do(clock):
    """It is over starts, which differ, and not over blocks, which here do not."""
    held = 0
    for seed in range(100):
        luck = random.Random(seed)

        trial = kit.measure(functools.partial(uneven, clock, luck), seconds=2.0)
        low, high = trial.interval
        held += low < 100 < high
    assert held >= 90, "the mean over starts was in the interval too seldom"


def test_first_yield_ends_setup_and_its_items_do_not_count(clock):
    def train():
        clock.work(0.4)
        yield 1_000_000
        while True:
            clock.work(0.01)
            yield 1

    trial = kit.measure(train, seconds=0.5)
    assert trial.setup_seconds == exactly([0.4] * 2)
    assert trial.items_per_second == exactly(100)


def test_steps_that_were_ready_do_not_make_a_huge_block(clock):
    def load():
        while True:
            for number in range(8):
                yield 1
                clock.work(0.03 if number else 1e-6)

    begun = clock.now
    trial = kit.measure(load, seconds=2.0)
    assert clock.now - begun < 5.0  # five starts, each with a warm-up of 0.5 s at most
    assert max(trial.block_seconds) < 0.1


def test_warm_up_is_not_counted(clock):
    def train():
        for number in range(10**9):
            yield 1
            clock.work(0.01 + (1.0 if number == 0 else 0.3 * 0.5**number))

    trial = kit.measure(train, seconds=2.0)
    assert trial.items_per_second == pytest.approx(100, rel=0.02)
    assert trial.outcome == "complete"


def test_estimate_of_one_start_is_total_items_over_total_seconds(clock):
    def train():
        number = 0
        while True:
            number += 1
            yield 1 + number % 3
            clock.work(0.03 if number % 2 else 0.032)

    trial = kit.measure(once(clock, train), seconds=2.0)
    total = sum(trial.block_items) / sum(trial.block_seconds)
    assert trial.items_per_second == pytest.approx(total)
    low, high = trial.interval
    assert low < total < high


def test_rare_slow_steps_count_and_are_named(clock):
    def train():
        number = 0
        while True:
            number += 1
            yield 1
            clock.work(0.105 if number % 100 == 0 else 0.005)

    trial = kit.measure(train, seconds=30.0)
    assert trial.step_seconds == pytest.approx(0.006, rel=0.02)
    assert "rare slow steps" in repr(trial).lower()
    assert "rare slow steps" in trial._repr_html_().lower()


def test_equal_steps_are_not_called_rare_and_slow(clock):
    trial = kit.measure(steps(clock), seconds=1.0)
    assert "slow" not in repr(trial)


def test_warm_up_that_never_settles_says_so(clock):
    def train():
        for number in itertools.count():
            yield 1
            clock.work(0.02 * 1.12**number)

    trial = kit.measure(train, seconds=1.0)
    assert trial.outcome == "not settled"
    assert "settle" in repr(trial)
    assert trial.block_seconds


def test_steps_that_come_in_gushes_settle(clock):
    """As those of a loader do: none after the other takes as long, four and four do."""

    def load():
        while True:
            for duration in (0.02, 0.04):
                yield 1
                clock.work(duration)

    trial = kit.measure(once(clock, load), seconds=1.0)
    assert trial.outcome == "complete"
    assert trial.step_seconds == pytest.approx(0.03, rel=0.02)


# Generators that end


@pytest.mark.parametrize("bare", [False, True], ids=["plain", "with bare yields"])
def test_generator_that_ends_starts_again_and_drops_its_warm_up(clock, bare):
    epoch = finite(clock, length=60, bare=bare)

    def train():
        clock.work(0 if epochs else 30.0)  # so dear that there is one life
        epochs.append(True)
        yield from epoch()

    epochs = []
    trial = kit.measure(train, seconds=2.0)
    counted = [int(number) for number in trial.metrics["number"]]
    first = counted[0]
    lives = counted.count(first)
    assert first > 2, "the set-up's step and warm-up steps were counted"
    assert lives > 2
    assert counted == (list(range(first, 61)) * lives)[: len(counted)]
    assert len(counted) == sum(steps_of(trial)) == sum(trial.block_items)


def test_starting_again_takes_no_time_from_blocks(clock):
    starts, epoch = [], finite(clock, length=60)

    def train():
        starts.append(True)
        yield from epoch()

    trial = kit.measure(train, seconds=2.0)
    assert len(starts) > len(trial.lives) == len(trial.setup_seconds)
    assert trial.setup_seconds == exactly([0.3] * len(trial.lives))
    # The last step of each start ends with its next yield, which never comes.
    spent = 0.005 * sum(steps_of(trial))
    assert spent <= sum(trial.block_seconds) + 1e-7 <= spent + 0.005 * len(starts)
    assert min(trial.block_seconds) >= 0.02 - 1e-9


def test_starting_again_waits_for_the_device_as_the_first_start_does(clock, device):
    starts = []

    def epoch():
        starts.append(True)
        device.enqueue(0.3)
        for _ in range(60):
            yield 1
            clock.work(0.005)

    trial = kit.measure(epoch, seconds=1.0)
    assert len(starts) > len(trial.lives)
    assert trial.setup_seconds == exactly([0.3] * len(trial.lives))
    assert max(trial.block_seconds) < 0.04, "what a start has queued"


def test_steps_dropped_after_starting_again_leave_nothing_on_the_device(clock, device):
    def epoch():
        for _ in range(60):
            clock.work(0.0001)
            device.enqueue(0.005)
            yield 1

    trial = kit.measure(epoch, seconds=1.0)
    assert len(trial.setup_seconds) > 2
    assert trial.step_seconds == pytest.approx(0.005, rel=0.02)


@pytest.mark.parametrize("length", [1, 2, 5, 12])
def test_generator_too_short_for_a_rate_says_what_to_do(clock, length):
    with pytest.raises(ExperimentError, match="epoch") as caught:
        kit.measure(finite(clock, length=length), seconds=1.0)
    assert "while True:" in str(caught.value)
    assert "seconds=None" in str(caught.value)


# Bare yields


def test_time_before_a_bare_yield_is_excluded(clock):
    def train():
        while True:
            for _ in range(4):
                yield 1
                clock.work(0.01)
            yield 1
            clock.work(0.5)
            yield
            clock.work(0.01)

    trial = kit.measure(train, seconds=4.0)
    assert trial.step_seconds == exactly(0.01)
    assert trial.items_per_second == exactly(100)
    assert min(trial.block_seconds) >= 0.02 - 1e-9
    evaluations = trial.excluded_seconds / 0.5
    assert evaluations > 2
    assert evaluations == exactly(round(evaluations))
    assert "excluded" in repr(trial)


def test_bare_yield_in_a_whole_run_is_excluded_exactly(clock):
    def train():
        clock.work(0.2)
        yield 1
        for _ in range(10):
            clock.work(0.01)
            yield 1
            clock.work(0.07)
            yield
        clock.work(0.03)
        yield

    trial = kit.measure(train, seconds=None)
    assert trial.excluded_seconds == exactly(0.73)
    assert trial.block_seconds == exactly([0.1])
    assert walls_of(trial) == exactly([0.1])
    assert steps_of(trial) == [10]


@pytest.mark.parametrize("seconds", [1.0, None])
def test_endless_bare_yields_are_an_error(clock, seconds):
    def evaluate():
        yield 1
        while True:
            clock.work(0.001)
            yield

    with pytest.raises(ExperimentError, match=r"evaluate(.|\n)*bare"):
        kit.measure(evaluate, seconds=seconds)


# Runs to the end


def test_whole_runs_are_one_block_each_with_seeds_0_1_2(clock):
    seeds = []

    def train():
        clock.work(0.5)
        seeds.append(
            (
                torch.initial_seed(),
                torch.rand(1).item(),
                numpy.random.rand(),
                random.random(),
            )
        )
        yield 4
        for _ in range(5):
            clock.work(0.1)
            yield 4

    trial = kit.measure(train, seconds=None, repeats=3)
    assert [seed for seed, *_ in seeds] == [0, 1, 2]
    assert [len(set(column)) for column in zip(*seeds, strict=True)] == [3] * 4
    assert trial.block_seconds == exactly([0.5] * 3)
    assert steps_of(trial) == [5] * 3
    assert trial.block_items == [20] * 3
    assert trial.setup_seconds == exactly([0.5] * 3)


def test_time_to_a_target_is_a_generator_that_returns(clock):
    def to_target(*, rate=0.5, target=0.1):
        loss = 1.0
        yield 1
        while loss > target:
            loss *= rate
            clock.work(0.2)
            yield 1, {"loss": loss}

    trial = kit.measure(to_target, seconds=None)
    assert trial.block_seconds == exactly([0.8])
    assert trial.metrics["loss"] == [0.5, 0.25, 0.125, 0.0625]


def test_what_follows_the_last_yield_belongs_to_a_whole_run(clock):
    def train():
        yield 1
        clock.work(0.1)
        yield 1
        clock.work(0.4)  # the checkpoint

    assert kit.measure(train, seconds=None).block_seconds == exactly([0.5])


# Metrics


def test_metrics_are_one_float_per_counted_step_nan_where_missing(clock):
    def train():
        for number in range(7):
            clock.work(0.1)
            yield 1, {"loss": number, **({"accuracy": 0.5} if number == 3 else {})}
        yield 1

    metrics = kit.measure(train, seconds=None).metrics
    assert metrics["loss"][:-1] == [1, 2, 3, 4, 5, 6]
    assert math.isnan(metrics["loss"][-1])
    assert [math.isnan(x) for x in metrics["accuracy"]] == [True] * 2 + [False] + [
        True
    ] * 4
    assert all(type(x) is float for x in metrics["loss"])


def test_a_dict_of_metrics_may_be_used_again(clock):
    def train():
        row = {}
        for number in range(4):
            row["loss"] = number
            yield 1, row
            clock.work(0.01)

    assert kit.measure(train, seconds=None).metrics == {"loss": [1.0, 2.0, 3.0]}


def test_tensor_metrics_keep_the_value_they_had_at_the_yield(clock):
    def train():
        loss = torch.zeros((), requires_grad=True)
        for _ in range(5):
            yield 1, {"loss": loss, "double": loss * 2}
            with torch.no_grad():
                loss += 1
            clock.work(0.1)

    metrics = kit.measure(train, seconds=None).metrics
    assert metrics == {"loss": [1, 2, 3, 4], "double": [2, 4, 6, 8]}


def queued(clock, device, *, count=None):
    """Each step takes 0.1 ms of the host and queues 5 ms on the device."""

    def train():
        yield 1
        for number in range(count or 10**9):
            clock.work(0.0001)
            clock.events.append("step")
            device.enqueue(0.005)
            yield 1, {"loss": LazyTensor(device, float(number))}

    return train


@pytest.mark.parametrize("options", [{"seconds": 0.5}, {"seconds": None}])
def test_devices_are_waited_for_at_block_ends_only(clock, device, options):
    count = 40 if options["seconds"] is None else None
    trial = kit.measure(queued(clock, device, count=count), **options)
    timed = [stretch for stretch in stretches(clock.events) if "step" in stretch]
    assert len(timed) >= len(trial.block_seconds)
    for stretch in timed:
        assert set(stretch[:-1]) == {"step"}
        assert stretch[-1] == "synchronize"


def test_time_of_queued_work_counts(clock, device):
    trial = kit.measure(queued(clock, device), seconds=0.5)
    assert trial.step_seconds == pytest.approx(0.005, rel=0.01)
    whole = kit.measure(queued(clock, device, count=40), seconds=None)
    assert whole.block_seconds == exactly([0.0001 + 40 * 0.005])


def test_tensor_metrics_are_read_after_the_clock_has_stopped(clock, device):
    trial = kit.measure(once(clock, queued(clock, device)), seconds=0.5)
    assert clock.events.count("read") >= sum(steps_of(trial))
    assert not any("read" in stretch for stretch in stretches(clock.events))
    first = trial.metrics["loss"][0]
    counted = len(trial.metrics["loss"])
    assert trial.metrics["loss"] == [first + n for n in range(counted)]


def test_bare_yield_does_not_exclude_work_that_steps_have_queued(clock, device):
    def train():
        yield 1
        for _ in range(10):
            clock.work(0.0001)
            device.enqueue(0.005)
            yield 1
        clock.work(0.001)  # the evaluation, on the host
        yield

    trial = kit.measure(train, seconds=None)
    assert trial.excluded_seconds == exactly(0.001)
    assert trial.block_seconds[0] == pytest.approx(0.05, abs=0.0015)


# The queue: waited for as seldom as is right


def plainly_queued(clock, device):
    """Each step takes 0.1 ms of the host and queues 5 ms on the device; no metrics."""

    def train():
        while True:
            clock.work(0.0001)
            device.enqueue(0.005)
            yield 1

    return train


def signs(events):
    """Return readings of the clock and waits for the device, a letter for each."""
    letters = {"begin": "(", "end": ")", "synchronize": "s", "read": "r"}
    return "".join(letters.get(event, "") for event in events)


def test_consecutive_blocks_wait_once_each(clock, device):
    trial = kit.measure(once(clock, plainly_queued(clock, device)), seconds=0.5)
    blocks = len(trial.block_seconds)
    assert blocks > 10
    assert signs(clock.events).endswith("(s)" * blocks)


def test_after_reading_tensors_the_device_is_waited_for_off_the_clock(clock, device):
    trial = kit.measure(once(clock, queued(clock, device)), seconds=0.5)
    block = "s(s)" + "r" * steps_of(trial)[0]
    assert set(steps_of(trial)) == {steps_of(trial)[0]}
    assert signs(clock.events).endswith(block * len(trial.block_seconds))


class CarelessTensor(LazyTensor):
    """Reading it leaves work behind on the device."""

    def clone(self):
        return CarelessTensor(self.device, self.value)

    def __float__(self):
        value = super().__float__()
        self.device.enqueue(0.007)
        return value


def test_work_that_reading_a_metric_queues_is_in_no_block(clock, device):
    def train():
        while True:
            clock.work(0.0001)
            device.enqueue(0.005)
            yield 1, {"loss": CarelessTensor(device, 0.5)}

    trial = kit.measure(train, seconds=0.5)
    assert trial.block_seconds == exactly(
        [0.0001 + 0.005 * steps for steps in steps_of(trial)]
    )


@pytest.mark.parametrize("length", [10**9, 60], ids=["endless", "starts again"])
def test_no_variant_pays_for_the_queue_of_the_other(clock, device, length):
    def train(*, variant=1):
        left_behind = {"loss": CarelessTensor(device, 0.5)}
        for _ in range(length):
            clock.work(0.0001)
            device.enqueue(0.005 * variant)
            yield (1, left_behind) if variant == 3 else 1

    comparison = kit.compare(train, variant=[1, 3], seconds=2.0)
    for trial in comparison.trials:
        each = 0.005 * trial.knobs["variant"]
        ends = [
            seconds - steps * each
            for seconds, steps in zip(trial.block_seconds, steps_of(trial), strict=True)
        ]
        # Of the host's work only that before the first queued step is seen, once more
        # where a generator has ended in a block.
        assert set(numpy.round(ends, 7)) <= {0.0001, 0.0002}


def test_what_a_closing_experiment_queues_is_not_in_the_next_set_up(clock, device):
    def train():
        try:
            clock.work(0.3)
            while True:
                yield 1
                clock.work(0.01)
        finally:
            device.enqueue(5.0)

    trial = kit.measure(train, seconds=2.0)
    assert trial.setup_seconds == exactly([0.3] * len(trial.setup_seconds))
    assert len(trial.setup_seconds) > 1


# Longer blocks, where a run is told so


@pytest.mark.parametrize("step", [0.0007, 0.03, 0.5])
def test_a_run_can_be_told_how_long_blocks_last(clock, step):
    experiment = resolve(steps(clock, of=step))
    with Progress("testing") as told:
        variant = Variant(experiment, {}, block_seconds=0.2)
        with variant.lead(0, told) as life:
            life.open()
            life.settle(1.0)
            for _ in range(3):
                life.block()
    seconds = [block.seconds for block in life.blocks]
    assert min(seconds) >= 0.2 - 1e-9
    assert max(seconds) < max(1.1 * 0.2 + step, 2 * step)
    assert variant.steps == (1 if step > 0.2 else math.ceil(1.1 * 0.2 / step))


def test_a_block_is_as_long_as_told_where_steps_have_become_faster(clock):
    def train():
        for number in range(10**9):
            yield 1
            clock.work(0.01 if number < 100 else 0.004)

    with Progress("testing") as told:
        variant = Variant(resolve(train), {}, block_seconds=0.2)
        with variant.lead(0, told) as life:
            life.open()
            life.settle(1.0)
            for _ in range(5):
                life.block()
    assert variant.steps == math.ceil(1.1 * 0.2 / 0.01)
    assert life.blocks[-1].steps >= 50
    assert min(block.seconds for block in life.blocks) >= 0.2 - 1e-9


# Wall and run


@pytest.mark.parametrize(
    ("delay", "own", "expected"),
    [
        (0.0, 0.0, 1.0),
        (0.3, 0.0, 0.7),  # others held the core
        (0.3, 0.1, 0.8),  # its own workers used part of it
        (0.3, 0.9, 1.0),  # its own workers explain it all
        (5.0, 0.0, 0.0),  # never below zero
    ],
)
def test_run_time_is_wall_time_less_what_others_caused(delay, own, expected):
    seconds = kit.clock.run_seconds(Ticks(7, 2, 3), Ticks(8, 2 + delay, 3 + own))
    assert seconds == exactly(expected)


@pytest.mark.parametrize(("own", "expected"), [(0.0, 0.03), (0.01, 0.04)])
def test_both_wall_and_run_time_are_kept(clock, own, expected):
    def train():
        while True:
            yield 1
            clock.work(0.04, delay=0.01, own=own)

    trial = kit.measure(train, seconds=1.0)
    assert trial.block_seconds == exactly([expected] * len(steps_of(trial)))
    assert walls_of(trial) == exactly([0.04] * len(steps_of(trial)))
    assert trial.items_per_second == exactly(1 / expected)


def test_setup_is_run_time_too(clock):
    def train():
        clock.work(0.5, delay=0.2)
        while True:
            yield 1
            clock.work(0.02)

    assert kit.measure(train, seconds=0.1).setup_seconds == exactly([0.3])


def test_the_real_clock_keeps_sleeps_in():
    def sleepy():
        while True:
            time.sleep(0.03)
            yield 1

    trial = kit.measure(sleepy, seconds=0.1)
    assert trial.step_seconds >= 0.029
    assert all(
        wall >= run - 1e-6
        for wall, run in zip(walls_of(trial), trial.block_seconds, strict=True)
    )


# Trial


@pytest.fixture
def trial(clock):
    def train(*, name="<b>bold</b>", batch_size=8):
        """Train a <script> & friends.

        More about it.
        """
        while True:
            yield batch_size, {"loss": 0.25}
            clock.work(0.01)

    return kit.measure(train, seconds=0.3)


def test_trial_says_what_was_measured(trial):
    assert trial.experiment == "train"
    assert trial.title == "Train a <script> & friends."
    assert trial.knobs == {"name": "<b>bold</b>", "batch_size": 8}
    assert trial.machine == kit.this_machine()
    assert "def train(" in trial.source
    assert trial.peak_memory_bytes >= 0
    assert trial.excluded_seconds == 0
    assert JOURNAL[-1] is trial


def test_trial_is_frozen(trial):
    with pytest.raises(dataclasses.FrozenInstanceError):
        trial.outcome = "complete"


def test_report_holds_figures_and_knobs(trial):
    for text in (repr(trial), trial._repr_html_()):
        for part in ("train", "batch_size=8", "800", "10.0 ms", "loss", "0.25"):
            assert part in text
    assert len(repr(trial).splitlines()) < 15


def test_html_report_is_escaped(trial):
    page = trial._repr_html_()
    assert "<b>" not in page
    assert "<script>" not in page
    assert "&lt;b&gt;" in page


def test_interval_of_one_block_is_nan(clock):
    trial = kit.measure(finite(clock, length=5), seconds=None)
    assert all(math.isnan(bound) for bound in trial.interval)
    assert "nan" not in repr(trial)


# Quantiles of single steps


def cycle(clock, durations):
    """An experiment whose steps take these times, over and over."""

    def train():
        while True:
            for duration in durations:
                yield 1
                clock.work(duration)

    return train


def test_quantiles_are_those_of_single_steps(clock):
    durations = [0.03] * 37 + [0.04, 0.04, 0.09]
    trial = kit.measure(cycle(clock, durations), seconds=20.0)
    found = trial.step_quantiles
    assert list(found) == [50, 95, 99]
    assert list(found.values()) == exactly([0.03, 0.04, 0.09])
    (row,) = [row for row in trial.rows() if row[0] == "p50 · p95 · p99"]
    assert row[1] == "30.0 ms · 40.0 ms · 90.0 ms"
    assert row[1] in repr(trial) and row[1] in trial._repr_html_()


def test_quantiles_are_run_time(clock):
    def train():
        while True:
            clock.work(0.05, delay=0.01)
            yield 1

    found = kit.measure(train, seconds=2.0).step_quantiles
    assert found == exactly(dict.fromkeys(found, 0.04))


@pytest.mark.parametrize(
    ("step", "seconds", "known"),
    [(0.03, 0.6, True), (0.03, 0.5, False), (0.005, 2.0, False), (0.03, None, False)],
    ids=["20 steps", "17 steps", "several to a block", "a whole run"],
)
def test_quantiles_need_twenty_blocks_of_one_step(clock, step, seconds, known):
    def train():
        for _ in range(2 if seconds is None else 10**9):
            yield 1
            clock.work(step)

    if seconds is None:
        trial = kit.measure(train, seconds=None, repeats=25)
    else:
        trial = kit.measure(once(clock, train), seconds=seconds)
    assert (trial.step_quantiles is not None) == known
    assert ("p99" in repr(trial)) == known


def test_a_trial_without_blocks_has_no_quantiles(clock, progresses):
    def train():
        progresses[-1].stop()
        yield 1

    trial = kit.measure(train, seconds=1.0)
    assert trial.step_quantiles is None
    assert math.isnan(trial.items_per_second)


# Smoke


def test_smoke_is_one_warm_up_step_and_two_pairs(clock, smoke):
    taken = []

    def train(*, variant=1):
        taken.append(0)
        while True:
            yield 1
            taken[-1] += 1
            clock.work(0.001)

    trial = kit.measure(train, seconds=60.0)
    assert sum(taken) - sum(steps_of(trial)) <= 2
    assert sum(steps_of(trial)) <= 4
    comparison = kit.compare(train, variant=[1, 2], seconds=60.0)
    for one in comparison.trials:
        # The first life, and a pair of turns in either order.
        assert [life.turn for life in one.lives] == [-1, 0, 1]


# Progress, Stop, interrupts


def test_nothing_is_said_under_two_seconds(capfd):
    def quick():
        while True:
            time.sleep(0.005)
            yield 1

    begun = time.monotonic()
    kit.measure(quick, seconds=0.2)
    slow_machine = time.monotonic() - begun > 1.9
    assert slow_machine or capfd.readouterr() == ("", "")


def test_long_setup_is_announced_on_stderr(capfd):
    def slow_start():
        time.sleep(2.6)
        yield 1
        yield 1

    kit.measure(slow_start, seconds=None)
    out, err = capfd.readouterr()
    assert out == ""
    assert "slow_start" in err
    assert "set" in err  # setting up
    assert len(err.splitlines()) == 1


def test_progress_tells_time_left_and_partial_results(clock, progresses):
    told = []

    def train():
        while True:
            told.append(progresses[-1].text())
            yield 7
            clock.work(0.01)

    kit.measure(train, seconds=4.0)
    assert "train" in told[-1]
    assert re.search(r"\b(99|100)% done", told[-1])
    assert "about 0 s left" in told[-1]
    assert "700 items/s so far" in told[-1]


def test_progress_is_shown_from_a_thread_of_its_own(capfd, monkeypatch):
    monkeypatch.setattr(progress, "_SILENT_SECONDS", 0.1)

    def train():
        for _ in range(2):
            time.sleep(0.2)
            yield 1

    kit.measure(train, seconds=None)
    assert "measuring train" in capfd.readouterr().err


@pytest.fixture
def at_once(monkeypatch):
    """Show progress after a hundredth of a second."""
    monkeypatch.setattr(progress, "_SHORT_SECONDS", 0.01)
    return Progress("measuring train, which has many knobs", at_once=True)


def test_nothing_is_shown_while_a_progress_is_hushed(at_once, capsys):
    at_once.hushed = True
    with at_once:
        time.sleep(0.2)
        assert capsys.readouterr().err == ""
        at_once.hushed = False
        wait_until(lambda: "measuring train" in capsys.readouterr().err)


def test_a_notebook_that_will_be_stored_shows_none(capsys, monkeypatch):
    """It would be one more output of a cell whose outputs are compared."""
    monkeypatch.setenv("KIT_STATIC", "1")
    with Progress("anything", at_once=True):
        time.sleep(0.3)
    assert capsys.readouterr() == ("", "")


def test_who_shows_progress_is_a_thread_of_the_kit(at_once):
    before = set(threading.enumerate())
    with at_once:
        (thread,) = set(threading.enumerate()) - before
        assert thread.name.startswith("kit ")
    assert not thread.is_alive()


class Terminal(io.StringIO):
    """A terminal of 40 columns."""

    def isatty(self):
        return True

    def fileno(self):
        return 2


def put_terminal(monkeypatch):
    """Make standard error a terminal, for the rest of the test that calls this."""
    monkeypatch.setattr(os, "get_terminal_size", lambda _: os.terminal_size((40, 9)))
    monkeypatch.setattr(sys, "stderr", Terminal())
    return sys.stderr


def test_progress_is_a_line_of_a_terminal_and_gone_at_the_end(at_once, monkeypatch):
    terminal = put_terminal(monkeypatch)
    with at_once:
        wait_until(terminal.getvalue)
    first, *_, last, rest = terminal.getvalue().split("\r")
    assert first == "measuring train, which has many knobs ·"
    assert (last, rest) == (" " * 39, "")


def test_what_is_short_shows_no_progress(monkeypatch):
    terminal = put_terminal(monkeypatch)
    with Progress("measuring train"):
        pass
    assert terminal.getvalue() == ""


def test_time_left_follows_from_the_share_that_is_done():
    shown = Progress("measuring train")
    shown.begin(0, 2, seconds=30.0)
    assert "about 60 s left" in shown.text()
    assert "measuring train" in shown.text()
    shown._begun -= 10
    shown.expect(0.5)
    assert "25%" in shown.text()
    assert "about 30 s left" in shown.text()


def stop_from_a_thread(progresses, when):
    def act():
        when.wait(10)
        progresses[-1].stop()

    thread = threading.Thread(target=act)
    thread.start()
    return thread


@pytest.mark.parametrize("seconds", [60.0, None])
def test_stop_acts_between_steps(progresses, seconds):
    when, closed = threading.Event(), []
    inside = [0]

    def train():
        try:
            while True:
                inside[0] += 1
                time.sleep(0.01)
                inside[0] -= 1
                if len(closed) == 0 and inside[0] == 0 and not when.is_set():
                    closed.append("running")
                yield 1
                if seconds is None or closed:
                    when.set()
        finally:
            closed.append("closed")

    thread = stop_from_a_thread(progresses, when)
    begun = time.monotonic()
    trial = kit.measure(train, seconds=seconds)
    thread.join()
    assert time.monotonic() - begun < 10
    assert trial.outcome == "stopped"
    assert "stopped" in repr(trial).lower()
    assert "stopped" in trial._repr_html_().lower()
    assert closed[-1] == "closed"
    assert inside == [0], "stopped within a step"


def test_blocks_until_stop_are_kept(clock, progresses):
    def train():
        for number in range(10**9):
            if number == 200:
                progresses[-1].stop()
            yield 1
            clock.work(0.01)

    trial = kit.measure(train, seconds=60.0)
    assert trial.outcome == "stopped"
    assert 100 < sum(steps_of(trial)) <= 200
    assert trial.items_per_second == exactly(100)


def test_stop_in_setup_acts_at_the_first_yield_and_says_so(clock, progresses):
    told, went_on = [], []

    def train():
        progresses[-1].stop()
        told.append(progresses[-1].text())
        yield 1
        went_on.append(True)
        yield 1

    trial = kit.measure(train, seconds=1.0)
    assert trial.outcome == "stopped"
    assert not went_on
    assert trial.block_seconds == []
    assert math.isnan(trial.items_per_second)
    assert "stopped" in repr(trial).lower()
    assert "stop" in told[0].lower(), f"it does not say that it will stop: {told[0]}"


def test_state_is_back_after_stop(clock, progresses):
    before = reader_state()

    def train():
        change_everything()
        yield 1
        progresses[-1].stop()
        yield 1

    assert kit.measure(train, seconds=1.0).outcome == "stopped"
    assert reader_state() == before


@pytest.mark.parametrize("where", ["set-up", "step", "a step that hangs"])
def test_interrupt_closes_the_generator_and_comes_through(where, request):
    # A shell's background job is started with interrupts ignored.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, handler))
    closed = []

    def train():
        try:
            if where == "set-up":
                raise KeyboardInterrupt
            yield 1
            yield 1
            if where == "step":
                raise KeyboardInterrupt
            main = threading.main_thread().ident
            threading.Timer(0.1, signal.pthread_kill, [main, signal.SIGINT]).start()
            time.sleep(30)
        finally:
            closed.append(True)

    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        kit.measure(train, seconds=None)
    assert time.monotonic() - begun < 5
    assert closed == [True]


def test_interrupt_between_steps_closes_the_generator(clock, monkeypatch):
    closed, real = [], kit.clock.synchronize

    def train():
        try:
            while True:
                yield 1
                clock.work(0.01)
        finally:
            closed.append(True)

    def interrupted():
        if clock.now > 101:
            raise KeyboardInterrupt
        real()

    monkeypatch.setattr(kit.clock, "synchronize", interrupted)
    with pytest.raises(KeyboardInterrupt):
        kit.measure(train, seconds=60.0)
    assert closed == [True]


def test_one_thread_starts_drives_and_closes(clock):
    threads = set()

    def train():
        try:
            for _ in range(100):
                threads.add(threading.get_ident())
                yield 1
                clock.work(0.01)
        finally:
            threads.add(threading.get_ident())

    kit.measure(train, seconds=None)
    assert threads == {threading.get_ident()}
