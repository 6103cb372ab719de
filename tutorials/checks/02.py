"""Checks of chapter 02's exercises: they count what the profiler has seen."""

import itertools
import os
from unittest import mock

import torch
from torch import nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile, record_function

from kit.teaching import expect

LABELS = ["load", "forward", "backward", "update"]
#: In which label each operation belongs, by how its name begins.
PLACES = {
    "next batch": ["load"],
    "aten::linear": ["forward"],
    "aten::cross_entropy_loss": ["forward"],
    "autograd::engine": ["backward"],
    "Optimizer.step": ["update"],
    "Optimizer.zero_grad": ["update", "backward"],
}


def _profile(work):
    """Return the events of a function, without the profiler's own log."""
    quiet = mock.patch.dict(os.environ, KINETO_LOG_LEVEL="99")
    with quiet, profile(activities=[ProfilerActivity.CPU]) as profiler:
        work()
    return profiler.events()


def _make_model():
    torch.manual_seed(0)
    layers = [nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(12, 3))
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def _make_batches(sizes):
    for number, size in enumerate(sizes):
        with record_function("next batch"):
            dice = torch.Generator().manual_seed(number)
            inputs = 20 * torch.randn(size, 12, generator=dice)
            batch = inputs, torch.randint(3, (size,), generator=dice)
        yield batch


def _plain_step(model, optimizer, inputs, labels):
    """Train one step as the exercise's cell does."""
    optimizer.zero_grad()
    loss = F.cross_entropy(model(inputs), labels)
    loss.backward()
    grads = [weight.grad for weight in model.parameters()]
    norm = sum(float(grad.norm()) ** 2 for grad in grads) ** 0.5
    answers = model(inputs).argmax(1)
    hits = sum((answers[i] == labels[i]).item() for i in range(len(labels)))
    optimizer.step()
    return loss.item(), hits, norm


def _train(step, sizes):
    """Return what each step returns, the model, and the events."""
    model, optimizer = _make_model()
    batches = [*_make_batches(sizes)]
    returned = []

    def train():
        for batch in batches:
            returned.append(step(model, optimizer, *batch))

    events = _profile(train)
    numbers = [[torch.as_tensor(x).item() for x in results] for results in returned]
    return numbers, model, events


def _assert_alike(model, plain):
    for weight, right in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(weight, right, atol=1e-4), (
            "it trains another model than the plain loop does"
        )


def labelled(labelled):
    """Put four labels into each step, one after the other, around their own work."""
    sizes = [7, 5, 6, 4]
    model, optimizer = _make_model()

    def train():
        generator = labelled(model, optimizer, _make_batches(sizes * 2))
        for size, items in zip(sizes, generator, strict=False):
            assert items == size, f"for {size} items it yields {items!r}"
            with record_function("yield"):
                pass

    events = _profile(train)
    labels = [event for event in events if event.name in [*LABELS, "yield"]]
    names = [label.name for label in labels]
    assert names == [*LABELS, "yield"] * 4, (
        f"the labels of four steps are {names}; in each step, {LABELS} is right"
    )
    for label, later in itertools.pairwise(labels):
        assert label.time_range.end <= later.time_range.start, (
            f"the label {label.name!r} is still open where {later.name!r} begins"
        )
    for prefix, homes in PLACES.items():
        spans = [label.time_range for label in labels if label.name in homes]
        for event in events:
            start, end = event.time_range.start, event.time_range.end
            is_inside = any(span.start <= start <= end <= span.end for span in spans)
            assert is_inside or not event.name.startswith(prefix), (
                f"{event.name} runs outside of the label {' or '.join(homes)}"
            )
    _assert_alike(model, _train(_plain_step, sizes)[1])
    return "four rows that add up: your table is readable."


def lean(lean):
    """Return loss, hits and norm, and make half as many operations."""
    plain, right_model, plain_events = _train(_plain_step, [64, 64, 64])
    found, model, events = _train(lean, [64, 64, 64])
    cases = [((step,), right) for step, right in enumerate(plain)]
    hint = "These are loss, hits and norm of that step, counted from 0."
    expect(lambda step: found[step], cases, rel=1e-4, hint=hint)
    _assert_alike(model, right_model)
    assert model.training, "it leaves the model in eval mode"
    calls = _count(events, "aten::linear") / 3
    assert calls == 3, f"in 3 steps it calls the model {calls:.0f} times"
    reads = _count(events, "aten::_local_scalar_dense")
    assert reads <= 9, f"in 3 steps it reads {reads} numbers, for 3 × 3 results"
    before = _count(plain_events, "aten::")
    operations = _count(events, "aten::")
    assert operations <= before / 2, (
        f"plain_step makes {before} operations in 3 steps, and this {operations}"
    )
    return f"{before} operations became {operations}, and nothing else changed."


def _count(events, prefix):
    return sum(event.name.startswith(prefix) for event in events)
