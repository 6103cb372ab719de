"""`compare`: by turns, in both orders, at most two alive, and nothing for free."""

import gc
import itertools
import math
import os
import threading
import time

import numpy
import pytest
import torch
from helpers import (
    FIND_PROPORTIONAL_BYTES,
    OTHER_THREADS,
    children,
    forked,
    reader_state,
    wait_until,
)
from torch.utils.data import DataLoader, Dataset

import kit
import kit.life
from kit import system
from kit.life import COLD, Life
from kit.ratio import compare_trials
from kit.trial import JOURNAL

pytestmark = pytest.mark.usefixtures("tidy")


class Diary:
    """What happened to which variant, in order."""

    def __init__(self):
        self.entries = []
        self.alive = []

    def live(self, name):
        self.entries.append(("open", name))
        self.alive.append(name)
        try:
            while True:
                self.entries.append(("step", name))
                yield
        finally:
            self.alive.remove(name)
            self.entries.append(("close", name))

    def names(self, kind):
        return [name for what, name in self.entries if what == kind]


def diaried(clock=None, *, step=0.005, setup=0.0):
    """An experiment with a knob, and the diary that it writes."""
    diary, most = Diary(), []

    def train(*, variant="a"):
        if clock:
            clock.work(setup)
        for _ in diary.live(variant):
            most.append(sorted(diary.alive))
            yield 1
            if clock:
                clock.work(step * {"b": 2, "c": 4}.get(variant, 1))

    return train, diary, most


# Order


def turns_of(trial):
    """The turns of a trial's lives, but the first one, which is cold and alone."""
    return [life.turn for life in trial.lives if life.turn != COLD]


@pytest.mark.parametrize("choices", [["a", "b"], ["a", "b", "c"]])
def test_at_most_two_are_alive_and_one_is_the_baseline(smoke, choices):
    train, diary, most = diaried()
    kit.compare(train, variant=choices)
    assert max(map(len, most)) == 2
    assert all("a" in alive for alive in most if len(alive) == 2)
    assert diary.alive == []
    assert sorted(diary.names("open")) == sorted(diary.names("close"))


def test_first_start_of_each_is_alone(smoke):
    train, diary, _ = diaried()
    kit.compare(train, variant=["a", "b", "c"])
    lives = [entry for entry in diary.entries if entry[0] != "step"]
    assert lives[:6] == [
        (what, name) for name in ("a", "b", "c") for what in ("open", "close")
    ]


def test_setups_come_in_pairs_of_both_orders(clock):
    train, diary, _ = diaried(clock)
    comparison = kit.compare(train, variant=["a", "b"], seconds=4.0)
    opened = diary.names("open")[2:]
    orders = list(zip(opened[::2], opened[1::2], strict=True))
    assert len(orders) >= 10, "fewer than five pairs"
    for first, second in itertools.pairwise(orders):
        assert set(first) == set(second) == {"a", "b"}
    for first, second in zip(orders[::2], orders[1::2], strict=True):
        assert first == second[::-1]
    turns = [turns_of(trial) for trial in comparison.trials]
    assert turns[0] == turns[1] == list(range(len(orders)))


def test_blocks_follow_each_other_as_a_b_b_a_in_random_order(clock, monkeypatch):
    train, *_ = diaried(clock)
    names, block = {}, Life.block

    def noted(life):
        names.setdefault(life.turn, []).append(life.variant.knobs["variant"])
        return block(life)

    monkeypatch.setattr(Life, "block", noted)
    kit.compare(train, variant=["a", "b"], seconds=4.0)
    look = names.pop(COLD)
    assert look == sorted(look), "the first lives are alone"
    rounds = {
        turn: ["".join(four) for four in zip(*4 * [iter(row)], strict=True)]
        for turn, row in names.items()
    }
    assert {four for row in rounds.values() for four in row} == {"abba", "baab"}
    for turn in range(0, len(rounds), 2):
        twins = zip(rounds[turn], rounds[turn + 1], strict=True)
        assert all(first != second for first, second in twins)


def test_two_that_rest_have_equally_many_blocks_two_in_each_round(clock):
    train, *_ = diaried(clock)
    comparison = kit.compare(train, variant=["a", "b"], seconds=4.0)
    for first, second in zip(*(t.lives[1:] for t in comparison.trials), strict=True):
        assert first.beside and second.beside
        assert len(first.blocks) == len(second.blocks)
        assert len(first.blocks) % 2 == 0
        seconds = [block.seconds for block in (*first.blocks, *second.blocks)]
        assert min(seconds) >= 0.02 - 1e-9


def test_first_step_after_a_switch_is_not_timed(clock):
    last = [None]

    def train(*, variant="a"):
        while True:
            yield 1
            # The other one was here: caches are cold.
            clock.work(0.005 if last[0] == variant else 0.5)
            last[0] = variant

    comparison = kit.compare(train, variant=["a", "b"], seconds=4.0)
    for trial in comparison.trials:
        assert max(trial.block_seconds) < 0.05
        assert trial.step_seconds == pytest.approx(0.005)


def test_each_challenger_has_baseline_pairs_of_its_own(clock):
    train, *_ = diaried(clock)
    comparison = kit.compare(train, variant=["a", "b", "c"], seconds=6.0)
    base, b, c = (set(turns_of(trial)) for trial in comparison.trials)
    assert b and c and not b & c
    assert base == b | c


def jittering(clock, spread=0.3):
    """An experiment whose lives are of different speeds, whichever the variant."""
    speeds = itertools.cycle([1, 1 + spread, 1 - spread, 1 + spread / 3, 1.1])

    def train(*, variant="a"):
        factor = next(speeds)
        while True:
            yield 1
            clock.work(0.005 * factor)

    return train


@pytest.mark.parametrize("choices", [["a", "b"], ["a", "b", "c"]])
def test_seconds_are_the_total(clock, choices):
    before = clock.now
    kit.compare(jittering(clock), variant=choices, seconds=6.0)
    assert 4.0 < clock.now - before <= 6.5


def test_ends_early_once_the_interval_is_narrow_whatever_the_verdict(clock):
    # Without noise every interval is narrow after the least number of pairs.
    verdicts = []
    for choices in (["a", "a"], ["a", "b"]):
        train, *_ = diaried(clock)
        before = clock.now
        made = kit.compare(train, variant=choices, seconds=20.0)
        verdicts.append(made.ratio.verdict)
        assert clock.now - before < 0.9 * 20.0
        assert len(turns_of(made.baseline)) == 10
    assert verdicts == ["same", "slower"]


def test_a_wide_interval_does_not_end_early_when_the_verdict_is_clear(clock):
    speeds = itertools.cycle([1, 1.5, 0.8, 1.2, 0.7, 1.1, 1.4])

    def train(*, variant=1):
        factor = next(speeds) * (1 if variant == 1 else 10)
        while True:
            yield 1
            clock.work(0.005 * factor)

    before = clock.now
    made = kit.compare(train, variant=[1, 2], seconds=20.0)
    assert made.ratio.verdict == "slower"
    assert clock.now - before > 0.8 * 20.0


def test_the_rest_of_the_budget_goes_where_the_interval_is_widest(clock):
    speeds = itertools.cycle([1, 1.4, 0.7, 1.2, 0.9, 1.3, 0.8])

    def train(*, variant="a"):
        factor = next(speeds) if variant == "noisy" else 1
        while True:
            yield 1
            clock.work(0.005 * factor)

    made = kit.compare(train, variant=["a", "calm", "noisy"], seconds=20.0)
    pairs = {trial.knobs["variant"]: len(turns_of(trial)) // 2 for trial in made.trials}
    assert pairs["calm"] == 5
    assert pairs["noisy"] > 5
    assert pairs["a"] == pairs["calm"] + pairs["noisy"]


def test_says_how_long_honest_pairs_take_where_the_budget_is_too_small(
    clock, progresses
):
    told = []

    def train(*, variant=1):
        clock.work(0.5)
        while True:
            told.append(progresses[-1].text())
            yield 1
            clock.work(0.01)

    before = clock.now
    kit.compare(train, variant=[1, 2], seconds=4.0)
    assert "honest pairs need about" in told[-1]
    assert clock.now - before < 3 * 4.0 + 5


def test_patient_goes_on_where_the_interval_is_wide(clock):
    noise = itertools.cycle([1, 1.5, 0.7, 1.1, 2.1, 0.8, 1.3])

    def train(*, variant=1):
        factor = next(noise)
        while True:
            yield 1
            clock.work(0.01 * factor)

    spent = []
    for patient in (False, True):
        before = clock.now
        kit.compare(train, variant=[1, 2], seconds=5.0, patient=patient)
        spent.append(clock.now - before)
    assert spent[1] > 1.5 * spent[0]
    assert spent[1] < 4 * 5.0


# Nothing for free


class Counting(Dataset):
    """Its workers count each sample that they read in a file that all can see."""

    def __init__(self, path, pause=0.001):
        self.path, self.pause = str(path), pause

    def __len__(self):
        return 100_000

    def work(self):
        time.sleep(self.pause)

    def __getitem__(self, index):
        self.work()
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, b".")
        os.close(descriptor)
        return index


class Decoding(Counting):
    """Its workers compute: a sleep would pass while they are suspended."""

    def work(self):
        until = time.process_time() + self.pause
        while time.process_time() < until:
            pass


def loading(clock=None):
    """An experiment with a worker process, and who is alive at each of its steps."""
    alive, most = [], []

    def load(*, variant=1):
        alive.append(variant)
        try:
            for batch in DataLoader(range(10**6), batch_size=4, num_workers=1):
                most.append(([*alive], len(children())))
                yield len(batch)
        finally:
            alive.remove(variant)

    return load, most


def test_an_experiment_with_workers_lives_alone(smoke):
    load, most = loading()
    made = kit.compare(load, variant=[1, 2])
    assert {len(alive) for alive, _ in most} == {1}
    assert {count for _, count in most} == {1}, "workers of another life"
    assert not any(life.beside for trial in made.trials for life in trial.lives)
    assert not children()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_no_worker_is_left_when_the_other_variant_fails(smoke, error):
    load, most = loading()
    starts = []

    def fails():
        starts.append(True)
        for number in range(10**6):
            yield 1
            if len(starts) > 1 and number == 1:
                raise error

    begun = time.monotonic()
    with pytest.raises((kit.experiment.ExperimentError, KeyboardInterrupt)):
        kit.compare({"load": load, "fails": fails})
    assert time.monotonic() - begun < 20
    assert len(most) > 2
    wait_until(lambda: not children())


def test_who_stops_resting_lives_alone_from_then_on(clock):
    """A thread that starts late leaves no turn in the ratio that it was beside."""
    lives, done = {1: 0, 2: 0}, threading.Event()

    def train(*, variant=1):
        lives[variant] += 1
        for number in itertools.count():
            if variant == 2 and lives[2] == 4 and number == 6:
                threading.Thread(target=done.wait).start()
            yield 1
            clock.work(0.005 * variant)

    try:
        made = kit.compare(train, variant=[1, 2], seconds=4.0)
    finally:
        done.set()
    assert lives[1] > 5
    for trial in made.trials:
        assert not any(life.beside for life in trial.lives)
        assert len(turns_of(trial)) > 4
    assert made.ratio.value == pytest.approx(0.5)
    assert made.ratio.verdict == "slower"


def beside(made):
    """Whether any life of a comparison was led side by side."""
    return any(life.beside for trial in made.trials for life in trial.lives)


@pytest.mark.parametrize("both", [False, True])
def test_settings_may_be_changed_if_both_leave_the_same(smoke, both):
    def train(*, variant=1):
        if both or variant == 2:
            torch.set_num_threads(OTHER_THREADS)
            torch.backends.cudnn.benchmark = True
        while True:
            yield 1

    before = reader_state()
    assert beside(kit.compare(train, variant=[1, 2])) is both
    assert reader_state() == before


def test_settings_may_be_changed_on_the_way_through_warm_up(clock):
    def train(*, variant=1):
        for number in itertools.count():
            if number == 3:
                torch.set_num_threads(OTHER_THREADS)
            yield 1
            clock.work(0.005 * variant)

    assert beside(kit.compare(train, variant=[1, 2], seconds=4.0))


def test_a_setting_that_leaks_late_ends_living_side_by_side(clock):
    lives = {1: 0, 2: 0}

    def train(*, variant=1):
        lives[variant] += 1
        for number in itertools.count():
            if variant == 2 and lives[2] > 3 and number == 6:
                torch.set_num_threads(OTHER_THREADS)
            yield 1
            fast = torch.get_num_threads() == OTHER_THREADS
            clock.work(0.001 if fast else 0.005)

    made = kit.compare(train, variant=[1, 2], seconds=4.0)
    assert not beside(made)
    slow = [block.seconds / block.steps for block in made.trials[0].blocks]
    assert slow == pytest.approx([0.005] * len(slow)), "the baseline profits from it"


@pytest.mark.parametrize("disturbed", [False, True])
def test_no_process_is_ended_that_another_cell_may_have_started(
    smoke, progresses, disturbed, monkeypatch
):
    monkeypatch.setattr(kit.life, "_GRACE_SECONDS", 0.1)
    left = []

    def leaves():
        left.append(forked(time.sleep, 30))
        if disturbed:
            progresses[-1].disturb()
        while True:
            yield 1

    try:
        trial = kit.measure(leaves)
        wait_until(lambda: disturbed or not left[0].is_alive())
        assert left[0].is_alive() is disturbed
        assert trial.outcome == ("disturbed" if disturbed else "complete")
        assert str(left[0].pid) in repr(trial), "it is named"
    finally:
        left[0].kill()
        left[0].join()


@pytest.mark.parametrize("helps", [False, True])
def test_a_pool_from_before_that_goes_on_is_found_by_a_pause(helps, monkeypatch):
    """It has neither threads nor children that are new; it computes all the same."""
    if helps:  # on a machine that is much too busy it gets little of a core
        monkeypatch.setattr(kit.life, "_PAUSE_SECONDS", 0.3)
    over, wanted = threading.Event(), threading.Event()

    def work():
        while wanted.wait() and not over.is_set():
            sum(range(20_000))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()

    def train(*, variant=1):
        if helps and variant == 2:
            wanted.set()
        try:
            while True:
                sum(range(20_000))
                yield 1
        finally:
            wanted.clear()

    made = kit.compare(train, variant=[1, 2], seconds=1.0)
    over.set()
    wanted.set()
    thread.join()
    assert any(x.beside for t in made.trials for x in t.lives) is not helps


def test_workers_read_nothing_while_the_clock_stands_still(tmp_path, monkeypatch):
    """Else a variant that waits for its workers seems faster than it is."""
    path = tmp_path / "samples"
    path.write_bytes(b"")
    looks = []

    class Watched(kit.clock.Clock):
        def begin(self):
            looks.append(("begin", path.stat().st_size))
            return super().begin()

        def end(self):
            now = super().end()
            looks.append(("end", path.stat().st_size))
            return now

    monkeypatch.setattr(kit.clock, "CLOCK", Watched())
    block, first, last = Life.block, [], []

    def noted(life):
        if not first or first[0][0] is life:  # the blocks of the first life
            first.append((life, len(looks)))
            made = block(life)
            last[:] = [len(looks)]
            return made
        return block(life)

    monkeypatch.setattr(Life, "block", noted)

    def load():
        loader = DataLoader(Decoding(path), num_workers=2, prefetch_factor=50)
        while True:
            yield from map(len, loader)

    def share_read_free():
        looks.clear()
        first.clear()
        kit.measure(load, seconds=1.5)
        timed = looks[first[0][1] : last[0]]
        free = sum(
            read - before
            for (event, before), (following, read) in itertools.pairwise(timed)
            if (event, following) == ("end", "begin")
        )
        return free / (timed[-1][1] - timed[0][1])

    # Now and then others keep us from a core just after the clock was read.
    assert any(share_read_free() <= 0.01 for _ in range(5))


def test_an_experiment_with_a_thread_of_its_own_runs_alone(smoke):
    train, diary, _ = diaried()
    most = []

    def threaded(*, variant="a"):
        done = threading.Event()
        thread = threading.Thread(target=done.wait)
        thread.start()
        try:
            for step in train(variant=variant):
                most.append(len(diary.alive))
                yield step
        finally:
            done.set()
            thread.join()

    comparison = kit.compare(threaded, variant=["a", "b"])
    assert set(most) == {1}
    assert len(set(diary.names("open")[2:6:2])) == 2, "always the same one first"
    assert not math.isnan(comparison.ratio.value)


def test_one_model_that_both_use_makes_them_run_alone(smoke):
    net = torch.nn.Linear(2, 2)
    train, diary, _ = diaried()
    most = []

    def with_net(*, variant="a"):
        for step in train(variant=variant):
            net(torch.ones(2)).sum().backward()
            most.append(len(diary.alive))
            yield step

    kit.compare(with_net, variant=["a", "b"])
    assert set(most) == {1}


def test_a_teacher_that_nobody_trains_may_be_held_by_both(smoke):
    teacher = torch.nn.Linear(2, 2)
    train, diary, _ = diaried()
    most = []

    def distil(*, variant="a"):
        for step in train(variant=variant):
            with torch.no_grad():
                teacher(torch.ones(2))
            most.append(len(diary.alive))
            yield step

    made = kit.compare(distil, variant=["a", "b"])
    assert max(most) == 2
    assert "teacher" in repr(made)


# Quantities


def test_ratio_of_speeds_is_exact_without_noise(clock):
    train, *_ = diaried(clock)
    comparison = kit.compare(train, variant=["a", "b", "c", "a"], seconds=6.0)
    ratios = comparison.ratios
    for label, value in (
        ("variant='b'", 0.5),
        ("variant='c'", 0.25),
        ("variant='a' (again)", 1.0),
    ):
        ratio = ratios[label]
        assert (ratio.value, ratio.low, ratio.high) == pytest.approx([value] * 3)
    assert [r.verdict for r in ratios.values()] == ["slower", "slower", "same"]


def test_never_settled_cannot_tell(clock):
    def train(*, variant=1):
        growth = 1.12 if variant == 2 else 1.0
        for number in itertools.count():
            yield 1
            clock.work(0.02 * growth**number)

    ratio = kit.compare(train, variant=[1, 2], seconds=4.0).ratio
    assert ratio.verdict == "cannot tell"
    assert "settle" in ratio.reason


@pytest.mark.parametrize("seconds", [2.0, 0.2])
def test_compare_setup_seconds(clock, seconds):
    def train(*, size=1):
        clock.work(0.2 * size)
        while True:
            yield 1
            clock.work(0.01)

    comparison = kit.compare(train, of="setup_seconds", size=[1, 3], seconds=seconds)
    assert comparison.ratio.value == pytest.approx(3)
    assert comparison.ratio.verdict == "more"
    for trial, expected in zip(comparison.trials, (0.2, 0.6), strict=True):
        assert trial.setup_seconds == pytest.approx([expected] * 7)


def test_cold_start_comes_first_and_is_not_compared(clock):
    starts = {1: 0, 2: 0}

    def train(*, size=1):
        starts[size] += 1
        clock.work(9.0 if starts[size] == 1 else 0.2 * size)
        while True:
            yield 1
            clock.work(0.01)

    comparison = kit.compare(train, of="setup_seconds", size=[1, 2])
    assert comparison.ratio.value == pytest.approx(2)
    assert comparison.trials[0].setup_seconds[0] == pytest.approx(9)


def test_compare_peak_memory_of_a_device_with_no_other_alive(clock, device):
    alive, most = [0], [0]

    def train(*, size=1):
        alive[0] += 1
        most[0] = max(most[0], alive[0])
        device.allocate(1_000_000 * size)
        try:
            while True:
                device.allocate(500_000 * size)
                device.allocate(-500_000 * size)
                yield 1
                clock.work(0.01)
        finally:
            device.allocate(-1_000_000 * size)
            alive[0] -= 1

    comparison = kit.compare(train, of="peak_memory_bytes", size=[1, 2])
    assert most == [1]
    assert comparison.ratio.value == pytest.approx(2)
    assert comparison.ratio.verdict == "more"
    sizes = [trial.peak_memory_bytes for trial in comparison.trials]
    assert sizes == [1_500_000, 3_000_000]


@pytest.mark.parametrize("options", [{}, {"seconds": None, "repeats": 2}])
def test_every_trial_has_the_peak_memory_of_its_first_start(clock, device, options):
    def train(*, size=1):
        device.allocate(1_000_000 * size)
        try:
            for _ in range(3 if "seconds" in options else 10**9):
                yield 1
                clock.work(0.01)
        finally:
            device.allocate(-1_000_000 * size)

    comparison = kit.compare(train, size=[1, 3], **options)
    sizes = [trial.peak_memory_bytes for trial in comparison.trials]
    assert sizes == [1_000_000, 3_000_000]


def test_memory_of_the_host_is_an_increase(smoke, monkeypatch):
    monkeypatch.setattr(system, "proportional_bytes", FIND_PROPORTIONAL_BYTES)

    def train(*, megabytes=64):
        kept = torch.ones(megabytes * 250_000)
        while True:
            yield len(kept) and 1

    trial = kit.measure(train)
    assert 60e6 < trial.peak_memory_bytes < 120e6


def whole(clock):
    """A run to the end whose length, loss and seed are known."""
    seeds = []

    def train(*, epochs=5):
        seeds.append((epochs, torch.initial_seed()))
        noise = torch.rand(1).item()
        yield 1
        for number in range(epochs):
            clock.work(0.1 + noise / 1000)
            yield 1, {"loss": 1.0 / (number + 1) + noise}

    return train, seeds


@pytest.mark.parametrize("repeats", [2, 5, 6])
def test_whole_runs_go_first_by_turns_after_a_start_that_nobody_counts(clock, repeats):
    """Whoever always goes second finds warm caches, or a machine that has got hot."""
    starts = []

    def train(*, which="a"):
        clock.work(0.1)
        if which not in [earlier for earlier, _ in starts]:
            clock.work(3.0)  # libraries are loaded
        starts.append([which, 0])
        for _ in range(3):
            yield 1
            starts[-1][1] += 1
            # The cold start has slow first steps, too.
            clock.work(1.0 if len(starts) <= 2 else 0.1)

    made = kit.compare(
        train, which=["a", "b"], of="run_seconds", seconds=None, repeats=repeats
    )
    order = "".join(which for which, _ in starts)
    assert order == "ab" + ("abba" * repeats)[: 2 * repeats]
    assert [steps for _, steps in starts[:2]] == [1, 1], "closed after one step"
    for trial in made.trials:
        assert trial.block_seconds == pytest.approx([0.3] * repeats)
        assert trial.setup_seconds[0] == pytest.approx(3.1)
    assert made.ratio.verdict == "same"


@pytest.mark.parametrize("of", ["setup_seconds", "peak_memory_bytes"])
def test_starts_go_first_by_turns(clock, of):
    starts = []

    def train(*, which="a"):
        starts.append(which)
        clock.work(0.1)
        while True:
            yield 1
            clock.work(0.01)

    kit.compare(train, which=["a", "b"], of=of, seconds=1.0, repeats=3)
    assert "".join(starts) == "ab" + "abba" * 3, "repeats are for whole runs"


def test_choices_that_look_alike_get_labels_of_their_own(smoke):
    def train(*, how=None):
        while True:
            yield 1

    lambdas = kit.compare(train, how=[lambda: 1, lambda: 2])
    assert lambdas.labels == ["how=<lambda> (1)", "how=<lambda> (2)"]
    long = kit.compare(train, how=["a" * 99 + "b", "a" * 99 + "c", "a" * 99 + "b"])
    first, second, again = long.labels
    assert first != second and again == f"{first} (again)"
    assert list(long.ratios) == [second, again]
    arrays = kit.compare(train, how=[numpy.zeros(3), numpy.zeros(3)])
    assert len(set(arrays.labels)) == 2
    assert kit.compare(train, how=[1, 2]).labels == ["how=1", "how=2"]


def test_compare_run_seconds(clock):
    train, _ = whole(clock)
    comparison = kit.compare(train, of="run_seconds", seconds=None, epochs=[5, 10])
    assert comparison.ratio.value == pytest.approx(2)
    assert comparison.ratio.verdict == "more"
    assert [len(trial.block_seconds) for trial in comparison.trials] == [6, 6]


def test_whole_runs_have_equal_seeds_in_each_variant_and_are_alone(clock):
    train, seeds = whole(clock)
    kit.compare(train, seconds=None, repeats=4, epochs=[5, 10])
    for epochs in (5, 10):
        own = [seed for knob, seed in seeds if knob == epochs]
        assert list(dict.fromkeys(own)) == [0, 1, 2, 3]


def test_whole_runs_alternate_in_random_order(clock):
    train, diary, most = diaried(clock)

    def some(*, variant="a"):
        yield from itertools.islice(train(variant=variant), 3)

    kit.compare(some, seconds=None, repeats=8, variant=["a", "b"])
    assert max(map(len, most)) == 1
    opened = diary.names("open")[-16:]
    pairs = list(zip(opened[::2], opened[1::2], strict=True))
    assert set(pairs) == {("a", "b"), ("b", "a")}


def test_compare_a_metric_by_its_difference(clock):
    train, _ = whole(clock)
    for within, verdict in ((0.05, "less"), (0.2, "same")):
        comparison = kit.compare(
            train, of="loss", within=within, seconds=None, epochs=[5, 10]
        )
        assert comparison.ratio.value == pytest.approx(0.1 - 0.2)
        assert comparison.ratio.verdict == verdict
    assert "loss" in comparison.sentence()


def test_items_per_second_of_whole_runs(clock):
    train, _ = whole(clock)
    comparison = kit.compare(train, seconds=None, epochs=[5, 10])
    assert comparison.ratio.value == pytest.approx(1)
    assert comparison.ratio.verdict == "same"


# Labels


def labels(*arguments, **options):
    return kit.compare(*arguments, **options).labels


@pytest.fixture
def any_knobs(smoke):
    def train(*, a=1, b="x", c=(1, 2), d=0.5):
        while True:
            yield 1

    return train


def test_every_combination_the_first_is_the_baseline(any_knobs):
    comparison = kit.compare(any_knobs, a=range(1, 3), b=["x", "y"], c=(1, 2))
    assert comparison.labels == [
        "a=1, b='x'",
        "a=1, b='y'",
        "a=2, b='x'",
        "a=2, b='y'",
    ]
    assert comparison.baseline is comparison.trials[0]
    assert comparison.baseline.knobs == {"a": 1, "b": "x", "c": (1, 2), "d": 0.5}
    assert comparison.trials[3].knobs == {"a": 2, "b": "y", "c": (1, 2), "d": 0.5}
    assert list(comparison.ratios) == comparison.labels[1:]


def test_a_choice_of_one_is_fixed_and_tuples_strings_numbers_are_values(any_knobs):
    comparison = kit.compare(any_knobs, a=[1, 2], b="long text", c=(3, 4), d=7)
    assert len(comparison.trials) == 2
    for trial in comparison.trials:
        assert (trial.knobs["b"], trial.knobs["c"], trial.knobs["d"]) == (
            "long text",
            (3, 4),
            7,
        )


def test_experiments_by_name_times_choices(any_knobs):
    def other(*, a=1):
        while True:
            yield 1

    names = labels({"one": any_knobs, "two": other}, a=[1, 2])
    assert names == ["one, a=1", "one, a=2", "two, a=1", "two, a=2"]
    assert labels({"one": any_knobs, "two": other}) == ["one", "two"]


def test_a_thing_compared_with_itself_has_two_labels(any_knobs):
    names = labels(any_knobs, a=[1, 1, 1])
    assert len(set(names)) == 3
    assert names[0] == "a=1"


def test_ratio_raises_where_there_are_several(any_knobs):
    comparison = kit.compare(any_knobs, a=[1, 2, 3])
    with pytest.raises(ValueError, match="a=2"):
        _ = comparison.ratio
    assert comparison.ratios["a=3"].value > 0


def test_in_a_smoke_run_each_starts_and_first_and_last_choice_are_paired(smoke):
    steps = {}

    def train(*, a=1, b=1):
        while True:
            yield 1
            steps[a, b] = steps.get((a, b), 0) + 1

    made = kit.compare(train, a=[1, 2, 3], b=[1, 2, 3])
    assert len(made.ratios) == 8
    assert len(steps) == 9 and min(steps.values()) >= 2
    paired = {k for k, ratio in made.ratios.items() if not math.isnan(ratio.value)}
    assert paired == {"a=1, b=3", "a=3, b=1", "a=3, b=3"}
    for label in made.ratios.keys() - paired:
        assert made.ratios[label].verdict == "cannot tell" and made.ratios[label].reason
    assert made._repr_html_() and repr(made) and len(made.table()) == 9


def test_trials_and_comparison_are_in_the_journal(any_knobs):
    comparison = kit.compare(any_knobs, a=[1, 2])
    assert JOURNAL[-1] is comparison
    assert all(any(trial is x for x in JOURNAL) for trial in comparison.trials)


# Reports


def test_report_starts_with_a_sentence(clock):
    train, *_ = diaried(clock)
    comparison = kit.compare(train, variant=["a", "b"], seconds=4.0)
    first = repr(comparison).splitlines()[0]
    assert first.startswith("variant='b' is 0.5 × as fast as 'a' [0.5, 0.5]")
    assert first.replace("'", "&#x27;") in comparison._repr_html_()
    table = comparison.table()
    assert list(table.index) == comparison.labels
    assert list(table["verdict"]) == ["baseline", "slower"]
    assert list(table["ratio"]) == pytest.approx([1, 0.5])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"of": "setup_seconds"},
        {"of": "peak_memory_bytes"},
        {"of": "run_seconds", "seconds": None},
        {"of": "loss", "within": 0.1, "seconds": None},
    ],
    ids=["rate", "set-up", "memory", "run", "metric"],
)
@pytest.mark.parametrize("when", [1, 4])
@pytest.mark.filterwarnings("error")
def test_stopped_early_cannot_tell_and_can_be_shown(clock, progresses, options, when):
    starts = []

    def train(*, variant=1):
        starts.append(variant)
        if len(starts) == when:
            progresses[-1].stop()
        for _ in range(1000):
            yield 1, {"loss": 0.5}
            clock.work(0.01)

    comparison = kit.compare(train, variant=[1, 2, 3], **options)
    assert len(starts) == when
    assert {trial.outcome for trial in comparison.trials} == {"stopped"}
    for ratio in comparison.ratios.values():
        assert ratio.verdict == "cannot tell"
        assert ratio.reason
    for text in (repr(comparison), comparison._repr_html_()):
        assert "top" in text
    assert len(comparison.table()) == 3


def test_ratios_follow_from_the_raw_blocks(clock):
    train, *_ = diaried(clock)
    comparison = kit.compare(train, variant=["a", "b"], seconds=4.0)
    assert compare_trials(*comparison.trials) == comparison.ratio


def count_bytes():
    """The sizes of all tensors of single bytes but states of random numbers."""
    tensors = [t for t in gc.get_objects() if type(t) is torch.Tensor]
    sizes = [t.numel() for t in tensors if t.dtype == torch.uint8]
    return sorted(size for size in sizes if size != torch.get_rng_state().numel())


def test_each_life_holds_memory_of_random_size_so_that_it_finds_other_addresses(smoke):
    """Else the luck of one place in memory would be in every life, and the verdict."""
    seen = []

    def train(*, which="a"):
        seen.append((which, count_bytes()))
        while True:
            yield 1

    before = count_bytes()
    made = kit.compare(train, which=["a", "b"])
    first = [sizes for _, sizes in seen[:2]]
    assert all(len(sizes) == len(before) + 4 for sizes in first)
    assert all(max(sizes) <= 12_000_000 for sizes in first)
    assert len({tuple(sizes) for _, sizes in seen}) == len(seen) > 4
    assert count_bytes() == before, "given back in the end"
    for trial, sizes in zip(made.trials, first, strict=True):
        assert trial.peak_memory_bytes < sum(sizes) / 2, "not counted as its memory"


def test_rare_pauses_that_fit_the_budget_ten_times_are_called(clock):
    def train(*, pauses=False):
        for number in itertools.count(1):
            yield 1
            clock.work(0.004 + 0.4 * (pauses and number % 100 == 0))

    made = kit.compare(train, pauses=[False, True], seconds=10)
    assert made.ratio.verdict == "slower"
    assert made.ratio.low <= 0.5 <= made.ratio.high


@pytest.mark.parametrize("make", [torch.nn.ReLU, torch.nn.Flatten])
def test_modules_without_state_may_be_shared(smoke, make):
    layer, alive, most = make(), set(), []

    def train(*, which="a"):
        alive.add(which)
        try:
            while True:
                layer(torch.ones(2, 2))
                most.append(len(alive))
                yield 1
        finally:
            alive.discard(which)

    made = kit.compare(train, which=["a", "b"])
    assert max(most) == 2, "they live side by side"
    assert not any("put back" in note for t in made.trials for note in t.notes)


GLOBAL_LOADER = DataLoader(
    range(10**6), batch_size=4, num_workers=1, persistent_workers=True
)


def test_a_loader_from_before_may_have_workers_that_persist(smoke):
    """They end with the life that started them, and the loader forgets them."""

    def load(*, variant=1):
        for batch in GLOBAL_LOADER:
            yield len(batch)

    for _ in range(2):
        made = kit.compare(load, variant=[1, 2])
        assert not math.isnan(made.ratio.value)
        assert not children()
    assert len(next(iter(GLOBAL_LOADER))) == 4
    GLOBAL_LOADER._iterator = None
