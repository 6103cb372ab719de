"""Experiments that are diagnosed, on a real clock or on one that they move."""

import contextlib
import functools
import os
import threading
import time

import pytest
import torch
from helpers import FakeClock, children, reader_state, wait_until
from torch import nn
from torch.autograd.profiler import record_function
from torch.utils.data import DataLoader, Dataset, TensorDataset

import kit
import kit.clock
from kit.diagnosis.profiling import Profile
from kit.diagnosis.tracing import Event, Trace

CORES = kit.this_machine().cores
#: In a trace: work of a device.
BUSY = Event(0, 1, "gemm", "device 0 stream 7")


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

    def use_threads():
        clock.work(COST_SECONDS * (torch.get_num_threads() != CORES))

    act = {
        "input": lambda: next(batches),
        "transfer": lambda: torch.ones(4).to("meta"),
        "python": spend,
        "overhead": lambda: [torch.ones(1) for _ in range(100)],
        "sync": lambda: far.item(),
        "optimizer": optimizer.step,
        "compute": lambda: MATRIX @ MATRIX,
        "memory": lambda: torch.add(ONES, 1, out=SUMS),
        "threads": use_threads,
        "settings": lambda: clock.work(cost * torch.is_anomaly_enabled()),
        "healthy": lambda: torch.sort(MIXED),
    }[verdict]
    while True:
        act()
        clock.work(STEP_SECONDS)
        yield 1


def profile(across=None, **facts):
    """Return what a profiled run might say; `across` are fractions of its step."""
    names = ["compute", "memory", "other", "overhead", "waiting"]
    fractions = dict.fromkeys(names, 0.0) | (across or {})
    known = {"trace": Trace([0, 1], [], [], []), "segments": [], "across": fractions}
    known |= {"shares": {"forward": 1.0}, "slowest": "", "lines": {}, "inner": {}}
    known |= {"step_seconds": 1.0, "threads": CORES, "processes": 1}
    return Profile(**known | {"children": 0} | facts)


@functools.cache
def report():
    knobs = {"clock": FakeClock(), "verdict": "input", "pause": 0.005}  # is seen
    with simulating(knobs["clock"]):
        return kit.diagnose(planted, seconds=30.0, **knobs)
