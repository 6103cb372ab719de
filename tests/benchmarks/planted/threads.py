"""Loops with fewer or more threads than there are cores."""

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam

from .parts import Joined, batches, clip_to_one, fit, mlp, numbers, plant, shown, whole


def layers_on_one_thread(*, one_thread=True):
    """Train wide layers on one thread."""
    if one_thread:
        torch.set_num_threads(1)
    data = batches(256, numbers(2048, 784), whole(10, 2048))
    yield from fit(mlp(784, 800, 800, 10), data, SGD, lr=0.05, fused=True)


def images_on_one_thread(*, one_thread=True):
    """Train a convolutional network on one thread."""
    if one_thread:
        torch.set_num_threads(1)
    layers = [nn.Conv2d(3, 32, 5, padding=2), nn.MaxPool2d(2), nn.ReLU()]
    layers += [nn.Conv2d(32, 64, 5, padding=2), nn.MaxPool2d(4), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(1024, 10))
    data = batches(16, numbers(160, 3, 32, 32), whole(10, 160))
    yield from fit(model, data, SGD, lr=0.01, momentum=0.9)


def transformer_on_many_threads(*, threads_per_core=4):
    """Train a small transformer on four times as many threads as cores."""
    torch.set_num_threads(threads_per_core * torch.get_num_threads())
    layer = nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True)
    model = nn.Sequential(nn.TransformerEncoder(layer, 2), nn.Linear(128, 50))
    join = Joined(lambda states: model(states).transpose(1, 2), model)
    data = batches(16, numbers(160, 32, 128), whole(50, 160, 32))
    yield from fit(join, data, Adam, clip=clip_to_one, lr=1e-3, fused=True)


def gates_on_many_threads(*, threads_per_core=4):
    """Train a recurrent cell on four times as many threads as cores."""
    torch.set_num_threads(threads_per_core * torch.get_num_threads())
    cell, head = nn.GRUCell(64, 192), nn.Linear(192, 64)
    optimizer = SGD([*cell.parameters(), *head.parameters()], lr=0.01, fused=True)
    for (series,) in batches(192, numbers(768, 10, 64)):
        state = torch.zeros(192, 192)
        loss = torch.zeros(())
        for time in range(9):
            state = cell(series[:, time], state)
            loss = loss + F.mse_loss(head(state), series[:, time + 1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield len(state)


def make_pool(crowded):
    """Make a pool of as many threads as cores; crowded: of twice as many.

    Then each of them computes on four more threads per core, else on itself alone.
    """
    cores = torch.get_num_threads()
    threads, each = (2 * cores, 4 * cores) if crowded else (cores, 1)
    return ThreadPoolExecutor(
        threads, initializer=torch.set_num_threads, initargs=(each,)
    )


def ensemble_in_a_pool(*, crowded=True):
    """Train an ensemble in a pool, each of whose threads has many threads."""
    data = numbers(2048, 64), whole(10, 2048)
    members = []
    for _ in range(8):
        model = mlp(64, *[160] * 4, 10)
        members.append(fit(model, batches(256, *data), SGD, lr=0.1, fused=True))
    with make_pool(crowded) as pool:
        while True:
            yield [*pool.map(next, members)][0]


def taught_in_a_pool(*, crowded=True):
    """Learn from a teacher that is asked in a pool whose threads have many threads."""
    teacher = mlp(128, *[192] * 10, 10, activation=nn.Tanh).requires_grad_(False)
    model = mlp(128, 64, 10)
    data = batches(512, numbers(4096, 128), numbers(4096, 128))
    with make_pool(crowded) as pool:

        def follow(outputs, inputs):
            taught = torch.cat(list(pool.map(teacher, inputs.split(32)))).softmax(1)
            return F.kl_div(outputs.log_softmax(1), taught, reduction="batchmean")

        yield from fit(model, data, SGD, find_loss=follow, lr=0.1, momentum=0.9)


THREADS = [
    shown("F", "threads"),
    *plant("threads", layers_on_one_thread, images_on_one_thread, one_thread=False),
    *plant("threads", transformer_on_many_threads, threads_per_core=1),
    *plant("threads", gates_on_many_threads, threads_per_core=1),
    *plant("threads", ensemble_in_a_pool, taught_in_a_pool, crowded=False),
]
