"""What an experiment changes stays with it and leaks to nobody."""

import collections
import copy
import functools
import gc
import random

import helpers
import numpy
import pytest
import torch
from helpers import OTHER_THREADS, THREADS, change_everything, reader_state
from torch import nn

import kit
from kit.experiment import ExperimentError

pytestmark = pytest.mark.usefixtures("smoke")

A = torch.ones(4, 4)


def observe(enter, look):
    """Compare a variant that holds something open with one that only looks."""
    seen = {"plain": [], "holder": []}

    def holder():
        with enter():
            while True:
                seen["holder"].append(look())
                yield 1

    def plain():
        while True:
            seen["plain"].append(look())
            yield 1

    for order in 2 * (["plain", "holder"], ["holder", "plain"]):
        both = {"plain": plain, "holder": holder}
        kit.compare({name: both[name] for name in order})
    assert len(seen["plain"]) > 20
    return set(seen["plain"]), set(seen["holder"])


class Setting:
    """Set something on entering, and never set it back."""

    def __init__(self, setter, *values):
        self.setter, self.values = setter, values

    def __call__(self):
        return self

    def __enter__(self):
        self.setter(*self.values)

    def __exit__(self, *error):
        pass


def flag(path, value):
    """Return a setter and a getter of a flag below torch.backends."""
    room, _, name = path.rpartition(".")
    owner = functools.reduce(getattr, room.split("."), torch.backends)
    return Setting(setattr, owner, name, value), lambda: getattr(owner, name)


DETERMINISTIC = torch.use_deterministic_algorithms
HELD = {
    "autocast": (
        lambda: torch.autocast("cpu", dtype=torch.bfloat16),
        lambda: (A @ A).dtype,
        (torch.float32, torch.bfloat16),
    ),
    "autocast's cache": (
        lambda: torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False),
        torch.is_autocast_cache_enabled,
        (True, False),
    ),
    "no_grad": (torch.no_grad, torch.is_grad_enabled, (True, False)),
    "inference_mode": (
        torch.inference_mode,
        lambda: (A + 1).is_inference(),
        (False, True),
    ),
    "grad mode set for good": (
        Setting(torch.set_grad_enabled, False),
        torch.is_grad_enabled,
        (True, False),
    ),
    "threads": (
        Setting(torch.set_num_threads, OTHER_THREADS),
        torch.get_num_threads,
        (THREADS, OTHER_THREADS),
    ),
    "default dtype": (
        Setting(torch.set_default_dtype, torch.float64),
        lambda: torch.ones(1).dtype,
        (torch.float32, torch.float64),
    ),
    "default device": (
        lambda: torch.device("meta"),
        lambda: torch.ones(1).device.type,
        ("cpu", "meta"),
    ),
    "deterministic": (
        Setting(lambda: DETERMINISTIC(True, warn_only=True)),
        lambda: (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        ((False, False), (True, True)),
    ),
    "matmul precision": (
        Setting(torch.set_float32_matmul_precision, "high"),
        torch.get_float32_matmul_precision,
        ("highest", "high"),
    ),
    "cudnn.benchmark": (*flag("cudnn.benchmark", True), (False, True)),
    "cudnn.deterministic": (*flag("cudnn.deterministic", True), (False, True)),
    "mkldnn.deterministic": (*flag("mkldnn.deterministic", True), (False, True)),
    "flash attention": (
        Setting(torch.backends.cuda.enable_flash_sdp, False),
        torch.backends.cuda.flash_sdp_enabled,
        (True, False),
    ),
}


@pytest.fixture
def put_back():
    """Set back what `tidy` does not."""
    yield
    torch.set_default_device(None)
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.enable_flash_sdp(True)


@pytest.mark.parametrize("name", HELD)
def test_what_one_variant_holds_open_the_other_does_not_see(name, put_back):
    enter, look, (reader, holder) = HELD[name]
    assert look() == reader
    assert observe(enter, look) == ({reader}, {holder})
    gc.collect()
    assert look() == reader


PRECISIONS = {
    "mkldnn.matmul": torch.backends.mkldnn.matmul,
    "mkldnn.conv": torch.backends.mkldnn.conv,
    "mkldnn": torch.backends.mkldnn,
    "backends": torch.backends,
    "cuda.matmul": torch.backends.cuda.matmul,
}


@pytest.fixture
def precision():
    """Put every fp32 precision back, the widest last."""
    before = {name: owner.fp32_precision for name, owner in PRECISIONS.items()}
    yield
    for name, owner in PRECISIONS.items():
        owner.fp32_precision = before[name]
    for name, owner in PRECISIONS.items():
        assert owner.fp32_precision == before[name]


@pytest.mark.parametrize("name", PRECISIONS)
def test_fp32_precision_does_not_leak(name, precision):
    owner, value = PRECISIONS[name], "tf32"
    before = {key: other.fp32_precision for key, other in PRECISIONS.items()}
    plain, holder = observe(
        Setting(setattr, owner, "fp32_precision", value), lambda: owner.fp32_precision
    )
    assert (plain, holder) == ({before[name]}, {value})
    after = {key: other.fp32_precision for key, other in PRECISIONS.items()}
    assert after == before


@pytest.mark.parametrize("name", PRECISIONS)
def test_reader_may_have_set_fp32_precision_before(name, precision):
    PRECISIONS[name].fp32_precision = "tf32"
    before = {key: owner.fp32_precision for key, owner in PRECISIONS.items()}

    def train():
        while True:
            yield 1

    kit.measure(train)
    after = {key: owner.fp32_precision for key, owner in PRECISIONS.items()}
    assert after == before


def test_autocast_depth_is_each_ones_own():
    def depth():
        now = torch.autocast_increment_nesting()
        torch.autocast_decrement_nesting()
        return now

    def nested():
        with torch.autocast("cpu"), torch.autocast("cpu"):
            while True:
                assert depth() == 3
                yield 1

    def plain():
        while True:
            assert depth() == 1
            yield 1

    kit.compare({"plain": plain, "nested": nested})
    assert depth() == 1


# Out of the kit's sight, as weights of another module would be.
helpers.WEIGHT = nn.Parameter(torch.ones(4, 4))


def test_weights_that_one_autocast_has_cast_do_not_serve_the_other():
    def train(*, dtype=torch.bfloat16):
        with torch.autocast("cpu", dtype=dtype):
            while True:
                assert nn.functional.linear(A, helpers.WEIGHT).dtype == dtype
                yield 1

    kit.compare(train, dtype=[torch.bfloat16, torch.float16])


def draw():
    return random.random(), numpy.random.rand(), torch.rand(1).item()


def test_each_variant_has_a_random_sequence_of_its_own_seeded_alike():
    lives = []

    def train(*, draws=1):
        life = [draw()]
        lives.append(life)
        while True:
            life += [draw() for _ in range(draws)]
            yield 1

    before = reader_state()
    for _ in range(2):
        kit.compare(train, draws=[1, 3])
    assert reader_state() == before
    longest = max(lives, key=len)
    assert len(set(longest)) == len(longest) > 6
    assert len(lives) >= 10
    for life in lives:
        assert life == longest[: len(life)]


def test_every_start_of_a_measurement_is_seeded_alike(clock, monkeypatch):
    monkeypatch.delenv("KIT_SMOKE")
    firsts = []

    def epoch():
        firsts.append(draw())
        for _ in range(60):
            yield 1
            clock.work(0.005)

    kit.measure(epoch, seconds=1.0, repeats=2)
    assert len(firsts) > 4
    assert len(set(firsts)) == 1


def test_both_variants_of_whole_runs_have_the_same_seeds():
    seeds = {1: [], 2: []}

    def train(*, which=1):
        seeds[which].append(draw())
        yield 1
        yield 1

    kit.compare(train, which=[1, 2], seconds=None)
    assert seeds[1] == seeds[2]
    uncounted, *runs = seeds[1]
    assert len(set(runs)) == len(runs) == 2
    assert uncounted == runs[0]


class Broken(Exception):
    pass


@pytest.mark.parametrize("run", ["measure", "compare"])
@pytest.mark.parametrize("where", ["nowhere", "set-up", "step", "closing"])
@pytest.mark.parametrize("error", [Broken, KeyboardInterrupt])
def test_reader_finds_their_own_state_again(run, where, error):
    def train(*, variant=1):
        change_everything()
        try:
            if where == "set-up" and variant == 2:
                raise error
            for number in range(10**9):
                yield 1
                if where == "step" and variant == number == 2:
                    raise error
        finally:
            change_everything()
            if where == "closing" and variant == 2:
                raise error

    before = reader_state()
    expected = KeyboardInterrupt if error is KeyboardInterrupt else ExperimentError
    call = {
        "measure": lambda: kit.measure(train, variant=2),
        "compare": lambda: kit.compare(train, variant=[1, 2]),
    }[run]
    if where == "nowhere":
        call()
    else:
        with pytest.raises(expected):
            call()
    assert reader_state() == before


def test_setup_begins_with_the_readers_own_state():
    torch.set_num_threads(OTHER_THREADS)
    torch.set_default_dtype(torch.float64)
    seen = []

    def train(*, variant=1):
        seen.append((torch.get_num_threads(), torch.get_default_dtype()))
        torch.set_num_threads(THREADS)
        torch.set_default_dtype(torch.float32)
        while True:
            yield 1

    kit.compare(train, variant=[1, 2])
    assert set(seen) == {(OTHER_THREADS, torch.float64)}


def test_starting_again_begins_with_the_readers_own_state(clock, monkeypatch):
    monkeypatch.delenv("KIT_SMOKE")
    seen = []

    def epoch():
        seen.append((torch.get_num_threads(), torch.is_grad_enabled()))
        torch.set_num_threads(OTHER_THREADS)
        torch.set_grad_enabled(False)
        for _ in range(60):
            yield 1
            clock.work(0.005)

    kit.measure(epoch, seconds=1.0)
    assert len(seen) > 2
    assert set(seen) == {(THREADS, True)}


# Models and optimizers that exist once


def make_net():
    torch.manual_seed(7)
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    return net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


def learn(net, optimizer, starts):
    """Train for ever; remember the weights of each start."""
    starts.append(weights(net))
    while True:
        optimizer.zero_grad()
        net(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        yield 8


def weights(net):
    return [value.clone() for value in net.state_dict().values()]


NET, OPTIMIZER = make_net()
STARTS = []


def uses_globals(*, variant=1):
    yield from learn(NET, OPTIMIZER, STARTS)


def helper_that_uses_globals():
    return learn(NET, OPTIMIZER, STARTS)


def calls_a_helper(*, variant=1):
    yield from helper_that_uses_globals()


class Trainer:
    def __init__(self, net, optimizer, starts):
        self.net, self.optimizer, self.starts = net, optimizer, starts

    def train(self, *, variant=1):
        yield from learn(self.net, self.optimizer, self.starts)

    __call__ = train


def takes_them(*, net, optimizer, starts, variant=1):
    yield from learn(net, optimizer, starts)


def takes_them_first(net, optimizer, starts, *, variant=1):
    yield from learn(net, optimizer, starts)


def form(name):
    """Return an experiment that reaches a net in one way, with net and optimizer."""
    if name in ("global", "global of a helper"):
        STARTS.clear()
        function = uses_globals if name == "global" else calls_a_helper
        return function, NET, OPTIMIZER, STARTS
    net, optimizer = make_net()
    starts = collections.deque()  # a list would be choices
    parts = net, optimizer, starts
    nets, by_name = [net], {"net": net, "optimizer": optimizer}

    def closure(*, variant=1):
        yield from learn(net, optimizer, starts)

    def in_a_list(*, variant=1):
        yield from learn(nets[0], optimizer, starts)

    def in_a_dict(*, variant=1):
        yield from learn(by_name["net"], by_name["optimizer"], starts)

    def default(*, variant=1, net=net, optimizer=optimizer):
        yield from learn(net, optimizer, starts)

    named = {"net": net, "optimizer": optimizer, "starts": starts}
    experiment = {
        "closure": closure,
        "method": Trainer(*parts).train,
        "callable object": Trainer(*parts),
        "partial": functools.partial(takes_them, **named),
        "partial by position": functools.partial(takes_them_first, *parts),
        "list": in_a_list,
        "dict": in_a_dict,
        "lambda": lambda *, variant=1: learn(net, optimizer, starts),
        "default": default,
        "knob": takes_them,
    }[name]
    return experiment, *parts


FORMS = [
    *("closure", "global", "global of a helper", "method", "callable object"),
    *("partial", "partial by position", "list", "dict", "lambda", "default", "knob"),
]


def same(first, second):
    return all(map(torch.equal, first, second))


@pytest.mark.parametrize("name", FORMS)
def test_variants_over_one_net_start_from_the_same_weights(name):
    experiment, net, optimizer, starts = form(name)
    knobs = {}
    if name == "knob":
        knobs = {"net": net, "optimizer": optimizer, "starts": starts}
    before = weights(net)
    for _ in range(2):
        comparison = kit.compare(experiment, variant=[1, 2], **knobs)
    assert len(starts) >= 10
    for start in starts:
        assert same(start, before)
    assert same(weights(net), before)
    assert not optimizer.state
    assert all(parameter.grad is None for parameter in net.parameters())
    assert "net" in str(comparison.trials[1].notes).lower()
    assert "net" in repr(comparison).lower()
    trial = kit.measure(experiment, **knobs)
    assert same(weights(net), before)
    assert "net" in repr(trial).lower()


def portrait(net, optimizer):
    """All of a net and its optimizer that is put back, to compare with ==."""
    tensors = [*net.named_parameters(), *net.named_buffers()]
    return {
        "identity": [id(tensor) for _, tensor in tensors],
        "values": [
            (name, t.dtype, t.stride(), t.requires_grad, t.detach().tolist())
            for name, t in tensors
        ],
        "grads": [
            None if p.grad is None else (p.grad.dtype, p.grad.tolist())
            for p in net.parameters()
        ],
        "training": [module.training for module in net.modules()],
        "optimizer": str(copy.deepcopy(optimizer.state_dict())),
        "state": [id(p) for p in optimizer.state],
    }


def trained():
    """A net with gradients, and its optimizer with moments."""
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1), nn.Flatten()
    )
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for _ in range(2):
        net(torch.randn(2, 3, 8, 8)).square().mean().backward()
        optimizer.step()
    return net, optimizer


def change(net, optimizer):
    """Change a net and its optimizer in every way that training code does."""
    net(torch.randn(2, 3, 8, 8)).square().mean().backward()
    optimizer.step()
    net.eval()
    net[2].weight.requires_grad_(False)
    net[1].running_mean += 5
    net[0].weight.grad = None
    optimizer.param_groups[0]["lr"] = 99.0
    net[0].weight.data.fill_(3)


@pytest.mark.parametrize("end", ["success", "error", "interrupt"])
def test_everything_about_a_net_is_as_it_was(end):
    net, optimizer = trained()
    before = portrait(net, optimizer)

    def train():
        change(net, optimizer)
        yield 1
        if end == "error":
            raise Broken
        if end == "interrupt":
            raise KeyboardInterrupt
        while True:
            yield 1

    errors = {"error": ExperimentError, "interrupt": KeyboardInterrupt}
    if end in errors:
        with pytest.raises(errors[end]):
            kit.measure(train)
    else:
        kit.measure(train)
    after = portrait(net, optimizer)
    for part in before:
        assert after[part] == before[part], part
    net(torch.randn(2, 3, 8, 8)).square().mean().backward()
    optimizer.step()


LAYOUTS = {
    "dtype": lambda net, optimizer: net.to(torch.bfloat16),
    "memory format": lambda net, _: net.to(memory_format=torch.channels_last),
    "a hook": lambda net, _: net[0].register_forward_hook(lambda *_: None),
    "a submodule": lambda net, _: net.add_module("extra", nn.Linear(1, 1)),
    "another submodule": lambda net, _: net.__setitem__(3, nn.Linear(5, 5)),
    "another parameter": lambda net, _: setattr(
        net[0], "bias", nn.Parameter(torch.ones(4))
    ),
    "a buffer": lambda net, _: net.register_buffer("extra", torch.ones(1)),
    "a parameter group": lambda _, optimizer: optimizer.add_param_group(
        {"params": [nn.Parameter(torch.ones(1))]}
    ),
}


@pytest.mark.parametrize("what", LAYOUTS)
@pytest.mark.parametrize("run", ["measure", "compare"])
def test_a_changed_layout_is_refused_with_advice(what, run):
    """It cannot be put back in place: optimizers and hooks refer to the old parts."""
    net, optimizer = trained()
    before = reader_state()

    def train(*, variant=1):
        yield 1
        LAYOUTS[what](net, optimizer)
        optimizer.zero_grad()
        while True:
            yield 1

    with pytest.raises(ExperimentError, match=r"inside the experiment") as caught:
        kit.measure(train) if run == "measure" else kit.compare(train, variant=[1, 2])
    lines = str(caught.value).splitlines()
    assert len(lines) <= 6
    assert "train(" in lines[0]
    assert "net" in str(caught.value) or "optimizer" in str(caught.value)
    assert reader_state() == before


@pytest.mark.parametrize("what", ["frozen backbone", "eval mode", "plain tensors"])
def test_what_one_variant_does_to_a_shared_net_the_other_does_not_see(what):
    """Its flags are no part of a state_dict, and a list of tensors has none."""
    net, _ = make_net()
    weight = torch.ones(3, requires_grad=True)
    parameters = [weight]
    seen = {"changes": [], "plain": []}

    def look():
        return net.training, net[0].weight.requires_grad, weight.detach().sum().item()

    def changes():
        if what == "frozen backbone":
            net[0].requires_grad_(False)
        elif what == "eval mode":
            net.eval()
        else:
            parameters[0].data += 1
        while True:
            seen["changes"].append(look())
            yield 1

    def plain():
        while True:
            net(torch.randn(4, 4)), parameters[0].sum().backward()
            seen["plain"].append(look())
            yield 1

    before = look()
    for order in (["changes", "plain"], ["plain", "changes"]):
        both = {"changes": changes, "plain": plain}
        kit.compare({name: both[name] for name in order})
    assert set(seen["plain"]) == {before}
    assert len(set(seen["changes"])) == 1 and before not in seen["changes"]
    assert look() == before and weight.grad is None


def test_a_garbage_collector_that_one_switches_off_is_on_for_the_other():
    plain, holder = observe(Setting(gc.disable), gc.isenabled)
    assert (plain, holder) == ({True}, {False})
    assert gc.isenabled()


def test_schedulers_and_scalers_are_put_back_too():
    net, optimizer = make_net()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    before = scheduler.state_dict(), optimizer.param_groups[0]["lr"]
    rates = []

    def train(*, variant=1):
        rates.append(optimizer.param_groups[0]["lr"])
        for step in learn(net, optimizer, []):
            scheduler.step()
            yield step

    kit.compare(train, variant=[1, 2])
    assert set(rates) == {0.1}
    assert (scheduler.state_dict(), optimizer.param_groups[0]["lr"]) == before


OTHER_NET = nn.Linear(2, 1)


def step():
    return OTHER_NET(torch.ones(2))


def test_an_attribute_is_not_taken_for_a_global_of_the_same_name():
    def train():
        net = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        while True:
            net(torch.ones(2)).sum().backward()
            optimizer.step()
            yield 1

    def train_that_one():
        while True:
            step()
            yield 1

    assert "Shared" not in repr(kit.measure(train))
    assert "put back at each start: OTHER_NET" in repr(kit.measure(train_that_one))
