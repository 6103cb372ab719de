"""Loops with fewer or more threads than there are cores."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from .parts import Planted, batches, mlp, numbers, shown, whole_numbers


def layers_on_one_thread(*, one_thread=True):
    """Train wide layers on one thread."""
    if one_thread:
        torch.set_num_threads(1)
    model = mlp(784, 800, 800, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, fused=True)
    for images, labels in batches(256, numbers(2048, 784), whole_numbers(10, 2048)):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        yield len(images)


def images_on_one_thread(*, one_thread=True):
    """Train a convolutional network on one thread."""
    if one_thread:
        torch.set_num_threads(1)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 5, padding=2),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.MaxPool2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(1024, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    for images, labels in batches(16, numbers(160, 3, 32, 32), whole_numbers(10, 160)):
        loss = criterion(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield len(images)


def transformer_on_many_threads(*, threads_per_core=4):
    """Train a small transformer on four times as many threads as cores."""
    torch.set_num_threads(threads_per_core * torch.get_num_threads())
    layer = nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True)
    model = nn.Sequential(nn.TransformerEncoder(layer, 2), nn.Linear(128, 50))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    for states, words in batches(16, numbers(160, 32, 128), whole_numbers(50, 160, 32)):
        loss = F.cross_entropy(model(states).flatten(0, 1), words.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        yield len(states)


def gates_on_many_threads(*, threads_per_core=4):
    """Train a recurrent cell on four times as many threads as cores."""
    torch.set_num_threads(threads_per_core * torch.get_num_threads())
    cell, head = nn.GRUCell(64, 192), nn.Linear(192, 64)
    parameters = [*cell.parameters(), *head.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.01, fused=True)
    for series in batches(192, numbers(768, 10, 64)):
        state = torch.zeros(192, 192)
        loss = torch.zeros(())
        for time in range(9):
            state = cell(series[0][:, time], state)
            loss = loss + F.mse_loss(head(state), series[0][:, time + 1])
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
    models = [mlp(64, *[160] * 4, 10) for _ in range(8)]
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, fused=True) for m in models]

    def train(member, inputs, labels):
        loss = F.cross_entropy(models[member](inputs), labels)
        optimizers[member].zero_grad()
        loss.backward()
        optimizers[member].step()

    with make_pool(crowded) as pool:
        for inputs, labels in batches(256, numbers(2048, 64), whole_numbers(10, 2048)):
            steps = [pool.submit(train, i, inputs, labels) for i in range(len(models))]
            for step in steps:
                step.result()
            yield len(inputs)


def taught_in_a_pool(*, crowded=True):
    """Learn from a teacher that is asked in a pool whose threads have many threads."""
    teacher = mlp(128, *[192] * 10, 10, activation=nn.Tanh).requires_grad_(False)
    model = mlp(128, 64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with make_pool(crowded) as pool:
        for (inputs,) in batches(512, numbers(4096, 128)):
            taught = torch.cat(list(pool.map(teacher, inputs.split(32))))
            loss = F.kl_div(
                model(inputs).log_softmax(1), taught.softmax(1), reduction="batchmean"
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield len(inputs)


_TABLE = [
    ("wide layers on one thread", layers_on_one_thread, {"one_thread": False}),
    ("convolutions on one thread", images_on_one_thread, {"one_thread": False}),
    (
        "a transformer on many threads",
        transformer_on_many_threads,
        {"threads_per_core": 1},
    ),
    (
        "a recurrent cell on many threads",
        gates_on_many_threads,
        {"threads_per_core": 1},
    ),
    ("an ensemble in a pool", ensemble_in_a_pool, {"crowded": False}),
    ("a teacher asked in a pool", taught_in_a_pool, {"crowded": False}),
]
THREADS = [
    *(Planted(name, "threads", bad, partial(bad, **fix)) for name, bad, fix in _TABLE),
    shown("F", "an autoencoder on many threads", "threads"),
]
