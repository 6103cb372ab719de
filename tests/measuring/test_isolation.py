"""What an experiment changes stays with it: nobody else finds it."""

import random

import numpy
import pytest
import torch
from helpers import change_everything, find_other, reader_state, take_turns
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import kit
from kit.measuring.settings import list_settings, read_settings

pytestmark = pytest.mark.usefixtures("tidy")

A, WEIGHT = torch.ones(4, 4), nn.Parameter(torch.ones(4, 4))


def compare_beside(clock, hold):
    """Compare a plain loop with one that does something; return what both made of it.

    `hold` returns a context that is open across the yields. The plain one has seen what
    the reader sees in all of its steps.
    """

    def look():
        kinds = (A @ WEIGHT).dtype, torch.ones(1), torch.is_inference_mode_enabled()
        return str([*read_settings().values(), *kinds])

    before, expected, seen = reader_state(), look(), set()

    def train(*, changes=False):
        if changes:
            with hold():
                while True:
                    clock.work(0.01)
                    yield 1
        while True:
            seen.add(look())
            clock.work(0.01)
            yield 1

    made = kit.compare(train, changes=[False, True], seconds=0.2)
    assert seen == {expected}
    assert reader_state() == before and look() == expected
    assert made.ratio.verdict == "same"
    return made


class Set:
    """A setting that is set by a plain call, and never back."""

    def __init__(self, setting):
        self.setting = setting

    def __enter__(self):
        self.setting.set(find_other(self.setting))

    def __exit__(self, *_):
        pass


SETTINGS = {setting.name: setting for setting in list_settings()}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_of_one_neither_reaches_the_other_nor_stays(clock, name):
    assert not take_turns(compare_beside(clock, lambda: Set(SETTINGS[name])))


BACKENDS = torch.backends
OPEN = {
    "autocast": lambda: torch.autocast("cpu"),
    "autocast to float16": lambda: torch.autocast("cpu", torch.float16),
    "autocast, no cache": lambda: torch.autocast("cpu", cache_enabled=False),
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "device": lambda: torch.device("meta"),
    "anomaly": lambda: torch.autograd.set_detect_anomaly(True),
    "sdpa_kernel": lambda: sdpa_kernel(SDPBackend.MATH),
    "cudnn.flags": lambda: BACKENDS.cudnn.flags(enabled=False),
    "mkldnn.flags": lambda: BACKENDS.mkldnn.flags(enabled=False),
}


@pytest.mark.parametrize("name", OPEN)
def test_what_one_holds_open_across_a_yield_does_not_reach_the_other(clock, name):
    assert not take_turns(compare_beside(clock, OPEN[name]))


def test_what_the_reader_has_set_is_what_all_find(clock):
    change_everything()
    compare_beside(clock, torch.no_grad)


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


# Random states


def draw():
    return random.random(), numpy.random.rand(), torch.rand(1).item()


def test_each_start_draws_the_same_numbers_however_turns_are_taken(clock):
    draws, before = [], reader_state()

    def train(*, n=1):
        own = []
        draws.append(own)
        while True:
            own.append(draw())
            clock.work(0.01 * n)
            yield 1

    made = kit.compare(train, n=[1, 2], seconds=1.0)
    assert take_turns(made) and len(draws) > 10
    kit.measure(train, seconds=0.1, n=4)
    longest = max(draws, key=len)
    assert all(len(each) > 2 and each == longest[: len(each)] for each in draws)
    assert len(set(longest)) == len(longest)
    assert reader_state() == before, "the reader's own numbers go on where they were"


def test_complete_runs_have_seeds_of_their_own_equal_in_both(clock):
    draws = {"a": [], "b": []}

    def train(*, name="a"):
        draws[name].append(draw())
        clock.work(0.01)
        yield 1

    before = reader_state()
    kit.compare(train, name=["a", "b"], of="run_seconds", seconds=None, repeats=4)
    (_, *one), (_, *other) = draws["a"], draws["b"]
    assert one == other and len(set(one)) == 4
    assert reader_state() == before


# Modules and optimizers


class World:
    """A net in training, and its optimizer."""

    def __init__(self):
        layers = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)
        self.net = nn.Sequential(*layers)
        self.optimizer = torch.optim.AdamW(self.net.parameters())
        self.learn()

    def learn(self):
        batch = torch.arange(32.0).reshape(8, 4).sin()
        self.optimizer.zero_grad()
        self.net(batch).square().mean().backward()
        self.optimizer.step()

    def look(self):
        tensors = [*self.net.state_dict().values()]
        tensors += [x for s in self.optimizer.state.values() for x in s.values()]
        return [tensor.tolist() for tensor in tensors]


@pytest.mark.parametrize("how", [{}, {"seconds": None, "of": "run_seconds"}])
@pytest.mark.parametrize("length", [30, 10**9], ids=["restarted", "endless"])
def test_a_shared_net_is_as_it_was_at_each_start_and_afterwards(clock, how, length):
    world, found = World(), []
    before = world.look()

    def train(*, n=1):
        found.append(world.look())
        for _ in range(length if not how else 5):
            world.learn()
            clock.work(0.01)
            yield 1

    kit.compare(train, n=[1, 2], **{"seconds": 0.5} | how)
    assert len(found) > 8 and all(each == before for each in found)
    assert world.look() == before
    with pytest.raises(KeyboardInterrupt):
        kit.measure(lambda: interrupted(world))
    assert world.look() == before


def interrupted(world):
    yield 1
    world.learn()
    raise KeyboardInterrupt


def test_a_net_that_was_rebuilt_keeps_nothing_else_from_being_put_back(clock):
    net, before = nn.Sequential(nn.Linear(2, 2)), reader_state()

    def train():
        torch.set_grad_enabled(False)
        net.append(nn.Linear(2, 2))
        torch.rand(1)
        while True:
            clock.work(0.01)
            yield 1

    with pytest.raises(RuntimeError) as caught:
        kit.measure(train, seconds=0.1, repeats=1)
    assert "build it inside" in "".join(caught.value.__notes__)
    assert reader_state() == before
