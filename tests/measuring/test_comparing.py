"""How two or more are compared: cold starts, pairs of rounds, turns, budget, end."""

import collections
import contextlib
import functools
import gc
import io
import itertools
import math
import subprocess
import threading
import weakref
from types import SimpleNamespace

import pytest
import torch
import tqdm.auto
from helpers import JOURNAL, ONE_WORKER, reader_state, take_turns
from torch import nn
from torch.utils.data import DataLoader

import kit
from kit.measuring.records import COLD

pytestmark = pytest.mark.usefixtures("tidy")

PACES = {"a": 0.005, "b": 0.010, "c": 0.005}
NOTHING = contextlib.nullcontext


def noted(clock, pace=PACES.get, *, setup=0.0, company=NOTHING):
    """An experiment that notes in the clock's events who starts, and who steps."""

    def train(*, variant="a"):
        clock.work(setup)
        clock.events.append(f"open {variant}")
        with company():
            while True:
                yield 1
                clock.work(pace(variant))
                clock.events.append(f"step {variant}")

    return train


def names(events, kind):
    """Return the names of an event's variants, as one word."""
    words = [event.split() for event in events]
    return "".join(name for what, name in words if what == kind)


@contextlib.contextmanager
def a_thread(name=None):
    done = threading.Event()
    thread = threading.Thread(target=done.wait, name=name)
    thread.start()
    try:
        yield
    finally:  # else the test session would wait for it for ever
        done.set()
        thread.join()


def list_rounds(trial):
    return [run.round for run in trial.runs]


# Rounds


def test_rounds_come_in_both_orders_and_take_turns_in_both(clock):
    made = kit.compare(noted(clock), variant=["a", "b"])
    opened = names(clock.events, "open")
    assert opened[:2] == "ab" and set(opened[2::4]) == {"a"}
    assert opened[2:] == "abba" * (len(opened[2:]) // 4), "the order changes each time"
    for trial in made.trials:
        pairs = len(opened[2:]) // 4
        assert list_rounds(trial) == [COLD, *range(2 * pairs)]
    starts = [at for at, event in enumerate(clock.events) if event.startswith("open")]
    for number, at in enumerate(starts[3::2]):
        until = starts[3::2][number + 1] if number + 1 < len(starts[3::2]) else None
        groups = itertools.groupby(names(clock.events[at:until], "step"))
        turns = "".join(name for name, _ in groups)
        one, other = "ab" if number % 2 == 0 else "ba"
        # The second one of a round warms up; then it is A B, and B A: B goes on.
        assert turns.startswith(f"{other}{one}{other}{one}")


def test_several_that_run_alone_meet_one_run_of_the_baseline_in_each_round(clock):
    train = noted(clock, company=a_thread)
    made = kit.compare(train, variant=["a", "b", "c"])
    opened = names(clock.events, "open")
    pairs = (len(opened) - 3) // 6
    assert opened == "abc" + "abccba" * pairs and pairs >= 3
    assert not take_turns(made)
    verdicts = [ratio.verdict for ratio in made.ratios.values()]
    assert verdicts == ["slower", "same"]


def test_each_challenger_takes_turns_with_the_baseline(clock):
    made = kit.compare(noted(clock), variant=["a", "b", "c"])
    base, *others = map(list_rounds, made.trials)
    assert sorted(base[1:]) == sorted(others[0][1:] + others[1][1:])
    assert take_turns(made)
    values = [ratio.value for ratio in made.ratios.values()]
    assert values == pytest.approx([0.5, 1.0], rel=1e-6)


@pytest.mark.parametrize(
    ("setup", "least", "most"),
    [(0.0, 5, 7), (0.3, 5, 5), (0.8, 3, 3), (30.0, 3, 3)],
)
def test_three_pairs_always_and_five_where_three_times_the_seconds_pay(
    clock, setup, least, most
):
    begun = clock.now
    made = kit.compare(noted(clock, setup=setup), variant=["a", "c"], seconds=4.0)
    pairs = len(list_rounds(made.baseline)) // 2
    assert least <= pairs <= most and made.ratio.verdict == "same"
    if pairs >= 5:
        assert clock.now - begun <= 3 * 4.0 + 2 * (setup + 0.5), "and two cold starts"
    assert made.took_seconds == pytest.approx(clock.now - begun)


def test_what_is_found_never_decides_how_long_it_is_looked_for(clock):
    """The same, another one, and one that nobody can tell take equally long."""
    lucky = itertools.cycle([5, 20, 8, 30, 6, 12, 9])

    def train(*, kind="same"):
        items = {"same": 10, "twice": 20}.get(kind) or next(lucky)
        yield items
        while True:
            clock.work(0.01)
            yield items

    found, costs = [], set()
    for kind in ("same", "twice", "lucky"):
        begun = clock.now
        made = kit.compare(train, kind=["same", kind], seconds=4.0)
        found.append(made.ratio.verdict)
        costs.add((round(clock.now - begun, 6), len(made.baseline.runs)))
    assert found == ["same", "faster", "cannot tell"] and len(costs) == 1


def test_cold_starts_and_change_overs_are_in_no_ratio(clock):
    """Where another one was, caches are cold, and at first libraries are loaded."""
    last = [None]

    def pace(variant):
        found, last[0] = last[0], variant
        is_first = names(clock.events, "open").count(variant) == 1
        return (0.5 if found != variant else PACES[variant]) * (4 if is_first else 1)

    made = kit.compare(noted(clock, pace), variant=["a", "b"])
    assert made.ratio.value == pytest.approx(0.5)
    assert made.baseline.step_seconds == pytest.approx(0.005)
    for trial in made.trials:
        cold, *later = trial.runs
        assert cold.round == COLD and COLD not in [run.round for run in later]
        assert cold.seconds >= max(run.seconds for run in later), "it tells of change"


@pytest.mark.parametrize("company", [NOTHING, a_thread], ids=["turns", "alone"])
def test_a_machine_that_drifts_makes_no_ratio(clock, company):
    """Its pace is linear in time: it halves on the way."""
    begun = clock.now

    def pace(variant):
        return PACES[variant] * (1 + (clock.now - begun) / 8)

    train = noted(clock, pace, company=company)
    made = kit.compare(train, variant=["a", "c"], seconds=8.0)
    assert made.ratio.value == pytest.approx(1, abs=0.01)
    assert made.ratio.verdict == "same"


@pytest.mark.parametrize(
    ("of", "how", "value", "verdict"),
    [
        ("peak_memory_bytes", {}, 3, "more"),
        ("run_seconds", {"seconds": None}, 3, "more"),
        ("items_per_second", {"seconds": None, "repeats": 3}, 1 / 3, "slower"),
        ("loss", {"seconds": None, "within": 0.1}, 0.2, "more"),
        ("loss", {"seconds": None, "within": 0.3}, 0.2, "same"),
    ],
)
def test_memory_and_complete_runs_have_rounds_with_equal_seeds(
    clock, device, of, how, value, verdict
):
    starts, alive = [], []
    is_complete = "seconds" in how

    def train(*, size=1):
        is_cold = size not in [earlier for earlier, _ in starts]
        starts.append((size, torch.initial_seed()))
        alive.append(size)
        assert alive == [size], "another one is alive"
        clock.work(9.0 if is_cold else 0.2 * size)
        device.allocate(1_000_000 * size)
        try:
            for _ in range(3 if is_complete else 10**9):
                yield 1, {"loss": 0.1 * size}
                clock.work(0.1 * size)
        finally:
            device.allocate(-1_000_000 * size)
            alive.remove(size)

    made = kit.compare(train, of=of, size=[1, 3], **how)
    assert (made.ratio.value, made.ratio.verdict) == (pytest.approx(value), verdict)
    count = how.get("repeats", 6)
    order = "".join(str(size) for size, _ in starts)
    assert order == "13" + ("1331" * count)[: 2 * count]
    seeds = [seed for _, seed in starts[2:]]
    assert seeds == [number * is_complete for number in range(count) for _ in "ab"]
    for trial, size in zip(made.trials, (1, 3), strict=True):
        assert trial.setup_seconds == pytest.approx([9.0, *[0.2 * size] * count])
        assert trial.peak_memory_bytes == 1_000_000 * size


# Who takes turns

NET, RELU = nn.Linear(2, 2), nn.ReLU()
SGD = torch.optim.SGD(NET.parameters())
THING = SimpleNamespace(parts={"net": NET})


class Mine:
    """An object of the reader's that is an experiment."""

    def __init__(self, net):
        self.net = net

    def __call__(self, *, variant=1):
        yield from plain()


def plain(*, variant=1):
    while True:
        kit.clock.CLOCK.work(0.005)
        yield 1


def helper():
    return NET.weight


def uses(thing):
    """Return an experiment that uses a thing by a helper function of its own."""

    def train(*, variant=1):
        _ = thing
        yield from plain()

    return train


def by_helper(*, variant=1):
    helper()
    yield from plain()


def takes(*, net=None, variant=1):
    yield from plain()


def loads(*, variant=1):
    for _ in DataLoader(range(100_000), **ONE_WORKER):
        kit.clock.CLOCK.work(0.005)
        yield 1


def shows_a_bar(*, variant=1):
    for _ in tqdm.tqdm(plain(), file=io.StringIO(), mininterval=0):
        yield 1


def has(company):
    def train(*, variant=1):
        with company():
            yield from plain()

    return train


@contextlib.contextmanager
def a_child():
    with subprocess.Popen(["sleep", "60"]) as child:
        try:
            yield
        finally:
            child.kill()


def sets(*, variant=1):
    if variant == 2:
        torch.set_num_threads(2)
    yield from plain()


#: Experiments, their knobs, and whether two of them can take turns.
WHO = {
    "plain": (plain, {}, True),
    "own bar": (shows_a_bar, {}, True),
    "kit's thread": (has(functools.partial(a_thread, "kit timer")), {}, True),
    "own nets": (lambda *, variant=1: uses(nn.Linear(1, 1))(), {}, True),
    "worker": (loads, {}, False),
    "thread": (has(a_thread), {}, False),
    "child": (has(a_child), {}, False),
    "setting": (sets, {}, False),
    "net": (uses(NET), {}, False),
    "optimizer": (uses(SGD), {}, False),
    "net in a list": (uses([RELU, NET]), {}, False),
    "net by a helper": (by_helper, {}, False),
    "net in an object": (Mine(NET), {}, False),
    "net in a namespace": (uses(THING), {}, False),
    "net in a partial": (functools.partial(takes, net=NET), {}, False),
    "net as a knob": (takes, {"net": NET}, False),
}


@pytest.mark.parametrize("who", WHO)
def test_only_those_take_turns_that_do_nothing_between_steps_and_share_nothing(
    clock, monkeypatch, who
):
    for bar in (tqdm.tqdm, tqdm.auto.tqdm):  # as where no bar was shown before
        monkeypatch.setattr(bar, "monitor", None)
        monkeypatch.setattr(bar, "monitor_interval", 10)
    experiment, knobs, can = WHO[who]
    before = reader_state(), NET.weight.tolist()
    made = kit.compare(experiment, variant=[1, 2], seconds=0.5, **knobs)
    assert take_turns(made) is can
    assert made.ratio.verdict == "same"
    assert (reader_state(), NET.weight.tolist()) == before


def test_a_model_and_a_part_of_it_take_no_turns(clock):
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    optimizer = torch.optim.SGD(net[1].parameters())
    for part in (net[0], optimizer, torch.optim.lr_scheduler.ConstantLR(optimizer)):
        made = kit.compare({"whole": uses(net), "part": uses(part)}, seconds=0.5)
        assert not take_turns(made)


@pytest.mark.parametrize("what", ["a thread", "a setting"])
def test_what_appears_late_spoils_no_ratio(clock, what):
    """Pairs in which one turned out not to be idle are left out and made again."""
    starts, over = collections.Counter(), threading.Event()

    def train(*, variant=1):
        starts[variant] += 1
        for number in itertools.count():
            if variant == 2 and starts[2] >= 5 and number == 16:
                if what == "a thread":
                    threading.Thread(target=over.wait, daemon=True).start()
                else:
                    torch.set_num_threads(2)
            yield 1
            profits = variant == 1 and torch.get_num_threads() == 2
            clock.work(0.001 if profits else 0.005 * variant)

    made = kit.compare(train, variant=[1, 2])
    over.set()
    assert list_rounds(made.trials[0]) == list_rounds(made.trials[1])
    assert len(list_rounds(made.baseline)) >= 7
    assert (made.ratio.value, made.ratio.verdict) == (pytest.approx(0.5), "slower")


class Weights:
    """What fills more than half of the memory."""


@pytest.mark.parametrize("is_collected", [True, False])
def test_two_that_do_not_fit_into_memory_together_run_one_after_the_other(
    clock, is_collected
):
    """An allocator waits for no collection of garbage."""
    held = []

    def train(*, size=1):
        if is_collected:
            gc.collect()
        weights = Weights()
        held.append(weakref.ref(weights))
        if sum(each() is not None for each in held) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        while True:
            clock.work(0.01 * size)
            yield 1

    gc.disable()
    try:
        made = kit.compare(train, size=[1, 2])
    finally:
        gc.enable()
    assert not take_turns(made) and len(list_rounds(made.baseline)) >= 7
    assert (made.ratio.value, made.ratio.verdict) == (pytest.approx(0.5), "slower")


def test_one_that_does_not_fit_alone_says_so_itself(clock):
    def train(*, size=1):
        if size == 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        yield from plain()

    with pytest.raises(torch.OutOfMemoryError) as caught:
        kit.compare(train, size=[1, 2])
    assert "train(size=2), set-up" in "".join(caught.value.__notes__)


# What is asked for, and an end before the end


def test_lists_and_ranges_are_choices_each_with_a_label_of_its_own(quick):
    def knobs(*, a=1, b="x", c=(1, 2), d=0.5):
        while True:
            yield 1

    made = kit.compare(knobs, a=range(1, 3), b=["x", "y"], c=(3, 4), d=7)
    labels = ["a=1, b='x'", "a=1, b='y'", "a=2, b='x'", "a=2, b='y'"]
    assert made.labels == labels and list(made.ratios) == labels[1:]
    assert made.baseline.knobs == {"a": 1, "b": "x", "c": (3, 4), "d": 7}
    assert made.trials[3].knobs == {"a": 2, "b": "y", "c": (3, 4), "d": 7}
    assert JOURNAL[-5:] == [*made.trials, made]
    two = {"one": knobs, "two": knobs}
    names = ["one, a=1", "one, a=2", "two, a=1", "two, a=2"]
    assert kit.compare(two, a=[1, 2]).labels == names
    for values in ([7, 7, 7], [min, lambda: 2], [*torch.zeros(2, 3)]):
        assert len({*kit.compare(knobs, b=values).labels}) == len(values)


@pytest.mark.parametrize("of", ["items_per_second", "run_seconds", "loss"])
def test_an_interrupt_keeps_what_was_measured(clock, of):
    is_complete = of != "items_per_second"
    how = {"seconds": None if is_complete else 4.0}
    how |= {"within": 0.1} if of == "loss" else {}
    journal, before = len(JOURNAL), reader_state()

    def interrupt(start, step):
        starts, alive = [], []

        def train(*, variant="a"):
            starts.append(variant)
            alive.append(variant)
            torch.rand(1)
            try:
                for number in range(20 if is_complete else 10**9):
                    if (variant, starts.count("b"), number) == ("b", start, step):
                        torch.set_num_threads(2)
                        raise KeyboardInterrupt
                    yield 1, {"loss": 100 * PACES[variant]}
                    clock.work(PACES[variant])
            finally:
                alive.remove(variant)

        with pytest.raises(KeyboardInterrupt) as caught:
            kit.compare(train, of=of, variant=["a", "b"], **how)
        assert not alive and reader_state() == before and len(JOURNAL) == journal
        return caught.value

    assert not hasattr(interrupt(start=1, step=0), "comparison")
    error = interrupt(start=6, step=4)
    made = error.comparison
    expected = 2 if of == "run_seconds" else 0.5
    assert made.of == of and made.ratio.value == pytest.approx(expected, rel=0.01)
    assert made.ratio.verdict == "cannot tell" and "stopped" in made.ratio.reason
    assert [trial.outcome for trial in made.trials] == ["stopped", "stopped"]
    assert "sys.last_value.comparison" in str(error) and repr(made) in str(error)


def test_an_interrupt_of_one_measurement_puts_everything_back(clock):
    before, closed = reader_state(), []

    def train():
        try:
            yield 1
            torch.set_default_dtype(torch.float64)
            torch.rand(1)
            raise KeyboardInterrupt
        finally:
            closed.append(math.inf)

    with pytest.raises(KeyboardInterrupt):
        kit.measure(train)
    assert closed and reader_state() == before


def test_an_error_of_closing_is_noted_in_the_error_that_ended_it(clock):
    starts = collections.Counter()

    def first():
        starts["first"] += 1
        try:
            yield from plain()
        finally:
            if starts["first"] > 1:
                raise OSError("the disk is full")

    def second():
        starts["second"] += 1
        if starts["second"] > 1:
            raise ValueError("mine")
        yield from plain()

    with pytest.raises(ValueError, match="mine") as caught:
        kit.compare({"first": first, "second": second}, seconds=0.5)
    assert "disk is full" in "".join(caught.value.__notes__)
    with pytest.raises(OSError, match="full") as caught:
        kit.measure(first)
    assert "closing" in "".join(caught.value.__notes__)
