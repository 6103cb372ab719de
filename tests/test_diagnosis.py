"""A diagnosis names what takes the time, changes only what it says, claims no more."""

import contextlib
import copy
import dataclasses
import functools
import html
import itertools
import json
import math
import os
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cheatsheet
import pytest
import torch
import torch.distributed as dist
from helpers import FakeClock, children, reader_state, refused, wait_until
from hypothesis import assume, given, strategies as st
from torch import nn
from torch.autograd.profiler import record_function
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, TensorDataset

import kit
import kit.clock
from kit import statistics
from kit.diagnosis import tracing
from kit.diagnosis.causes import CAUSES, decide, estimate
from kit.diagnosis.counterfactuals import BACKWARD, LOADER, STEP, WAIT, change
from kit.diagnosis.diagnosing import find_suspects, judge_shares
from kit.diagnosis.profiling import Profile, part, weigh
from kit.diagnosis.tracing import Event, Trace, read_trace
from kit.figures import PHASES
from kit.measuring.experiment import resolve
from kit.measuring.ratio import Ratio

pytestmark = pytest.mark.usefixtures("quick")

CORES = kit.this_machine().cores
LEFT_OUT = {name: cause.leave_out for name, cause in CAUSES.items() if cause.leave_out}
LEFT_OUT["threads"] = functools.partial(LEFT_OUT["threads"], threads=3)


@pytest.fixture(scope="module", autouse=True)
def warm():
    """Profile and draw once, before the processor time of a test is counted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KIT_QUICK", "1")
        diagnosed().plot(), report()


#: As PyTorch and the kit write them into a trace; others are operations.
NAMES = {
    "data": "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
    "zero": "Optimizer.zero_grad#SGD.zero_grad",
    "step": "Optimizer.step#SGD.step",
    "back": BACKWARD,
    "loader": LOADER,
    "reduce": "gloo:all_reduce",
    "await": WAIT,
    "wait": "cudaStreamSynchronize",
    "copy": "cudaMemcpyAsync",
    "mine": "my label",
}
BUSY = Event(0, 1, "gemm", "device 0 stream 7")


def make_event(start, stop, name):
    own = NAMES.get(name, f"aten::{name}")
    return Event(start, stop, own, "1", not own.startswith(("aten", "cuda")))


@pytest.mark.parametrize(
    ("step", "phases"),
    [
        ("data zero mm back step", "input optimizer forward backward optimizer"),
        ("loader mm relu", "input forward forward"),
        ("mine/mm back step", "forward backward optimizer"),
        ("mm back _foreach_norm mul_ step", "forward backward" + 3 * " optimizer"),
        ("mm back step argmax item", "forward backward optimizer python python"),
        ("mm back step lerp_", "forward backward optimizer optimizer"),
        ("mm back mul_ step mul", "forward backward optimizer optimizer python"),
        ("mm back sub_ sub_", "forward backward optimizer optimizer"),
        ("mm back mm back step", "forward backward forward backward optimizer"),
        ("back step mm back step", "backward optimizer forward backward optimizer"),
        ("mm back step/back step", "forward backward backward optimizer"),
        ("mm reduce back step", "forward communication backward optimizer"),
        ("mm back await step", "forward backward communication optimizer"),
        ("to/copy mm back step", "copies forward backward optimizer"),
        ("mm back step item/wait", "forward backward optimizer sync"),
        ("mm item/copy back", "forward sync backward"),
    ],
)
def test_an_operation_counts_where_a_reader_would_put_it(step, phases):
    events = [
        make_event(10 * number + depth, 10 * number + 10 - depth, name)
        for number, nested in enumerate(step.split())
        for depth, name in enumerate(nested.split("/"))  # what follows a / is inside
    ]
    devices = [BUSY] * bool(re.search("wait|copy", step))
    segments = part(Trace([0, 10 * len(step.split())], events, [], devices), 1e9)
    assert [s.phase for s in segments if s.name] == phases.split()


ANY_NAME, ENDS = st.sampled_from([*NAMES, "mm", "mul_"]), st.integers(1, 1500)
EVENTS = st.lists(st.tuples(st.integers(0, 999), st.integers(0, 600), ANY_NAME))


@given(EVENTS, st.sets(ENDS, min_size=1, max_size=4), st.booleans())
def test_no_time_is_lost_or_counted_twice_in_any_trace(drawn, ends, has_device):
    marks, events, open_until = [0, *sorted(ends)], [], []
    for start, length, name in sorted(drawn, key=lambda event: (event[0], -event[1])):
        open_until = [stop for stop in open_until if stop > start]
        open_until.append(min([start + length, *open_until]))  # it ends in its holder
        if start < marks[-1]:
            events.append(make_event(start, open_until[-1], name))
    trace = Trace(marks, events, [], [BUSY] * has_device)
    segments = part(trace, 25)
    assert (segments[0].start, segments[-1].stop) == (0, marks[-1])
    for one, following in itertools.pairwise(segments):
        assert one.start < one.stop == following.start
    told = sum(now[p] for now in weigh(trace, segments, 0.0, 10.0) for p in PHASES)
    assert told == pytest.approx(marks[-1])
    for cost in (3.0, 1e9):
        for now in weigh(trace, segments, cost, 10.0):
            assert min(now.values(), default=0) >= 0


def test_ranks_that_begin_apart_are_not_charged_for_it():
    """Whoever began early waits in its first step, which is left out."""
    events, now = [], 0
    for wait in (90_000, 0, 0):
        row = {"ph": "X", "tid": 1, "args": {}, "ts": now, "cat": "user_annotation"}
        events.append({**row, "name": STEP, "dur": 1000 + wait})
        events.append({**row, "cat": "cpu_op", "name": "aten::mm", "dur": 900})
        exchange = {"name": "gloo:all_reduce", "ts": now + 900, "dur": 9 + wait}
        events.append(row | exchange)
        now += 1000 + wait
    told = {"baseTimeNanoseconds": 10**18, "traceEvents": events}
    trace = read_trace([json.dumps(told)])
    assert trace.marks[-1] - trace.marks[0] == 2_000_000
    assert [s.phase for s in part(trace, 1e9)].count("communication") == 2


def test_what_recording_costs_is_no_work_and_no_device_is_busy_twice_at_once():
    trace = Trace([0, 2000], [make_event(0, 1000, "mm")], [], [])
    (step,) = weigh(trace, part(trace, 1e9), 100.0, 50.0)
    assert (step["compute"], step["overhead"]) == (850, 1050)
    busy = [BUSY._replace(start=a, stop=b) for a, b in ((0, 10), (2, 3), (5, 15))]
    (step,) = weigh(trace._replace(devices=busy), part(trace, 1e9), 0.0, 0.0)
    assert (step["compute"], step["overhead"]) == (15, 1985), "it waits for the host"


@functools.cache
def diagnosed():
    return kit.diagnose(train)


def mlp():
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 3))


def train(*, batch_size=8):
    """Train a little, with a label of its own, clipping and a metric."""
    data = TensorDataset(torch.ones(64, 16), torch.zeros(64, dtype=torch.long))
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    while True:
        for images, labels in DataLoader(data, batch_size):
            with record_function("my step"):
                optimizer.zero_grad()
                outputs = model(images)
                nn.functional.cross_entropy(outputs, labels).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                right = (outputs.argmax(1) == labels).float().mean()
            yield batch_size, {"accuracy": right.item()}


def test_names_that_pytorch_gives_are_known():
    seen = {}
    for segment in diagnosed().profile.segments:
        name = segment.name.removeprefix("aten::").partition("#")[0]
        seen.setdefault(name, set()).add(segment.phase)
    places = {
        "input": ["enumerate(DataLoader)"],
        "forward": ["linear", "relu", "cross_entropy_loss"],
        "backward": [BACKWARD],
        "optimizer": ["_foreach_norm", "Optimizer.step", "Optimizer.zero_grad"],
        "python": ["argmax", "eq", "item"],
    }
    for phase, names in places.items():
        assert diagnosed().shares[phase] > 0
        assert all(seen.get(name) == {phase} for name in names), seen


def test_waiting_for_threads_of_its_own_is_not_the_readers_code():
    def train():
        with ThreadPoolExecutor(1) as pool:
            while True:
                pool.submit(time.sleep, 0.02).result()
                yield 1

    found = kit.diagnose(train)
    assert 0.8 < found.profile.mean("waiting") <= 1
    assert found.shares.get("python", 0) < 0.2


def without(experiment, *causes):
    return change(resolve(experiment), *(LEFT_OUT[cause] for cause in causes))


def live(resolved, steps=5):
    with contextlib.closing(resolved.start({})) as generator:
        return list(itertools.islice(generator, steps))


class Counted(Dataset):
    def __init__(self, length=8, first=0, act=bool):
        self.length, self.first, self.act, self.read = length, first, act, 0

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        self.read += 1
        self.act()
        return torch.full((3,), float(self.first + index))


class Far(torch.Tensor):
    """Numbers that seem to be on a device."""

    device = property(lambda self: torch.device("meta"))
    # What is called for it is not called once more for a subclass.
    __torch_function__ = torch._C._disabled_torch_function_impl


def has_three():
    """Return whether the calling thread computes with three threads."""
    # What a new thread reports may differ from what OpenMP gives it.
    return "omp_get_max_threads() : 3" in torch.__config__.parallel_info()


def make_probe(cause, patch):
    """Return what has a cause, and what tells whether that was left out."""
    data, calls, moved = Counted(), [], []
    loader, weight = DataLoader(data, batch_size=2), nn.Parameter(torch.ones(1))
    weight.grad, real = torch.ones(1), torch.Tensor.item
    optimizer, far = torch.optim.SGD([weight], lr=1.0), torch.ones(1).as_subclass(Far)
    patch.setattr(torch.Tensor, "item", lambda x: calls.append(1) or real(x))
    patch.setattr(dist, "all_reduce", lambda *_, async_op=False: calls.append(1))

    def move():
        moved.append(torch.rand(3).to("meta"))

    return {
        "input": (lambda: list(loader), lambda: data.read),
        "optimizer": (lambda: optimizer.step(lambda: 7), weight.tolist),
        "threads": (lambda: torch.set_num_threads(1), lambda: has_three() or object()),
        "transfer": (move, lambda: len({*map(id, moved)})),
        "sync": (lambda: far.item(), lambda: len(calls)),
        "communication": (lambda: dist.all_reduce(far), lambda: len(calls)),
    }[cause]


@pytest.mark.parametrize("cause", LEFT_OUT)
def test_a_cause_is_left_out_of_what_is_measured_and_of_no_cell(cause, monkeypatch):
    act, look = make_probe(cause, monkeypatch)
    step, own, readers = [], [], []

    def is_left_out():
        act()
        before = look()
        act()
        return look() == before

    with ThreadPoolExecutor(1) as cell:
        cell.submit(int).result()  # its thread is there before the life begins

        def experiment():
            with ThreadPoolExecutor(1) as pool:
                while True:
                    step.append(is_left_out())
                    own.append(pool.submit(is_left_out).result())
                    readers.append(cell.submit(is_left_out).result())
                    yield 1

        generator = without(experiment, cause).start({})
        for _ in range(3):
            next(generator)
        assert step[-1] and own[-1], "in the life, and in a thread that it has started"
        assert not any(readers), "in a cell that runs meanwhile"
        assert not is_left_out(), "in this thread, between two steps"
        generator.close()
    assert not is_left_out(), "after the life"


def test_what_stays_on_its_device_is_no_copy_to_be_left_out():
    def experiment():
        while True:
            yield torch.rand(()).to(torch.float64)

    assert len({*map(float, live(without(experiment, "transfer")))}) == 5


@given(st.integers(1, 30), st.integers(1, 6), st.booleans(), st.booleans())
def test_epochs_are_as_long_with_batches_at_hand(length, size, drops, is_anew):
    assume(length >= size)
    data, epochs = [Counted(length), Counted(length, first=1000)], []

    def make():
        return [DataLoader(one, size, drop_last=drops) for one in data]

    def experiment():
        loaders = make()
        while True:
            epochs.append(0)
            for one, other in zip(*(make() if is_anew else loaders), strict=True):
                assert one.max() < 1000 <= other.min(), "each loader has its own"
                one.add_(1000)  # a step may change a batch in place
                epochs[-1] += 1
                yield len(one)

    at_hand = without(experiment, "input")
    live(at_hand, 40)
    first = data[0].read
    assert first <= 4 * size, "more was loaded than is kept"
    live(at_hand, 40)
    assert data[0].read == first, "the second life loads, too"
    expected = length // size if drops else math.ceil(length / size)
    assert expected in epochs and max(epochs) == expected


@pytest.fixture
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_gradients_are_not_exchanged_and_whoever_waits_for_it_may(group):
    hooked = []

    def hook(_, bucket):
        hooked.append(True)
        return torch.futures.collect_all([]).then(lambda _: bucket.buffer())

    def experiment():
        model = DistributedDataParallel(nn.Linear(4, 1))
        model.register_comm_hook(None, hook)
        while True:
            model(torch.ones(2, 4)).sum().backward()
            dist.all_reduce(torch.ones(2), async_op=True).wait()
            yield 2

    live(resolve(experiment))
    live(without(experiment, "communication"))
    assert len(hooked) == 5, "none of the second life"


def entry_points():
    owners = [torch, torch.Tensor, torch.autograd, dist, threading.Thread, DataLoader]
    owners += [DistributedDataParallel, torch.optim.Optimizer, torch.optim.SGD]
    values = ((owner, name, v) for owner in owners for name, v in vars(owner).items())
    return {(owner, name): value for owner, name, value in values if callable(value)}


@contextlib.contextmanager
def untouched():
    """Nothing that belongs to the reader or to PyTorch is changed in here."""
    torch.optim.SGD([nn.Parameter(torch.ones(1))])  # PyTorch hooks step() at the first
    before, threads = entry_points(), threading.active_count()
    state = reader_state(), dict(os.environ)
    try:
        yield
    finally:
        after = entry_points()
        assert not [k for k in before | after if before.get(k) is not after.get(k)]
        assert (reader_state(), dict(os.environ)) == state
        wait_until(lambda: threading.active_count() <= threads, 5)  # some just end
        assert not children() and not torch.autograd._profiler_enabled()


LATE, STOP = "step 2 of a counterfactual", KeyboardInterrupt
RAISED = [("nowhere", None), *((x, ZeroDivisionError) for x in ("step 3", LATE))]


@pytest.mark.parametrize(("where", "error"), [*RAISED, (LATE, STOP)])
def test_the_reader_finds_everything_as_it_was_however_it_ends(where, error):
    late, model = where == LATE, mlp()
    optimizer = torch.optim.AdamW(model.parameters())
    # So input and update are suspected on any machine, however busy it is.
    slow = functools.partial(time.sleep, 0.002)
    data = TensorDataset(torch.randn(64, 16))
    loader = DataLoader(data, collate_fn=lambda rows: slow() or rows[0])
    model(torch.randn(4, 16)).sum().backward()
    optimizer.step()

    def train():
        torch.set_num_threads(CORES + 2)  # so threads are suspected
        torch.rand(1)
        for step, (batch,) in enumerate(loader):

            def closure(step=step):  # where an update is left out, it finds no groups
                slow()
                is_left_out = step == 1 and not optimizer.param_groups
                if error and (is_left_out if late else step == 2):
                    raise error("out of chalk")

            model(batch).sum().backward()
            optimizer.step(closure)
            yield 1

    def look():
        gradients = [parameter.grad for parameter in model.parameters()]
        return copy.deepcopy([model.state_dict(), optimizer.state_dict(), gradients])

    before = look()
    with untouched():
        if error is ZeroDivisionError:
            words = "train()", where[:6], "ZeroDivisionError", "out of chalk"
            refused(lambda: kit.diagnose(train), *words)
        elif error:
            with pytest.raises(error):
                kit.diagnose(train)
        else:
            suspects = {"input", "threads", "optimizer"}
            assert suspects <= kit.diagnose(train).savings.keys()
    torch.testing.assert_close(look(), before, rtol=0, atol=0)
    assert len(list(loader)) == 64, "the reader's loader can be used again"


def test_batches_at_hand_leave_no_worker_behind_and_none_of_the_readers_is_used():
    loader = DataLoader(Counted(), num_workers=1, persistent_workers=True)
    mine = iter(loader)
    older = next(mine), {*children()}

    def experiment():
        while True:
            for batch in loader:
                yield len(batch)

    live(without(experiment, "input"))
    wait_until(lambda: {*children()} <= older[1])
    assert [*map(int, (batch[0, 0] for batch in mine))] == [*range(1, 8)]
    loader._iterator = None


#: A fake clock's seconds for a step, and a planted cost: without it, 20 × as fast.
STEP_SECONDS, COST_SECONDS = 0.002, 0.038
BOLD, ONES, SUMS = "<b>bold</b>", torch.ones(1_000_000), torch.ones(1_000_000)
MATRIX = torch.ones(256, 256)


@contextlib.contextmanager
def simulating(clock):
    """Let a diagnosis run at full length on a clock that only experiments move."""
    with clock, pytest.MonkeyPatch.context() as patch:
        patch.delenv("KIT_QUICK")
        # What a copy reaches, an operation costs and recording takes would be timed on
        # this clock; one thread, which others do not hold up, is one for each core.
        patch.setattr("kit.diagnosis.diagnosing._BLURRED", math.inf)

        def look_around(*_):
            return 8e9, 2e-5, max(CORES, torch.get_num_threads())

        patch.setattr(tracing, "look_around", look_around)
        yield patch


def planted(*, clock, verdict, cost=COST_SECONDS, pause=0.001, name=BOLD):
    """Do in each step what suffers from something."""

    def spend():  # time of the fake clock, and real time that a profile sees
        clock.work(cost)
        time.sleep(pause)

    def update():  # a closure is called even where the update is left out
        for _ in optimizer.param_groups:
            spend()

    batches = iter(DataLoader(Counted(10**9, act=spend)))
    far = torch.ones(1).as_subclass(Far)
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))])
    if verdict == "threads":
        torch.set_num_threads(CORES + 6)

    def use_threads():
        clock.work(COST_SECONDS * (torch.get_num_threads() != CORES))

    def move(seconds):  # 8 MB in the time of a step is half as fast as a copy here
        torch.cumsum(ONES, 0, out=SUMS)  # on one thread: two may wait for a core
        clock.work(seconds)

    act = {
        "input": lambda: next(batches),
        "transfer": lambda: torch.ones(4).to("meta"),
        "python": spend,
        "overhead": lambda: [torch.ones(1) for _ in range(20)],
        "sync": lambda: far.item(),
        "optimizer": lambda: optimizer.step(update),
        "compute": lambda: MATRIX @ MATRIX,
        "memory": lambda: move(0.0),
        "threads": use_threads,
        "communication": lambda: dist.all_reduce(torch.ones(4)),
        "healthy": lambda: move(0.1),
    }[verdict]
    while True:
        act()
        clock.work(STEP_SECONDS)
        yield 1


#: What takes the planted cost in PyTorch itself: its owner, its name, how a trace calls
#: it, and the first argument where that matters.
SLOW = {
    "transfer": (torch.Tensor, "to", "cudaMemcpyAsync", ("meta",)),
    "sync": (torch.Tensor, "item", "cudaStreamSynchronize", ()),
    "communication": (dist, "all_reduce", "gloo:all_reduce", ()),
}


def read_as_of_a_gpu(found):
    """Read a trace as if a device had been busy, and labels were the driver's calls."""
    trace = read_trace(found)
    own = [e._replace(is_label=e.is_label and "cuda" not in e.name) for e in trace.main]
    busy = [BUSY._replace(start=a, stop=b) for a, b in itertools.pairwise(trace.marks)]
    return trace._replace(main=own, devices=busy)


@pytest.mark.parametrize("verdict", CAUSES)
def test_a_planted_cost_is_found_and_its_saving_is_the_truth(verdict, group):
    clock = FakeClock()
    with simulating(clock) as patch:
        if verdict in SLOW:
            owner, name, label, first = SLOW[verdict]
            real = getattr(owner, name)

            @functools.wraps(real)
            def call(tensor, *more, **options):
                if more[: len(first)] == first:
                    with record_function(label):
                        clock.work(COST_SECONDS)
                        time.sleep(0.001)
                return real(tensor, *more, **options)

            patch.setattr(owner, name, call)
        if verdict in ("transfer", "sync"):
            patch.setattr(tracing, "read_trace", read_as_of_a_gpu)
        found = kit.diagnose(planted, seconds=4.0, clock=clock, verdict=verdict)
    assert found.verdict == verdict, found
    ratio = found.savings.get(verdict)
    if verdict in LEFT_OUT:
        assert ratio.verdict == "faster" and 19 < ratio.low <= ratio.high < 21
        assert ratio.value == pytest.approx(20, rel=0.01)
        assert "95 % [95, 95]" in found.sentence()
    elif verdict in ("python", "overhead"):
        assert ratio.value > 5 and math.isnan(ratio.low) and math.isnan(ratio.high)
        assert "estimated from its share" in found.sentence()
        assert "about " in repr(found) and "% [" not in repr(found)
        assert "nan" not in repr(found)
    else:
        assert ratio is None and found.reason in found.sentence()
    if verdict == "threads":
        assert found.advice.code == f"torch.set_num_threads({CORES})"
    assert found.advice.code in repr(found) and found.advice.sentence in repr(found)
    assert math.fsum(found.shares.values()) == pytest.approx(1, abs=1e-9)


def test_an_exchange_that_cannot_be_left_out_is_not_judged(group):
    torch.set_num_threads(CORES)  # so threads are not suspected

    def train():
        while True:
            dist.all_gather([SUMS], ONES)
            yield 1

    found = kit.diagnose(train)
    ratio = found.savings["communication"]
    assert ratio.verdict == "cannot tell" and math.isnan(ratio.value)
    assert found.verdict is None and "all_gather" in found.reason
    assert found.shares["communication"] > 0.5, "it is waited for, and no own code"


def profile(across=None, **facts):
    """Return what a profiled run might say; `across` are fractions of its one step."""
    names = "python", "compute", "memory", "overhead", "loops", "waiting"
    fractions = {name: [(across or {}).get(name, 0.0)] for name in names}
    known = {"trace": Trace([0, 1], [], [], []), "segments": [], "across": fractions}
    known |= {"shares": {"forward": 1.0}, "bandwidth": 0.5, "lines": {}, "children": 0}
    known |= {"step_seconds": 1.0, "inflation": 0.0, "threads": CORES, "processes": 1}
    return Profile(**known | facts)


def measured(value, low, high):
    return Ratio(value, low, high, statistics.judge_ratio(low, high))


SURE, WIDE = measured(2.0, 1.9, 2.1), measured(1.6, 0.8, 3.2)
LOST = {"communication": measured(*[math.nan] * 3)}
JUDGED = [
    # What is not sure is not said, and what is slower without is no cause.
    ({}, {}, "healthy"),
    ({}, {"input": measured(0.5, 0.4, 0.6)}, "healthy"),
    ({}, {"input": WIDE}, None),
    ({}, LOST, None),
    ({}, LOST | {"input": measured(1.5, 1.4, 1.6)}, None),  # two thirds are left
    ({}, LOST | {"input": measured(3, 2.5, 3.5)}, "input"),
    # The largest wins, if no larger one may be hidden; threads are the simplest.
    ({}, {"input": measured(3, 2.5, 3.5), "python": SURE}, "input"),
    ({}, {"input": WIDE, "python": SURE}, "python"),
    ({}, {"input": measured(3, 0.8, 9), "python": SURE}, None),
    ({}, {"optimizer": measured(1.1, 0.1, 99), "overhead": estimate([0.16] * 4)}, None),
    ({}, {"threads": measured(1.8, 1.7, 1.9), "overhead": SURE}, "threads"),
    ({}, {"threads": measured(1.1, 1.08, 1.12), "input": SURE}, "input"),
    # Useful work is good news, unless much can be saved beside it.
    ({"compute": 0.8}, {}, "compute"),
    ({"compute": 0.8}, {"threads": measured(2.5, 0.9, 5.0)}, None),
    ({"compute": 0.8}, {"optimizer": measured(1.2, 0.9, 1.6)}, "compute"),
    ({"compute": 0.3}, {"optimizer": measured(1.1, 0.7, 1.8)}, None),  # 44 % > 30 %
    ({"compute": 0.9}, {"optimizer": measured(1.1, 0.1, 99)}, None),  # whatever
    ({"compute": 0.55}, {"optimizer": measured(1.5, 1.45, 1.55)}, "compute"),
    ({"compute": 0.55}, {"input": measured(1.5, 1.4, 1.6)}, "input"),
    ({"compute": 0.8}, {"input": measured(1.06, 1.05, 1.07)}, "compute"),
    # An estimate from steps is as sure as they are alike.
    ({}, {"python": estimate([1.0] * 4)}, "python"),
    ({}, {"python": estimate([0.0, 0.9, 0.0, 0.9])}, None),
    ({}, {"overhead": estimate([0.02, 0.02, 0.021])}, "healthy"),
    ({}, {"optimizer": estimate([0.5])}, None),
]


@pytest.mark.parametrize(("across", "savings", "verdict"), JUDGED)
def test_no_more_is_concluded_than_was_measured(across, savings, verdict):
    found, reason = decide(savings, profile(across))
    assert found == verdict
    told = [CAUSES[cause].removed in reason for cause in savings]
    if found is None:
        assert any(told) and ("more seconds" in reason) != ("communication" in savings)
    elif found == "healthy":
        assert all(told)
    elif found in across:
        assert f"{across[found]:.0%}" in reason


def test_shares_of_steps_that_recording_stretched_tell_nothing():
    stretched = profile({"python": 0.4, "overhead": 0.1}, inflation=1.5)
    savings = judge_shares(stretched, {})
    verdict, reason = decide(savings, stretched)
    assert verdict is None and "150% longer" in reason and len(savings) == 2


MANY = {"input": 0.1, "copies": 0.3, "optimizer": 0.4}
SPOKEN_FOR = [
    ({"shares": {"input": 0.01}, "children": 2}, ["input"]),
    ({"shares": {"optimizer": 0.3}, "across": {"loops": 0.2}}, []),
    ({"across": {"waiting": 0.5}}, ["threads"]),
    ({"shares": MANY, "threads": 99}, ["threads", "optimizer", "transfer"]),
]


@pytest.mark.parametrize(("facts", "suspects"), SPOKEN_FOR)
def test_only_what_the_profile_speaks_for_is_left_out_three_at_most(facts, suspects):
    found = find_suspects(profile(**facts))
    assert list(found) == suspects
    if "threads" in found:
        tried = CORES if "threads" in facts else 1
        assert found["threads"].keywords == {"threads": tried}


@functools.cache
def report():
    knobs = {"clock": FakeClock(), "verdict": "input", "pause": 0.005}  # is seen
    with simulating(knobs["clock"]):
        return kit.diagnose(planted, seconds=4.0, **knobs)


def test_the_report_tells_it_all_and_its_page_is_whole():
    found, said, page = report(), repr(report()), report().to_html()
    alt = html.unescape(re.search('alt="(.*?)"', page)[1])
    assert said.startswith(found.sentence()) and found.sentence() in alt
    rows = dict(re.findall(r"^(.+?) {2,}([\d.]+%) +[\d.,]+ [mµn]?s$", said, re.M))
    assert rows == {PHASES[phase]: f"{x:.1%}" for phase, x in found.shares.items()}
    assert all(f"{PHASES[phase]}: " in alt for phase in found.shares)
    assert "Chapter 04" in said and "95 % [95, 95]" in said and "95 %" in alt
    assert "test_diagnosis.py:" in said and "time.sleep(pause)" in said, "its own line"
    assert "-packages" not in str(found.profile.lines)
    assert "<b>bold" not in page and "&lt;b&gt;bold" in page
    assert not re.search(r"(src|href)=[\"']?https?:", page)
    unsure = dataclasses.replace(found, verdict=None, reason="it is not sure (x)")
    assert "(x)" in repr(unsure) and "(x)" in unsure._repr_html_()
    assert "try " in said and "try " not in repr(unsure)


def test_a_repair_is_held_against_what_was_predicted():
    found = report()
    with simulating(found.knobs["clock"]):
        half = COST_SECONDS / 2 - STEP_SECONDS / 2
        repaired = functools.partial(planted, cost=half, pause=0.0)
        done = found.verify(repaired, seconds=1.0)
    assert done.ratio.value == pytest.approx(2, rel=0.01)
    assert "repair saves 50 % [50, 50]; predicted: 95 % [95, 95]" in repr(done)
    assert {trial.knobs["name"] for trial in done.trials} == {BOLD}
    refused(lambda: found.verify(3), "verify()")


def profiles_itself():
    with torch.profiler.profile():
        yield from itertools.repeat(1)


def profiles_each_step():
    while True:
        with torch.profiler.profile():
            torch.ones(3).add(1)
        yield 1


@pytest.mark.parametrize("call", [kit.diagnose, kit.timeline])
def test_what_cannot_be_asked_for_is_refused_by_name(call):
    for knob in ("on", "batch"):
        words = f"{call.__name__}()", f"{knob}=3"
        refused(lambda knob=knob: call(train, **{knob: 3}), *words)
    with torch.profiler.profile() as theirs:
        torch.ones(3).add(1)
        refused(lambda: call(train), f"{call.__name__}()", "profiler")
        torch.ones(3).mul(2)
    assert {"aten::add", "aten::mul"} <= {event.key for event in theirs.key_averages()}


@pytest.mark.parametrize("experiment", [profiles_itself, profiles_each_step])
def test_what_cannot_be_profiled_is_refused_and_leaves_nothing(experiment):
    with untouched():
        refused(lambda: kit.diagnose(experiment), "diagnose()", "profiler")


def test_a_timeline_says_who_was_busy_when_and_perfetto_reads_it(tmp_path):
    figure = kit.timeline(train, steps=2)
    words = "train(batch_size=8), main thread, backward, longest: next batch, idle"
    assert not [word for word in words.split(", ") if word not in figure.alt]
    path = figure.save_trace(tmp_path / "trace.json")
    events = json.loads(path.read_text())["traceEvents"]
    assert {"aten::linear", BACKWARD} <= {event.get("name") for event in events}


SHEET = Path(cheatsheet.__file__).parents[1] / "CHEATSHEET.md"
TEXT = SHEET.read_text("utf-8")
LINES = [measure for _, measure in cheatsheet.SYMPTOMS.values()]
LINES += [cause.code for cause in CAUSES.values()]
LINES += re.findall(r"^```python\n(.*?)^```", TEXT, re.M | re.S)


def test_the_sheet_has_what_a_diagnosis_advises(tmp_path):
    assert {*cheatsheet.SYMPTOMS} == {*CAUSES}
    for notebook in SHEET.parent.glob("[0-9]*.ipynb"):
        (tmp_path / notebook.name).touch()
    page = tmp_path / SHEET.name
    page.write_text(TEXT, encoding="utf-8")
    assert cheatsheet.main(["--write", str(page)]) == 0
    assert page.read_text("utf-8") == TEXT, f"run {cheatsheet.__file__} --write {SHEET}"


@pytest.mark.parametrize("line", LINES)
def test_a_line_of_the_sheet_runs(line, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(kit, "diagnose", lambda train, seconds=20: diagnosed())
    monkeypatch.setattr(torch, "compile", copy.copy)  # loading a compiler takes 1 s
    step, model = train(), nn.Linear(4, 1)
    model.no_sync = contextlib.nullcontext  # as a model has it that DDP has wrapped
    here = {"kit": kit, "torch": torch, "train": train, "repaired": train}
    here |= {"dataset": TensorDataset(torch.rand(8, 4)), "DataLoader": DataLoader}
    here |= {"batch": torch.rand(4, 4), "batch_size": 4, "device": "cpu"}
    here |= {"model": model, "loss": torch.zeros(()), "diagnosis": diagnosed()}
    here["step"] = (lambda: next(step)) if "step()" in line else 0
    if line.startswith("torch.cuda") and not torch.cuda.is_available():
        assert callable(eval(line.partition("(")[0], here))
        return
    exec(line, here)
