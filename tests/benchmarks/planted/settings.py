"""Loops that a setting makes slow, and healthy ones that look like them.

The last five of the slow ones are from public threads: memory that is filled because
algorithms are deterministic (pytorch/pytorch issue 117081), distributions that check
their arguments (pytorch/pytorch pull request 48743), oneDNN switched off
(pytorch/pytorch issue 35937), attention in parts, and a debugger's trace function.
"""

import sys
import timeit
from contextlib import contextmanager, nullcontext

import torch
from torch import nn
from torch.distributions import Categorical, Distribution, Normal
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim import SGD, Adam
from torch.utils.data import DataLoader, Dataset

from .parts import Joined, Planted, batches, cnn, fit, mlp, numbers, plant, whole

#: How much slower denormal numbers must be for a loop with them to count as slow.
MUCH_SLOWER = 1.5


# What was named in advance


def anomaly_left_on(*, tuned=False):
    """Train a deep and narrow network with anomaly detection, to find a NaN."""
    torch.autograd.set_detect_anomaly(not tuned)
    data = batches(64, numbers(640, 64), whole(10, 640))
    yield from fit(mlp(*[64] * 24, 10), data, SGD, lr=0.01)


def anomaly_around_each_step(*, tuned=False):
    """Train as above, with anomaly detection around each step."""
    model, data = mlp(*[64] * 24, 10), batches(64, numbers(640, 64), whole(10, 640))
    optimizer = SGD(model.parameters(), lr=0.01)
    for inputs, targets in data:
        with nullcontext() if tuned else torch.autograd.set_detect_anomaly(True):
            loss = F.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
        optimizer.step()
        yield len(inputs)


def autocast_without_instructions(*, tuned=False):
    """Train convolutions in bfloat16 on a processor without instructions for it."""
    model, data = cnn(16), batches(8, numbers(64, 3, 32, 32), whole(10, 64))
    optimizer = SGD(model.parameters(), lr=0.01)
    for inputs, targets in data:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=not tuned):
            loss = F.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield len(inputs)


def double_precision(*, tuned=False):
    """Train wide layers in float64, as data from NumPy are."""
    kind = torch.float32 if tuned else torch.float64
    data = batches(256, numbers(1024, 512).to(kind), whole(10, 1024))
    yield from fit(mlp(512, 512, 512, 10).to(kind), data, Adam, lr=1e-3, fused=True)


def backbone_with_gradients(*, tuned=False):
    """Train a head on a backbone that is never updated, and gets gradients."""
    backbone, head = mlp(512, 1024, 1024, 512), nn.Linear(512, 10)
    backbone.requires_grad_(not tuned)
    model = nn.Sequential(backbone, head)
    optimizer = Adam(head.parameters(), lr=1e-3, fused=True)
    for inputs, targets in batches(128, numbers(1024, 512), whole(10, 1024)):
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        yield len(inputs)


def hooks_left_on(*, tuned=False):
    """Train with a hook on each layer that notes how its outputs are spread."""
    model, notes = mlp(*[128] * 12, 10), {}

    def note(module, inputs, outputs):
        spread = outputs.detach().flatten().sort().values
        notes[id(module)] = [spread[n].item() for n in range(0, len(spread), 512)]

    for layer in () if tuned else model:
        layer.register_forward_hook(note)
    data = batches(128, numbers(1024, 128), whole(10, 1024))
    yield from fit(model, data, SGD, lr=0.01)


def denormal_weights(*, tuned=False):
    """Train on one thread with weights that have decayed to almost nothing."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(tuned)
    model = mlp(512, 512, 512, 10)
    for parameter in model[2].parameters():
        nn.init.uniform_(parameter, 1e-40, 1e-39)
    model[2].requires_grad_(False)
    data = batches(64, numbers(640, 512), whole(10, 640))
    yield from fit(model, data, SGD, lr=1e-3, fused=True)


# What public threads tell


def memory_filled(*, tuned=False):
    """Update a few rows of large buffers, with deterministic algorithms."""
    torch.use_deterministic_algorithms(not tuned)
    model = mlp(256, 256, 10)
    optimizer = SGD(model.parameters(), lr=0.01, fused=True)
    for rows, labels in batches(64, numbers(640, 256), whole(10, 640)):
        padded = torch.empty(16_384, 256)
        padded[: len(rows)] = rows
        optimizer.zero_grad()
        F.cross_entropy(model(padded[: len(rows)]), labels).backward()
        optimizer.step()
        yield len(rows)


def distributions_checked(*, tuned=False):
    """Train a policy whose actions have several parts, as in reinforcement learning."""
    body, heads = mlp(32, 64, 64), nn.ModuleList(nn.Linear(64, 4) for _ in range(8))
    policy = nn.ModuleList([body, *heads])
    optimizer = Adam(policy.parameters(), lr=1e-3, fused=True)
    with _checking_arguments(not tuned):
        for states, actions in batches(64, numbers(640, 32), whole(4, 640, 8)):
            hidden = body(states).tanh()
            chance = 0.0
            for part, head in enumerate(heads):
                scores = head(hidden)
                chance = chance + Categorical(logits=scores).log_prob(actions[:, part])
                chance = chance + Normal(scores[:, 0], 1.0).log_prob(states[:, part])
            optimizer.zero_grad()
            (-chance.mean()).backward()
            optimizer.step()
            yield len(states)


@contextmanager
def _checking_arguments(on):
    before = Distribution._validate_args
    Distribution.set_default_validate_args(on)
    try:
        yield
    finally:
        Distribution.set_default_validate_args(before)


def library_switched_off(*, tuned=False):
    """Train convolutions without the library that computes them."""
    layers = nn.Conv2d(3, 64, 3, padding=1), nn.Conv2d(64, 64, 3, padding=1)
    model = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.Flatten())
    model.append(nn.Linear(64 * 24 * 24, 10))
    data = batches(8, numbers(64, 3, 24, 24), whole(10, 64))
    with torch.backends.mkldnn.flags(enabled=tuned):
        yield from fit(model, data, SGD, lr=0.01)


def attention_in_parts(*, tuned=False):
    """Train attention over long sequences, with the one-operation form forbidden."""
    project, out = nn.Linear(64, 192), nn.Linear(64, 16)

    def attend(states):
        parts = project(states).unflatten(-1, (3, 2, 32)).permute(2, 0, 3, 1, 4)
        return out(F.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2))

    data = batches(2, numbers(16, 1024, 64), numbers(16, 1024, 16))
    model = Joined(attend, project, out)
    kinds = [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]
    with sdpa_kernel(kinds if tuned else SDPBackend.MATH):
        yield from fit(model, data, SGD, find_loss=F.mse_loss, lr=1e-3)


def under_a_debugger(*, tuned=False):
    """Train with features made in Python, each line of which a debugger is told."""

    def trace(frame, event, argument):
        return trace

    @contextmanager
    def debugging():
        before = sys.gettrace()
        sys.settrace(None if tuned else trace)
        try:
            yield
        finally:
            sys.settrace(before)

    def describe(rows):
        return torch.tensor([[sum(row), max(row), min(row)] for row in rows])

    model, lists = mlp(3, 64, 10), numbers(64, 200).tolist()
    optimizer = SGD(model.parameters(), lr=0.01)
    labels = whole(10, 64)
    with debugging():
        while True:
            total = 0
            for number in range(6_000):
                total += number % 7
            optimizer.zero_grad()
            F.cross_entropy(model(describe(lists)), labels).backward()
            optimizer.step()
            yield len(lists)


def _times(act):
    return min(timeit.repeat(act, number=20, repeat=5))


def _are_denormals_slow():
    """Return whether this processor computes much slower with denormal numbers."""
    few, usual = torch.full((100_000,), 1e-39), torch.ones(100_000)
    return _times(lambda: few * 0.5) > MUCH_SLOWER * _times(lambda: usual * 0.5)


def list_slow():
    """Return the slow loops that are slow on this machine."""
    slow = [anomaly_left_on, anomaly_around_each_step, double_precision]
    slow += [backbone_with_gradients, memory_filled, distributions_checked]
    slow += [library_switched_off, attention_in_parts, under_a_debugger]
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        slow.append(autocast_without_instructions)
    if _are_denormals_slow():
        slow.append(denormal_weights)
    found = plant("settings", *slow, tuned=True)
    return [*found, *plant("hooks", hooks_left_on, tuned=True)]


# Healthy twins


def double_precision_needed():
    """Train on small differences of large numbers, which float32 does not have."""

    def forward(rows):
        far = rows + 1e8
        return model((far - 1e8).square())

    model = mlp(512, 512, 512, 10).double()
    data = batches(256, numbers(1024, 512).double(), whole(10, 1024))
    joined = Joined(forward, model)
    yield from fit(joined, data, Adam, lr=1e-3, fused=True)


def deterministic_at_no_cost():
    """Train wide layers with deterministic algorithms, which cost nothing there."""
    torch.use_deterministic_algorithms(True)
    data = batches(256, numbers(1024, 1024), whole(10, 1024))
    yield from fit(mlp(1024, 1024, 1024, 10), data, SGD, lr=0.01, fused=True)


def backbone_frozen():
    """Train a head on a backbone that is frozen."""
    return backbone_with_gradients(tuned=True)


def cheap_hook():
    """Train wide layers with a hook that counts how often one is called."""
    model, calls = mlp(512, 1024, 1024, 10), []
    model[2].register_forward_hook(lambda *_: calls.append(1))
    data = batches(256, numbers(1024, 512), whole(10, 1024))
    yield from fit(model, data, SGD, lr=0.01, fused=True)


class Sorted(Dataset):
    """Rows that take some time to make."""

    def __init__(self, times):
        self.times = times

    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        row = numbers(64, 512)[index % 64]
        for _ in range(self.times):
            row.sort()
        return row, index % 10


def one_thread_beside_a_worker():
    """Train on one thread of two cores, while a worker computes on the other."""
    torch.set_num_threads(1)
    loader = DataLoader(Sorted(6), 64, num_workers=1, persistent_workers=True)
    model = mlp(512, 1024, 1024, 10)
    yield from fit(model, loader, SGD, lr=0.01, fused=True)


def workers_already_right():
    """Train wide layers on two threads, with one worker that has little to do."""
    loader = DataLoader(Sorted(0), 256, num_workers=1, persistent_workers=True)
    yield from fit(mlp(512, 1024, 1024, 1024, 10), loader, SGD, lr=0.01, fused=True)


def list_healthy():
    """Return healthy loops beside the slow ones."""
    twins = [double_precision_needed, deterministic_at_no_cost, backbone_frozen]
    twins += [cheap_hook, one_thread_beside_a_worker, workers_already_right]
    found = plant(None, *twins)
    if torch.ops.mkldnn._is_mkldnn_bf16_supported():
        gains = autocast_without_instructions
        found.append(Planted("autocast with instructions", None, gains))
    return found
