"""A switch leaves out one cause, in the run alone, and puts everything back."""

import math

import ordinary
import pytest
import torch
from experiments import Counted, Switched
from helpers import children, wait_until
from hypothesis import assume, given, strategies as st
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

pytestmark = pytest.mark.usefixtures("quick")


class Restarting(DataLoader):
    """A loader with an `__iter__` of its own, as those of other libraries have it."""

    def __iter__(self):
        self.batches = super().__iter__()
        for _ in range(len(self)):
            yield next(self.batches)


@given(
    kind=st.sampled_from([DataLoader, Restarting]),
    length=st.integers(1, 30),
    size=st.integers(1, 6),
    drops=st.booleans(),
    is_anew=st.booleans(),
    turns=st.lists(st.integers(1, 20), min_size=1, max_size=4),
)
def test_epochs_are_as_long_with_batches_in_memory(
    kind, length, size, drops, is_anew, turns
):
    assume(length >= size)
    data, other_data = Counted(length), Counted(length, first=1000)
    epochs = []

    def make():
        return [kind(each, size, drop_last=drops) for each in (data, other_data)]

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
            before = data.read
            run.run(steps)
            assert data.read == before, "it was loaded although it was left out"
            run.turn(False)
            run.run(length + 3)
            assert data.read > before, "loading was put back"
    expected = length // size if drops else math.ceil(length / size)
    assert {*epochs[:-1]} <= {expected}
    assert epochs[-1] <= expected


# What cannot be left out


def changes_its_batches():
    for batch in ordinary.forever(DataLoader(Counted(100), 2)):
        batch.zero_()
        yield 1


class Forever(BatchSampler):
    """As loaders have it that keep their workers: no epoch ever ends."""

    def __iter__(self):
        while True:
            yield from super().__iter__()


def has_no_epochs():
    sampler = Forever(SequentialSampler(range(12)), 2, False)
    for _ in DataLoader(Counted(12), batch_sampler=sampler):
        yield 1


def steps_in_another_way():
    """A scheduler that was made before the run keeps the `step` of then."""
    weight = nn.Parameter(torch.ones(1))
    weight.grad = torch.ones(1)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    torch.optim.lr_scheduler.StepLR(optimizer, 100)

    def experiment():
        while True:
            optimizer.step()
            yield 1

    return experiment


@pytest.mark.parametrize(
    ("experiment", "cause", "obstacle"),
    [
        (changes_its_batches, "input", "in place"),
        (has_no_epochs, "input", "when an epoch"),
        (ordinary.a_stream_with_validation, "input", "when an epoch"),
        (ordinary.batches_with_a_graph, "input", "graph"),
        (ordinary.closure_of_lbfgs, "optimizer", "closure"),
        (steps_in_another_way(), "optimizer", "in another way"),
    ],
)
def test_what_cannot_be_left_out_is_not_and_the_reason_is_given(
    experiment, cause, obstacle
):
    with Switched(experiment, cause) as run:
        run.turn(True)
        if cause == "optimizer":
            run.run(2)
    assert obstacle in run.switch.obstacle


# Loops and loaders in other shapes


def test_batches_that_the_loop_takes_apart_are_given_whole_again():
    sums = []

    def collate(samples):
        return {"x": torch.stack(samples), "y": torch.ones(1)}

    def experiment():
        while True:
            for batch in DataLoader(Counted(40), 2, collate_fn=collate):
                sums.append(batch.pop("x").sum().item() + batch["y"].item())
                yield 1

    with Switched(experiment, "input") as run:
        run.turn(True)
        kept = sums[-2:]
        run.run(5)
    assert {*sums[-4:]} == {*kept}


def test_workers_are_ended_and_a_loader_that_keeps_its_own_can_be_used_again():
    loader = DataLoader(Counted(), num_workers=1, persistent_workers=True)
    assert len(list(loader)) == 8
    older = {*children()}

    def experiment():
        while True:
            yield from loader
            yield from DataLoader(Counted(), num_workers=1)

    with Switched(experiment, "input") as run:
        run.turn(True)
        run.run(20)
        run.turn(False)
        run.run(20)
    wait_until(lambda: {*children()} <= older)
    assert len(list(loader)) == 8
    loader._iterator = None  # ends its worker


def test_what_all_workers_hold_ready_is_given_before_loading_is_timed_again():
    def experiment():
        while True:
            yield from DataLoader(Counted(), num_workers=2, prefetch_factor=3)

    with Switched(experiment, "input") as run:
        run.run(2)
        assert run.loaders.ready == 6
