"""A switch leaves out one cause, in the run alone, and puts everything back."""

import dataclasses
import itertools
import math

import pytest
import torch
from experiments import Counted
from helpers import children, wait_until
from hypothesis import assume, given, strategies as st
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    SequentialSampler,
    TensorDataset,
)

from kit.diagnosis import switches
from kit.diagnosis.batches import Loaders
from kit.diagnosis.wrapping import Work, change
from kit.measuring.experiment import resolve

pytestmark = pytest.mark.usefixtures("quick")

SWITCHES = {
    "input": lambda work: switches.BatchesInMemory(Loaders(work)),
    "optimizer": lambda work: switches.NoUpdate(),
}


class Switched:
    """A run with one switch in it, as a diagnosis makes it."""

    def __init__(self, experiment, cause):
        self.work = Work()
        self.switch = SWITCHES[cause](self.work)
        install = self.switch.install
        if cause == "input":
            install = self.switch.loaders.install
        resolved = change(resolve(experiment), install, work=self.work)
        self.generator = resolved.start({})
        next(self.generator)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.generator.close()

    def turn(self, on):
        if on:  # what is given again was kept before
            self.switch.prime()
            self.switch.begin_block()
            self.run(2)
            self.switch.end_block()
        self.switch.turn(on)

    def run(self, steps):
        return [next(self.generator) for _ in range(steps)]


def make_probe(cause):
    """Return what does something that has a cause, and says if that was left out."""
    data = Counted()
    loader, weight = DataLoader(data, batch_size=2), nn.Parameter(torch.ones(1))
    weight.grad = torch.ones(1)
    optimizer = torch.optim.SGD([weight], lr=1.0)

    def changes_nothing(act, look):
        act()
        before = look()
        act()
        return look() == before

    return {
        "input": lambda: changes_nothing(lambda: list(loader), lambda: data.read),
        "optimizer": lambda: changes_nothing(optimizer.step, weight.tolist),
    }[cause]


@pytest.mark.parametrize("cause", SWITCHES)
def test_a_cost_is_left_out_only_while_that_is_tried(cause):
    is_left_out = make_probe(cause)
    seen = []

    def experiment():
        while True:
            seen.append(is_left_out())
            yield 1

    with Switched(experiment, cause) as run:
        run.run(2)
        assert not any(seen), "nothing is left out before the switch is on"
        run.turn(True)
        run.run(3)
        assert seen[-1]
        run.turn(False)
        run.run(1)
        assert not seen[-1], "it is put back"
    assert not is_left_out(), "after the run"


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


def test_batches_that_the_loop_changes_in_place_are_not_given_twice():
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
            assert ("in place" in run.switch.obstacle) is changes
            kept = seen[-2:]
            run.run(2)
            assert (seen[-2:] == kept) is not changes


class Stream(IterableDataset):
    def __iter__(self):
        yield from torch.arange(12.0)


class Forever(BatchSampler):
    """As loaders of others have it that keep their workers: no epoch ever ends."""

    def __iter__(self):
        while True:
            yield from super().__iter__()


@pytest.mark.parametrize(
    "make",
    [
        lambda: DataLoader(Stream(), 2),
        lambda: DataLoader(
            Counted(12), batch_sampler=Forever(SequentialSampler(range(12)), 2, False)
        ),
    ],
)
def test_batches_without_a_known_end_are_not_given_again(make):
    def experiment():
        while True:
            for _ in make():
                yield 1

    with Switched(experiment, "input") as run:
        run.run(4)
        assert "when an epoch" in run.switch.obstacle


def test_loaders_that_are_alike_keep_batches_of_their_own():
    """As in semi-supervised training: pairs beside rows without a label."""
    labelled = DataLoader(TensorDataset(torch.ones(8, 2), torch.ones(8)), 2)
    others = DataLoader(TensorDataset(torch.zeros(6, 2)), 2)

    def experiment():
        endless = itertools.chain.from_iterable(itertools.repeat(others))
        while True:
            for (rows, targets), (other,) in zip(labelled, endless, strict=False):
                assert rows.sum() == 4 and targets.sum() == 2 and other.sum() == 0
                yield 1

    with Switched(experiment, "input") as run:
        run.run(9)
        run.turn(True)
        run.run(11)
        assert len(run.switch.loaders.records) == 2 and not run.switch.obstacle


def test_batches_that_cannot_be_kept_stay_the_loops():
    def collate(samples):
        return torch.eye(2).to_sparse()

    def experiment():
        while True:
            for batch in DataLoader(Counted(10), 2, collate_fn=collate):
                assert batch.is_sparse
                yield 1

    with Switched(experiment, "input") as run:
        run.turn(True)
        run.run(4)
        assert "cannot be kept" in run.switch.obstacle


def test_an_update_that_a_scheduler_has_taken_before_is_not_called_left_out():
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    torch.optim.lr_scheduler.StepLR(optimizer, 100)  # made before the run

    def experiment():
        while True:
            weight.grad = torch.ones(1)
            optimizer.step()
            yield 1

    with Switched(experiment, "optimizer") as run:
        run.turn(True)
        run.run(2)
        run.switch.turn(False)
        run.switch.end()
        assert "in another way" in run.switch.obstacle


class Restarting(DataLoader):
    """A loader with an `__iter__` of its own, as those of other libraries have it."""

    def __iter__(self):
        self.batches = super().__iter__()
        for _ in range(len(self)):
            yield next(self.batches)


@pytest.mark.parametrize("kind", [DataLoader, Restarting])
def test_a_loader_that_looks_ahead_or_has_an_iter_of_its_own_is_left_out(kind):
    data = Counted(10)

    def experiment():
        while True:
            batches = iter(kind(data, batch_size=None))
            ahead = next(batches)
            for following in batches:
                ahead = following
                yield 1
            assert ahead is not None

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
        assert "graph" in run.switch.obstacle


def test_batches_that_the_loop_takes_apart_are_given_whole_again():
    """As others write it: labels taken out, numbers converted, objects that hold."""

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
                    if name == "object":
                        del batch.x
                    yield 1

        with Switched(experiment, "input") as run:
            run.turn(True)
            kept = totals[-2:]
            run.run(5)
        assert {*totals[-4:]} == {*kept}, "only containers are copied"


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


def test_kept_batches_take_little_memory(monkeypatch):
    monkeypatch.setattr("kit.diagnosis.batches._MOST_BYTES", 0.0)

    def experiment():
        while True:
            for _ in DataLoader(Counted(30), 3):
                yield 1

    with Switched(experiment, "input") as run:
        run.turn(True)
        (record,) = run.switch.loaders.used
        assert len(record.kept) == 1, "one is enough to leave loading out"


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
