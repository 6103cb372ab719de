"""A repair is tried in the reader's own run, measured, and taken back wholly."""

import copy
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from experiments import NeedsDigits
from helpers import FakeClock
from project import ROOT
from torch import nn
from torch.distributions import Distribution, Normal
from torch.nn import functional as F

from kit.diagnosis.advice import ADVICE
from kit.diagnosis.causes import CAUSES
from kit.diagnosis.modules import TimedHooks, Training
from kit.diagnosis.repairs import FOLLOWING, REPAIRS, count_denormals
from kit.diagnosis.wrapping import Work, change
from kit.measuring.experiment import resolve

pytestmark = pytest.mark.usefixtures("quick")

HERE = Path(__file__).name


class Run:
    """A run that one repair is tried in, as a diagnosis tries it."""

    def __init__(self, experiment, repair):
        self.work, self.training = Work(), Training()
        self.switch = REPAIRS[repair].make(self.work, self.training)
        changes = self.training.install, self.switch.install
        changed = change(resolve(experiment), *changes, work=self.work)
        self.generator = changed.start({})
        self.step(3)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.switch.is_on:
            self.turn(False)
        self.switch.end()
        self.generator.close()

    def step(self, steps=1):
        for _ in range(steps):
            next(self.generator)

    def prime(self):
        self.switch.prime()
        self.step()

    def turn(self, on):
        self.switch.turn(on)


def set_trace(on):
    sys.settrace((lambda *_: None) if on else None)


def has_trace():
    return sys.gettrace() is not None


def set_flash(on):
    torch.backends.cuda.enable_flash_sdp(not on)


#: How a loop sets what costs time, and how it can be seen.
SETTINGS = {
    "anomaly": (torch.autograd.set_detect_anomaly, torch.is_anomaly_enabled),
    "deterministic": (
        lambda on: torch.use_deterministic_algorithms(on),
        torch.are_deterministic_algorithms_enabled,
    ),
    "fill": (
        lambda on: torch._C._set_deterministic_fill_uninitialized_memory(on),
        torch._C._get_deterministic_fill_uninitialized_memory,
    ),
    "validation": (
        lambda on: Distribution.set_default_validate_args(on),
        lambda: Distribution._validate_args,
    ),
    "onednn": (
        lambda on: torch._C._set_mkldnn_enabled(not on),
        lambda: not torch.backends.mkldnn.enabled,
    ),
    "attention": (set_flash, lambda: not torch.backends.cuda.flash_sdp_enabled()),
    "trace": (set_trace, has_trace),
    "tf32": (
        lambda on: torch.set_float32_matmul_precision("highest" if on else "high"),
        lambda: torch.get_float32_matmul_precision() == "highest",
    ),
}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("each_step", [False, True])
def test_a_setting_is_held_and_put_back_as_the_loop_wants_it(name, each_step):
    put, is_slow = SETTINGS[name]
    seen, before = [], is_slow()

    def experiment():
        put(True)
        while True:
            if each_step:
                put(True)
            seen.append(is_slow())
            yield 1

    try:
        with Run(experiment, name) as run:
            assert seen[-1] and run.switch.was_slow
            assert HERE in run.switch.place, "the line that set it is known"
            run.turn(True)
            run.step(2)
            assert seen[-2:] == [False, False]
            run.turn(False)
            run.step()
            assert seen[-1]
    finally:
        put(before)


def test_a_setting_of_a_cell_that_runs_meanwhile_is_its_own():
    def experiment():
        torch.autograd.set_detect_anomaly(True)
        while True:
            yield 1

    try:
        with Run(experiment, "anomaly") as run:
            run.turn(True)
            torch.autograd.set_detect_anomaly(True)  # between two steps: the reader
            assert torch.is_anomaly_enabled()
    finally:
        torch.autograd.set_detect_anomaly(False)


def test_checks_of_torch_distributions_are_off_only_while_that_is_tried(monkeypatch):
    monkeypatch.setattr(Distribution, "_validate_args", True)
    made = []

    def experiment():
        while True:
            made.append(Normal(0.0, 1.0)._validate_args)
            yield 1

    with Run(experiment, "validation") as run:
        assert run.switch.is_used
        run.turn(True)
        run.step()
        run.turn(False)
        run.step()
    assert made[-3:] == [True, False, True]


def test_an_autocast_context_of_the_loop_is_entered_disabled():
    seen = []

    def experiment():
        while True:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                seen.append((torch.ones(2, 2) @ torch.ones(2, 2)).dtype)
            yield 1

    with Run(experiment, "autocast") as run:
        assert run.switch.was_entered and HERE in run.switch.place
        run.turn(True)
        run.step()
        run.turn(False)
        run.step()
    assert seen[-3:] == [torch.bfloat16, torch.float32, torch.bfloat16]


class Model(nn.Module):
    """A model with all that another format may disturb."""

    def __init__(self):
        super().__init__()
        # No bias: before a batch norm its gradient is rounding, which Adam scales up.
        self.first = nn.Conv2d(3, 4, 3, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.drop, self.last = nn.Dropout(0.5), nn.Linear(4 * 36, 3)

    def forward(self, inputs):
        return self.last(self.drop(self.norm(self.first(inputs)).flatten(1)))


def make_training(dtype=torch.float32, make=torch.optim.Adam, log=None, **options):
    """Return a model, its optimizer, and a loop that trains it."""
    torch.manual_seed(0)
    model = Model().to(dtype)
    optimizer = make(model.parameters(), lr=1e-3, **options)
    images, labels = torch.rand(8, 3, 8, 8, dtype=dtype), torch.arange(8) % 3

    def experiment():
        while True:
            optimizer.zero_grad()
            outputs = model(images)
            F.cross_entropy(outputs, labels).backward()
            optimizer.step()
            if log is not None:
                log.append((outputs.dtype, model.first.weight))
            yield 8

    return model, optimizer, experiment


def look(model, optimizer):
    return copy.deepcopy([model.state_dict(), optimizer.state_dict()])


FORMATS = {"bfloat16": torch.float32, "float32": torch.float64}


@pytest.mark.parametrize("name", FORMATS)
def test_another_format_is_used_inside_and_leaves_nothing(name):
    seen = []
    dtype = FORMATS[name]
    model, optimizer, experiment = make_training(dtype, log=seen)
    with Run(experiment, name) as run:
        run.prime()
        before, random = look(model, optimizer), torch.get_rng_state()
        run.turn(True)
        assert model.first.weight.dtype == torch.float32
        run.step(2)
        assert run.switch.obstacle == ""
        assert 0 < run.switch.difference < 0.02
        assert seen[-1][0] == dtype, "what it returns is in the usual format"
        run.turn(False)
        assert model.first.weight.dtype == model.first.weight.grad.dtype == dtype
        if name == "float32":  # as if these steps had not been
            now = look(model, optimizer)
            assert now[0].pop("norm.num_batches_tracked") == 6
            del before[0]["norm.num_batches_tracked"]
            torch.testing.assert_close(now, before, rtol=0, atol=0)
        assert not torch.equal(random, torch.get_rng_state()), "two steps dropped some"
        run.step(2)
    assert "call" not in Model.forward.__qualname__, "its class is as it was"


def test_a_comparison_of_formats_uses_no_random_numbers_and_counts_no_batch():
    model, _, experiment = make_training()
    with Run(experiment, "bfloat16") as run:
        run.prime()
        run.turn(True)
        run.step()
        counted, random = int(model.norm.num_batches_tracked), torch.get_rng_state()
    other, _, experiment = make_training()
    with Run(experiment, "anomaly") as run:
        run.step(2)
        assert counted == int(other.norm.num_batches_tracked) == 5
        assert torch.equal(random, torch.get_rng_state())


def test_a_loop_that_needs_its_digits_keeps_them_and_trains_as_without_a_trial():
    def train(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
        rows = torch.rand(8, 4, dtype=torch.float64)
        while True:
            optimizer.zero_grad()
            model(rows).sum().backward()
            optimizer.step()
            yield 8

    model, other = NeedsDigits(), NeedsDigits()
    torch.manual_seed(1)
    with Run(lambda: train(model), "float32") as run:
        run.prime()
        run.turn(True)
        run.step()
        assert "needs the digits" in run.switch.obstacle
        run.turn(False)
        run.step()
    torch.manual_seed(1)
    with Run(lambda: train(other), "anomaly") as run:
        run.step(3)
    weight = model.model.weight
    assert weight.dtype == weight.grad.dtype == torch.float64
    torch.testing.assert_close(weight, other.model.weight, rtol=0, atol=0)


def test_outputs_that_are_masked_by_infinity_can_be_compared():
    class Masked(Model):
        def forward(self, inputs):
            outputs = super().forward(inputs)
            return torch.where(torch.arange(3) == 2, -torch.inf, outputs)

    model = Masked()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def experiment():
        while True:
            optimizer.zero_grad()
            model(torch.rand(8, 3, 8, 8))[:, :2].sum().backward()
            optimizer.step()
            yield 8

    with Run(experiment, "bfloat16") as run:
        run.prime()
        run.turn(True)
        run.step()
        assert 0 < run.switch.difference < 0.02 and not run.switch.obstacle


@pytest.mark.parametrize("name", ["bfloat16", "compile"])
def test_a_model_that_fails_with_a_repair_is_called_as_usual(name, monkeypatch):
    is_compiling = []
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, rows):
            if torch.is_autocast_enabled("cpu") or is_compiling:
                raise NotImplementedError("a kernel")
            return self.model(rows)

    def compile_it(function):
        def call(*given):
            is_compiling.append(True)
            try:
                return function(*given)
            finally:
                is_compiling.pop()

        return call

    odd = Odd()

    def experiment():
        while True:
            optimizer.zero_grad()
            odd(torch.ones(3, 2)).sum().backward()
            optimizer.step()
            yield 3

    with Run(experiment, name) as run:
        run.prime()
        monkeypatch.setattr(torch, "compile", compile_it)
        run.turn(True)
        run.step(2)
        assert "NotImplementedError" in run.switch.obstacle


def test_a_compiled_model_is_called_while_the_repair_is_on(monkeypatch):
    calls = []
    monkeypatch.setattr(
        torch, "compile", lambda f: lambda *given: calls.append(1) or f(*given)
    )
    model, _, experiment = make_training()
    with Run(experiment, "compile") as run:
        run.prime()
        assert not calls
        run.turn(True)
        run.step(2)
        run.turn(False)
        run.step(2)
    assert len(calls) == 2 and "forward" not in vars(model)
    assert "call" not in Model.forward.__qualname__


def test_what_the_loop_does_not_call_as_a_whole_is_not_tried():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def experiment():
        while True:
            optimizer.zero_grad()
            model[1](model[0](torch.ones(3, 2))).sum().backward()
            optimizer.step()
            yield 3

    with Run(experiment, "bfloat16") as run:
        run.prime()
        run.turn(True)
        assert "as a whole" in run.switch.obstacle


def test_repairs_are_tried_on_the_whole_model_and_on_no_other():
    model, _, experiment = make_training()
    whole = nn.Sequential(nn.Identity(), model)
    unrelated = nn.Linear(2, 2)
    with Run(experiment, "bfloat16") as run:
        roots = {id(each) for each in run.training.find_roots()}
        assert roots == {id(whole)} and id(unrelated) not in roots


OPTIMIZERS = {
    torch.optim.AdamW: "fused",
    torch.optim.SGD: "fused",
    torch.optim.RMSprop: "foreach",
}


@pytest.mark.parametrize("make", OPTIMIZERS, ids=lambda make: make.__name__)
def test_a_fused_update_computes_the_same_and_is_taken_back(make):
    plain = make_training(make=make)
    with Run(plain[2], "anomaly") as run:
        run.step(4)
    model, optimizer, experiment = make_training(make=make)
    before = [{**group} for group in optimizer.param_groups]
    with Run(experiment, "fused") as run:
        run.prime()
        run.turn(True)
        assert optimizer.param_groups[0][OPTIMIZERS[make]] is True
        run.step(2)
        run.turn(False)
        run.step()
    assert [{**group} for group in optimizer.param_groups] == before
    torch.testing.assert_close(model.state_dict(), plain[0].state_dict())


@pytest.mark.parametrize("options", [{"fused": True}, {"foreach": True}])
def test_an_update_that_is_fused_already_is_not_tried(options):
    _, _, experiment = make_training(**options)
    with Run(experiment, "fused") as run:
        run.switch.prime()
        assert "already" in run.switch.obstacle


def test_weights_have_their_channels_last_only_meanwhile():
    seen = []
    plain = make_training(make=torch.optim.SGD, momentum=0.9)
    with Run(plain[2], "anomaly") as run:
        run.step(3)
    model, _, experiment = make_training(log=seen, make=torch.optim.SGD, momentum=0.9)
    own = model.first.weight.data_ptr()
    with Run(experiment, "channels_last") as run:
        run.turn(True)
        last = torch.channels_last
        assert model.first.weight.is_contiguous(memory_format=last)
        run.step(2)
        run.turn(False)
        assert model.first.weight.is_contiguous()
        assert model.first.weight.data_ptr() == own
        run.step()
    torch.testing.assert_close(model.state_dict(), plain[0].state_dict())


def test_only_gradients_that_nobody_uses_are_left_out():
    body, head = nn.Linear(2, 2), nn.Linear(2, 1)
    by_hand = nn.Linear(2, 2)  # no gradient is kept for it
    model = nn.Sequential(by_hand, body, head)
    by_hand.requires_grad_(False)
    late = nn.Linear(1, 1)  # whose optimizer has not stepped yet
    waiting = torch.optim.SGD(late.parameters(), lr=1e-3)
    model.append(late)
    optimizer = torch.optim.SGD(head.parameters(), lr=1e-3)
    seen = []

    def experiment():
        while True:
            optimizer.zero_grad()
            model(torch.ones(3, 2)).sum().backward()
            optimizer.step()
            seen.append([each.requires_grad for each in model.parameters()])
            yield 3

    with Run(experiment, "idle") as run:
        with run.training.looking():
            run.step()
        idle = {id(each) for each in run.training.list_idle()}
        assert idle == {id(each) for each in body.parameters()}
        run.turn(True)
        run.step()
        run.turn(False)
        run.step()
    assert seen[-2] == [False] * 4 + [True] * 4
    assert seen[-1] == seen[0] == [False] * 2 + [True] * 6
    assert waiting.state == {}


def test_tiny_weights_are_restored_after_rounding_them_to_zero_was_tried():
    model = nn.Linear(2, 1)
    with torch.no_grad():
        model.weight.fill_(1e-40)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

    def experiment():
        while True:
            optimizer.zero_grad()
            model(torch.ones(3, 2)).sum().backward()
            optimizer.step()
            with torch.no_grad():
                model.weight.mul_(1.0)
            yield 3

    with Run(experiment, "denormals") as run:
        kept = model.weight.detach().clone()
        run.turn(True)
        run.step()
        assert model.weight.sum() == 0 or not torch.set_flush_denormal(True)
        run.turn(False)
        assert torch.equal(model.weight, kept) and float(kept[0, 0]) > 0


def test_zeros_are_no_denormal_numbers():
    weights = torch.tensor([0.0, 1.0, 1e-40, 0.0])
    training = SimpleNamespace(list_state=lambda: [weights])
    assert count_denormals(training) == 0.25


def test_hooks_are_timed_once_and_put_back():
    clock = FakeClock()
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))

    def spend(*_):
        clock.work(1.0)

    def call_inside(module, inputs, outputs):
        clock.work(1.0)
        model[1](outputs)  # whose hook is part of this one

    handle = model[0].register_forward_hook(call_inside)
    model[1].register_full_backward_hook(spend)
    model[1].register_forward_pre_hook(spend, with_kwargs=True)
    nn.utils.parametrizations.spectral_norm(model[0])

    def look(kinds):
        return [{**vars(each)[f"_{kind}_hooks"]} for kind in kinds for each in model]

    before = look(["forward_pre", "backward"])
    with clock:
        with TimedHooks([*model.modules()]) as timed:
            model(torch.ones(3, 2)).sum().backward()
            handle.remove()
        assert timed.count == 3
        assert timed.seconds == pytest.approx(4.0)
    assert look(["forward_pre", "backward"]) == before and look(["forward"]) == [{}, {}]


def test_each_repair_addresses_a_cause_or_follows_alone():
    named = {cause for row in REPAIRS.values() for cause in row.causes}
    assert named <= {*CAUSES} and {*FOLLOWING} <= named
    assert {row.remedy for row in ADVICE} - {""} <= {*REPAIRS}


def test_the_documentation_lists_each_cause_and_each_repair():
    page = ROOT / "kit" / "DIAGNOSING.md"
    rows = [row for row in page.read_text("utf-8").splitlines() if row[:3] == "| `"]
    first = " ".join(row.split("|")[1] for row in rows)
    named = {*re.findall("`([a-z_0-9]+)`", first)}
    assert named == ({*CAUSES} | {*REPAIRS}) - {"healthy"}
