"""What an experiment changes stays with it: nobody else finds it."""

import contextlib
import random

import numpy
import pytest
import torch
from helpers import OTHERS, change_everything, reader_state, take_turns
from torch import nn

import kit
from kit.measuring.settings import read_settings

pytestmark = pytest.mark.usefixtures("tidy")

A = torch.ones(4, 4)
WEIGHT = nn.Parameter(torch.ones(4, 4))


def look():
    """What an experiment finds: settings, and what comes of them."""
    made = A @ WEIGHT, torch.ones(1), torch.is_inference_mode_enabled()
    return str([*read_settings().values(), *made])


def compare_with(clock, hold):
    """Compare a plain loop with one that holds something open; neither must see it."""
    before = reader_state()
    expected = look()
    seen = set()

    def train(*, holds=False):
        with hold() if holds else contextlib.nullcontext():
            while True:
                if not holds:
                    seen.add(look())
                clock.work(0.01)
                yield 1

    made = kit.compare(train, holds=[False, True], seconds=0.2)
    assert seen == {expected}
    assert reader_state() == before and look() == expected
    assert not take_turns(made)


def test_settings_of_one_neither_reach_the_other_nor_stay(clock):
    unchanged = []

    @contextlib.contextmanager
    def change():
        before = read_settings()
        change_everything()
        after = read_settings()
        unchanged.extend(name for name in before if before[name] == after[name])
        yield

    compare_with(clock, change)
    assert OTHERS.keys() <= read_settings().keys() and not unchanged


@pytest.mark.parametrize("hold", [lambda: torch.autocast("cpu"), torch.inference_mode])
def test_what_one_holds_open_across_a_yield_does_not_reach_the_other(clock, hold):
    compare_with(clock, hold)


def test_what_the_reader_has_set_is_what_all_find(clock):
    change_everything()
    compare_with(clock, torch.enable_grad)


def test_a_weight_that_a_run_has_cast_serves_nobody_else(clock):
    """Autocast keeps what it has cast until its outermost block ends; here, never."""
    kinds = set()

    def train(*, kind=torch.bfloat16):
        torch.autocast("cpu", dtype=kind).__enter__()
        while True:
            kinds.add((kind, (A @ WEIGHT).dtype))
            clock.work(0.01)
            yield 1

    halves = [torch.bfloat16, torch.float16]
    kit.compare(train, kind=halves, seconds=0.2)
    assert kinds == {(kind, kind) for kind in halves}


def test_each_start_draws_the_same_numbers_however_turns_are_taken(clock):
    draws = []
    before = reader_state()

    def train(*, n=1):
        own = []
        draws.append(own)
        while True:
            own.append((random.random(), numpy.random.rand(), torch.rand(1).item()))
            clock.work(0.01 * n)
            yield 1

    made = kit.compare(train, n=[1, 2], seconds=1.0)
    assert take_turns(made) and len(draws) > 10
    longest = max(draws, key=len)
    assert all(len(each) > 2 and each == longest[: len(each)] for each in draws)
    assert len(set(longest)) == len(longest)
    assert reader_state() == before, "the reader's own numbers go on where they were"


class World:
    """A net in training, and its optimizer."""

    def __init__(self):
        self.net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.optimizer = torch.optim.AdamW(self.net.parameters())
        self.learn()

    def learn(self):
        batch = torch.arange(32.0).reshape(8, 4).sin()
        self.optimizer.zero_grad()
        self.net(batch).square().mean().backward()
        self.optimizer.step()

    def look(self):
        return str([self.net.state_dict(), self.optimizer.state_dict()])


@pytest.mark.parametrize("how", [{}, {"seconds": None, "of": "run_seconds"}])
def test_nets_and_settings_are_as_they_were_at_each_start_and_afterwards(clock, how):
    """Also where an epoch that has ended is started again in the same run."""
    world = World()
    found = []

    def see():
        return world.look(), torch.get_float32_matmul_precision()

    def train(*, n=1):
        found.append(see())
        torch.set_float32_matmul_precision("high")
        for _ in range(30):
            world.learn()
            clock.work(0.01)
            yield 1

    before = see()
    kit.compare(train, n=[1, 2], **{"seconds": 0.5} | how)
    assert len(found) > 8 and all(each == before for each in found)
    assert see() == before


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_puts_back_settings_random_states_and_nets(clock, error):
    world = World()
    before = reader_state(), world.look()
    closed = []

    def train():
        try:
            yield 1
            world.learn()
            change_everything()
            raise error
        finally:
            closed.append(True)

    with pytest.raises(error):
        kit.measure(train)
    assert closed and (reader_state(), world.look()) == before
