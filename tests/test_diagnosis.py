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
import queue
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cheatsheet
import pytest
import torch
from helpers import FakeClock, children, reader_state, refused, wait_until
from hypothesis import assume, given, strategies as st
from torch import nn
from torch.autograd.profiler import record_function
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import kit
import kit.clock
from kit.diagnosis import repairing, repairs, switches, tracing
from kit.diagnosis.causes import CAUSES
from kit.diagnosis.diagnosing import estimate_rest, find_suspects, tell_competition
from kit.diagnosis.modules import Training
from kit.diagnosis.profiling import Profile, part, weigh
from kit.diagnosis.saving import Saving, from_groups, from_shares, unknown
from kit.diagnosis.steps import StepWatch, find_growing_steps
from kit.diagnosis.timeline import describe_overlaps
from kit.diagnosis.tracing import Event, Trace, read_trace
from kit.diagnosis.verdict import decide
from kit.diagnosis.wrapping import (
    BACKWARD,
    CLOSURE,
    LOADER,
    STEP,
    WAIT,
    StepTime,
    Work,
    change,
)
from kit.figures import PHASES, Span
from kit.measuring.experiment import resolve

pytestmark = pytest.mark.usefixtures("quick")

CORES = kit.this_machine().cores
SWITCHES = {
    "input": switches.BatchesInMemory,
    "optimizer": switches.NoUpdate,
    "transfer": switches.BatchesOnDevice,
    "sync": switches.NumbersUnread,
    "threads": lambda work: repairing.OtherThreads(work, Training()),
}


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
    "closure": CLOSURE,
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
        ("mm back step/closure/back step", "forward backward backward optimizer"),
        ("step/mul/closure/mm", "optimizer"),
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


class Switched:
    """A run with one switch in it, as a diagnosis makes it."""

    def __init__(self, experiment, cause):
        self.work = Work()
        self.switch = SWITCHES[cause](self.work)
        self.switch.number = 3  # of threads
        resolved = change(resolve(experiment), self.switch.install, work=self.work)
        self.generator = resolved.start({})
        next(self.generator)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.generator.close()

    def turn(self, on):
        if on:  # what is given again was kept before
            self.switch.prime()
            self.run(2)
        self.switch.turn(on)

    def run(self, steps):
        return [next(self.generator) for _ in range(steps)]


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

    def move():
        moved.append(torch.rand(3).to("meta"))

    return {
        "input": (lambda: list(loader), lambda: data.read),
        "optimizer": (optimizer.step, weight.tolist),
        "threads": (lambda: torch.set_num_threads(1), lambda: has_three() or object()),
        "transfer": (move, lambda: len({*map(id, moved)})),
        "sync": (lambda: far.item(), lambda: len(calls)),
    }[cause]


@pytest.mark.parametrize("cause", SWITCHES)
def test_a_cause_is_left_out_of_what_is_measured_and_of_no_cell(cause, monkeypatch):
    act, look = make_probe(cause, monkeypatch)
    step, own, readers = [], [], []

    def is_left_out():
        act()
        before = look()
        act()
        return look() == before

    with ThreadPoolExecutor(1) as cell:
        cell.submit(int).result()  # its thread is there before the run begins

        def experiment():
            while True:
                with ThreadPoolExecutor(1) as pool:
                    step.append(is_left_out())
                    own.append(pool.submit(is_left_out).result())
                readers.append(cell.submit(is_left_out).result())
                yield 1

        with Switched(experiment, cause) as run:
            run.run(2)
            assert not any(step + own), "nothing is left out before the switch is on"
            run.turn(True)
            run.run(3)
            assert step[-1] and own[-1], (
                "in the run, and in a thread that it has started"
            )
            assert not any(readers), "in a cell that runs meanwhile"
            assert not is_left_out() or cause == "threads", "between two steps"
            run.turn(False)
            run.run(1)
            assert not step[-1] and not own[-1], "it is put back"
    assert not is_left_out(), "after the run"


def test_what_stays_on_its_device_is_no_copy_to_be_left_out():
    def experiment():
        while True:
            moved.append(torch.rand(()).to(torch.float64))
            yield 1

    moved = []
    with Switched(experiment, "transfer") as run:
        run.turn(True)
        run.run(5)
    assert len({*map(float, moved)}) == len(moved)


def test_whole_numbers_are_read_since_they_may_be_indices():
    read = []

    def experiment():
        for number in itertools.count():
            read.append(torch.tensor([number]).as_subclass(Far).item())
            yield 1

    with Switched(experiment, "sync") as run:
        run.turn(True)
        run.run(5)
    assert read == [*range(len(read))]


@given(
    length=st.integers(1, 30),
    size=st.integers(1, 6),
    drops=st.booleans(),
    is_anew=st.booleans(),
    turns=st.lists(st.integers(1, 20), min_size=1, max_size=4),
)
def test_epochs_are_as_long_with_batches_in_memory(length, size, drops, is_anew, turns):
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

    with Switched(experiment, "input") as run:
        run.run(5)
        for steps in turns:
            run.turn(True)
            first = data[0].read
            run.run(steps)
            assert data[0].read == first, "it was loaded although it was left out"
            run.turn(False)
            run.run(3)
    expected = length // size if drops else math.ceil(length / size)
    assert {*epochs[:-1]} <= {expected} and epochs[-1] <= expected


def test_kept_batches_are_the_originals_unless_the_loop_changes_them():
    for changes in (False, True):
        seen = []

        def experiment(changes=changes, seen=seen):
            while True:
                for batch in DataLoader(Counted(100), 2):
                    seen.append((id(batch), batch.sum().item()))
                    if changes:
                        batch.zero_()
                    yield 1

        with Switched(experiment, "input") as run:
            run.turn(True)
            kept = seen[-2:]
            run.run(2)
            assert [total for _, total in seen[-2:]] == [total for _, total in kept]
            assert (seen[-2:] == kept) is not changes


def test_a_stream_ends_its_epoch_where_it_did():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(torch.arange(12.0))

    validated = []

    def experiment():
        while True:
            steps = 0
            for _ in DataLoader(Stream(), 2):
                steps += 1
                yield 1
            validated.append(steps)

    with Switched(experiment, "input") as run:
        run.run(13)  # two epochs: its length is known
        run.turn(True)
        run.run(12)
    assert len(validated) >= 4 and {*validated} == {6}


class Sharded(DataLoader):
    """A loader with an `__iter__` of its own, as those of other libraries have it."""

    def __iter__(self):
        for index in range(len(self.dataset)):
            yield self.dataset[index]


@pytest.mark.parametrize("kind", [DataLoader, Sharded])
def test_a_loader_that_looks_ahead_or_has_an_iter_of_its_own_is_left_out(kind):
    data = Counted(10)

    def experiment():
        while True:
            batches = iter(kind(data, batch_size=None))
            ahead = next(batches)
            for following in batches:
                assert ahead is not following
                ahead = following
                yield 1

    with Switched(experiment, "input") as run:
        run.turn(True)
        before = data.read
        run.run(25)
        assert data.read == before
        run.turn(False)
        run.run(25)
        assert data.read > before


def test_batches_with_a_graph_of_their_own_are_not_given_twice():
    net = nn.Linear(3, 3)

    def experiment():
        while True:
            for batch in DataLoader(Counted(10), 2, collate_fn=lambda x: net(x[0])):
                batch.sum().backward()
                yield 1

    with Switched(experiment, "input") as run:
        run.turn(True)
        run.run(9)
        assert "graph" in run.switch.obstacle


def test_batches_that_the_loop_takes_apart_or_converts_are_copied():
    """As others write it: labels taken out, numbers made smaller, objects that hold."""

    class Holder:
        def __init__(self, samples):
            self.x = torch.stack(samples)

    shapes = {
        "dict": lambda samples: {"x": torch.stack(samples), "y": torch.ones(1)},
        "object": Holder,
    }
    for name, collate in shapes.items():
        totals = []

        def experiment(name=name, collate=collate, totals=totals):
            while True:
                for batch in DataLoader(Counted(40), 2, collate_fn=collate):
                    if name == "dict":
                        batch.pop("y")
                        batch["x"] = batch["x"].double()
                    x = batch["x"] if name == "dict" else batch.x
                    totals.append(x.sum().item())
                    x.zero_()
                    yield 1

        with Switched(experiment, "input") as run:
            run.turn(True)
            kept = totals[-2:]
            run.run(5)
        assert kept[0] != 0 and {*totals[-4:]} == {*kept}


@dataclasses.dataclass
class Collator:
    """As those of transformers: a data class, which cannot be hashed."""

    scale: float

    def __call__(self, samples):
        return self.scale * torch.stack(samples)


def test_a_loader_made_anew_each_epoch_with_a_list_is_known_again():
    reads = []

    def experiment():
        while True:
            samples = [torch.ones(2) for _ in range(12)]
            schedule = iter(range(6))
            for batch in DataLoader(samples, 2, collate_fn=Collator(2.0)):
                next(schedule)  # an epoch that is too long raises
                reads.append(batch)
                yield 1
            assert next(schedule, None) is None, "nor is it too short"

    with Switched(experiment, "input") as run:
        run.turn(True)
        kept = {*map(id, reads[-2:])}
        run.run(20)
        assert {*map(id, reads[-10:])} == kept
        assert len(run.switch.loaders.records) == 1
        run.turn(False)
        run.run(20)


def test_waits_that_come_in_gushes_are_no_rare_long_steps():
    watch = StepWatch(Work())
    gush = [0.2, *[0.015] * 7]
    watch.work.steps += [StepTime(0.0, seconds, True) for seconds in 10 * gush]
    assert not watch.is_long(0.2)
    watch.work.steps = [StepTime(0.0, 0.015, True) for _ in range(80)]
    assert watch.is_long(0.2)


def test_copies_on_the_device_that_the_loop_changes_are_not_given_again():
    seen = []

    def experiment():
        while True:
            there = torch.ones(3).to("meta")
            there.add_(1)
            seen.append(there)
            yield 1

    with Switched(experiment, "transfer") as run:
        run.turn(True)
        run.run(4)
        assert "in place" in run.switch.obstacle
        run.switch.end()
        assert not run.switch._answers, "they take memory of the device"


def test_kept_batches_take_little_memory(monkeypatch):
    monkeypatch.setattr("kit.diagnosis.batches._MOST_MEMORY", 0.0)

    def experiment():
        while True:
            for _ in DataLoader(Counted(30), 3):
                yield 1

    with Switched(experiment, "input") as run:
        run.turn(True)
        (record,) = run.switch.loaders.records.values()
        assert len(record.kept) == 1, "one is enough to leave loading out"


def test_a_switch_that_compiles_anew_each_time_is_given_up(monkeypatch):
    monkeypatch.delenv("KIT_QUICK")
    compiled = itertools.count()
    monkeypatch.setattr(
        "kit.diagnosis.trials.count_compilations", lambda: next(compiled)
    )
    found = kit.diagnose(loads, seconds=8.0)
    assert not found.savings["input"].measured
    assert "compiles anew" in repr(found)


def loads():
    """Load for as long as it trains."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))])
    while True:
        for _ in DataLoader(Counted(10**6, act=lambda: time.sleep(0.005))):
            optimizer.step()
            yield 1


def test_an_update_with_a_closure_is_never_left_out():
    weight = nn.Parameter(torch.ones(1))

    def close():
        weight.grad = torch.ones(1)
        return 0.5

    def experiment():
        optimizer = torch.optim.LBFGS([weight], lr=0.1, max_iter=1)
        while True:
            optimizer.step(close)
            yield 1

    with Switched(experiment, "optimizer") as run:
        run.turn(True)
        before = weight.item()
        run.run(2)
        assert weight.item() != before and "closure" in run.switch.obstacle


def entry_points():
    owners = [torch, torch.Tensor, torch.autograd, threading.Thread, DataLoader]
    owners += [torch.optim.Optimizer, torch.optim.SGD]
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


LATE, STOP = "step of a trial", KeyboardInterrupt
RAISED = [("nowhere", None), *((x, ZeroDivisionError) for x in ("step 3", LATE))]


@pytest.mark.parametrize(("where", "error"), [*RAISED, (LATE, STOP)])
def test_the_reader_finds_everything_as_it_was_however_it_ends(where, error):
    late, model = where == LATE, mlp()
    optimizer = torch.optim.AdamW(model.parameters())
    # So input and update are suspected on any machine, however busy it is.
    slow = functools.partial(time.sleep, 0.002)
    optimizer.register_step_pre_hook(lambda *_: slow())
    data = TensorDataset(torch.randn(640, 16))
    loader = DataLoader(data, collate_fn=lambda rows: slow() or rows[0])
    model(torch.randn(4, 16)).sum().backward()
    optimizer.step()

    def train():
        torch.set_num_threads(CORES + 2)  # so other threads are tried
        torch.rand(1)
        for step, (batch,) in enumerate(loader):
            # Where an update is left out, it changes nothing.
            before = model[0].bias.detach().clone()
            model(batch).sum().backward()
            optimizer.step()
            is_left_out = bool((model[0].bias == before).all())
            if error and (is_left_out if late else step == 2):
                raise error("out of chalk")
            yield 1

    def look():
        gradients = [parameter.grad for parameter in model.parameters()]
        return copy.deepcopy([model.state_dict(), optimizer.state_dict(), gradients])

    before = look()
    with untouched():
        if error is ZeroDivisionError and late:  # the kit may be the reason
            said = repr(kit.diagnose(train))
            assert "could not go on" in said and "out of chalk" in said
        elif error is ZeroDivisionError:
            words = "train()", where, "ZeroDivisionError", "out of chalk"
            refused(lambda: kit.diagnose(train), *words)
        elif error:
            with pytest.raises(error) as caught:
                kit.diagnose(train)
            kept = caught.value.diagnosis
            assert {"input", "optimizer"} <= kept.savings.keys(), "what is known"
            assert "interrupted" in repr(kept) and "Not measured" in repr(kept)
            assert str(caught.value).count("\n") < 6
        else:
            found = kit.diagnose(train)
            assert {"input", "optimizer"} <= found.savings.keys()
            assert "threads" in found.tried
    torch.testing.assert_close(look(), before, rtol=0, atol=0)
    assert len(list(loader)) == 640, "the reader's loader can be used again"


def test_batches_in_memory_leave_no_worker_behind_and_the_loader_as_it_was():
    loader = DataLoader(Counted(), num_workers=1, persistent_workers=True)
    older = len(list(loader)), {*children()}

    def experiment():
        while True:
            for batch in loader:
                yield len(batch)
            for batch in DataLoader(Counted(), num_workers=1):
                yield len(batch)

    with Switched(experiment, "input") as run:
        run.turn(True)
        run.run(20)
        run.turn(False)
        run.run(20)
    wait_until(lambda: {*children()} <= older[1])
    assert len(list(loader)) == 8
    loader._iterator = None


#: A fake clock's seconds for a step, and a planted cost: without it, 20 × as fast.
STEP_SECONDS, COST_SECONDS = 0.002, 0.038
BOLD, ONES, SUMS = "<b>bold</b>", torch.ones(1_000_000), torch.ones(1_000_000)
MATRIX, MIXED = torch.ones(256, 256), torch.rand(5_000)


@contextlib.contextmanager
def simulating(clock):
    """Let a diagnosis run at full length on a clock that only experiments move."""
    with clock, pytest.MonkeyPatch.context() as patch:
        patch.delenv("KIT_QUICK")
        # What an operation costs and recording takes would be timed on this clock; one
        # thread, which others do not hold up, is one for each core.
        patch.setattr("kit.diagnosis.profiling._BLURRED", math.inf)

        def look_around(*_):
            return 2e-5, max(CORES, torch.get_num_threads())

        patch.setattr("kit.diagnosis.profiling.look_around", look_around)
        yield patch


class SlowSGD(torch.optim.SGD):
    """Spends time on each group of parameters."""

    def __init__(self, parameters, spend):
        self.spend = spend
        super().__init__(parameters)

    def step(self):
        for _ in self.param_groups[0]["params"]:
            self.spend()


def planted(*, clock, verdict, cost=COST_SECONDS, pause=0.001, name=BOLD):
    """Do in each step what suffers from something."""

    def spend():  # time of the fake clock, and real time that a profile sees
        clock.work(cost)
        time.sleep(pause)

    batches = iter(DataLoader(Counted(10**9, act=spend)))
    far = torch.ones(1).as_subclass(Far)
    optimizer = SlowSGD([nn.Parameter(torch.ones(1))], spend)
    if verdict == "threads":
        torch.set_num_threads(CORES + 6)
    if verdict == "settings":
        torch.autograd.set_detect_anomaly(True, check_nan=False)
    hooked = nn.Identity()
    if verdict == "hooks":
        hooked.register_forward_hook(lambda *_: spend())

    def use_threads():
        clock.work(COST_SECONDS * (torch.get_num_threads() != CORES))

    act = {
        "input": lambda: next(batches),
        "transfer": lambda: torch.ones(4).to("meta"),
        "python": spend,
        "overhead": lambda: [torch.ones(1) for _ in range(20)],
        "sync": lambda: far.item(),
        "optimizer": optimizer.step,
        "compute": lambda: MATRIX @ MATRIX,
        "memory": lambda: torch.add(ONES, 1, out=SUMS),
        "threads": use_threads,
        "settings": lambda: clock.work(cost * torch.is_anomaly_enabled()),
        "hooks": lambda: hooked(ONES),
        "healthy": lambda: torch.sort(MIXED),
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
}


def read_as_of_a_gpu(found):
    """Read a trace as if a device had been busy, and labels were the driver's calls."""
    trace = read_trace(found)
    own = [e._replace(is_label=e.is_label and "cuda" not in e.name) for e in trace.main]
    busy = [BUSY._replace(start=a, stop=b) for a, b in itertools.pairwise(trace.marks)]
    return trace._replace(main=own, devices=busy)


#: What switches measure.
MEASURED = {*SWITCHES, "settings"}


@pytest.mark.parametrize("verdict", CAUSES)
def test_a_planted_cost_is_found_and_its_saving_is_the_truth(verdict):
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
            patch.setattr(torch.accelerator, "is_available", lambda: True)
            patch.setattr(tracing, "read_trace", read_as_of_a_gpu)
        seconds = 30.0 if verdict in MEASURED else 4.0
        found = kit.diagnose(planted, seconds=seconds, clock=clock, verdict=verdict)
    assert found.verdict == verdict, found
    followed = {"threads": "threads", "settings": "anomaly"}.get(verdict)
    saved = found.savings.get(verdict) or found.tried.get(followed)
    if verdict in MEASURED:
        assert saved.measured and 0.94 < saved.low <= saved.value <= saved.high < 0.96
        assert "95 % [95, 95] less time" in found.sentence()
    elif verdict in ("python", "overhead", "hooks"):
        # A share of real profiled steps: lower where others use the machine.
        assert saved.value > 0.5 and not saved.measured and math.isnan(saved.low)
        assert "would take at most" in found.sentence()
        assert "% [" not in found.sentence() and "nan" not in repr(found)
    else:
        assert saved is None and found.reason in found.sentence()
    if verdict == "threads":
        assert found.advice.code == f"torch.set_num_threads({CORES})"
    assert found.advice.code in repr(found) and found.advice.sentence in repr(found)
    assert math.fsum(found.shares.values()) == pytest.approx(1, abs=1e-9)


def profile(across=None, **facts):
    """Return what a profiled run might say; `across` are fractions of its one step."""
    names = ["python", "compute", "memory", "other", "overhead", "optimizer", "loops"]
    names.append("waiting")
    fractions = {name: [(across or {}).get(name, 0.0)] for name in names}
    known = {"trace": Trace([0, 1], [], [], []), "segments": [], "across": fractions}
    known |= {"shares": {"forward": 1.0}, "slowest": "", "lines": {}, "inner": {}}
    known |= {"step_seconds": 1.0, "inflation": 0.0, "threads": CORES, "processes": 1}
    return Profile(**known | {"children": 0} | facts)


SURE, WIDE = Saving(0.5, 0.48, 0.52), Saving(0.37, -0.2, 0.69)
LOST = {"input": unknown("its blocks were disturbed")}
SMALL, LARGE = Saving(0.09, -0.4, 0.44), Saving(0.66, 0.6, 0.7)


def at_most(share):
    return Saving(share, measured=False)


JUDGED = [
    # What is not sure is not said, and what is slower without is no cause.
    ({}, {}, "healthy"),
    ({}, {"input": Saving(-1.0, -1.2, -0.8)}, "healthy"),
    ({}, {"input": WIDE}, None),
    ({}, LOST, None),
    ({}, LOST | {"optimizer": Saving(0.33, 0.3, 0.36)}, None),  # two thirds are left
    ({}, LOST | {"optimizer": LARGE}, "optimizer"),
    # The largest wins, if no larger one may be hidden, and it is a clear winner.
    (
        {},
        {"input": Saving(0.66, 0.6, 0.7), "optimizer": Saving(0.3, 0.2, 0.4)},
        "input",
    ),
    ({}, {"input": WIDE, "python": at_most(0.5)}, "python"),
    ({}, {"input": Saving(0.66, -0.2, 0.9), "python": at_most(0.5)}, None),
    ({}, {"input": SURE, "python": at_most(0.55)}, "input"),  # it was measured
    ({}, {"input": SURE, "python": at_most(0.7)}, "python"),
    ({}, {"overhead": at_most(0.5), "python": at_most(0.45)}, None),
    ({}, {"input": SURE, "optimizer": Saving(0.42, 0.4, 0.44)}, "input"),
    ({}, {"input": SURE, "optimizer": Saving(0.47, 0.45, 0.49)}, None),
    ({"compute": 0.35}, {"overhead": at_most(0.34)}, None),
    ({}, {"input": Saving(0.5, 0.1, 0.7), "optimizer": Saving(0.35, 0.3, 0.4)}, None),
    ({"compute": 0.4}, {"optimizer": Saving(0.25, 0.2, 0.3)}, None),  # none stands out
    ({"waiting": 0.8}, {}, None),
    ({"waiting": 0.9}, {"python": at_most(0.04)}, None),
    ({"compute": 0.2}, {"overhead": at_most(0.34)}, "overhead"),
    ({"compute": 0.45}, {"python": at_most(0.11)}, "healthy"),
    # Useful work is good news, unless much can be saved beside it.
    ({"compute": 0.8}, {}, "compute"),
    ({"other": 0.8}, {}, "healthy"),
    ({"compute": 0.3, "memory": 0.28}, {}, "healthy"),  # neither is most of it
    ({"compute": 0.3, "memory": 0.22}, {}, "compute"),
    ({"compute": 0.8}, {"optimizer": Saving(0.16, -0.1, 0.37)}, "compute"),
    ({"compute": 0.3}, {"optimizer": SMALL}, None),  # 44 % > 30 %
    ({"compute": 0.55}, {"optimizer": Saving(0.33, 0.3, 0.35)}, "compute"),
    ({"compute": 0.55}, {"input": Saving(0.33, 0.3, 0.35)}, "input"),
    ({"compute": 0.8}, {"input": Saving(0.06, 0.05, 0.07)}, "compute"),
    # A share from steps is as sure as they are alike.
    ({}, {"python": from_shares([1.0] * 4)}, "python"),
    ({}, {"python": from_shares([0.0, 0.9, 0.0, 0.9])}, None),
    ({}, {"overhead": from_shares([0.02, 0.02, 0.021])}, "healthy"),
]


@pytest.mark.parametrize(("across", "savings", "verdict"), JUDGED)
def test_no_more_is_concluded_than_was_measured(across, savings, verdict):
    found, reason = decide(savings, {}, profile(across))
    assert found == verdict, reason
    told = [CAUSES[cause].removed in reason for cause in savings]
    if found is None:
        assert any(told) or "waits for another thread" in reason
    elif found == "healthy":
        assert all(told)
    elif found in across:
        assert f"{across[found]:.0%}" in reason


def test_another_number_of_threads_is_the_simplest_repair():
    tried = {"threads": Saving(0.35, 0.3, 0.4)}
    assert decide({"input": SURE}, tried, profile()).cause == "threads"
    tried = {"threads": Saving(0.1, 0.08, 0.12)}
    assert decide({"input": SURE}, tried, profile()).cause == "input"


def spending(*, clock, cost):
    """Take longer while anomaly detection is on."""
    torch.set_num_threads(CORES + 6)
    torch.autograd.set_detect_anomaly(True, check_nan=False)
    model = nn.Linear(16, 3).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
    while True:
        clock.work(0.02 + cost * torch.is_anomaly_enabled())
        optimizer.zero_grad()
        model(torch.ones(3, 16, dtype=torch.float64)).sum().backward()
        optimizer.step()
        yield 1


def test_a_repair_that_gains_is_the_line_to_change_and_where():
    clock = FakeClock()
    with simulating(clock):
        found = kit.diagnose(spending, seconds=30.0, clock=clock, cost=0.18)
    assert found.verdict == "settings" and found.places["anomaly"]
    change, verify = found.next_steps()
    assert change.startswith("change  torch.autograd.set_detect_anomaly(False)  (at ")
    assert f"{Path(__file__).name}:" in change and "tried: saves 90 % [" in change
    assert verify.startswith("verify  kit.compare({")
    assert "With anomaly detection off, a step takes 90 % " in found.sentence()
    assert change in repr(found) and change in html.unescape(found._repr_html_())


@pytest.mark.parametrize(("seconds", "tried"), [(40.0, 2), (70.0, 3)])
def test_two_repairs_are_tried_and_more_in_more_seconds(seconds, tried):
    clock = FakeClock()
    with simulating(clock):
        found = kit.diagnose(spending, seconds=seconds, clock=clock, cost=0.25)
    assert {*found.tried} == {*["anomaly", "float32", "threads"][:tried]}
    missing = re.search(
        r"Not measured: a step with \d+ threads? \(about .*more seconds",
        repr(found),
    )
    assert bool(missing) == (tried == 2)


def test_a_repair_that_loses_is_stopped_early_and_not_advised():
    clock, seen = FakeClock(), []

    def slow_with_all_cores(*, clock):
        torch.set_num_threads(CORES + 6)
        while True:
            is_on = torch.get_num_threads() == CORES
            seen.append(is_on)
            clock.work(0.4 if is_on else 0.02)
            yield 1

    with simulating(clock):
        found = kit.diagnose(slow_with_all_cores, seconds=40.0, clock=clock)
    assert sum(seen) <= 16, "as few as four blocks of one step, and those dropped"
    assert found.tried["threads"].value == pytest.approx(-19, rel=0.01)
    told = f"with {CORES} threads, a step takes 20 × as long here"
    assert told in repr(found) and "don't use it" in repr(found)
    assert found.verdict != "threads"


def test_one_slow_step_after_a_change_is_no_loss():
    clock = FakeClock()

    def train(*, clock):
        torch.set_num_threads(CORES + 6)
        before, since = torch.get_num_threads(), 9
        while True:
            now = torch.get_num_threads()
            since = 0 if now != before else since + 1
            clock.work((0.05 if now == CORES else 0.1) + 1.0 * (since == 1))
            before = now
            yield 1

    with simulating(clock):
        found = kit.diagnose(train, seconds=40.0, clock=clock)
    assert found.tried["threads"].value == pytest.approx(0.5, rel=0.01)
    assert "few steps" not in repr(found)


def test_a_repair_of_useful_work_is_what_the_report_begins_with():
    gains = {"channels_last": Saving(0.4, 0.35, 0.45)}
    found = dataclasses.replace(
        report(), verdict="healthy", reason="useful", savings={}, tried=gains
    )
    assert (
        found.sentence() == "With channels last, a step takes 40 % [35, 45] less time."
    )
    assert found.next_steps()[0].startswith("change  model = model.to(memory_format=")
    assert "Nothing to repair" not in repr(found) and "rounding only" in repr(found)


def test_a_repair_that_cannot_be_tried_leaves_the_rest_as_it_is():
    clock = FakeClock()

    class Far(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = nn.Linear(4, 1).double()

        def forward(self, rows):
            return self.model((rows + 1e9) - 1e9)

    def needs_digits(*, clock):
        model, rows = Far(), torch.rand(8, 4, dtype=torch.float64)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
        while True:
            clock.work(0.1)
            optimizer.zero_grad()
            model(rows).sum().backward()
            optimizer.step()
            yield 8

    with simulating(clock):
        found = kit.diagnose(needs_digits, seconds=40.0, clock=clock)
    assert "needs the digits" in found.untried["float32"]
    assert "Not tried: float32 in place of float64; its outputs would" in repr(found)
    assert found.verdict != "settings"


def test_advice_that_cannot_gain_here_is_not_given():
    found = dataclasses.replace(
        report(), verdict="compute", reason="", savings={}, tried={}
    )
    assert any("not tried here" in line for line in found.next_steps())
    found = dataclasses.replace(found, untried={"bfloat16": "no instructions"})
    assert found.next_steps() == []


def test_workers_are_not_advised_where_a_batch_takes_less_time_than_to_send_it():
    found = report()
    assert "decoding" in found.advice.sentence
    quick = found.profile._replace(step_seconds=0.002)
    assert "by one index" in dataclasses.replace(found, profile=quick).advice.sentence


def test_workers_that_take_cores_from_the_training_are_told():
    savings = {"input": Saving(0.26, 0.2, 0.3)}
    waits = {"forward": 0.97, "input": 0.03}
    assert "compete" in tell_competition(savings, profile(shares=waits, children=2))
    assert not tell_competition(savings, profile(shares=waits))
    waits = {"forward": 0.74, "input": 0.26}
    assert not tell_competition(savings, profile(shares=waits, children=2))


@pytest.mark.skipif(CORES < 2, reason="there is no other number of threads")
def test_beside_other_programs_one_thread_is_tried_first_and_shares_are_no_verdict():
    busy = profile({"compute": 0.9}, others_cores=CORES - 1.0, threads=CORES)
    assert busy.is_busy and busy.other_threads == 1
    cause, reason = decide({}, {}, busy)
    assert cause is None and f"{CORES - 1.0:.1f} cores" in reason
    assert decide({"input": SURE}, {}, busy).cause == "input", "it was measured"
    gains = {"threads": Saving(0.7, 0.6, 0.8)}
    assert decide({}, gains, busy).cause == "threads"
    loses = {"threads": Saving(-0.3, -0.4, -0.2)}
    assert decide({}, loses, busy).cause == "compute"
    alone = profile({"compute": 0.9}, others_cores=1.0, threads=1)
    assert decide({}, {}, alone).cause == "compute", "it uses what is free"


def test_what_is_not_known_is_never_written_as_a_number():
    said = repr(dataclasses.replace(diagnosed(), savings=LOST, tried={}))
    assert "nan" not in said and "its blocks were disturbed" in said
    assert not re.search(r"[-−]\d{2,} %", said)


def test_useful_work_cannot_be_hidden_in_what_is_not_known():
    unsure = {"python": unknown("its share varies")}
    assert decide(unsure, {}, profile({"compute": 0.85})).cause == "compute"
    assert decide(unsure, {}, profile({"compute": 0.4})).cause is None


def test_a_number_of_threads_that_is_slower_is_no_doubt():
    slower = from_groups([math.log(8) + x for x in (-0.1, 0.1, -0.05, 0.05)])
    assert slower.high < 0 and "× as long" in str(slower)
    assert decide({}, {"threads": slower}, profile({"compute": 0.9})).cause == "compute"


def test_shares_of_steps_that_recording_stretched_tell_nothing():
    stretched = profile({"python": 0.4, "overhead": 0.1}, inflation=1.5)
    savings = estimate_rest(stretched, {})
    verdict, reason = decide(savings, {}, stretched)
    assert verdict is None and "150% longer" in reason and len(savings) == 2


MANY = {"input": 0.1, "copies": 0.3, "optimizer": 0.4, "sync": 0.2}
SPOKEN_FOR = [
    ({"across": {"optimizer": 0.3}}, [], ["fused"]),
    ({"across": {"compute": 0.8}}, [], ["bfloat16"]),
    ({"shares": {"input": 0.01}, "children": 2}, ["input"], ["threads"]),
    ({"shares": {"input": 0.01}}, [], []),
    ({"shares": {"optimizer": 0.3}, "across": {"loops": 0.2}}, [], []),
    ({"across": {"waiting": 0.5}}, [], ["threads"]),
    ({"shares": MANY, "threads": 99}, ["optimizer", "transfer", "sync"], ["threads"]),
]


@pytest.mark.parametrize(("facts", "suspects", "due"), SPOKEN_FOR)
def test_only_what_the_profile_speaks_for_is_tried(facts, suspects, due):
    known = profile(**facts)
    causes = dict.fromkeys(["input", "optimizer", "transfer", "sync"])
    assert list(find_suspects(known, causes)) == suspects
    training = Training()
    switches = repairs.make_switches(Work(), training)
    found = repairs.find_due(repairs.Facts(known, training, switches))
    if known.threads == 1:  # there is no other number on one core
        due = [name for name in due if name != "threads"]
    assert list(found) == due


def test_an_experiment_is_started_once_and_may_end():
    starts = []

    def train(*, steps):
        starts.append(steps)
        optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))])
        for _ in range(steps):
            optimizer.step()
            yield 1

    found = kit.diagnose(train, steps=16)
    assert starts == [16] and "ended after" in repr(found)
    refused(
        lambda: kit.diagnose(train, steps=2), "train(steps=2)", "ended after 1 step,"
    )
    assert starts == [16, 2]


def test_rare_long_steps_are_told_with_their_lines(monkeypatch):
    monkeypatch.delenv("KIT_QUICK")

    def evaluate():
        time.sleep(0.3)

    def train():
        weight = nn.Parameter(torch.ones(1))
        optimizer = torch.optim.SGD([weight])
        for step in itertools.count():
            time.sleep(0.002)
            optimizer.step()
            if step % 100 == 99:
                evaluate()
            yield 1

    found = kit.diagnose(train, seconds=10.0)
    assert found.long_steps.steps / found.long_steps.count > 20
    assert 0.3 < found.long_steps.share < 0.9
    assert "time.sleep(0.3)" in str(found.long_steps)


def test_steps_that_grow_are_told_first():
    def make(factor):
        times = [0.01 * (1 + factor * step / 60) for step in range(60)]
        return [StepTime(0.0, seconds, True) for seconds in times]

    assert "longer and longer" in find_growing_steps(make(2))
    assert find_growing_steps(make(0)) == find_growing_steps(make(2)[:5]) == ""


def test_waiting_for_a_queue_of_ones_own_is_waiting_for_data():
    batches = queue.Queue(maxsize=1)
    over = threading.Event()

    def train():
        def fill():
            while not over.is_set():
                time.sleep(0.02)
                with contextlib.suppress(queue.Full):
                    batches.put(1, timeout=0.1)

        threading.Thread(target=fill, daemon=True).start()
        try:
            while True:
                batches.get()
                yield 1
        finally:
            over.set()

    found = kit.diagnose(train)
    assert found.shares["input"] > 0.8


@functools.cache
def report():
    knobs = {"clock": FakeClock(), "verdict": "input", "pause": 0.005}  # is seen
    with simulating(knobs["clock"]):
        return kit.diagnose(planted, seconds=30.0, **knobs)


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
    assert "planted(clock=" in said and "planted(clock=" in page
    unsure = dataclasses.replace(found, verdict=None, reason="it is not sure (x)")
    assert "(x)" in repr(unsure) and "(x)" in unsure._repr_html_()
    assert "try     " in said and "try     " not in repr(unsure)


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


def test_a_repair_that_takes_any_knob_gets_those_of_the_diagnosed_one():
    seen = []

    def train(*, n=1):
        while True:
            yield 1

    def repaired(**knobs):
        seen.append(knobs)
        return train(**knobs)

    kit.diagnose(train, n=5).verify(repaired)
    assert {"n": 5} in seen and {} not in seen


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


def stops_at_once():
    yield 1
    yield 1


def test_a_loop_that_is_too_short_is_told_what_helps():
    for call in (kit.diagnose, kit.timeline):
        with pytest.raises(kit.ExperimentError) as caught:
            call(stops_at_once)
        assert "while True" in str(caught.value)
        assert "seconds=None" not in str(caught.value)


def test_a_timeline_says_who_was_busy_when_and_perfetto_reads_it(tmp_path):
    recorded = kit.timeline(train, steps=2)
    words = "train: , main thread, backward, longest: next batch, idle"
    assert not [word for word in words.split(", ") if word not in repr(recorded)]
    assert "It computes" in recorded.plot(title="It computes").figure.alt
    path = recorded.save(tmp_path / "trace.json")
    events = json.loads(path.read_text())["traceEvents"]
    assert {"aten::linear", BACKWARD} <= {event.get("name") for event in events}


def test_many_events_in_many_lanes_are_told_at_once():
    spans = [Span(n, n + 0.5, "", "") for n in range(20_000)]
    shifted = [Span(n + 0.25, n + 0.75, "", "") for n in range(20_000)]
    lanes = {"main thread": spans, "device 0": shifted}
    line = describe_overlaps(lanes)
    assert line == "main thread and device 0 are busy at once for 1 h 23 min."


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
    here |= {"handle": model.register_forward_hook(lambda *_: None)}
    here["step"] = (lambda: next(step)) if "step()" in line else 0
    if line.startswith("torch.cuda") and not torch.cuda.is_available():
        assert callable(eval(line.partition("(")[0], here))
        return
    exec(line, here)
