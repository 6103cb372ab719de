"""Training loops with a planted fault, or none; nine more stand in chapter 03."""

import itertools

import torch
from slow_loops import batches, mlp, numbers, whole_numbers
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim import SGD
from torch.utils.data import DataLoader, TensorDataset


def fit(model, data, find_loss=F.cross_entropy, lr=0.01):
    optimizer = SGD(model.parameters(), lr=lr, fused=True)
    for inputs, targets in data:
        loss = find_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield len(inputs)


class Joined(nn.Module):
    """Modules, and the function that joins them."""

    def __init__(self, forward, *modules):
        super().__init__()
        self.join, self.parts = forward, nn.ModuleList(modules)

    def forward(self, inputs):
        return self.join(inputs)


def workers_restarted():
    """Train on short epochs, at each of which the workers start anew."""
    data = TensorDataset(numbers(256, 32), whole_numbers(10, 256))
    loader = DataLoader(data, 32, num_workers=2)
    epochs = itertools.chain.from_iterable(itertools.repeat(loader))
    yield from fit(mlp(32, 128, 10), epochs, lr=0.1)


def memory_filled():
    """Update a few rows of large buffers, with deterministic algorithms."""
    torch.use_deterministic_algorithms(True)
    model = mlp(256, 256, 10)

    def pad(rows):
        padded = torch.empty(16_384, 256)
        padded[: len(rows)] = rows
        return model(padded[: len(rows)])

    data = batches(64, numbers(640, 256), whole_numbers(10, 640))
    yield from fit(Joined(pad, model), data)


def library_switched_off():
    """Train convolutions without the library that computes them."""
    layers = nn.Conv2d(3, 64, 3, padding=1), nn.Conv2d(64, 64, 3, padding=1)
    model = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.Flatten())
    model.append(nn.Linear(64 * 24 * 24, 10))
    data = batches(8, numbers(64, 3, 24, 24), whole_numbers(10, 64))
    with torch.backends.mkldnn.flags(enabled=False):
        yield from fit(model, data)


def attention_in_parts():
    """Train attention over long sequences, with the one-operation form forbidden."""
    project, out = nn.Linear(64, 192), nn.Linear(64, 16)

    def attend(states):
        parts = project(states).unflatten(-1, (3, 2, 32)).permute(2, 0, 3, 1, 4)
        return out(F.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2))

    data = batches(2, numbers(16, 1024, 64), numbers(16, 1024, 16))
    with sdpa_kernel(SDPBackend.MATH):
        yield from fit(Joined(attend, project, out), data, F.mse_loss, lr=1e-3)


def image_smoothed():
    """Remove noise from a large image by gradient descent on its total variation."""
    noisy = numbers(1, 1600, 1600)
    image = nn.Parameter(noisy.clone())

    def vary(clean, noisy):
        across = (clean[..., 1:] - clean[..., :-1]).abs().sum()
        down = (clean[..., 1:, :] - clean[..., :-1, :]).abs().sum()
        return (clean - noisy).square().sum() / 2 + 0.5 * (across + down)

    model = Joined(lambda noisy: image, nn.ParameterList([image]))
    yield from fit(model, itertools.repeat((noisy, noisy)), vary, lr=0.1)


def sort_scores():
    """Sort: useful work, neither a product nor bound by memory."""
    scores = numbers(500_000)
    while True:
        scores.sort()
        yield 1
