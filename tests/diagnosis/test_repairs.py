"""A repair is tried in the reader's own run, changes one thing, and is taken back."""

import functools

import pytest
import torch
from experiments import Switched
from torch import nn

from kit.diagnosis.advice import ADVICE
from kit.diagnosis.causes import CAUSES
from kit.diagnosis.repairs import FOLLOWING, REPAIRS

pytestmark = pytest.mark.usefixtures("quick")


class Model(nn.Module):
    """A model that notes how it is called, and may fail when it is called so."""

    def __init__(self, fails_with=""):
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.fails_with = fails_with
        self.seen = {}

    def forward(self, inputs):
        return self.compute(inputs)

    def compute(self, inputs, is_compiled=False):
        is_narrow = torch.is_autocast_enabled("cpu")
        self.seen = {"bfloat16": is_narrow, "compile": is_compiled}
        if self.seen.get(self.fails_with):
            raise NotImplementedError("a kernel")
        return self.layer(inputs)


def compile_it(forward):
    """Note only that a model is compiled: a real compiler takes a minute."""
    return functools.partial(forward.__self__.compute, is_compiled=True)


@pytest.fixture(autouse=True)
def fake_compiler(monkeypatch):
    monkeypatch.setattr(torch, "compile", compile_it)


def slow_down():
    """Make everything as slow as a setting can make it."""
    torch.set_num_threads(3)
    torch.autograd.set_detect_anomaly(True, check_nan=False)
    torch.use_deterministic_algorithms(True)
    torch.backends.mkldnn.enabled = False
    torch.backends.cuda.enable_flash_sdp(False)
    torch.set_float32_matmul_precision("highest")


def look(model, optimizer):
    """Return what each repair changes, by its name."""
    return model.seen | {
        "anomaly": torch.is_anomaly_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "onednn": torch.backends.mkldnn.enabled,
        "attention": torch.backends.cuda.flash_sdp_enabled(),
        "tf32": torch.get_float32_matmul_precision(),
        "threads": torch.get_num_threads(),
        "fused": optimizer.param_groups[0].get("fused"),
    }


def make_training(model, make=torch.optim.Adam, each_step=lambda: None, **options):
    """Return an optimizer, a loop that trains with it, and what was seen each step."""
    torch.manual_seed(0)
    nn.init.normal_(model.layer.weight)
    nn.init.zeros_(model.layer.bias)
    inputs = torch.rand(8, 4)
    optimizer = make(model.parameters(), lr=1e-2, **options)
    seen = []

    def experiment():
        slow_down()
        while True:
            each_step()
            optimizer.zero_grad()
            outputs = model(inputs)
            assert outputs.dtype == torch.float32
            outputs.square().sum().backward()
            optimizer.step()
            seen.append(look(model, optimizer))
            yield 8

    return optimizer, experiment, seen


@pytest.mark.parametrize("repair", REPAIRS)
def test_a_repair_changes_one_thing_while_it_is_tried_and_takes_it_back(repair):
    forward = Model.forward
    _, experiment, seen = make_training(Model())
    with Switched(experiment, repair) as run:
        before = seen[-1]
        run.turn(True)
        run.run(2)
        assert run.switch.obstacle == ""
        during = seen[-1]
        run.turn(False)
        run.run(1)
        assert seen[-1] == before
    assert [name for name in before if during[name] != before[name]] == [repair]
    assert Model.forward is forward, "its class is as it was"


def test_a_setting_that_the_loop_sets_in_each_step_is_not_said_to_gain():
    _, experiment, _ = make_training(Model(), each_step=slow_down)
    with Switched(experiment, "anomaly") as run:
        run.turn(True)
        run.run(2)
    assert "each step" in run.switch.obstacle


@pytest.mark.parametrize("repair", ["bfloat16", "compile"])
def test_a_model_that_fails_with_a_repair_is_called_as_usual(repair):
    _, experiment, _ = make_training(Model(fails_with=repair))
    with Switched(experiment, repair) as run:
        run.turn(True)
        run.run(2)
    assert "NotImplementedError" in run.switch.obstacle


def test_a_model_that_is_not_called_as_a_whole_is_left_alone():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def experiment():
        while True:
            optimizer.zero_grad()
            model[1](model[0](torch.ones(3, 2))).sum().backward()
            optimizer.step()
            yield 3

    with Switched(experiment, "bfloat16") as run:
        run.turn(True)
        assert "as a whole" in run.switch.obstacle


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (torch.optim.AdamW, "torch.optim.AdamW(…, fused=True)"),
        (torch.optim.SGD, "torch.optim.SGD(…, fused=True)"),
        (torch.optim.RMSprop, "torch.optim.RMSprop(…, foreach=True)"),
    ],
)
def test_a_fused_update_computes_the_same_and_names_the_readers_optimizer(make, code):
    model, plain = Model(), Model()
    optimizer, experiment, seen = make_training(model, make)
    options = {**optimizer.param_groups[0], "params": []}
    with Switched(experiment, "fused") as run:
        assert run.switch.write_code() == code
        run.turn(True)
        run.run(2)
        run.turn(False)
        run.run(1)
    assert {**optimizer.param_groups[0], "params": []} == options
    generator = make_training(plain, make)[1]()
    for _ in seen:
        next(generator)
    torch.testing.assert_close(model.state_dict(), plain.state_dict())


def test_an_update_that_is_fused_already_is_not_tried():
    _, experiment, _ = make_training(Model(), fused=True)
    with Switched(experiment, "fused") as run:
        run.turn(True)
        assert "already" in run.switch.obstacle


def test_tables_of_repairs_and_advice_name_causes_and_repairs_that_there_are():
    causes = {cause for row in REPAIRS.values() for cause in row.causes}
    assert {*FOLLOWING} <= causes <= {*CAUSES}
    assert {row.cause for row in ADVICE} == {*CAUSES}
    assert {row.remedy for row in ADVICE} - {""} <= {*REPAIRS}
