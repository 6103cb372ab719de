"""A diagnosis changes only what it says, leaves nothing behind, and claims no more."""

import contextlib
import copy
import dataclasses
import functools
import html.parser
import itertools
import math
import os
import random
import re
import shutil
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy
import pytest
import torch
import torch.distributed as dist
from helpers import OTHER_THREADS, children, reader_state, refused, wait_until
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset
from torch.utils.data.dataloader import (
    _BaseDataLoaderIter,
    _MultiProcessingDataLoaderIter,
    _SingleProcessDataLoaderIter,
)

import kit
from kit import progress, stats, system
from kit.diagnosis import counterfactuals, profiling
from kit.diagnosis.causes import CAUSES, decide, estimate, saved, settle
from kit.diagnosis.counterfactuals import change
from kit.diagnosis.diagnosing import find_suspects
from kit.diagnosis.profiling import Profile
from kit.diagnosis.tracing import Trace
from kit.experiment import ExperimentError, resolve
from kit.figures import PHASES
from kit.ratio import Ratio
from kit.variant import Variant

pytestmark = pytest.mark.usefixtures("smoke")


def mlp():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.BatchNorm1d(8), nn.Linear(8, 1))


def train(*, lr=0.1):
    """Train a little."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    while True:
        optimizer.zero_grad()
        loss = model(torch.randn(4, 4)).sum()
        loss.backward()
        optimizer.step()
        yield 4, {"loss": loss.item()}


class Broken(Exception):
    pass


def live(experiment, *changes, steps=5):
    """Let an experiment live with something left out; return what it yielded."""
    resolved = change(resolve(experiment), *changes)
    return live_again(resolved, steps)


def live_again(resolved, steps=5):
    """Let it live once more, with what was kept of its earlier lives."""
    generator = resolved.start({})
    try:
        return list(itertools.islice(generator, steps))
    finally:
        generator.close()


CORES = kit.this_machine().cores

# Batches that were kept


class Counted(Dataset):
    """Say how often a sample was read; each is its own number."""

    def __init__(self, length=40, first=0):
        self.length, self.first, self.read = length, first, 0

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        self.read += 1
        return torch.full((3,), float(self.first + index))


class Stream(IterableDataset):
    """Give samples for ever, or so many."""

    def __init__(self, length=None):
        self.length, self.read = length, 0

    def __iter__(self):
        numbers = itertools.count() if self.length is None else range(self.length)
        for number in numbers:
            self.read += 1
            yield torch.tensor(number)


CACHED = counterfactuals.batches_at_hand


def test_kept_batches_are_not_loaded_and_epochs_are_as_long():
    data = Counted(40)
    loader, epochs = DataLoader(data, batch_size=2), []

    def epoch():
        while True:
            epochs.append(0)
            for _ in loader:
                epochs[-1] += 1
                yield 2

    cached = change(resolve(epoch), CACHED)
    live_again(cached, 65)
    assert data.read <= 2 * 4
    assert epochs[:3] == [20, 20, 20]
    first = data.read
    live_again(cached, 65)
    assert data.read == first, "the second life loads nothing"
    live(epoch, steps=21)
    assert data.read == first + 42, "without it all are loaded"


def test_a_short_epoch_stays_short():
    data, seen = Counted(4), []

    def epoch():
        while True:
            seen.append([len(batch) for batch in DataLoader(data, batch_size=3)])
            yield 4

    live(epoch, CACHED, steps=5)
    assert seen == [[3, 1]] * 5


def test_loader_made_anew_each_epoch_is_known_again():
    data = Counted(8)

    def epoch():
        while True:
            for batch in DataLoader(data, batch_size=2):
                yield len(batch)

    live(epoch, CACHED, steps=40)
    assert data.read <= 8


def test_a_stream_without_length():
    data = Stream()

    def endless():
        for batch in DataLoader(data, batch_size=2):
            yield len(batch)

    assert len(live(endless, CACHED, steps=50)) == 50
    assert data.read <= 20


def test_a_stream_that_ends_goes_on_ending():
    seen = []

    def epochs():
        while True:
            seen.append(0)
            for _ in DataLoader(Stream(6), batch_size=2):
                seen[-1] += 1
                yield 2

    live(epochs, CACHED, steps=10)
    assert seen[:3] == [3, 3, 3]


@pytest.mark.parametrize("lengths", [(12, 6), (6, 6)], ids=["unequal", "equal"])
def test_two_loaders_in_one_loop_keep_their_own_batches(lengths):
    one, two = Counted(lengths[0]), Counted(lengths[1], first=1000)
    seen = {"one": set(), "two": set()}

    def both():
        first, second = DataLoader(one, batch_size=2), DataLoader(two, batch_size=2)
        while True:
            for batch in first:
                seen["one"].update((batch[:, 0] >= 1000).tolist())
                yield 2
            for batch in second:
                seen["two"].update((batch[:, 0] >= 1000).tolist())

    cached = change(resolve(both), CACHED)
    for _ in range(2):
        live_again(cached, 20)
    assert seen == {"one": {False}, "two": {True}}


def test_two_loaders_over_equal_kinds_of_data_of_other_shapes():
    images = TensorDataset(torch.ones(8, 4))
    texts = TensorDataset(torch.ones(8, 6, dtype=torch.long))

    def both():
        while True:
            pairs = zip(DataLoader(images, 2), DataLoader(texts, 2), strict=True)
            for (image,), (text,) in pairs:
                assert image.shape == (2, 4)
                assert text.shape == (2, 6)
                yield 2

    assert len(live(both, CACHED, steps=10)) == 10


def test_a_batch_that_the_loop_changes_in_place_comes_back_unchanged():
    data, seen = TensorDataset(torch.arange(4)), []

    def shifting():
        while True:
            for (labels,) in DataLoader(data, batch_size=2):
                labels.sub_(1)
                seen.append(labels.tolist())
                yield 2

    live(shifting, CACHED, steps=8)
    assert seen == [[-1, 0], [1, 2]] * 4


@pytest.mark.parametrize("persistent", [False, True])
def test_no_worker_goes_on_while_batches_are_kept(persistent):
    alive = []
    options = {"num_workers": 1, "persistent_workers": persistent}

    def epochs():
        loader = DataLoader(Counted(8), batch_size=2, **options)
        while True:
            for batch in loader:
                alive.append(len(children()))
                yield len(batch)

    live(epochs, CACHED, steps=12)
    assert alive[-4:] == [0] * 4
    assert not children()


# The optimizer's step


def weights(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


def equal(ones, others):
    return all(torch.equal(one, other) for one, other in zip(ones, others, strict=True))


def one_step(model, optimizer, *, closure=False):
    """Return an experiment of steps, and how often its closure was called."""
    calls = []

    def loss():
        calls.append(torch.is_grad_enabled())
        optimizer.zero_grad()
        value = model(torch.ones(4, 4)).sum()
        value.backward()
        return value

    def steps():
        while True:
            if closure:
                assert optimizer.step(loss) is not None
            else:
                loss()
                optimizer.step()
            yield 4

    return steps, calls


SKIP = counterfactuals.no_update


class Own(torch.optim.Optimizer):
    """A reader's own optimizer."""

    def __init__(self, parameters):
        super().__init__(parameters, {})

    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.add_(parameter.grad, alpha=-0.1)


@pytest.mark.parametrize(
    "kind",
    [
        functools.partial(torch.optim.SGD, lr=0.1),
        torch.optim.AdamW,
        torch.optim.RMSprop,
        Own,
    ],
    ids=["SGD", "AdamW", "RMSprop", "own"],
)
def test_a_skipped_step_leaves_the_parameters(kind):
    model = nn.Linear(4, 1)
    optimizer = kind(model.parameters())
    steps, _ = one_step(model, optimizer)
    before = weights(model)
    live(steps, SKIP)
    assert equal(weights(model), before)
    assert not optimizer.state and optimizer.param_groups
    live(steps)
    assert not equal(weights(model), before)


def test_a_skipped_step_calls_its_closure():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps, calls = one_step(model, optimizer, closure=True)
    before = weights(model)
    live(steps, SKIP)
    assert calls == [True] * 5
    assert equal(weights(model), before)


def test_step_is_skipped_where_a_scheduler_took_hold_of_it_before():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.optim.lr_scheduler.StepLR(optimizer, 10)
    steps, _ = one_step(model, optimizer)
    before = weights(model)
    live(steps, SKIP)
    assert equal(weights(model), before)


@pytest.mark.filterwarnings("error")
def test_a_skipped_step_lets_schedulers_and_scalers_be():
    def steps():
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
        scaler = torch.amp.GradScaler("cpu")
        while True:
            scaler.scale(model(torch.ones(4, 4)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            yield 4

    assert len(live(steps, SKIP)) == 5


def test_an_update_that_raises_gets_its_parameters_back():
    class Fails(Own):
        def step(self, closure=None):
            raise Broken

    model = nn.Linear(4, 1)
    optimizer = Fails(model.parameters())
    steps, _ = one_step(model, optimizer)
    with pytest.raises(Broken):
        live(steps, SKIP)
    assert optimizer.param_groups[0]["params"] == list(model.parameters())


# Threads and workers


class Threads(Dataset):
    """Say with how many threads a worker computes."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.get_num_threads()


THREE = functools.partial(counterfactuals.other_threads, threads=3)


def in_threads():
    """Return an experiment, and the counts that it saw, by where."""
    seen = {"here": set(), "pool": set(), "old pool": set(), "workers": set()}
    wide = torch.ones(300_000)

    def train():
        seen["here"].add(torch.get_num_threads())
        torch.set_num_threads(1)
        loader = DataLoader(Threads(), batch_size=2, num_workers=1)
        with ThreadPoolExecutor(1) as old:
            while True:
                wide.add(1)
                seen["here"].add(torch.get_num_threads())
                look = torch.get_num_threads
                seen["old pool"].add(old.submit(look).result())
                with ThreadPoolExecutor(2) as pool:
                    seen["pool"].add(pool.submit(look).result())
                for batch in loader:
                    seen["workers"].update(batch.tolist())
                    yield 1

    return train, seen


def test_every_thread_gets_the_number_that_was_asked_for():
    experiment, seen = in_threads()
    live(experiment, THREE, steps=4)
    assert seen == {"here": {3}, "pool": {3}, "old pool": {3}, "workers": {1}}
    torch.set_num_threads(1)


def test_threads_of_a_pool_really_compute_with_so_many():
    # What a new thread reports may differ from what OpenMP gives it.
    asked = r"omp_get_max_threads\(\) : (\d+)"
    found = []

    def work():
        torch.ones(3_000_000).add(1)
        found.append(re.findall(asked, torch.__config__.parallel_info()))

    def train():
        while True:
            with ThreadPoolExecutor(1) as pool:
                pool.submit(work).result()
            yield 1

    live(train, THREE, steps=1)
    assert found == [["3"]]
    torch.set_num_threads(1)


# Ranks


@pytest.fixture
def group():
    """A process group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


ALONE = counterfactuals.no_exchange


def counted(monkeypatch, owner, name):
    """Count the calls that still reach PyTorch."""
    calls, real = [], getattr(owner, name)

    def counting(*arguments, **options):
        calls.append(name)
        return real(*arguments, **options)

    monkeypatch.setattr(owner, name, counting)
    return calls


@pytest.mark.parametrize("name", ["all_reduce", "broadcast", "barrier"])
def test_exchanges_are_left_out(group, monkeypatch, name):
    calls = counted(monkeypatch, dist, name)
    arguments = {"all_reduce": [torch.ones(2)], "broadcast": [torch.ones(2), 0]}

    def train():
        while True:
            getattr(dist, name)(*arguments.get(name, []))
            yield 1

    live(train)
    assert len(calls) == 5
    live(train, ALONE)
    assert len(calls) == 5


def test_an_exchange_that_is_waited_for_may_be(group):
    def train():
        ones = torch.ones(2)
        while True:
            dist.all_reduce(ones, async_op=True).wait()
            dist.all_reduce(ones, dist.ReduceOp.SUM, None, True).wait()
            assert dist.all_reduce(ones) is None
            yield 1

    assert len(live(train)) == 5
    assert len(live(train, ALONE)) == 5


def test_ddp_does_not_exchange_gradients():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    calls = []

    def hook(_, bucket):
        calls.append(True)
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    def train():
        model = DistributedDataParallel(nn.Linear(4, 1))
        model.register_comm_hook(None, hook)
        while True:
            model(torch.ones(2, 4)).sum().backward()
            assert model.module.weight.grad is not None
            yield 2

    try:
        live(train)
        assert len(calls) == 5
        live(train, ALONE)
        assert len(calls) == 5
    finally:
        dist.destroy_process_group()


def test_exchange_is_left_out_where_the_set_up_makes_the_group(monkeypatch):
    calls = counted(monkeypatch, dist, "all_reduce")

    def train():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        try:
            while True:
                dist.all_reduce(torch.ones(2))
                yield 1
        finally:
            dist.destroy_process_group()

    live(train, ALONE)
    assert not calls
    assert not dist.is_initialized()


# Devices, as far as a device without numbers tells


HERE = counterfactuals.batches_on_device


def moved(make_tensors, move, *changes):
    """Return what moving some tensors gives, twice."""
    found = []

    def train():
        while True:
            found.append([move(tensor) for tensor in make_tensors()])
            yield 1

    live(train, *changes, steps=2)
    return found


def test_a_batch_is_on_the_device_already():
    def make():
        return [torch.ones(2, 3), torch.zeros(4)]

    first, second = moved(make, lambda tensor: tensor.to("meta"), HERE)
    assert [one.shape for one in second] == [(2, 3), (4,)]
    assert all(one.device.type == "meta" for one in second)
    assert all(one is two for one, two in zip(first, second, strict=True))
    first, second = moved(make, lambda t: t.to("meta"))
    assert not any(one is two for one, two in zip(first, second, strict=True))


def test_what_does_not_change_devices_is_not_left_out():
    first, second = moved(lambda: [torch.rand(3)], lambda t: t.to("cpu"), HERE)
    assert not torch.equal(first[0], second[0])
    first, second = moved(lambda: [torch.rand(3)], lambda t: t.to(torch.float64), HERE)
    assert not torch.equal(first[0], second[0])
    assert second[0].dtype == torch.float64


@pytest.mark.parametrize("named", [False, True])
def test_copies_have_the_type_that_was_asked_for(named):
    kinds = itertools.cycle([torch.float16, torch.float64])

    def move(tensor):
        kind = next(kinds)
        if named:
            return tensor.to(device="meta", dtype=kind)
        return tensor.to("meta", kind)

    for found in moved(lambda: [torch.ones(3)] * 2, move, HERE):
        assert [one.dtype for one in found] == [torch.float16, torch.float64]


def test_tensors_of_a_model_stay_different_tensors():
    found = []

    def train():
        model = nn.BatchNorm1d(4)
        frozen = nn.Linear(4, 4, bias=False).requires_grad_(False)
        other = nn.Linear(4, 4, bias=False).requires_grad_(False)
        nn.ModuleList([model, frozen, other]).to("meta")
        found.append(model.running_mean is not model.running_var)
        found.append(frozen.weight.untyped_storage()._cdata != other.weight._cdata)
        found.append(frozen.weight is not other.weight)
        while True:
            yield 1

    live(train, HERE, steps=1)
    assert found == [True] * 3


class Far(torch.Tensor):
    """Numbers that seem to be on a device."""

    device = property(lambda self: torch.device("meta"))


UNREAD = counterfactuals.numbers_unread


@pytest.mark.parametrize("name", ["item", "tolist", "__float__", "__bool__"])
def test_numbers_are_not_read_again(monkeypatch, name):
    calls, real = {"far": 0, "near": 0}, getattr(torch.Tensor, name)

    def counting(tensor):
        calls["far" if isinstance(tensor, Far) else "near"] += 1
        return real(tensor)

    monkeypatch.setattr(torch.Tensor, name, counting)
    seen = []

    def train():
        far = torch.ones(1).as_subclass(Far)
        near = torch.zeros(1)
        while True:
            seen.append(getattr(far, name)())
            getattr(near, name)()
            yield 1

    unread = change(resolve(train), UNREAD)
    live_again(unread, 2)
    first = calls["far"]
    live_again(unread, 5)
    assert calls["far"] <= 2 * first and calls["near"] == 2 + 5
    assert len({str(one) for one in seen}) == 1
    live(train)
    assert calls["near"] == 2 + 5 + 5 and calls["far"] >= first + 5


def test_numbers_that_were_read_keep_their_kind():
    def train():
        count = torch.tensor(3).as_subclass(Far)
        loss = torch.tensor(0.5).as_subclass(Far)
        while True:
            loss.item()
            assert sum(1 for _ in range(count.item())) == 3
            yield 1

    assert len(live(train, UNREAD)) == 5


# Everything is as it was


def entry_points():
    """Return every attribute that a wrapper could have replaced, by owner and name."""

    def below(cls):
        return [cls, *itertools.chain(*map(below, cls.__subclasses__()))]

    owners = [
        *(
            torch,
            torch.Tensor,
            torch.nn.Module,
            torch.autograd,
            torch.autograd.profiler,
        ),
        *(threading.Thread, DataLoader, _BaseDataLoaderIter, dist, torch.profiler),
        *(_MultiProcessingDataLoaderIter, _SingleProcessDataLoaderIter, torch.optim),
        *(
            DistributedDataParallel,
            torch.autograd.graph,
            torch._tensor,
            torch.utils.data,
        ),
        *(torch.autograd.profiler.record_function, torch.nn.functional),
        *below(torch.optim.Optimizer),
    ]
    return {
        (owner, name): value
        for owner in owners
        for name, value in vars(owner).items()
        if callable(value)
    }


def check_entry_points(before):
    after = entry_points()
    changed = [key for key, value in before.items() if after.get(key) is not value]
    added = [key for key in after.keys() - before.keys() if key[1] != "hooked"]
    for owner, name in changed:  # other tests shall not suffer
        setattr(owner, name, before[owner, name])
    for owner, name in added:
        delattr(owner, name)
    assert not changed
    assert not added


def variables():
    """Return the environment, without what pytest writes there itself."""
    return {k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"}


@contextlib.contextmanager
def untouched():
    """Nothing that belongs to the reader or to PyTorch is changed in here."""
    for optimizer in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, Own):
        optimizer([nn.Parameter(torch.ones(1))])  # PyTorch hooks step() at the first
    before, state = entry_points(), reader_state()
    environment, threads = variables(), set(threading.enumerate())
    try:
        yield
    finally:
        check_entry_points(before)
        assert reader_state() == state
        assert variables() == environment
        wait_until(lambda: set(threading.enumerate()) <= threads, 5)  # some just end
        assert not children()
        assert not torch.autograd._profiler_enabled()


ALL = [cause.leave_out for name, cause in CAUSES.items() if cause.leave_out]
ALL[ALL.index(counterfactuals.other_threads)] = THREE


@pytest.mark.parametrize("error", [None, Broken])
def test_entry_points_are_changed_in_a_life_and_put_back(error, group):
    before, changed = entry_points(), []

    def train():
        changed.append(entry_points() != before)
        yield 1
        if error:
            raise error
        yield 1

    with untouched(), contextlib.suppress(Broken):
        live(train, *ALL)
    assert changed == [True]


def test_nothing_is_left_out_outside_the_generator():
    data = Counted(8)
    loader = DataLoader(data, batch_size=2)

    def epochs():
        while True:
            for batch in loader:
                yield len(batch)

    generator = change(resolve(epochs), *ALL).start({})
    next(generator)
    torch.set_num_threads(1)
    assert torch.get_num_threads() == 1
    before = data.read
    assert len(list(loader)) == 4 and data.read == before + 8
    model = nn.Linear(4, 1)
    steps, _ = one_step(model, torch.optim.SGD(model.parameters(), lr=0.1))
    kept = weights(model)
    next(steps())
    assert not equal(weights(model), kept)
    generator.close()


def spoiled(where, error, lives):
    """Return an experiment that changes everything, and may raise."""

    def train():
        lives.append(True)
        torch.set_num_threads(CORES + OTHER_THREADS)  # so threads are suspected
        os.environ.setdefault("OMP_DYNAMIC", os.environ.get("OMP_DYNAMIC", "false"))
        os.environ.pop("OMP_DYNAMIC")
        random.random(), numpy.random.rand(), torch.rand(1)
        if where == "set-up":
            raise error("out of chalk")
        data = TensorDataset(torch.ones(32, 4))
        for number, experiment_step in enumerate(train_steps(data)):
            late = where == "counterfactual" and len(lives) > 2
            if (where == "step" and number == 2) or (late and number == 1):
                raise error("out of chalk")
            yield experiment_step

    def train_steps(data):
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        while True:
            for (batch,) in DataLoader(data, batch_size=8):
                model(batch).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                time.sleep(0.001)
                yield 8

    return train


PLACES = itertools.product(
    ["set-up", "step", "counterfactual"], [Broken, KeyboardInterrupt]
)


@pytest.mark.parametrize(("where", "error"), [("nowhere", None), *PLACES])
def test_everything_is_as_it_was(where, error):
    lives = []
    experiment = spoiled(where, error, lives)
    place = {"set-up": "set-up", "step": "step 3", "counterfactual": "step 2"}
    with untouched():
        if where == "nowhere":
            kit.diagnose(experiment)
        elif error is KeyboardInterrupt:
            with pytest.raises(KeyboardInterrupt):
                kit.diagnose(experiment)
        else:
            words = ("train()", place[where], "Broken", "out of chalk")
            refused(lambda: kit.diagnose(experiment), *words)
    assert len(lives) > 2 or where in ("set-up", "step")


def bits(value):
    """Return all that a state dict, or a list of tensors, holds, as plain values."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), value.detach().numpy().tobytes()
    if isinstance(value, dict):
        return {key: bits(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [bits(one) for one in value]
    return copy.copy(value)


@pytest.mark.parametrize("error", [None, Broken])
def test_what_the_experiment_closes_over_is_put_back_bit_for_bit(error):
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters())
    loader = DataLoader(TensorDataset(torch.randn(16, 4)), batch_size=4)
    model(torch.randn(4, 4)).sum().backward()
    optimizer.step()

    def look():
        gradients = [parameter.grad for parameter in model.parameters()]
        return bits([model.state_dict(), gradients, optimizer.state_dict()])

    def train():
        number = 0
        while True:
            for (batch,) in loader:
                optimizer.zero_grad()
                model(batch).square().sum().backward()
                optimizer.step()
                number += 1
                if error and number > 4:
                    raise error
                yield 4

    before, attributes = look(), dict(vars(loader))
    tensors = [*map(id, model.parameters()), *map(id, model.buffers())]
    with untouched(), contextlib.suppress(ExperimentError):
        kit.diagnose(train)
    assert look() == before
    assert [*map(id, model.parameters()), *map(id, model.buffers())] == tensors
    assert all(vars(loader)[name] is value for name, value in attributes.items())


@pytest.mark.parametrize("persistent", [False, True])
def test_a_loader_with_workers_is_as_it_was(persistent):
    options = {"num_workers": 2, "persistent_workers": persistent}
    loader = DataLoader(TensorDataset(torch.ones(64, 4)), batch_size=8, **options)
    model = nn.Linear(4, 1)

    def train():
        while True:
            for (batch,) in loader:
                model(batch).sum().backward()
                yield 8

    with untouched():
        found = kit.diagnose(train)
    assert "input" in found.savings
    assert loader.num_workers == 2
    assert loader.persistent_workers is persistent
    assert not children()
    if not persistent:
        assert len(list(loader)) == 8


def test_a_loader_with_persistent_workers_can_be_used_afterwards():
    options = {"num_workers": 1, "persistent_workers": True}
    loader = DataLoader(TensorDataset(torch.ones(64, 4)), batch_size=8, **options)

    def train():
        while True:
            for (batch,) in loader:
                yield len(batch)

    kit.diagnose(train)
    assert len(list(loader)) == 8
    loader._iterator = None


def test_it_says_how_long_it_takes_before_it_starts(capsys, monkeypatch):
    monkeypatch.setattr(progress, "_SHORT_SECONDS", 0.001)
    said = []

    def is_told():
        said.append(capsys.readouterr().err)
        return "about 17 s left" in "".join(said)

    def experiment():
        wait_until(is_told)
        yield 1
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kit.diagnose(experiment, seconds=17.0)
    assert "diagnosing experiment()" in "".join(said)


# Bad input


@pytest.mark.parametrize("seconds", [None, 0, -1, math.nan, math.inf, "20", True])
def test_seconds_that_are_no_time(seconds):
    message = refused(lambda: kit.diagnose(train, seconds=seconds), "diagnose()")
    assert f"seconds={seconds!r}" in message


def test_the_message_does_not_propose_what_is_refused():
    message = refused(lambda: kit.diagnose(train, seconds=0), "diagnose()")
    assert "seconds=None" not in message


def test_other_bad_input():
    refused(lambda: kit.diagnose(train, on=3), "diagnose()", "on=3")
    refused(lambda: kit.diagnose(train, lrr=3), "diagnose()", "lrr", "lr")
    refused(lambda: kit.diagnose(3), "diagnose()")


def test_what_returns_no_generator():
    refused(lambda: kit.diagnose(lambda: 3), "int", "no new generator")


def test_set_up_only():
    def train(*, lr=0.1):
        if lr is None:
            yield

    with untouched():
        refused(lambda: kit.diagnose(train), "train(lr=0.1)", "yield")


def test_yields_once():
    def train():
        nn.Linear(4, 1)(torch.ones(4)).backward()
        yield 1

    with untouched():
        refused(lambda: kit.diagnose(train), "train()", "while True:")


def test_error_message_is_short_and_has_its_cause():
    def train():
        yield 1
        yield 1
        raise Broken("x" * 5000 + "\n" * 50)

    with pytest.raises(ExperimentError) as caught:
        kit.diagnose(train)
    message = str(caught.value)
    assert isinstance(caught.value.__cause__, Broken)
    assert len(message.splitlines()) <= 6 and len(message) < 1000


def test_a_profiler_outside():
    with torch.profiler.profile() as theirs:
        torch.ones(3).add(1)
        refused(lambda: kit.diagnose(train), "diagnose()", "profiler")
        torch.ones(3).mul(2)
    names = {event.key for event in theirs.key_averages()}
    assert {"aten::add", "aten::mul"} <= names, "theirs goes on"


@pytest.mark.parametrize("kind", ["whole", "step", "legacy"])
def test_a_profiler_inside(kind):
    profiler = {
        "whole": torch.profiler.profile,
        "step": torch.profiler.profile,
        "legacy": torch.autograd.profiler.profile,
    }[kind]

    def train():
        with contextlib.ExitStack() as stack:
            if kind != "step":
                stack.enter_context(profiler())
            while True:
                with profiler() if kind == "step" else contextlib.nullcontext():
                    torch.ones(3).add(1)
                yield 1

    with untouched():
        refused(lambda: kit.diagnose(train), "diagnose()", "profiler")


def test_a_loop_that_never_touches_pytorch():
    def count():
        while True:
            time.sleep(0.001)
            yield 1

    with untouched():
        found = kit.diagnose(count)
    assert found.shares == {"python": pytest.approx(1)}
    assert set(found.savings) <= {"python", "threads", "overhead"}
    assert "count()" in repr(found)


def test_a_step_with_very_many_events_is_bounded(monkeypatch):
    monkeypatch.delenv("KIT_SMOKE")
    monkeypatch.setattr(profiling, "_MOST_EVENTS", 100)

    def train():
        while True:
            for _ in range(30):
                torch.ones(1).add(1)
            yield 1

    found = kit.diagnose(train, seconds=1.0)
    assert len(found.profile.trace.marks) == 2
    assert "1 profiled step" in repr(found)


def test_ddp_wrapped_model():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = DistributedDataParallel(nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        steps, _ = one_step(model, optimizer)
        before = weights(model)
        with untouched():
            found = kit.diagnose(steps)
        assert found.shares["backward"] > 0
        assert equal(weights(model), before)
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(
    "backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.nightly)]
)
def test_compiled_model(backend):
    if backend == "inductor" and not any(map(shutil.which, ["c++", "g++", "clang++"])):
        pytest.skip("compiling needs a C++ compiler, and there is none")
    model = torch.compile(nn.Linear(4, 1), backend=backend)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps, _ = one_step(model, optimizer)
    next(steps())  # compile outside
    found = kit.diagnose(steps)
    assert found.shares["forward"] > 0 and found.shares["backward"] > 0


# What is concluded


def profile(compute=0.0, memory=0.0, bandwidth=0.5, loops=0.0, waiting=0.0, **more):
    """Return what a profiled run might say."""
    across = {"compute": compute, "memory": memory, "loops": loops, "waiting": waiting}
    facts = {
        "trace": Trace([0, 1], [], [], []),
        "segments": [],
        "shares": {"forward": 0.4, "backward": 0.6},
        "across": {name: [share] for name, share in across.items()},
        "bandwidth": bandwidth,
        "lines": {},
        "step_seconds": 1.0,
        "inflation": 0.0,
        "threads": kit.this_machine().cores,
        "children": 0,
        "processes": 1,
    }
    return Profile(**{**facts, **more})


def conclude(work=None, **savings):
    """Conclude from the speeds (value, low, high) without each cause."""
    ratios = {
        cause: Ratio(value, low, high, stats.judge_ratio(low, high))
        for cause, (value, low, high) in savings.items()
    }
    return decide(ratios, profile(**(work or {})))


SURE, WIDE, NOTHING = (2.0, 1.9, 2.1), (1.6, 0.8, 3.2), (1.0, 0.99, 1.01)
UNKNOWN = (math.nan, math.nan, math.nan)
LEFT_OUT = [name for name, cause in CAUSES.items() if cause.leave_out]


@pytest.mark.parametrize("cause", [*LEFT_OUT, "python", "overhead"])
def test_a_large_and_sure_saving_is_the_verdict(cause):
    other = "input" if cause != "input" else "sync"
    assert conclude(**{cause: SURE, other: NOTHING}) == (cause, "")


@pytest.mark.parametrize("speed", [WIDE, UNKNOWN, (1.0, 0.1, 10.0)])
@pytest.mark.parametrize("cause", ["input", "threads", "communication"])
def test_what_is_not_sure_is_not_said(cause, speed):
    verdict, reason = conclude(**{cause: speed})
    assert verdict is None
    assert CAUSES[cause].removed in reason and "seconds" in reason


@pytest.mark.parametrize("speed", [NOTHING, (0.5, 0.4, 0.6), (1.02, 0.97, 1.08)])
def test_a_loop_without_savings_is_healthy(speed):
    verdict, reason = conclude(input=speed)
    assert verdict == "healthy"
    assert "nothing to repair was found" in reason and "the wait for data" in reason


def test_nothing_was_suspected():
    assert conclude() == ("healthy", "nothing to repair was found (no suspect)")


def test_the_largest_saving_wins():
    assert conclude(input=(3, 2.5, 3.5), python=SURE)[0] == "input"
    assert conclude(input=WIDE, python=SURE)[0] == "python"
    assert conclude(input=(3, 0.8, 9), python=SURE)[0] is None


def test_threads_are_the_simplest_repair():
    assert conclude(threads=(1.8, 1.7, 1.9), overhead=SURE)[0] == "threads"
    assert conclude(threads=(1.1, 1.08, 1.12), input=(5, 4, 6))[0] == "input"


def test_a_doubt_smaller_than_the_factor_is_none():
    doubted = Ratio(4.0, 3.0, 5.0, "cannot tell", "its speed changes on the way")
    assert settle(doubted, ["", ""]).verdict == "faster"
    assert settle(doubted, ["", "other programs"]).verdict == "cannot tell"
    small = dataclasses.replace(doubted, low=1.2)
    assert settle(small, ["", ""]).verdict == "cannot tell"


@pytest.mark.parametrize(
    ("work", "savings", "verdict"),
    [
        ({"compute": 0.8}, {}, "compute"),
        ({"memory": 0.7, "bandwidth": 0.8}, {}, "memory"),
        ({"memory": 0.7, "bandwidth": 0.05}, {}, "healthy"),
        ({"compute": 0.8}, {"threads": (2.5, 0.9, 5.0)}, None),
        ({"compute": 0.8}, {"threads": (1.05, 0.8, 1.4)}, "compute"),
        ({"compute": 0.8}, {"optimizer": (1.2, 0.9, 1.6)}, "compute"),
        ({"compute": 0.55}, {"optimizer": (1.5, 1.45, 1.55)}, "compute"),
        ({"compute": 0.55}, {"overhead": (1.5, 1.45, 1.55)}, "compute"),
        ({"compute": 0.55}, {"input": (1.5, 1.4, 1.6)}, "input"),
        ({"compute": 0.8}, {"input": (1.06, 1.05, 1.07)}, "compute"),
    ],
)
def test_useful_work_is_good_news_unless_much_can_be_saved(work, savings, verdict):
    found, reason = conclude(work, **savings)
    assert found == verdict
    if verdict in ("compute", "memory"):
        assert f"{work[verdict]:.0%}" in reason


def test_a_share_says_what_would_be_without_it_and_has_no_interval():
    found = estimate([0.5, 0.5, 0.5, 0.5001])
    assert found.value == pytest.approx(2.0, rel=1e-3)
    assert math.isnan(found.low) and math.isnan(found.high)
    assert found.reason == "estimated from its share of 4 profiled steps"
    assert estimate([0.0] * 4).value == 1
    assert math.isfinite(estimate([1.0] * 4).value)


@pytest.mark.parametrize("cause", ["python", "overhead", "optimizer"])
@pytest.mark.parametrize(
    ("shares", "verdict"),
    [
        ([0.5, 0.51, 0.5, 0.49], True),
        ([0.0, 0.9, 0.0, 0.9], None),
        ([0.02, 0.02, 0.021], "healthy"),
        ([0.5], None),
    ],
)
def test_an_estimate_goes_by_how_alike_the_steps_are(cause, shares, verdict):
    found, reason = decide({cause: estimate(shares)}, profile())
    assert found == (cause if verdict is True else verdict)
    assert "nan" not in reason and "[" not in reason


# What is suspected


@pytest.mark.parametrize(
    ("facts", "suspects"),
    [
        ({"shares": {"input": 0.3}}, {"input"}),
        ({"shares": {"input": 0.01}, "children": 2}, {"input"}),
        ({"shares": {"copies": 0.3}}, {"transfer"}),
        ({"shares": {"sync": 0.3}}, {"sync"}),
        ({"shares": {"communication": 0.3}}, {"communication"}),
        ({"shares": {"optimizer": 0.3}}, {"optimizer"}),
        ({"shares": {"optimizer": 0.3}, "loops": 0.2}, set()),
        ({"shares": {"input": 0.01, "sync": 0.01, "optimizer": 0.01}}, set()),
        ({}, set()),
        ({"threads": CORES + 1}, {"threads"}),
        ({"waiting": 0.5}, {"threads"}),
    ],
)
def test_only_what_the_profile_speaks_for_is_left_out(facts, suspects):
    """Threads, too: nobody changes a number that fits the cores."""
    assert set(find_suspects(profile(**facts))) == suspects


def test_at_most_three_are_left_out_the_largest():
    shares = {"input": 0.1, "copies": 0.3, "sync": 0.2, "optimizer": 0.4}
    found = find_suspects(profile(shares=shares, threads=CORES + 1))
    assert list(found) == ["threads", "optimizer", "transfer"]


@pytest.mark.parametrize(("threads", "tried"), [(CORES + 6, CORES), (CORES, 1)])
def test_the_other_number_of_threads_is_the_cores_or_one(threads, tried):
    found = find_suspects(profile(threads=threads, waiting=0.5))
    assert found["threads"].keywords == {"threads": tried}


# What is advised


def test_every_verdict_has_advice_and_says_whether_it_changes_the_result():
    for cause in CAUSES.values():
        assert cause.sentence.endswith(".") and cause.code and cause.chapter
        assert "\n" not in cause.code
    changing = {name for name, cause in CAUSES.items() if "change" in cause.effect}
    assert {"compute", "communication", "overhead"} <= changing
    assert CAUSES["compute"].effect in CAUSES["compute"].advise()


@pytest.mark.parametrize("how", ["JupyterLab", "VS Code"])
def test_advice_does_not_point_to_the_chapter_that_is_read(how, monkeypatch):
    assert "Chapter 02" in CAUSES["python"].advise()
    notebook = "/somewhere/tutorials/02_profiling.ipynb"
    if how == "JupyterLab":
        monkeypatch.setenv("JPY_SESSION_NAME", notebook)
    else:
        main = sys.modules["__main__"]
        monkeypatch.setattr(main, "__vsc_ipynb_file__", notebook, raising=False)
    assert "Chapter" not in CAUSES["python"].advise()
    assert "Chapter 04" in CAUSES["input"].advise()


# The report


BOLD = "<b>bold</b>"


def waits(*, name=BOLD, pause=0.02):
    """Wait for data."""

    class Slow(Counted):
        def __getitem__(self, index):
            time.sleep(pause)
            return super().__getitem__(index)

    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    while True:
        for batch in DataLoader(Slow(), batch_size=1):
            loss = model(batch).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            yield 1, {"loss": loss.item()}


def does_not_wait(*, name=BOLD, pause=0.02):
    yield from waits(name=name, pause=0.0)


def has_no_knob():
    yield from waits(pause=0.0)


def diagnosed():
    """Return a diagnosis of a loop that waits, as a quiet machine has it."""
    return dataclasses.replace(measured(), verdict="input", reason="")


@functools.cache
def measured():
    """Diagnose a loop that waits, for long enough to be sure."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("KIT_SMOKE")
        # Whatever else runs on this machine is no business of these tests.
        nothing = system.Load(*[0.0] * len(system.Load._fields))
        patch.setattr(system, "read_load", lambda *_: nothing)
        return kit.diagnose(waits, seconds=3.0)


def test_a_loop_that_waits_for_data_is_told_so():
    found = measured()
    assert found.verdict in ("input", None)  # other programs may have disturbed it
    assert found.shares["input"] > 0.8
    assert found.savings["input"].value > 3  # how sure that is, make bench judges
    assert diagnosed().advice.chapter.startswith("04")
    assert "data" in diagnosed().sentence() and "saves" in diagnosed().sentence()
    assert any("time.sleep(pause)" in line for line in found.profile.lines["input"])


def test_repr_tells_it_all():
    found = diagnosed()
    said = repr(found)
    assert said.startswith(found.sentence())
    rows = dict(re.findall(r"^(.+?) {2,}([\d.]+%) +[\d.,]+ [mµn]?s$", said, re.M))
    assert rows == {PHASES[phase]: f"{x:.1%}" for phase, x in found.shares.items()}
    assert found.advice.code in said and found.advice.sentence in said
    assert f"{100 * saved(found.savings['input']).value:.0f} % [" in said
    assert "time.sleep(pause)" in said, "the reader's own line is named"


def test_picture_in_words_has_all_numbers():
    found = diagnosed()
    alt = found.plot().alt
    assert found.sentence() in alt
    for phase in found.shares:
        assert f"{PHASES[phase]}: " in alt
    for value in saved(found.savings["input"]):
        assert f"{100 * value:.0f} %".replace("-", "−") in alt


def test_an_interval_without_an_end_says_nothing_of_thousands():
    assert saved(Ratio(2.0, 1e-6, 9.0, "cannot tell")).low == -1


def estimated():
    """Return a diagnosis whose verdict rests on the shares of some steps."""
    savings = {
        "python": estimate([0.48, 0.47, 0.49]),
        "input": Ratio(1.25, 1.2, 1.3, "faster"),
        "overhead": estimate([0.001, 0.001, 0.002]),
    }
    return dataclasses.replace(diagnosed(), verdict="python", savings=savings)


def test_what_is_estimated_says_so_and_shows_no_interval():
    found = estimated()
    words = "about 48 %, estimated from its share of 3 profiled steps"
    assert words in found.sentence()
    page = Page(found._repr_html_()).text
    for said in (repr(found), page):
        assert "your own code" in said and "about 48 %" in said
        assert "48 % [" not in said and "20 % [17, 23]" in said
        assert "nan" not in said.lower()
        assert CAUSES["overhead"].removed not in said, "it saves nothing"


def test_the_picture_marks_what_is_estimated():
    figure = estimated().plot()
    axes = figure.axes[1]
    names = [label.get_text().replace("\n", " ") for label in axes.get_yticklabels()]
    assert names == [
        "your own code beside the training (estimate)",
        "the wait for data",
    ]
    python, wait = axes.patches
    assert python.get_hatch() and not wait.get_hatch()


class Page(html.parser.HTMLParser):
    """What is on a page: its tags, its texts, and the words for its pictures."""

    VOID = ("meta", "img", "br", "hr", "link", "input", "col")

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.alts, self.text = [], [], [], ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "img":
            self.alts.append(dict(attributes).get("alt", ""))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_page_is_complete_and_escaped():
    found = diagnosed()
    for text in (found.to_html(), found._repr_html_()):
        page = Page(text)
        assert not page.open
        assert "b" not in page.tags and BOLD not in text
        assert BOLD in page.text + " ".join(page.alts)
        assert found.advice.code in page.text
        assert page.alts and all(page.alts)
        assert not re.search(r"(src|href)=[\"']?https?:", text)
    assert found.to_html().lower().startswith("<!doctype html>")


@pytest.mark.parametrize("verdict", ["healthy", None])
def test_without_a_cause_the_reason_is_told(verdict):
    changes = {"verdict": verdict, "reason": "nothing to repair was found (x)"}
    found = dataclasses.replace(diagnosed(), **changes)
    assert "nothing to repair was found (x)" in repr(found)
    assert ("try " in repr(found)) is (verdict is not None)
    assert "nothing to repair" in Page(found.to_html()).text
    assert "predicted: nothing" in found.verify(does_not_wait, seconds=1.0).title


def test_verify_says_what_was_predicted_and_what_is_gained():
    found = diagnosed()
    with untouched():
        done = found.verify(does_not_wait, seconds=1.0)
    assert done.ratio.value > 3
    assert "predicted: " in done.title and done.title.count("%") == 2
    assert done.title in repr(done) and done.title in done._repr_html_()
    said = estimated().verify(does_not_wait, seconds=1.0).title
    assert said.endswith("predicted: about 48 %")


def test_verify_gives_the_knobs_that_it_has():
    seen = []

    def other(*, name="other", pause=3.0):
        seen.append((name, pause))
        yield from waits(pause=0.0)

    diagnosed().verify(other, seconds=1.0)
    assert set(seen) == {(BOLD, 0.02)}
    assert diagnosed().verify(has_no_knob, seconds=1.0).ratio.value > 3


def test_verify_refuses_what_is_no_experiment():
    found = diagnosed()
    for fixed in (3, lambda: 3, None):
        with pytest.raises(ExperimentError) as caught:
            found.verify(fixed)
        assert len(str(caught.value).splitlines()) <= 6


def test_a_diagnosis_is_verified_where_it_was_made(monkeypatch):
    asked = []

    def compare(experiments, *, seconds, on):
        asked.append(on)
        raise Broken

    monkeypatch.setattr("kit.diagnosis.diagnosing.compare", compare)
    here, there = Here(), Here()
    found = dataclasses.replace(diagnosed(), on=here)
    for given, expected in (({}, here), ({"on": there}, there)):
        with pytest.raises(Broken):
            found.verify(does_not_wait, **given)
        assert asked.pop() is expected


class Here:
    """A place that is this process."""

    def __len__(self):
        return 1

    def prepare(self, experiment, knobs):
        return Variant(experiment, knobs)


def test_an_exchange_that_cannot_be_left_out_is_not_judged(group):
    def train():
        while True:
            dist.all_gather([torch.ones(9)], torch.ones(9))
            yield 1

    found = kit.diagnose(train, on=Here())
    ratio = found.savings["communication"]
    assert ratio.verdict == "cannot tell" and math.isnan(ratio.value)
    assert "all_gather" in ratio.reason
    assert found.verdict is None


def test_two_diagnoses_at_once_take_turns():
    with untouched(), ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda _: kit.diagnose(train), range(2)))
    assert all(math.fsum(one.shares.values()) == pytest.approx(1) for one in found)
