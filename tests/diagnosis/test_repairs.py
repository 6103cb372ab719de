"""A repair is tried in the reader's own run, and taken back wholly."""

import copy
import re

import pytest
import torch
from project import ROOT
from torch import nn
from torch.nn import functional as F

from kit.diagnosis.advice import ADVICE
from kit.diagnosis.causes import CAUSES
from kit.diagnosis.modules import Training
from kit.diagnosis.named import NAMED
from kit.diagnosis.repairs import FOLLOWING, REPAIRS
from kit.diagnosis.wrapping import Work, change
from kit.measuring.experiment import resolve

pytestmark = pytest.mark.usefixtures("quick")


class Run:
    """A run that one repair is tried in, as a diagnosis tries it."""

    def __init__(self, experiment, repair):
        self.training = Training()
        self.switch = REPAIRS[repair].make(self.training)
        changes = self.training.install, self.switch.install
        changed = change(resolve(experiment), *changes, work=Work())
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
        self.switch.begin_block()
        for _ in range(steps):
            next(self.generator)
        self.switch.end_block()

    def prime(self):
        self.switch.prime()
        self.step()

    def turn(self, on):
        self.switch.turn(on)


#: How a loop sets what costs time, and how it can be seen.
SETTINGS = {
    "anomaly": (torch.autograd.set_detect_anomaly, torch.is_anomaly_enabled),
    "deterministic": (
        lambda on: torch.use_deterministic_algorithms(on),
        torch.are_deterministic_algorithms_enabled,
    ),
    "onednn": (
        lambda on: setattr(torch.backends.mkldnn, "enabled", not on),
        lambda: not torch.backends.mkldnn.enabled,
    ),
    "attention": (
        lambda on: torch.backends.cuda.enable_flash_sdp(not on),
        lambda: not torch.backends.cuda.flash_sdp_enabled(),
    ),
    "tf32": (
        lambda on: torch.set_float32_matmul_precision("highest" if on else "high"),
        lambda: torch.get_float32_matmul_precision() == "highest",
    ),
}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("each_step", [False, True])
def test_a_setting_is_held_and_put_back_unless_the_loop_sets_it_each_step(
    name, each_step
):
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
            assert seen[-1] and run.switch.is_slow
            run.turn(True)
            run.step(2)
            assert ("each step" in run.switch.obstacle) is each_step
            assert seen[-1] is each_step
            run.turn(False)
            run.step()
            assert seen[-1]
    finally:
        put(before)


def test_another_number_of_threads_is_held_and_put_back():
    before = torch.get_num_threads()
    seen = []

    def experiment():
        torch.set_num_threads(3)
        while True:
            seen.append(torch.get_num_threads())
            torch.set_num_threads(4)
            yield 1

    try:
        with Run(experiment, "threads") as run:
            run.switch.number = 2
            run.turn(True)
            run.step(2)
            assert seen[-1] == 2 and torch.get_num_threads() == 2
            run.turn(False)
            assert torch.get_num_threads() == 4
    finally:
        torch.set_num_threads(before)


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


def make_training(make=torch.optim.Adam, log=None, **options):
    """Return a model, its optimizer, and a loop that trains it."""
    torch.manual_seed(0)
    model = Model()
    optimizer = make(model.parameters(), lr=1e-3, **options)
    images, labels = torch.rand(8, 3, 8, 8), torch.arange(8) % 3

    def experiment():
        while True:
            optimizer.zero_grad()
            outputs = model(images)
            F.cross_entropy(outputs, labels).backward()
            optimizer.step()
            if log is not None:
                log.append((outputs.dtype, torch.is_autocast_enabled("cpu")))
            yield 8

    return model, optimizer, experiment


def test_bfloat16_is_used_inside_of_the_model_and_leaves_nothing():
    seen, inside = [], []
    model, _, experiment = make_training(log=seen)
    model.last.register_forward_hook(lambda *given: inside.append(given[2].dtype))
    with Run(experiment, "bfloat16") as run:
        run.prime()
        run.turn(True)
        run.step(2)
        assert run.switch.obstacle == "" and inside[-1] == torch.bfloat16
        assert seen[-1] == (torch.float32, False), "what it returns is as ever"
        run.turn(False)
        run.step()
        assert inside[-1] == torch.float32
    assert "call" not in Model.forward.__qualname__, "its class is as it was"


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
    before = copy.deepcopy(
        [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
    )
    with Run(experiment, "fused") as run:
        run.prime()
        assert run.switch.write_code() == (
            f"torch.optim.{make.__name__}(…, {OPTIMIZERS[make]}=True)"
        )
        run.turn(True)
        assert optimizer.param_groups[0][OPTIMIZERS[make]] is True
        run.step(2)
        run.turn(False)
        run.step()
    after = [
        {k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups
    ]
    assert after == before
    torch.testing.assert_close(model.state_dict(), plain[0].state_dict())


@pytest.mark.parametrize("options", [{"fused": True}, {"foreach": True}])
def test_an_update_that_is_fused_already_is_not_tried(options):
    _, _, experiment = make_training(**options)
    with Run(experiment, "fused") as run:
        run.switch.prime()
        assert "already" in run.switch.obstacle


def test_each_repair_addresses_a_cause_or_follows_alone():
    named = {cause for row in REPAIRS.values() for cause in row.causes}
    assert named <= {*CAUSES} and {*FOLLOWING} <= named
    assert {row.remedy for row in ADVICE} - {""} <= {*REPAIRS}


def test_the_documentation_lists_each_cause_and_each_repair():
    page = ROOT / "kit" / "DIAGNOSING.md"
    rows = [row for row in page.read_text("utf-8").splitlines() if row[:3] == "| `"]
    first = " ".join(row.split("|")[1] for row in rows)
    named = {*re.findall("`([a-z_0-9]+)`", first)}
    assert named == ({*CAUSES} | {*REPAIRS} | {*NAMED}) - {"healthy"}
