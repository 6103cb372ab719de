"""Experiments that are diagnosed, on a real clock or on one that they move."""

import contextlib
import functools
import os
import sys
import threading
import time

import pytest
import torch
from helpers import FakeClock, children, reader_state, wait_until
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import kit
from kit.diagnosis.batches import Loaders
from kit.diagnosis.modules import Training
from kit.diagnosis.profiling import Profile
from kit.diagnosis.repairs import REPAIRS
from kit.diagnosis.switches import BatchesInMemory, NoUpdate
from kit.diagnosis.tracing import Event, Trace
from kit.diagnosis.wrapping import Work, change
from kit.measuring.experiment import resolve

CORES = kit.this_machine().cores
#: A number of threads that fits no machine's cores.
TOO_MANY_THREADS = CORES + 6
#: In a trace: work of a device.
BUSY = Event(0, 1, "gemm", "device 0 stream 7")


def mlp():
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 3))


def train(*, batch_size=8):
    """Train a little, with clipping and a metric."""
    data = TensorDataset(torch.ones(64, 16), torch.zeros(64, dtype=torch.long))
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    while True:
        for images, labels in DataLoader(data, batch_size):
            optimizer.zero_grad()
            outputs = model(images)
            nn.functional.cross_entropy(outputs, labels).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            right = (outputs.argmax(1) == labels).float().mean()
            yield batch_size, {"accuracy": right.item()}


class Counted(Dataset):
    """Samples that count how often they are read, and may act then."""

    def __init__(self, length=8, first=0, act=bool):
        self.length = length
        self.first = first
        self.act = act
        self.read = 0

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        self.read += 1
        self.act()
        return torch.full((3,), float(self.first + index))


# Nothing is left changed


def entry_points():
    """Return every callable of the owners that a diagnosis may wrap."""
    owners = [torch, torch.Tensor, torch.autograd, threading.Thread, DataLoader]
    owners += [torch.optim.Optimizer, torch.optim.SGD, torch.autocast]
    return {
        (owner, name): value
        for owner in owners
        for name, value in vars(owner).items()
        if callable(value)
    }


@contextlib.contextmanager
def untouched():
    """Nothing that belongs to the reader or to PyTorch is changed in here."""
    torch.optim.SGD([nn.Parameter(torch.ones(1))])  # PyTorch hooks step() at the first
    before, state = entry_points(), reader_state()
    environment, threads = dict(os.environ), threading.active_count()
    interval = sys.getswitchinterval()
    try:
        yield
    finally:
        after = entry_points()
        assert not [k for k in before | after if before.get(k) is not after.get(k)]
        assert reader_state() == state
        assert dict(os.environ) == environment
        assert sys.getswitchinterval() == interval
        wait_until(lambda: threading.active_count() <= threads, 5)  # some just end
        assert not children()
        assert not torch.autograd._profiler_enabled()


class Switched:
    """A run in which one cause is left out, or one repair tried, as a diagnosis does.

    `name` is a cause that can be left out, or a repair.
    """

    def __init__(self, experiment, name):
        work, training = Work(), Training()
        loaders = self.loaders = Loaders(work)
        if name == "input":
            self.switch = BatchesInMemory(loaders)
        elif name == "optimizer":
            self.switch = NoUpdate()
        else:
            self.switch = REPAIRS[name].make(training)
        changes = [loaders.install, training.install, self.switch.install]
        changed = change(resolve(experiment), *changes, work=work)
        self.generator = changed.start({})
        next(self.generator)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.turn(False)
        self.switch.end()
        self.generator.close()

    def run(self, steps):
        self.switch.begin_block()
        for _ in range(steps):
            next(self.generator)
        self.switch.end_block()

    def turn(self, on):
        if on:
            self.switch.prime()
            self.run(2)
        self.switch.turn(on)


# A planted cost, of which the truth is known

#: A fake clock's seconds for a step, and for the cost: 95 % of both.
STEP_SECONDS = 0.002
COST_SECONDS = 0.038


@contextlib.contextmanager
def simulating(clock):
    """Let a diagnosis run at full length on a clock that only experiments move."""
    with clock, pytest.MonkeyPatch.context() as patch:
        patch.delenv("KIT_QUICK")

        # What an operation costs would be timed on this clock. One thread, which other
        # programs do not hold up, counts as one for each core.
        def look_around(*_):
            return 2e-5, max(CORES, torch.get_num_threads())

        patch.setattr("kit.diagnosis.profiling.look_around", look_around)
        yield patch


class SlowSGD(torch.optim.SGD):
    """An optimizer of the reader's own, which spends time on an update."""

    def __init__(self, parameters, spend):
        super().__init__(parameters)
        self.spend = spend

    def step(self):
        self.spend()


def planted(*, clock, cause, cost=COST_SECONDS, pause=0.001, name="<b>bold</b>"):
    """Do in each step what suffers from a cause."""

    def spend():
        clock.work(cost)
        time.sleep(pause)  # real time, which a profile sees

    batches = iter(DataLoader(Counted(10**9, act=spend)))
    optimizer = SlowSGD([nn.Parameter(torch.ones(1))], spend)
    if cause == "threads":
        torch.set_num_threads(TOO_MANY_THREADS)
    if cause == "settings":
        torch.autograd.set_detect_anomaly(True, check_nan=False)
    act = {
        "input": lambda: next(batches),
        "optimizer": optimizer.step,
        "threads": lambda: clock.work(cost * (torch.get_num_threads() != CORES)),
        "settings": lambda: clock.work(cost * torch.is_anomaly_enabled()),
        "nothing": lambda: None,
    }[cause]
    while True:
        act()
        clock.work(STEP_SECONDS)
        yield 1


@functools.cache
def report():
    """Diagnose once, for several tests, a loop that waits for its data."""
    clock = FakeClock()
    with simulating(clock):
        # Data that takes milliseconds: workers may gain.
        return kit.diagnose(
            planted, seconds=30.0, clock=clock, cause="input", pause=0.005
        )


def profile(across=None, **facts):
    """Return what a profiled run might say; `across` are fractions of its step."""
    kinds = ["compute", "memory", "other", "overhead", "waiting"]
    fields = {
        "trace": Trace([0, 1], [], [], []),
        "segments": [],
        "shares": {"forward": 1.0},
        "across": dict.fromkeys(kinds, 0.0) | (across or {}),
        "slowest": "",
        "lines": {},
        "inner": {},
        "step_seconds": 1.0,
        "threads": CORES,
        "children": 0,
        "processes": 1,
    }
    return Profile(**fields | facts)
