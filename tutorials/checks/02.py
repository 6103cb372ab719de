"""Checks of chapter 02's exercises: each calls the reader's code under the profiler.

They go by counts, by the order of events, and by what lies inside what; never by time.
"""

import inspect
import itertools
import math
import os
import time
from unittest import mock

import torch
from torch.autograd.profiler_util import EventList, FunctionEvent
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile, record_function

#: Labels that the checks put around what they hand in.
_NEXT, _MODEL, _YIELD = "check: next", "check: model", "yield"
#: PyTorch's number for events that Python code opened by name.
_USER_SCOPE = 7


def _profile(work):
    """Return the events of what a function does, in the order of their starts.

    The profiler's own log, which the reader cannot act on, stays off the screen.
    """
    quiet = mock.patch.dict(os.environ, KINETO_LOG_LEVEL="99")
    with quiet, profile(activities=[ProfilerActivity.CPU]) as profiler:
        work()
    return profiler.events()


def _lies_within(event, *others):
    """Return whether an event begins and ends while one of the others runs."""
    return any(
        other.time_range.start <= event.time_range.start
        and event.time_range.end <= other.time_range.end
        for other in others
    )


class _Net(torch.nn.Sequential):
    """A small network; each call of it is labelled."""

    def forward(self, inputs):
        with record_function(_MODEL):
            return super().forward(inputs)


def _make_net():
    """Make the same network each time, and leave the reader's random numbers alone."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        layers = [(torch.nn.Linear(12, 12), torch.nn.ReLU()) for _ in range(2)]
        return _Net(*itertools.chain(*layers), torch.nn.Linear(12, 3))


def _make_batch(number, size):
    """Make the same batch each time; a large scale makes large gradients."""
    dice = torch.Generator().manual_seed(number)
    inputs = 20 * torch.randn(size, 12, generator=dice)
    return inputs, torch.randint(3, (size,), generator=dice)


def _make_optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def _are_alike(model, other):
    pairs = zip(model.parameters(), other.parameters(), strict=True)
    return all(torch.allclose(one, two, atol=1e-4) for one, two in pairs)


def busy(busy):
    """Each moment once, however many events it lies in; pauses not at all."""
    spans = [
        ("step", 20, 120),
        ("forward", 30, 60),
        ("aten::mm", 40, 50),
        ("save", 170, 180),
        ("aten::sum", 190, 195),
    ]
    made_up = EventList(
        FunctionEvent(number, name, 1, start, end, stack=[], input_shapes=[])
        for number, (name, start, end) in enumerate(spans)
    )
    made_up._build_tree()
    what = ", ".join(f"{name} from {start} to {end} µs" for name, start, end in spans)
    _check_busy(busy, made_up, f"five events ({what})")
    _check_busy(busy, _profile(_work_and_pause), "a profile with labels and a pause")
    return "each moment counts once, whatever the labels around it."


def _work_and_pause():
    numbers = torch.ones(64, 64)
    with record_function("step"):
        for name in ("forward", "backward"):
            with record_function(name):
                numbers = F.linear(numbers, numbers).tanh()
    time.sleep(0.02)
    numbers.softmax(dim=1).sum()


def _check_busy(busy, events, what):
    ranges = [event.time_range for event in events]
    expected, until = 0.0, -math.inf
    for moment in sorted(ranges, key=lambda moment: moment.start):
        expected += max(0.0, moment.end - max(moment.start, until))
        until = max(until, moment.end)
    hints = {
        sum(event.cpu_time_total for event in events): (
            ": what lies inside a label counts there, and once more for itself"
        ),
        until - min(moment.start for moment in ranges): ": the pauses count, too",
        max(moment.elapsed_us() for moment in ranges): ": that is the longest alone",
    }
    found = _read(busy(events))
    assert isinstance(found, (int, float)), (
        f"of {what} it makes {found!r:.60}, and not a number of microseconds"
    )
    hint = next((text for value, text in hints.items() if _is_near(found, value)), "")
    assert _is_near(found, expected), (
        f"of {what} it makes {found:,.0f} µs, and something ran in {expected:,.0f} µs"
        + hint
    )


def _is_near(found, expected):
    return math.isclose(found, expected, rel_tol=0.01)


def _read(value):
    """Return a tensor's number; a number as it is."""
    return value.item() if hasattr(value, "item") else value


#: What has to lie in which label: what its name begins with, what it is, the labels.
_PLACES = [
    (_NEXT, "reading a batch, `next(batches)`,", ["load"]),
    (_MODEL, "the call of the model", ["forward"]),
    ("aten::log_softmax", "the loss", ["forward"]),
    ("autograd::engine::evaluate_function", "`loss.backward()`", ["backward"]),
    ("Optimizer.step#", "`optimizer.step()`", ["update"]),
    ("Optimizer.zero_grad#", "`optimizer.zero_grad()`", ["update", "backward"]),
]
_LABELS = ["load", "forward", "backward", "update"]


def labelled(labelled):
    """Four labels per step, one after the other, each around its own work."""
    sizes, counts = [7, 5, 6, 4], []
    model, twin = _make_net(), _make_net()
    generator = labelled(model, _make_optimizer(model), _read_batches(sizes))
    assert inspect.isgenerator(generator), "it is no generator: does it say `yield`?"

    def train():
        for items in itertools.islice(generator, len(sizes)):
            with record_function(_YIELD):
                counts.append(items)
        generator.close()

    events = _profile(train)
    assert counts == sizes, (
        f"for batches of {sizes} items it yields {counts}: one yield per step, for ever"
    )
    labels = [
        event
        for event in events
        if event.scope == _USER_SCOPE
        and event.name not in (_NEXT, _MODEL)
        and not event.name.startswith("Optimizer.")
    ]
    _check_order(labels)
    _check_places(events, labels)
    optimizer = _make_optimizer(twin)
    for number, size in enumerate(sizes):
        inputs, wanted = _make_batch(number, size)
        optimizer.zero_grad()
        F.cross_entropy(twin(inputs), wanted).backward()
        optimizer.step()
    assert _are_alike(model, twin), (
        "after four steps the parameters are not those of the loop without labels"
    )
    return "four rows that add up: your table is readable."


def _read_batches(sizes):
    for number in itertools.count():
        with record_function(_NEXT):
            batch = _make_batch(number, sizes[number % len(sizes)])
        yield batch


def _check_order(labels):
    names = [label.name for label in labels]
    if unknown := sorted(set(names) - {*_LABELS, _YIELD}):
        raise AssertionError(
            f"there is a label {unknown[0]!r}: what lies in it and in another label, "
            f"too, counts twice. Only {', '.join(_LABELS)}, please"
        )
    for start in range(0, len(names), 5):
        found = names[start : start + 5]
        assert found == [*_LABELS, _YIELD], (
            f"a step is {', '.join(found)}: it should be {', '.join(_LABELS)}, each "
            "once, and then the yield"
        )
    for label, later in itertools.pairwise(labels):
        assert label.time_range.end <= later.time_range.start, (
            f"the label {label.name!r} is still open at the next one's begin, "
            f"{later.name!r}: close each label before what comes next"
        )


def _check_places(events, labels):
    for prefix, what, names in _PLACES:
        homes = [label for label in labels if label.name in names]
        for event in events:
            assert not event.name.startswith(prefix) or _lies_within(event, *homes), (
                f"{what} belongs in the label {' or '.join(map(repr, names))}, and "
                "runs outside it"
            )
    for event in events:
        assert not event.name.startswith("aten::") or _lies_within(event, *labels), (
            f"an operation {event.name} runs in none of the four labels"
        )


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


def lean(lean):
    """The same loss, hits, norm and parameters, from half as many operations."""
    wanted, plain, twin = _train_three_steps(_plain_step)
    found, events, model = _train_three_steps(lean)
    for number, (values, expected) in enumerate(zip(found, wanted, strict=True), 1):
        assert isinstance(values, (tuple, list)) and len(values) == 3, (
            f"it returns {values!r:.60}, and not the loss, the hits and the norm"
        )
        names = ("loss", "hits", "norm")
        for name, value, right in zip(names, values, expected, strict=True):
            value = _read(value)
            assert math.isclose(value, right, rel_tol=1e-4), (
                f"step {number}: as {name} it returns {value:.5g}, and plain_step "
                f"{right:.5g}"
            )
    assert _are_alike(model, twin), (
        "after three steps the model's parameters are not those that plain_step makes"
    )
    assert all(module.training for module in model.modules()), (
        "it leaves the model in eval mode, and the next step trains in it"
    )
    calls = _count(events, _MODEL)
    assert calls == 3, (
        f"in 3 steps it calls the model {calls} times: the outputs that make the loss "
        "hold the guesses, too"
    )
    reads = _count(events, "aten::_local_scalar_dense")
    assert reads <= 9, (
        f"in 3 steps it asks tensors for a number {reads} times, for 3 × 3 results: "
        "count and add up in tensors, and ask at the end"
    )
    operations, before = _count(events, "aten::"), _count(plain, "aten::")
    assert operations <= before / 2, (
        f"plain_step makes {before} operations in 3 steps, and this {operations}: half "
        "as many is the aim"
    )
    return f"{before} operations became {operations}, and nothing else changed."


def _train_three_steps(step):
    """Return what three steps return, their events, and the model."""
    model, returned = _make_net(), []
    optimizer = _make_optimizer(model)
    batches = [_make_batch(number, 64) for number in range(3)]

    def train():
        returned.extend(step(model, optimizer, *batch) for batch in batches)

    return returned, _profile(train), model


def _count(events, prefix):
    return sum(event.name.startswith(prefix) for event in events)
