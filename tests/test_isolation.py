"""What a diagnosis changes in one thread, the reader's own cells never see."""

import contextlib
import functools
import itertools
import queue
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist
from helpers import children, wait_until
from torch import nn
from torch.utils.data import DataLoader, Dataset

import kit
from kit.diagnosis import counterfactuals
from kit.diagnosis.causes import CAUSES
from kit.diagnosis.counterfactuals import change
from kit.experiment import resolve

pytestmark = pytest.mark.usefixtures("smoke")

#: All that a diagnosis can change, at once.
ALL = [cause.leave_out for name, cause in CAUSES.items() if cause.leave_out]
ALL.remove(counterfactuals.other_threads)
ALL.append(functools.partial(counterfactuals.other_threads, threads=3))
SKIP = counterfactuals.no_update


class Numbers(Dataset):
    """Each sample is how many were read before."""

    def __init__(self, length=40):
        self.length, self.read = length, 0

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        self.read += 1
        return self.read


class Far(torch.Tensor):
    """Numbers that seem to be on a device."""

    device = property(lambda self: torch.device("meta"))


def make_steps():
    """Return a function that takes one optimizer's step, and its model."""
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        model(torch.ones(4, 4)).sum().backward()
        optimizer.step()

    return step, model


def moved(step, model):
    """Return whether a step changes the model's weights."""
    before = model.weight.detach().clone()
    step()
    return not torch.equal(model.weight, before)


@contextlib.contextmanager
def suspended(experiment, *changes):
    """Suspend an experiment inside its second step, in a thread of its own.

    It waits where it calls the function that it is given.
    """
    inside, go_on, steps = threading.Event(), threading.Event(), []

    def wait():
        if steps:
            inside.set()
            assert go_on.wait(20)

    def drive():
        generator = change(resolve(experiment(wait)), *(changes or ALL)).start({})
        try:
            for _ in itertools.islice(generator, 2):
                steps.append(True)
        finally:
            generator.close()

    with ThreadPoolExecutor(1) as pool:
        driven = pool.submit(drive)
        try:
            assert inside.wait(20) or driven.result()
            yield
        finally:
            go_on.set()
            driven.result()


def waits(wait):
    """Return an experiment that only waits."""

    def train():
        while True:
            wait()
            yield 1

    return train


def test_the_readers_own_steps_go_on():
    step, model = make_steps()
    with suspended(waits):
        assert moved(step, model)


def test_a_diagnosis_in_a_thread_lets_the_readers_steps_be():
    asked, answered = queue.Queue(), queue.Queue()

    def train():
        model = nn.Linear(4, 1)
        optimizer = torch.optim.AdamW(model.parameters())
        while True:
            model(torch.ones(64, 4)).sum().backward()
            optimizer.step()
            asked.put(True)
            answered.get(timeout=20)
            yield 64

    step, model = make_steps()
    found = []
    with ThreadPoolExecutor(1) as pool:
        diagnosed = pool.submit(kit.diagnose, train)
        while not diagnosed.done():
            with contextlib.suppress(queue.Empty):
                asked.get(timeout=0.05)
                found.append(moved(step, model))
                answered.put(True)
    assert "optimizer" in diagnosed.result().savings
    assert len(found) > 10 and all(found)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_readers_own_loader_gives_fresh_batches(workers):
    data = Numbers()
    loader = DataLoader(data, batch_size=2, num_workers=workers)
    kept = dict(vars(loader))

    def loads(wait):
        def train():
            while True:
                for _ in loader:
                    wait()
                    yield 2

        return train

    with suspended(loads):
        assert vars(loader) == kept
        read = data.read
        assert len(list(loader)) == 20
        assert workers or data.read == read + 40
    assert vars(loader) == kept


def test_the_readers_own_workers_persist():
    loader = DataLoader(Numbers(), 2, num_workers=2, persistent_workers=True)
    assert len(list(loader)) == 20
    own = set(children())

    def loads(wait):
        def train():
            while True:
                for _ in loader:
                    wait()
                    yield 2

        return train

    try:
        with suspended(loads):
            assert len(list(loader)) == 20
            assert own <= set(children())
        wait_until(lambda: set(children()) == own, 5)
        assert len(list(loader)) == 20
        assert set(children()) == own
    finally:
        loader._iterator = None


def test_the_readers_own_threads_keep_their_number():
    before = torch.get_num_threads()
    with suspended(waits):
        torch.set_num_threads(2)
        assert torch.get_num_threads() == 2
        thread = threading.Thread(target=lambda: None)
        thread.start()
        thread.join()
        assert "run" not in vars(thread)
    torch.set_num_threads(before)


def test_the_readers_own_exchange_copies_and_reads_are_done():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with suspended(waits):
            assert dist.all_reduce(torch.ones(2), async_op=True).is_completed
            work = dist.all_reduce(torch.ones(2), async_op=True)
            assert isinstance(work, dist.Work)
            work.wait()
            for number in (1.0, 2.0):
                assert torch.tensor([number]).as_subclass(Far).item() == number
            copies = [torch.ones(2).to("meta") for _ in range(2)]
            assert copies[0] is not copies[1]
    finally:
        dist.destroy_process_group()


# What the experiment starts is the experiment's


def test_threads_that_an_experiment_starts_are_its_own():
    step, model = make_steps()
    found = []

    def train():
        with ThreadPoolExecutor(1) as pool:
            while True:
                found.append(pool.submit(moved, step, model).result())
                yield 1

    generator = change(resolve(train), SKIP).start({})
    next(generator)
    next(generator)
    generator.close()
    assert found == [False, False]


def test_threads_that_outlive_a_life_are_free_of_it():
    step, model = make_steps()
    with ThreadPoolExecutor(1) as pool:

        def train():
            while True:
                yield pool.submit(moved, step, model).result() + 1

        generator = change(resolve(train), SKIP).start({})
        assert next(generator) == 1
        generator.close()
        assert pool.submit(moved, step, model).result()


def test_forked_workers_are_the_experiments_own():
    class Threads(Numbers):
        def __getitem__(self, index):
            torch.set_num_threads(2)
            return torch.get_num_threads()

    def train():
        for batch in DataLoader(Threads(4), batch_size=2, num_workers=1):
            yield set(batch.tolist())

    def drive():
        three = functools.partial(counterfactuals.other_threads, threads=3)
        return list(change(resolve(train), three).start({}))

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(drive).result() == [{2}, {2}]
