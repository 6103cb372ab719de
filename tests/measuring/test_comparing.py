"""No drift, order or warm-up makes a ratio, and you can wait, stop and print."""

import collections
import contextlib
import functools
import itertools
import math
import mmap
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from helpers import (
    JOURNAL,
    OTHER_THREADS,
    forked,
    is_interleaved,
    reader_state,
    wait_until,
)

import kit
from kit import system
from kit.measuring.quantity import QUANTITIES, SPEED
from kit.measuring.state import Surroundings
from kit.progress import Progress, take_turn
from kit.records import FIRST

pytestmark = pytest.mark.usefixtures("tidy")

NOTHING = contextlib.nullcontext
PACES = {"a": 0.005, "b": 0.010, "c": 0.005}
WILD = [1, 1.5, 0.8, 1.2, 0.7, 1.1, 1.4]
NET, RELU = torch.nn.Linear(2, 2), torch.nn.ReLU()
LEAST = functools.partial(max, 0.005)  # a built-in function tells no parameters


def noted(clock, pace=PACES.get, *, setup=0.0, company=NOTHING):
    """An experiment that notes in the clock's events who starts, steps and ends."""
    alive = []

    def train(*, variant="a"):
        clock.work(setup)
        clock.events.append(("open", variant))
        alive.append(variant)
        stack = contextlib.ExitStack()  # which nobody sees from outside
        stack.enter_context(company(variant))
        try:
            while True:
                clock.events.append(("alive", "".join(sorted(alive))))
                yield 1
                clock.work(pace(variant))
                clock.events.append(("step", variant))
        finally:
            stack.close()
            alive.remove(variant)
            clock.events.append(("close", variant))

    return train


def names(clock, kind):
    return [event[1] for event in clock.events if event[0] == kind]


def rounds_of(trial):
    """The rounds of a trial's runs; first ones are no part of a ratio."""
    return [run.round for run in trial.runs if run.round != FIRST]


def a_thread(variant, name=None):
    done, stack = threading.Event(), contextlib.ExitStack()
    thread = threading.Thread(target=done.wait, name=name)
    thread.start()
    stack.callback(thread.join)
    stack.callback(done.set)  # the last one comes first
    return stack


def test_starts_and_blocks_come_in_both_orders_so_that_drift_hits_both(clock):
    made = kit.compare(noted(clock, lambda _: 0.005), variant=["a", "b"], seconds=4.0)
    opened = "".join(names(clock, "open"))
    assert opened[:3] == "aba", "first runs, of which the baseline has two"
    twins = [opened[at : at + 4] for at in range(3, len(opened), 4)]
    assert len(twins) >= 5 and set(twins) <= {"abba", "baab"}
    story, steps = "", []
    for event in clock.events:
        if event == "begin":
            steps = []
        elif event == "end" and len(steps) == 5:  # as many as a block has here
            story += steps[0]
        elif event[0] == "open":
            story += "|"
        elif event[0] == "step":
            steps.append(event[1])
    first_a, first_b, again_a, *rounds = filter(None, story.split("|"))
    assert [set(first_a), set(first_b), set(again_a)] == [{"a"}, {"b"}, {"a"}]
    turns = {each[at : at + 4] for each in rounds for at in range(0, len(each), 4)}
    assert turns == {"abba", "baab"}
    for one, other in zip(rounds[::2], rounds[1::2], strict=True):
        assert other == one.translate(str.maketrans("ab", "ba"))
    for trial, firsts in zip(made.trials, (2, 1), strict=True):
        expected = [FIRST] * firsts + [*range(2 * len(twins))]
        assert [run.round for run in trial.runs] == expected


def test_neither_a_cold_first_run_nor_a_first_step_after_a_change_over_is_timed(clock):
    last = [None]

    def pace(variant):  # where the other one was, caches are cold
        found, last[0] = last[0], variant
        cold = names(clock, "open").count(variant) == 1
        return (PACES[variant] if found == variant else 0.5) * (4 if cold else 1)

    made = kit.compare(noted(clock, pace), variant=["a", "b"], seconds=4.0)
    assert [t.step_seconds for t in made.trials] == pytest.approx([0.005, 0.010])
    assert [t.items_per_second for t in made.trials] == pytest.approx([200, 100])


def lucky(who, factors):
    """Runs of some variants are of different speeds, as chance has it."""
    luck, now = itertools.cycle(factors), {}

    def begin(variant):
        now[variant] = next(luck) if variant in who else 1
        return NOTHING()

    return {"company": begin, "pace": lambda variant: PACES[variant] * now[variant]}


@pytest.mark.parametrize("other", ["b", "c"], ids=["slower", "equal"])
@pytest.mark.parametrize(
    ("luck", "setup", "patient", "least", "most"),
    [([1], 0, False, 0, 0.9), (WILD, 0, False, 0.7, 1.1), (WILD, 1, True, 2.6, 3.2)],
)
def test_a_comparison_stops_early_when_sure_and_keeps_to_its_seconds(
    clock, other, luck, setup, patient, least, most
):
    train, begun = noted(clock, setup=setup, **lucky("abc", luck)), clock.now
    made = kit.compare(train, variant=["a", other], seconds=12.0, patient=patient)
    assert least * 12.0 <= clock.now - begun <= most * 12.0
    assert (len(rounds_of(made.baseline)) == 10) is (luck == [1])
    assert (made.ratio.verdict == "slower") is (other == "b")


def test_each_challenger_has_rounds_of_its_own_most_where_the_interval_is_wide(clock):
    train, begun = noted(clock, **lucky("b", WILD)), clock.now
    made = kit.compare(train, variant=["a", "a", "b"], seconds=10.0)
    assert set(names(clock, "alive")) == {"a", "b", "ab", "aa"}
    assert sorted(names(clock, "open")) == sorted(names(clock, "close"))
    base, calm, wild = (rounds_of(trial) for trial in made.trials)
    assert sorted(base) == sorted([*calm, *wild]) and len(calm) == 10 < len(wild)
    assert [ratio.verdict for ratio in made.ratios.values()] == ["same", "slower"]
    assert clock.now - begun <= 11.0


@pytest.mark.parametrize(("setup", "rounds"), [(0.3, 10), (5.0, 2)])
def test_too_small_a_budget_is_said(clock, progresses, setup, rounds):
    train, begun = noted(clock, setup=setup), clock.now
    made = kit.compare(train, variant=["a", "b"], seconds=4.0)
    for words in (
        "five pairs of rounds need about",
        "% done",
        "0.5 × so far",
        "s left",
    ):
        assert words in progresses[-1].text()
    assert len(rounds_of(made.baseline)) == rounds
    first_runs = 3 * 1.25 * setup  # they come on top
    assert clock.now - begun <= max(3 * 4.0, 3 * rounds * setup) + first_runs


@pytest.mark.parametrize(
    ("who", "verdict"),
    [
        ("the machine", "same"),
        ("c from its second run on", "cannot tell"),
        ("c on its way", "cannot tell"),
        ("a on its way", "cannot tell"),
    ],
)
def test_a_machine_that_slows_down_is_no_variant_that_does(clock, who, verdict):
    """The machine does between the first runs of a and c, and stays so."""
    starts = collections.Counter()

    def train(*, variant="a"):
        starts[variant] += 1
        for step in itertools.count():
            yield 1
            has_changed = {
                "the machine": starts["c"] > 0,
                f"{variant} from its second run on": starts[variant] > 1,
                f"{variant} on its way": step * PACES[variant] > 0.2,
            }
            clock.work(PACES[variant] * (1.7 if has_changed.get(who) else 1))

    ratio = kit.compare(train, variant=["a", "c"], seconds=4.0).ratio
    assert ratio.verdict == verdict
    assert ("first, longer runs" in ratio.reason) is (verdict == "cannot tell")


@pytest.mark.parametrize(
    ("seconds", "setup", "company", "least"),
    # At least two blocks, ten of them, or a quarter of its start.
    [(0.5, 0.0, NOTHING, 0.04), (0.5, 0.0, a_thread, 0.2), (4.0, 2.0, NOTHING, 0.5)],
)
def test_a_slow_start_is_followed_by_enough_measured_time(
    clock, seconds, setup, company, least
):
    train = noted(clock, setup=setup, company=company)
    made = kit.compare(train, variant=["a", "b"], seconds=seconds)
    for trial in made.trials:
        spent = {FIRST: [], "later": []}
        for run in trial.runs:
            kind = FIRST if run.round == FIRST else "later"
            spent[kind].append(sum(block.wall_seconds for block in run.blocks))
        assert min(spent["later"]) >= least - 1e-6
        # 15 % of the budget are for three first runs, of which the baseline has two.
        assert min(spent[FIRST]) >= max(*spent["later"], 0.15 * seconds / 3) - 1e-6


def a_child(variant):
    child, stack = subprocess.Popen(["sleep", "60"]), contextlib.ExitStack()
    stack.callback(child.wait)
    stack.callback(child.kill)
    return stack


def settings(variant, of="b"):
    if variant in of:
        torch.set_num_threads(OTHER_THREADS)
        torch.backends.cudnn.benchmark = True
    return NOTHING()


def trained(variant):
    NET(torch.ones(2)).sum().backward()
    return 0.005


def looked_at(variant):
    with torch.no_grad():
        NET(RELU(torch.ones(2)))
    return 0.005


IDLE = {
    "nothing": (True, {}),
    "equal settings": (False, {"company": lambda variant: settings(variant, of="ab")}),
    "kit's thread": (True, {"company": lambda _: a_thread(_, "kit timer")}),
    "compiler": (True, {"company": lambda _: a_thread(_, "InductorSubproc")}),
    "teacher": (True, {"pace": looked_at}),
    "built-in": (True, {"pace": lambda _: LEAST(0.001)}),
    "trained": (False, {"pace": trained}),
    "setting": (False, {"company": settings}),
    "thread": (False, {"company": a_thread}),
    "child": (False, {"company": a_child}),
}


@pytest.mark.parametrize(("is_idle", "how"), IDLE.values(), ids=IDLE)
def test_only_loops_that_do_nothing_between_steps_are_measured_in_turns(
    clock, quick, is_idle, how
):
    before = reader_state()
    made = kit.compare(noted(clock, **how), variant=["a", "b"])
    assert is_interleaved(made) is is_idle
    assert ("ab" in names(clock, "alive")) is is_idle
    assert names(clock, "open") == [*"aba", *"abba"]
    assert not math.isnan(made.ratio.value)
    assert ("NET" in repr(made)) is (how.get("pace") in (trained, looked_at)), "named"
    assert reader_state() == before


@pytest.mark.parametrize("what", ["a thread", "a setting"])
def test_a_thread_or_setting_that_appears_late_does_not_spoil_the_ratio(clock, what):
    starts, over = collections.Counter(), threading.Event()

    def train(*, variant=1):
        starts[variant] += 1
        for number in itertools.count():
            if variant == 2 and starts[2] >= 4 and number == 6:
                if what == "a thread":
                    threading.Thread(target=over.wait, daemon=True).start()
                else:
                    torch.set_num_threads(OTHER_THREADS)
            yield 1
            profits = variant == 1 and torch.get_num_threads() == OTHER_THREADS
            clock.work(0.001 if profits else 0.005 * variant)

    made = kit.compare(train, variant=[1, 2], seconds=4.0)
    over.set()
    assert not is_interleaved(made) and len(rounds_of(made.baseline)) > 4
    assert (made.ratio.value, made.ratio.verdict) == (pytest.approx(0.5), "slower")


def test_a_challenger_whose_rounds_were_left_out_is_measured_again(clock):
    """The baseline starts a thread in a round of 2, which takes longer to tell."""
    starts, over = collections.Counter(), threading.Event()

    def train(*, variant=1):
        starts[variant] += 1
        pace = 0.005 * variant * (1 + 0.1 * (variant == 2) * (starts[2] % 3))
        for number in itertools.count():
            if variant == 1 and starts[1] == 25 and number == 6:
                threading.Thread(target=over.wait, daemon=True).start()
            yield 1
            clock.work(pace)

    made = kit.compare(train, variant=[1, 2, 3], seconds=12.0)
    over.set()
    assert starts[1] > starts[3], "it was not the first pairs that both took"
    for ratio in made.ratios.values():
        assert ratio.verdict == "slower", ratio.reason


@pytest.mark.parametrize(("computed", "is_idle"), [(0.002, True), (0.004, False)])
def test_a_loop_with_busy_background_threads_is_not_measured_in_turns(
    clock, monkeypatch, computed, is_idle
):
    # How much of a core a pool gets is the machine's doing, and no part of this.
    monkeypatch.setattr(kit.clock, "compute_in_pause", lambda seconds: computed)
    made = kit.compare(noted(clock), variant=["a", "b"])
    assert is_interleaved(made) is is_idle


def test_runs_use_other_memory_addresses_so_that_no_variant_is_lucky(quick):
    """By private names: which addresses the system hands out is not the kit's doing."""
    finds = [Surroundings() for _ in range(3)]
    small = [[len(block) for block in each._blocks] for each in finds]
    assert len({*map(tuple, small)}) == 3 and max(map(max, small)) <= 60_000
    assert len({len(each._pages) for each in finds}) > 1
    for each in finds:  # a page that nobody has written to takes no memory
        assert all(each._pages[:: mmap.PAGESIZE])

    def train(*, which="a"):
        while True:
            yield 1

    for trial in kit.compare(train, which=["a", "b"]).trials:
        assert trial.peak_memory_bytes < 1_000_000, "not counted as its memory"


@pytest.mark.parametrize(
    ("of", "options", "value", "verdict"),
    [
        ("peak_memory_bytes", {"seconds": 2.0}, 3, "more"),
        ("peak_memory_bytes", {"seconds": 0.2}, 3, "more"),
        ("run_seconds", {"seconds": None}, 3, "more"),
        ("items_per_second", {"seconds": None, "repeats": 5}, 1 / 3, "slower"),
        ("loss", {"seconds": None, "within": 0.1}, 0.2, "more"),
        ("loss", {"seconds": None, "within": 0.3}, 0.2, "same"),
    ],
)
def test_memory_and_whole_runs_are_compared_in_alternating_order(
    clock, device, of, options, value, verdict
):
    starts, alive = [], []
    complete = options["seconds"] is None

    def train(*, size=1):
        cold = size not in [earlier for earlier, *_ in starts]
        starts.append([size, torch.initial_seed(), 0])
        alive.append(size)
        assert alive == [size], "another one is alive"
        clock.work(9.0 if cold else 0.2 * size)
        device.allocate(1_000_000 * size)
        try:
            for _ in range(3 if complete else 10**9):
                yield 1, {"loss": 0.1 * size}
                starts[-1][2] += 1
                clock.work(1.0 if cold else 0.1 * size)
        finally:
            device.allocate(-1_000_000 * size)
            alive.remove(size)

    made = kit.compare(train, of=of, size=[1, 3], **options)
    assert (made.ratio.value, made.ratio.verdict) == (pytest.approx(value), verdict)
    count = options.get("repeats", 6)  # six starts, too, where memory is compared
    order = "".join(str(size) for size, *_ in starts)
    assert order == "13" + ("1331" * count)[: 2 * count]
    seeds = [seed for _, seed, _ in starts[2:]]
    assert seeds == ([n for n in range(count) for _ in "AB"] if complete else [0] * 12)
    assert not complete or [steps for *_, steps in starts[:2]] == [1, 1], (
        "closed at once"
    )
    if of == "peak_memory_bytes":
        assert "1 MB" in repr(made) and "3 MB" in repr(made), "nobody counts digits"
    for trial, size in zip(made.trials, (1, 3), strict=True):
        assert trial.setup_seconds == pytest.approx([9.0, *[0.2 * size] * count])
        assert trial.peak_memory_bytes == 1_000_000 * size


def test_lists_and_ranges_are_choices_each_with_a_label_of_its_own(quick):
    def knobs(*, a=1, b="x", c=(1, 2), d=0.5):
        while True:
            yield 1

    made = kit.compare(knobs, a=range(1, 3), b=["x", "y"], c=(3, 4), d=7)
    labels = ["a=1, b='x'", "a=1, b='y'", "a=2, b='x'", "a=2, b='y'"]
    assert made.labels == labels and list(made.ratios) == labels[1:]
    assert made.baseline is made.trials[0]
    assert made.baseline.knobs == {"a": 1, "b": "x", "c": (3, 4), "d": 7}
    assert made.trials[3].knobs == {"a": 2, "b": "y", "c": (3, 4), "d": 7}
    assert all(any(one is kept for kept in JOURNAL) for one in (made, *made.trials))
    with pytest.raises(ValueError, match="a=2"):
        _ = made.ratio
    two, long = {"one": knobs, "two": knobs}, "a" * 99
    names = ["one, a=1", "one, a=2", "two, a=1", "two, a=2"]
    assert kit.compare(two, a=[1, 2]).labels == names
    again = ["a=7", "a=7 (again)", "a=7 (again 2)"]
    assert kit.compare(knobs, a=[7, 7, 7]).labels == again
    for values in ([min, lambda: 2], [long + "b", long + "c"], [*torch.zeros(2, 3)]):
        assert len({*kit.compare(knobs, b=values).labels}) == 2


def test_a_knob_may_be_called_model(quick):
    def look(*, model="small"):
        while True:
            yield len(model)

    assert kit.compare(look, model=["small", "larger"]).labels[1] == "model='larger'"


def test_a_first_functions_ordinary_parameters_are_knobs(quick):
    def train(batch_size=8, lr=0.1):
        while True:
            yield batch_size, {"lr": lr}

    made = kit.compare(train, batch_size=[8, 16], lr=0.5)
    assert [trial.knobs["batch_size"] for trial in made.trials] == [8, 16]
    assert made.baseline.last_values("lr")[-1] == 0.5
    assert kit.measure(functools.partial(train, 32)).knobs["batch_size"] == 32


def test_a_quick_run_starts_every_choice_and_pairs_first_and_last(quick):
    steps = collections.Counter()

    def train(*, a=1, b=1):
        while True:
            yield 1
            steps[a, b] += 1

    made = kit.compare(train, a=[1, 2, 3], b=[1, 2, 3])
    assert len(steps) == 9 and 2 <= min(steps.values()) <= max(steps.values()) < 30
    paired = {k for k, ratio in made.ratios.items() if not math.isnan(ratio.value)}
    assert paired == {"a=1, b=3", "a=3, b=1", "a=3, b=3"}
    others = [made.ratios[label] for label in made.ratios.keys() - paired]
    assert len(others) == 5 and {ratio.verdict for ratio in others} == {"cannot tell"}
    assert made._repr_html_() and repr(made) and len(made.table()) == 9


@pytest.mark.parametrize(("early", "late"), [(0.0, 0.0), (0.3, 0.0), (0.0, 0.3)])
def test_a_cpu_limit_of_a_container_gives_no_wrong_verdict(
    clock, monkeypatch, early, late
):
    calm = {"others_cores": 0.0, "cores_per_thread": 1.0, "waiting": 0.0}
    least = 0.25 if early else 0.02

    def describe(*_):
        return calm | {"throttled": late if clock.now > 101 else early}

    # The counters are the system's: they know nothing of the fake clock.
    monkeypatch.setattr(system, "describe_load", describe)
    made = kit.compare(noted(clock, lambda _: 0.005), variant=["a", "c"], seconds=4.0)
    for trial in made.trials:
        later = [run for run in trial.runs if run.round != FIRST]
        seconds = [block.seconds for run in later for block in run.blocks]
        assert least <= min(seconds) <= max(seconds) < 2 * least
        assert trial.conditions == calm | {"throttled": late}
    assert made.ratio.verdict == ("cannot tell" if late else "same")
    assert ("quota" in made.ratio.reason) is bool(late)


@pytest.mark.parametrize("of", [*QUANTITIES, "loss"])
@pytest.mark.parametrize("when", [1, 4, 5])  # the fourth one may be a first run
@pytest.mark.filterwarnings("error")
def test_a_stopped_comparison_says_so_at_once(clock, progresses, of, when):
    starts, told = [], []

    def train(*, variant=1):
        starts.append(variant)
        if len(starts) == when:
            progresses[-1].stop()
            told.append(progresses[-1].text())
        yield 1, {"loss": 0.5}
        assert not told, "it goes on"
        for _ in range(1000):
            yield 1, {"loss": 0.5}
            clock.work(0.01)

    seconds = None if of in ("run_seconds", "loss") else 2.0
    within = 0.1 if of == "loss" else None
    made = kit.compare(train, variant=[1, 2, 3], of=of, seconds=seconds, within=within)
    assert len(starts) == when and "stopping" in told[0]
    assert {trial.outcome for trial in made.trials} == {"stopped"}
    assert {ratio.verdict for ratio in made.ratios.values()} == {"cannot tell"}
    assert all(ratio.reason for ratio in made.ratios.values())
    assert "topped" in repr(made) and "topped" in made._repr_html_()
    assert len(made.table()) == 3


@pytest.mark.parametrize("of", [*QUANTITIES, "loss"])
def test_an_interrupt_keeps_what_was_measured(clock, device, of):
    """In a step of some round; in the one of a first run there is nothing to keep."""
    complete = of in ("run_seconds", "loss")
    how = {"seconds": None if complete else 4.0, "title": "Mine"}
    how |= {"within": 0.1} if of == "loss" else {}
    journal, before = len(JOURNAL), reader_state()

    def interrupt(start, step):
        """Compare two, of which b is interrupted; return the interrupt."""
        starts, alive = [], []

        def train(*, variant="a"):
            starts.append(variant)
            alive.append(variant)
            device.allocate(1_000_000 * (1 + (variant == "b")))
            try:
                for number in range(20 if complete else 10**9):
                    yield 1, {"loss": 100 * PACES[variant]}
                    clock.work(PACES[variant])
                    if (variant, starts.count("b"), number) == ("b", start, step):
                        raise KeyboardInterrupt
            finally:
                alive.remove(variant)
                device.allocate(-1_000_000 * (1 + (variant == "b")))

        with pytest.raises(KeyboardInterrupt) as caught:
            kit.compare(train, of=of, variant=["a", "b"], **how)
        assert not alive and reader_state() == before and len(JOURNAL) == journal
        return caught.value

    assert not hasattr(interrupt(start=1, step=0), "comparison")
    error = interrupt(start=6, step=3)
    made, text = error.comparison, str(error)
    assert (made.of, made.title) == (of, "Mine")
    assert made.ratio.value == pytest.approx(0.5 if of in (SPEED, "loss") else 2)
    if of in QUANTITIES:
        assert made.ratio.verdict == "cannot tell" and "stopped" in made.ratio.reason
    assert [trial.outcome for trial in made.trials] == ["stopped", "stopped"]
    assert [len(rounds_of(trial)) for trial in made.trials] == [5, 5]
    for words in ("sys.last_value.comparison", repr(made), "Stopped before the end"):
        assert words in text


@contextlib.contextmanager
def somebody_measures():
    has_begun, let_go = threading.Event(), threading.Event()

    def measure():
        with take_turn(Progress("measuring train(lr=0.1)")):
            has_begun.set()
            assert let_go.wait(20)

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(measure)
        assert has_begun.wait(20)
        yield let_go
        let_go.set()
        done.result(20)


def nap(*, pause=1):
    while True:
        time.sleep(0.001 * pause)
        yield 1


@pytest.mark.parametrize("stop", [False, True], ids=["waits", "is stopped"])
@pytest.mark.parametrize("knobs", [{}, {"size": [1, 2]}], ids=["measure", "compare"])
def test_who_waits_says_for_whom_and_may_stop(quick, progresses, stop, knobs):
    ask, begun = kit.compare if knobs else kit.measure, []

    def train(*, size=1):
        begun.append(size)
        yield from nap()

    with somebody_measures() as let_go, ThreadPoolExecutor(1) as pool:
        call = pool.submit(ask, train, **knobs)
        wait_until(lambda: progresses and "lr=0.1" in progresses[-1].text())
        assert progresses[-1].waiting and not begun
        progresses[-1].stop() if stop else let_go.set()
        made = call.result(20)
    expected = "stopped" if stop else "finished"
    assert {trial.outcome for trial in getattr(made, "trials", [made])} == {expected}
    assert bool(begun) is not stop and ("stop" in repr(made).lower()) is stop


def test_a_measurement_inside_another_and_in_a_forked_child_does_not_wait(quick):
    def outer(*, pause=1):
        assert kit.measure(nap, pause=pause).outcome == "finished"
        yield from nap()

    with somebody_measures():
        child = forked(kit.measure, nap)
        child.join(10)
        child.kill()
        child.join()
        assert child.exitcode == 0, "it waits for a thread that it does not have"
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(kit.compare, outer, pause=[1, 2]).result(20).ratio


def test_a_set_up_prints_at_its_first_start_and_steps_as_they_like(quick, capsys):
    def prints(*, size=1, length=3):
        print(f"set-up of {size}")
        sys.stdout.writelines([f"more of {size}\n"])
        for _ in range(length):
            yield 1
            print("a step")

    for _ in range(2):  # the next call shows it again
        for ask in (
            lambda: [kit.measure(prints, seconds=None, repeats=3)],
            lambda: [kit.measure(prints)],  # it is started again in one run
            lambda: kit.compare(prints, size=[1, 2], length=10**9).trials,
        ):
            trials = ask()
            said = capsys.readouterr().out
            for trial in trials:
                assert said.count(f"p of {trial.knobs['size']}\nmore of") == 1
            assert said.count("up of") == len(trials) and said.count("a step") > 1


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_other_cells_can_print_while_the_kit_measures_and_after_an_error(
    quick, capsys, error
):
    inside, go_on, starts = threading.Event(), threading.Event(), []
    before = dict(vars(sys.stdout))

    def waits():
        starts.append(True)
        print("set-up")
        if len(starts) == 2:
            inside.set()
            assert go_on.wait(20)
            if error:
                raise error
        yield from [1, 1, 1]

    with ThreadPoolExecutor(1) as pool:
        measured = pool.submit(kit.measure, waits, seconds=None, repeats=2)
        assert inside.wait(20)
        print("the reader's own")
        go_on.set()
        assert bool(measured.exception(20)) == bool(error)
    assert capsys.readouterr().out.splitlines() == ["set-up", "the reader's own"]
    assert vars(sys.stdout) == before


def test_the_time_left_is_judged_by_what_was_spent(monkeypatch):
    now = [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr("kit.progress.time", clock)
    progress = Progress("training")
    progress.begin(0, 4, seconds=5)
    assert progress.seconds_left == 20
    now[0] = 3.0
    progress.begin(1, 4, seconds=5)
    assert progress.seconds_left == 15
    progress.expect(1.5)  # no part is more than done
    assert (progress.fraction, progress.seconds_left) == (0.5, 3)
    now[0] = 60.0
    assert "no step has ended for 60 s" in progress.text()


def test_progress_does_not_say_that_a_running_loop_hangs(monkeypatch):
    heard = []
    monkeypatch.setattr(Progress, "hear", lambda self: heard.append(1))

    def train():
        for _ in range(20):
            yield 1

    kit.measure(train, seconds=None)
    assert len(heard) >= 19


def test_progress_is_told_but_in_a_pause_and_a_stored_page(capsys, monkeypatch):
    before, progress = {*threading.enumerate()}, Progress("training", at_once=True)
    progress.hushed = True
    with progress:
        (thread,) = {*threading.enumerate()} - before
        assert thread.name.startswith("kit ")
        time.sleep(0.3)
        assert capsys.readouterr().err == ""
        progress.hushed = False
        wait_until(lambda: "training" in capsys.readouterr().err)
    assert not thread.is_alive()
    monkeypatch.setenv("KIT_STATIC", "1")
    with Progress("training", at_once=True):
        time.sleep(0.2)
    assert capsys.readouterr().err == ""
