"""How two or more are compared: cold starts, pairs of rounds, turns, budget, end."""

import collections
import contextlib
import itertools
import threading
import weakref

import pytest
import torch
from helpers import JOURNAL, ONE_WORKER, reader_state, take_turns
from torch import nn
from torch.utils.data import DataLoader

import kit
from kit.measuring.records import COLD

pytestmark = pytest.mark.usefixtures("tidy")

#: Seconds of a step of each variant.
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
def a_thread():
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
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
    assert take_turns(made)
    opened = names(clock.events, "open")
    pairs = len(opened) // 4
    assert opened == "ab" + "abba" * pairs
    for trial in made.trials:
        assert list_rounds(trial) == [COLD, *range(2 * pairs)]
        cold, *later = trial.runs
        assert cold.seconds > max(run.seconds for run in later), "it shows changes"
    rounds = " ".join(clock.events).split("open")[4::2]
    for number, events in enumerate(rounds):
        steps = [word for word in events.split() if word in "ab"]
        turns = [(name, len([*group])) for name, group in itertools.groupby(steps)]
        # The second one of a round warms up; then it is A, B B, A A …
        expected = "baba" if number % 2 == 0 else "abab"
        assert "".join(name for name, _ in turns[:4]) == expected
        assert turns[3][1] > 1.5 * turns[1][1], "one that goes on has two stretches"


def test_several_that_run_alone_meet_one_run_of_the_baseline_in_each_round(clock):
    made = kit.compare(noted(clock, company=a_thread), variant=["a", "b", "c"])
    assert not take_turns(made)
    opened = names(clock.events, "open")
    pairs = (len(opened) - 3) // 6
    assert opened == "abc" + "abccba" * pairs and pairs >= 3
    assert [ratio.verdict for ratio in made.ratios.values()] == ["slower", "same"]


def test_each_challenger_takes_turns_with_the_baseline(clock):
    made = kit.compare(noted(clock), variant=["a", "b", "c"])
    assert take_turns(made)
    base, *others = map(list_rounds, made.trials)
    assert sorted(base[1:]) == sorted(others[0][1:] + others[1][1:])
    assert [ratio.verdict for ratio in made.ratios.values()] == ["slower", "same"]


@pytest.mark.parametrize(
    ("setup", "least", "most"),
    [(0.0, 5, 7), (30.0, 3, 3)],
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
        while True:
            yield items
            clock.work(0.01)

    found = []
    costs = set()
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
        is_changed = last[0] != variant
        last[0] = variant
        is_cold = names(clock.events, "open").count(variant) == 1
        return (0.5 if is_changed else PACES[variant]) * (4 if is_cold else 1)

    made = kit.compare(noted(clock, pace), variant=["a", "b"])
    assert made.ratio.value == pytest.approx(0.5)
    assert made.baseline.step_seconds == pytest.approx(0.005)
    for trial in made.trials:
        cold, *later = trial.runs
        assert cold.round == COLD and COLD not in [run.round for run in later]


def test_what_an_earlier_start_has_left_behind_leaves_no_verdict(clock):
    """What the first start of one computes is kept, so later ones have less to do."""
    starts = collections.Counter()

    def train(*, keeps=False):
        starts[keeps] += 1
        seconds = 0.0005 if keeps and starts[True] > 1 else 0.005
        while True:
            yield 1
            clock.work(seconds)

    made = kit.compare(train, keeps=[False, True])
    assert made.ratio.verdict == "cannot tell" and made.ratio.reason


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
    ],
)
def test_memory_and_complete_runs_have_rounds_with_equal_seeds(
    clock, device, of, how, value, verdict
):
    starts = []
    is_complete = "seconds" in how

    def train(*, size=1):
        starts.append((size, torch.initial_seed()))
        clock.work(0.2 * size if len(starts) > 2 else 9.0)
        device.allocate(1_000_000 * size)
        try:
            for _ in range(3 if is_complete else 10**9):
                yield 1, {"loss": 0.1 * size}
                clock.work(0.1 * size)
        finally:
            device.allocate(-1_000_000 * size)

    made = kit.compare(train, of=of, size=[1, 3], **how)
    assert (made.ratio.value, made.ratio.verdict) == (pytest.approx(value), verdict)
    rounds = how.get("repeats", 6)
    order = "".join(str(size) for size, _ in starts)
    assert order == "13" + ("1331" * rounds)[: 2 * rounds]
    for number in range(rounds):
        seeds = {seed for _, seed in starts[2 + 2 * number : 4 + 2 * number]}
        assert seeds == {number if is_complete else 0}


# Who takes turns

NET = nn.Linear(2, 2)
SGD = torch.optim.SGD(NET.parameters())


def plain(*, variant=1):
    while True:
        kit.clock.CLOCK.work(0.005)
        yield 1


def uses(thing):
    """Return an experiment that closes over a thing."""

    def train(*, variant=1):
        _ = thing
        yield from plain()

    return train


def uses_by_a_helper(*, variant=1):
    find_weight()
    yield from plain()


def find_weight():
    return NET.weight


def builds(*, variant=1):
    yield from uses(nn.Linear(1, 1))()


def has(company):
    def train(*, variant=1):
        with company():
            yield from plain()

    return train


def loads(*, variant=1):
    for _ in DataLoader(range(100_000), **ONE_WORKER):
        kit.clock.CLOCK.work(0.005)
        yield 1


def sets(*, variant=1):
    if variant == 2:
        torch.set_num_threads(2)
    yield from plain()


TAKE_TURNS = {"plain": plain, "own nets": builds}
RUN_ALONE = {
    "worker": loads,
    "thread": has(a_thread),
    "setting": sets,
    "optimizer": uses(SGD),
    "net by a helper": uses_by_a_helper,
}


@pytest.mark.parametrize("who", [*TAKE_TURNS, *RUN_ALONE])
def test_only_those_take_turns_that_do_nothing_between_steps_and_share_nothing(
    clock, who
):
    experiment = (TAKE_TURNS | RUN_ALONE)[who]
    before = reader_state(), NET.weight.tolist()
    made = kit.compare(experiment, variant=[1, 2], seconds=0.5)
    assert take_turns(made) is (who in TAKE_TURNS)
    assert made.ratio.verdict == "same"
    assert (reader_state(), NET.weight.tolist()) == before


def test_a_model_and_the_optimizer_of_a_part_of_it_take_no_turns(clock):
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    optimizer = torch.optim.SGD(net[1].parameters())
    made = kit.compare({"whole": uses(net), "part": uses(optimizer)}, seconds=0.5)
    assert not take_turns(made)


def test_a_setting_that_is_changed_late_spoils_no_ratio(clock):
    """Pairs in which one turned out not to be idle are left out and made again."""
    starts = collections.Counter()

    def train(*, variant=1):
        starts[variant] += 1
        for number in itertools.count():
            if variant == 2 and starts[2] >= 5 and number == 16:
                torch.set_num_threads(2)
            yield 1
            profits = variant == 1 and torch.get_num_threads() == 2
            clock.work(0.001 if profits else 0.005 * variant)

    made = kit.compare(train, variant=[1, 2])
    for trial in made.trials:
        assert list_rounds(trial)[:7] == [COLD, 0, 1, 4, 5, 6, 7], "without 2 and 3"
    assert (made.ratio.value, made.ratio.verdict) == (pytest.approx(0.5), "slower")


def test_two_that_do_not_fit_into_memory_together_run_one_after_the_other(clock):
    held = []

    def train(*, size=1):
        weights = nn.Linear(1, 1)  # they fill more than half of the memory
        held.append(weakref.ref(weights))
        if size == 9 or sum(each() is not None for each in held) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        while True:
            clock.work(0.01 * size)
            yield 1

    made = kit.compare(train, size=[1, 2])
    assert not take_turns(made) and len(list_rounds(made.baseline)) >= 7
    assert (made.ratio.value, made.ratio.verdict) == (pytest.approx(0.5), "slower")
    with pytest.raises(torch.OutOfMemoryError):  # this one fits nowhere
        kit.compare(train, size=[1, 9])


# What is asked for, and an end before the end


def test_lists_and_ranges_are_choices_each_with_a_label_of_its_own(quick):
    def knobs(*, a=1, b="x", c=(1, 2), d=0.5):
        while True:
            yield 1

    made = kit.compare(knobs, a=range(1, 3), b=["x", "y"], c=(3, 4), d=7)
    labels = ["a=1, b='x'", "a=1, b='y'", "a=2, b='x'", "a=2, b='y'"]
    assert made.labels == labels and list(made.ratios) == labels[1:]
    assert made.baseline.knobs == {"a": 1, "b": "x", "c": (3, 4), "d": 7}
    assert JOURNAL[-5:] == [*made.trials, made]
    two = {"one": knobs, "two": knobs}
    named = ["one, a=1", "one, a=2", "two, a=1", "two, a=2"]
    assert kit.compare(two, a=[1, 2]).labels == named
    assert len({*kit.compare(knobs, b=[7, 7, 7]).labels}) == 3


@pytest.mark.parametrize("how", [{}, {"of": "loss", "seconds": None, "within": 0.1}])
def test_an_interrupt_keeps_what_was_measured(clock, how):
    starts = []
    closed = []

    def train(*, variant="a"):
        starts.append(variant)
        try:
            for number in range(20 if how else 10**9):
                if starts.count("b") == 6 and number == 4:
                    torch.set_num_threads(2)
                    raise KeyboardInterrupt
                yield 1, {"loss": 100 * PACES[variant]}
                clock.work(PACES[variant])
        finally:
            closed.append(variant)

    before = reader_state()
    journal = len(JOURNAL)
    with pytest.raises(KeyboardInterrupt) as caught:
        kit.compare(train, variant=["a", "b"], **how)
    assert sorted(closed) == sorted(starts)
    assert reader_state() == before and len(JOURNAL) == journal
    made = caught.value.comparison
    assert made.ratio.value == pytest.approx(0.5, rel=0.01)
    assert made.ratio.verdict == "cannot tell" and made.ratio.reason
    assert [trial.outcome for trial in made.trials] == ["stopped", "stopped"]
    assert repr(made) in str(caught.value)
