"""What an experiment changes stays with it: nobody else sees it."""

import contextlib
import copy
import decimal
import functools
import gc
import itertools
import math
import random
import sys
import weakref

import helpers
import numpy
import pytest
import torch
from helpers import SETTINGS, is_interleaved, read_depth, reader_state, reset_state
from hypothesis import assume, example, given, strategies as st
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.flop_counter import FlopCounterMode

import kit
from kit import journal
from kit.errors import ExperimentError
from kit.measuring.settings import capture as settings_now

pytestmark = pytest.mark.usefixtures("quick")

A = torch.ones(4, 4)


def draw():
    number = torch.rand(1, dtype=torch.float32, device="cpu").item()
    return random.random(), numpy.random.rand(), number


class Watched:
    """An experiment that does something in one of its steps, and takes notes.

    Step 0 is set-up. `found` is what it saw at each start, `kept` says of each step
    whether it saw what the step before had left. `end` says where it ends, and how.
    """

    def __init__(self, look, do=bool, when=0, hold=contextlib.nullcontext):
        self.look, self.do, self.when, self.hold = look, do, when, hold
        self.found, self.kept, self.draws, self.end = [], [], [], (None, bool)

    def reach(self, where):
        if where == self.when:
            self.do()
        if where == self.end[0]:
            self.end[1]()

    def train(self):
        self.found.append(self.look())
        self.draws.append([draw()])
        try:
            with self.hold():
                for step in itertools.count():
                    self.reach(step)
                    self.own = self.look()
                    yield 1
                    self.draws[-1].append(draw())
                    self.kept.append(self.look() == self.own)
        finally:
            self.reach("closing")


def fail():
    raise AssertionError


def interrupt():
    raise KeyboardInterrupt


ERRORS = {fail: ExperimentError, interrupt: KeyboardInterrupt}
ENDS = [(None, bool), (2, "stop"), *itertools.product([0, 2, "closing"], ERRORS)]


def assert_apart(look, one, other, end=(None, bool)):
    """Compare two, of which the other ends so: each sees its own, and we see ours."""
    before, state = look(), reader_state()
    panel = kit.explore({"one": one.train, "other": other.train})
    other.end = (end[0], panel.stop) if end[1] == "stop" else end
    error = ERRORS.get(end[1])
    with pytest.raises(error) if error else contextlib.nullcontext():
        panel.run_all()
    assert (look(), reader_state()) == (before, state), "the reader gets theirs back"
    found, draws = one.found + other.found, one.draws + other.draws
    assert len(found) > 1 and all(seen == before for seen in found)
    assert all(one.kept + other.kept)
    longest = max(draws, key=len)
    assert all(run == longest[: len(run)] for run in draws), "seeded alike"
    assert len(set(longest)) == len(longest)


# Out of the kit's sight: what one autocast has cast of it must not serve the other.
helpers.WEIGHT = nn.Parameter(torch.ones(4, 4))


def look():
    """All settings, and what is seen of what one does not set."""
    seen, product = [read() for _, read, *_ in SETTINGS.values()], A @ helpers.WEIGHT
    return seen, read_depth(), product.dtype, product.is_inference()


def toggle(names):
    for put, read, usual, other in (SETTINGS[name] for name in sorted(names)):
        put(other if read() == usual else usual)


#: What may be open around all steps.
HELD = [
    contextlib.nullcontext,
    torch.inference_mode,
    lambda: torch.device("meta"),
    lambda: torch.autocast("cpu", torch.float16, cache_enabled=False),
]
#: Without threads: on a busy machine, two of them wait long for each other.
ALL = SETTINGS.keys() - {"threads"}
CHANGES = st.sets(st.sampled_from(sorted(ALL)), max_size=4)
STEPS, PLAIN = [0, 1, 2, "closing"], (HELD[:1] * 2, ENDS[0])


@example((set(), {"autocast"}, {"autocast", "autocast to"}), (0, 0), *PLAIN)
@example((set(), ALL, ALL), (0, 0), *PLAIN)
@example((set(), set(), set()), (0, 0), HELD[1:2] * 2, ENDS[0])
@given(
    st.tuples(CHANGES, CHANGES, CHANGES),
    st.tuples(*[st.sampled_from([*STEPS, 3])] * 2),
    st.tuples(*[st.sampled_from(HELD)] * 2),
    st.sampled_from(ENDS),
)
def test_each_has_its_own_settings_and_the_reader_theirs(changes, steps, held, end):
    """Whatever the reader has set, variants switch on the way, and how it ends."""
    readers, *own = changes
    # PyTorch refuses this of anybody, without the kit.
    assume(not any("device" in names for names in own) or HELD[2] not in held)
    is_cast_anew = {"autocast to", "autocast cache"} & set().union(*own)
    assume("autocast" not in readers or not is_cast_anew)
    deeds = [functools.partial(toggle, names) for names in own]
    with contextlib.ExitStack() as last:
        last.callback(torch.clear_autocast_cache)
        last.callback(reset_state)
        toggle(readers)
        assert_apart(look, *map(Watched, [look] * 2, deeds, steps, held), end)


def test_a_generator_started_again_finds_all_as_it_was(clock, monkeypatch):
    monkeypatch.delenv("KIT_QUICK")
    found = []

    def epoch():
        found.append((draw(), look(), NET.weight.tolist()))
        toggle(["grad", "threads"])
        NET.weight.data += 1
        for _ in range(60):
            yield 1
            clock.work(0.005)

    kit.measure(epoch, seconds=3.0)
    assert len(found) > 9 and all(each == found[0] for each in found)


class World:
    """A net in training, and all that belongs to it."""

    def __init__(self):
        torch.manual_seed(7)
        layers = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)
        self.net, self.weight = nn.Sequential(*layers), torch.ones(3).requires_grad_()
        self.optimizer = torch.optim.AdamW(self.net.parameters())
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, gamma=0.5)
        self.do(["learn", "learn"])

    def learn(self):
        batch = torch.arange(32.0).reshape(8, 4).sin()
        self.net(batch).square().mean().backward()
        self.optimizer.step()

    def freeze(self):
        self.net.eval()
        self.net[2].weight.requires_grad_(False)

    def fill(self):
        self.net[0].weight.data.fill_(3)
        self.net[1].running_mean += 5
        self.net[0].weight.grad = None
        self.optimizer.param_groups[0]["lr"] = 99.0

    def go_on(self):
        self.schedule.step()
        self.weight.data += 1
        self.weight.sum().backward()

    def do(self, names):
        for name in names:
            getattr(self, name)()

    def look(self):
        """All that is put back, to compare with ==."""
        tensors = [*self.net.parameters(), *self.net.buffers(), self.weight]
        flags = [(id(t), t.dtype, t.tolist(), t.requires_grad) for t in tensors]
        grads = [t.grad if t.grad is None else t.grad.tolist() for t in tensors]
        states = [x.tolist() for s in self.optimizer.state.values() for x in s.values()]
        rates = [group["lr"] for group in self.optimizer.param_groups]
        modes = [module.training for module in self.net.modules()]
        return flags, grads, states, rates, modes, self.schedule.last_epoch


DEEDS = st.lists(st.sampled_from(["learn", "freeze", "fill", "go_on"]), max_size=3)
EARLY = st.sampled_from(STEPS)  # what shows only later is not promised


@given(st.tuples(DEEDS, DEEDS), st.tuples(EARLY, EARLY), st.sampled_from(ENDS))
def test_each_start_and_then_the_reader_find_the_readers_net(names, steps, end):
    """Whatever is learnt, frozen, filled, or left half-done."""
    world = World()
    deeds = [functools.partial(world.do, each) for each in names]
    assert_apart(world.look, *map(Watched, [world.look] * 2, deeds, steps), end)


NET = nn.Linear(4, 1)
NETS, NAMED = [NET], {"net": NET}
weight = torch.ones(1, requires_grad=True)  # `net.weight` is not this one


def learn(net):
    while True:
        net(A).sum().backward()
        net.weight.data -= net.weight.grad
        yield numpy.float32(4)


def helper():
    return learn(NET)


def takes(*, net, title="fixed by a partial"):
    return learn(net)


TAKES = functools.partial(takes, title="")
FORMS = [
    ("NET", lambda: learn(NET), {}),
    ("NET", lambda: helper(), {}),
    ("NETS[0]", lambda: learn(*NETS), {}),
    ("NAMED['net']", lambda: learn(**NAMED), {}),
    ("net", lambda *, net=NET: learn(net), {}),
    ("net", functools.partial(functools.partial(TAKES), net=NET), {}),
    ("net", functools.partial(learn, NET), {}),
    ("net", TAKES, {"net": NET}),
]


@pytest.mark.parametrize(("name", "experiment", "knobs"), FORMS)
def test_a_net_is_put_back_however_it_is_reached_and_named(name, experiment, knobs):
    before = NET.weight.tolist()
    trial = kit.measure(experiment, **knobs)
    assert f"put back at each start: {name}." in repr(trial)
    assert [block.items for block in trial.blocks] == [4, 4]
    assert NET.weight.tolist() == before and NET.weight.grad is None


PART = nn.Parameter(torch.ones(4))
LAYOUTS = {
    "dtype": lambda net, _: net.to(torch.bfloat16),
    "strides": lambda net, _: setattr(net[0].weight, "data", net[0].weight.data.t()),
    "a hook": lambda net, _: net[0].register_forward_hook(lambda *_: None),
    "another submodule": lambda net, _: net.__setitem__(2, nn.Linear(5, 5)),
    "another parameter": lambda net, _: setattr(net[0], "bias", PART),
    "a buffer": lambda net, _: net.register_buffer("extra", torch.ones(1)),
    "a group": lambda _, optimizer: optimizer.add_param_group({"params": [PART]}),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_changed_layout_is_refused_with_advice(name):
    """It cannot be put back in place: optimizers and hooks refer to the old parts."""
    world = World()

    def train():
        yield 1
        LAYOUTS[name](world.net, world.optimizer)
        yield from itertools.repeat(1)

    words = "train(", "world.", "inside the experiment"
    helpers.refused(lambda: kit.measure(train), *words)


OPEN = {
    "anomaly": (torch.autograd.set_detect_anomaly, True),
    "saved hooks": (torch.autograd.graph.saved_tensors_hooks, torch.abs, torch.abs),
    "saved on cpu": (torch.autograd.graph.save_on_cpu,),
    "dispatch mode": (FlopCounterMode, None, 2, False),
    "function mode": (torch.device, "meta"),
    "one backward thread": (torch.autograd.set_multithreading_enabled, False),
    "sparse checks": (torch.sparse.check_sparse_tensor_invariants,),
    "no grad": (torch.no_grad,),
    "inference": (torch.inference_mode,),
    "autocast": (torch.autocast, "cpu"),
    "attention": (sdpa_kernel, SDPBackend.MATH),
    "numpy errors": (lambda: numpy.errstate(all="raise"),),
    "decimal": (decimal.localcontext,),
    "oneDNN": (lambda: torch.backends.mkldnn.flags(enabled=False),),
    "anything": (contextlib.nullcontext,),
}


@pytest.mark.parametrize("how", ["own", "delegated"])
@pytest.mark.parametrize("name", OPEN)
def test_no_step_runs_under_what_the_other_variant_holds_open(name, how):
    """With a `with` block open at the yield, variants run one after the other."""
    make, *arguments = OPEN[name]
    alive, found, before = [], set(), reader_state()

    def hold():
        with make(*arguments):
            while True:
                yield 1

    def train(*, held=False):
        alive.append(held)
        try:
            if held and how == "delegated":
                yield from hold()
            elif held:
                with make(*arguments):
                    while True:
                        found.add(tuple(alive))
                        yield 1
            while True:
                found.add(tuple(alive))
                yield 1
        finally:
            alive.remove(held)

    made = kit.compare(train, held=[False, True])
    assert not is_interleaved(made) and found <= {(False,), (True,)}
    assert reader_state() == before


def test_hooks_on_all_modules_do_not_outlive_their_run():
    """A mode that counts operations keeps such hooks, and a reader may."""
    seen = []
    hooks = torch.nn.modules.module

    def train(*, counts=False):
        if counts:
            leave_mode_on()
            hooks.register_module_forward_hook(lambda *_: seen.append(counts))
        model = torch.nn.Linear(2, 1)
        while True:
            model(torch.ones(1, 2))
            yield 1

    made = kit.compare(train, counts=[False, True])
    assert seen and not is_interleaved(made)
    assert not hooks._global_forward_hooks and not hooks._global_forward_pre_hooks
    before = len(seen)
    torch.nn.Linear(2, 1)(torch.ones(1, 2))
    assert len(seen) == before, "nor in the reader's session"


def leave_mode_on():
    FlopCounterMode(display=False).__enter__()


SET = {
    "anomaly": lambda: torch.autograd.set_detect_anomaly(True),
    "flushing": lambda: torch.set_flush_denormal(True),
    "saved hooks": lambda: torch.autograd.graph.save_on_cpu().__enter__(),
    "dispatch mode": leave_mode_on,
    "backward threads": lambda: torch.autograd.set_multithreading_enabled(False),
    "sparse checks": torch.sparse.check_sparse_tensor_invariants.enable,
    "always warn": lambda: torch.set_warn_always(True),
    "collector": lambda: gc.set_threshold(50),
    "filled": lambda: setattr(
        torch.utils.deterministic, "fill_uninitialized_memory", False
    ),
    "fast path": lambda: torch.backends.mha.set_fastpath_enabled(False),
    "profile": lambda: sys.setprofile(lambda *_: None),
    "thread switches": lambda: sys.setswitchinterval(0.5),
}


@pytest.mark.parametrize("name", SET)
def test_a_setting_of_one_variant_neither_reaches_the_other_nor_stays(name):
    before, others = settings_now(), []

    def train(*, sets=False):
        if sets:
            SET[name]()
        while True:
            if not sets:
                others.append(settings_now() == before)
            yield 1

    made = kit.compare(train, sets=[False, True])
    assert not is_interleaved(made) and all(others) and len(others) > 2
    assert settings_now() == before


def test_what_context_variables_hold_stays_with_the_variant_that_set_it():
    digits = set()

    def train(*, precision=7):
        stack = contextlib.ExitStack()
        stack.enter_context(decimal.localcontext(prec=precision))
        numpy.seterr(over="raise" if precision == 7 else "ignore")
        while True:
            digits.add((precision, decimal.getcontext().prec, numpy.geterr()["over"]))
            yield 1

    before = decimal.getcontext().prec, numpy.geterr()
    assert is_interleaved(kit.compare(train, precision=[7, 9]))
    assert digits == {(7, 7, "raise"), (9, 9, "ignore")}
    assert (decimal.getcontext().prec, numpy.geterr()) == before


class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("edges", torch.eye(3).to_sparse())
        self.register_buffer("mean", torch.tensor([math.nan]))
        self.layer = nn.Linear(2, 1)


def test_models_made_outside_the_loop_are_restored_after_measuring():
    net, meta = Odd(), nn.Linear(2, 2, device="meta")
    net.layer(torch.ones(2)).backward()
    before = {name: value.clone() for name, value in net.state_dict().items()}

    def train(*, changes=False):
        meta.train()
        while True:
            if changes:
                net.layer.weight.data.add_(1.0)
                net.edges.mul_(2)
            yield 1

    made = kit.compare(train, changes=[0, 0])
    assert is_interleaved(made)
    made = kit.compare(train, changes=[True, False])
    assert not is_interleaved(made)
    assert torch.equal(net.layer.weight, before["layer.weight"])
    assert torch.equal(net.edges.to_dense(), before["edges"].to_dense())
    assert "Shared and put back at each start: meta, net." in made.baseline.notes


@pytest.mark.parametrize(
    ("make", "draw"),
    [
        (torch.Generator, lambda g: torch.rand((), generator=g).item()),
        (numpy.random.default_rng, lambda g: float(g.random())),
        (random.Random, lambda g: g.random()),
    ],
)
def test_every_start_draws_the_same_from_the_readers_own_generator(make, draw):
    own, drawn = make(), []
    before = own.clone_state() if make is torch.Generator else copy.deepcopy(own)

    def train(*, n=1):
        drawn.append([draw(own)])
        while True:
            drawn[-1].append(draw(own))
            yield 1

    made = kit.compare(train, n=[1, 2])
    assert len({tuple(numbers[:2]) for numbers in drawn}) == 1 < len(drawn)
    assert len(set(drawn[0])) == len(drawn[0])
    assert draw(own) == draw(before), "the reader's goes on where it was"
    assert not is_interleaved(made)
    assert "own" in made.baseline.notes[0]


class Stateful(DataLoader):
    """A loader that can be saved, as torchdata has one."""

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        raise AssertionError("it is no model")


def test_a_loaders_own_generator_is_seeded_with_each_start():
    data, order = TensorDataset(torch.arange(64.0)), []
    own = torch.Generator()
    loader = Stateful(data, shuffle=True, generator=own)

    def train(*, n=1):
        order.append([])
        own.initial_seed()  # which it reaches by two ways
        while True:
            for (number,) in loader:
                order[-1].append(number.item())
                yield 1

    made = kit.compare(train, n=[1, 2])
    assert len({tuple(numbers[:2]) for numbers in order}) == 1 < len(order)
    said = made.baseline.notes[0]
    assert said.count("own") + said.count("loader.generator") == 1, "one of its names"


def test_a_model_that_cannot_be_copied_is_named_with_advice():
    net = nn.LazyLinear(3)

    def train():
        yield net(torch.ones(1, 2)).numel()

    helpers.refused(lambda: kit.measure(train), "train()", "net", "Build net inside")


def test_a_model_among_the_knobs_is_let_go_with_the_trial(monkeypatch):
    monkeypatch.setattr(journal, "_JOURNALS", [])

    def look(*, net):
        while True:
            yield 1

    net = nn.Linear(2, 2)
    left = weakref.ref(net)
    kit.measure(look, net=net)
    del net
    gc.collect()
    assert left() is None
