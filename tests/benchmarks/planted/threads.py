"""Loops with fewer or more threads than there are cores."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch
from planted.input_data import jpeg_photos
from planted.parts import Planted, batches, cnn, mlp, numbers, whole_numbers
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader


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
    for series in batches(256, numbers(1024, 13, 64)):
        state = torch.zeros(256, 192)
        loss = torch.zeros(())
        for time in range(12):
            state = cell(series[0][:, time], state)
            loss = loss + F.mse_loss(head(state), series[0][:, time + 1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield len(state)


def ensemble_in_a_pool(*, threads=8, quietly=None):
    """Train an ensemble in a pool of threads, each of which uses all cores."""
    models = [mlp(64, 160, 160, 10) for _ in range(8)]
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, fused=True) for m in models]

    def train(member, inputs, labels):
        loss = F.cross_entropy(models[member](inputs), labels)
        optimizers[member].zero_grad()
        loss.backward()
        optimizers[member].step()

    with ThreadPoolExecutor(threads, initializer=quietly) as pool:
        for inputs, labels in batches(256, numbers(2048, 64), whole_numbers(10, 2048)):
            steps = [pool.submit(train, i, inputs, labels) for i in range(len(models))]
            for step in steps:
                step.result()
            yield len(inputs)


def views_in_a_pool(*, threads=8, quietly=None):
    """Distort the images of a batch in a pool of threads that each use all cores."""
    model = cnn(16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def distort(image):
        image = F.avg_pool2d(F.pad(image[None], [2] * 4, mode="reflect"), 5, 1)
        image = F.interpolate(image, size=80, mode="bilinear")
        return (image - image.mean()) / image.std()

    with ThreadPoolExecutor(threads, initializer=quietly) as pool:
        for images, labels in batches(
            16, numbers(160, 3, 112, 112), whole_numbers(10, 160)
        ):
            views = torch.cat(list(pool.map(distort, images)))
            loss = F.cross_entropy(model(views), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield len(images)


def workers_take_all(*, num_workers=12):
    """Train on photos with many more workers than cores."""
    loader = DataLoader(
        jpeg_photos(48),
        4,
        shuffle=True,
        num_workers=num_workers,
        persistent_workers=True,
    )
    model = nn.Sequential(*[nn.Linear(192, 192) for _ in range(24)], nn.Linear(192, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    while True:
        for images, labels in loader:
            patches = images.unfold(2, 8, 8).unfold(3, 8, 8).permute(0, 2, 3, 1, 4, 5)
            scores = model(patches.reshape(len(images), 36, 192)).mean(1)
            loss = F.cross_entropy(scores, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield len(images)


_POOL = {"threads": torch.get_num_threads(), "quietly": partial(torch.set_num_threads, 1)}
_TABLE = [
    ("wide layers on one thread", layers_on_one_thread, {"one_thread": False}),
    ("convolutions on one thread", images_on_one_thread, {"one_thread": False}),
    ("a transformer on many threads", transformer_on_many_threads, {"threads_per_core": 1}),
    ("a recurrent cell on many threads", gates_on_many_threads, {"threads_per_core": 1}),
    ("an ensemble in a pool", ensemble_in_a_pool, _POOL),
    ("images distorted in a pool", views_in_a_pool, _POOL),
    ("workers that take all cores", workers_take_all, {"num_workers": 1}),
]
THREADS = [
    Planted(name, "threads", bad, partial(bad, **fix)) for name, bad, fix in _TABLE
]
