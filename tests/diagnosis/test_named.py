"""What is recognized and not tried is named with a line of code, where it is there."""

import contextlib

import pytest
import torch
from torch import nn

import kit

pytestmark = pytest.mark.usefixtures("quick")


def train(*, model, inputs, trained=None, around=contextlib.nullcontext):
    optimizer = torch.optim.SGD((trained or model).parameters(), lr=1e-3)
    while True:
        optimizer.zero_grad()
        with around():
            loss = model(inputs).float().sum()
        loss.backward()
        optimizer.step()
        yield 1


def autocast():
    return torch.autocast("cpu", dtype=torch.bfloat16)


def make_float64():
    return {
        "model": nn.Linear(4, 2, dtype=torch.float64),
        "inputs": torch.ones(3, 4, dtype=torch.float64),
    }


def make_denormal():
    model = nn.Linear(4, 2)
    nn.init.constant_(model.weight, 1e-40)
    return {"model": model, "inputs": torch.zeros(3, 4)}


def make_frozen():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    return {"model": model, "trained": model[1], "inputs": torch.ones(3, 4)}


def make_embedding(sparse=False):
    table = nn.Embedding(20_000, 64, sparse=sparse)
    model = nn.Sequential(table, nn.Linear(64, 1))
    return {"model": model, "inputs": torch.arange(8)}


def make_autocast():
    return {"model": nn.Linear(4, 2), "inputs": torch.ones(3, 4), "around": autocast}


def make_convolution(layout=torch.contiguous_format):
    model = nn.Sequential(nn.Conv2d(16, 64, 3), nn.Conv2d(64, 64, 3))
    model = model.to(memory_format=layout)
    return {"model": model, "inputs": torch.ones(8, 16, 32, 32)}


@pytest.fixture(autouse=True)
def no_bfloat16(monkeypatch):
    """A processor without instructions for bfloat16."""
    name = "_is_mkldnn_bf16_supported"
    monkeypatch.setattr(torch.ops.mkldnn, name, lambda: False, raising=False)


@pytest.mark.parametrize(
    ("name", "make", "code"),
    [
        ("float64", make_float64, "model.float()"),
        ("denormals", make_denormal, "set_flush_denormal"),
        ("idle", make_frozen, "requires_grad_(False)"),
        ("embedding", make_embedding, "sparse=True"),
        ("autocast", make_autocast, "enabled=False"),
        ("channels_last", make_convolution, "channels_last"),
    ],
)
def test_what_may_cost_time_is_named_with_the_line_that_changes_it(name, make, code):
    found = kit.diagnose(train, **make())
    assert [*found.named] == [name]
    lines = [line for line in found.next_steps() if line.startswith("try ")]
    assert code in lines[0]
    assert "not tried here" in lines[0]


def test_what_is_not_there_is_not_named():
    last = make_convolution(torch.channels_last)
    assert kit.diagnose(train, **last).named == {}
    assert kit.diagnose(train, **make_embedding(sparse=True)).named == {}
