"""What is recognized and not tried is named with a line of code, once it is there."""

import contextlib

import pytest
import torch
from torch import nn

import kit

pytestmark = pytest.mark.usefixtures("quick")


def train(*, model, make_inputs, optimizer=None, around=contextlib.nullcontext):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=1e-3)
    while True:
        optimizer.zero_grad()
        with around():
            loss = model(make_inputs()).float().sum()
        loss.backward()
        optimizer.step()
        yield 1


def make_plain(dtype=torch.float32):
    return {
        "model": nn.Linear(4, 2, dtype=dtype),
        "make_inputs": lambda: torch.ones(3, 4, dtype=dtype),
    }


def make_denormal():
    plain = make_plain()
    with torch.no_grad():
        plain["model"].weight.fill_(1e-40)
    plain["make_inputs"] = lambda: torch.zeros(3, 4)
    return plain


def make_frozen():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model[1].parameters(), lr=1e-3)
    return make_plain() | {"model": model, "optimizer": optimizer}


def make_embedding(rows=20_000, sparse=False):
    table = nn.Embedding(rows, 64, sparse=sparse)
    return {
        "model": nn.Sequential(table, nn.Linear(64, 1)),
        "make_inputs": lambda: torch.randint(rows, (8,)),
    }


def autocast():
    return torch.autocast("cpu", dtype=torch.bfloat16)


FOUND = {
    "float64": (lambda: make_plain(torch.float64), "parameters are float64", "float()"),
    "denormals": (make_denormal, "% of its numbers are denormal", "flush_denormal"),
    "idle": (make_frozen, "Gradients of 20 numbers", "requires_grad_(False)"),
    "embedding": (make_embedding, "of the 20,000 rows", "sparse=True"),
}


@pytest.mark.parametrize("name", FOUND)
def test_what_may_cost_time_is_named_with_its_line(name):
    make, sentence, code = FOUND[name]
    found = kit.diagnose(train, seconds=4.0, **make())
    assert [*found.named] == [name]
    assert sentence in repr(found)
    assert any(line.startswith("try ") and code in line for line in found.next_steps())


@pytest.mark.parametrize("make", [make_plain, lambda: make_embedding(sparse=True)])
def test_a_loop_without_such_a_thing_has_nothing_named(make):
    assert kit.diagnose(train, seconds=4.0, **make()).named == {}


@pytest.mark.parametrize("has_instructions", [False, True])
def test_autocast_is_named_where_the_processor_lacks_the_instructions(
    monkeypatch, has_instructions
):
    monkeypatch.setattr(
        torch.ops.mkldnn,
        "_is_mkldnn_bf16_supported",
        lambda: has_instructions,
        raising=False,
    )
    found = kit.diagnose(train, seconds=4.0, around=autocast, **make_plain())
    assert ("autocast" in found.named) is not has_instructions


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_convolutions_that_are_not_in_channels_last_are_named(layout):
    model = nn.Sequential(nn.Conv2d(16, 64, 3), nn.Conv2d(64, 64, 3))
    model = model.to(memory_format=layout)
    found = kit.diagnose(
        train, seconds=4.0, model=model, make_inputs=lambda: torch.ones(8, 16, 64, 64)
    )
    assert ("channels_last" in found.named) == (layout == torch.contiguous_format)
