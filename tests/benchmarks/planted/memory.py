"""Loops that wait for memory: few operations on each number that is moved."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from .parts import Planted, batches, mlp, numbers, whole_numbers


class Gate(nn.Module):
    """An activation whose shape is learned, written as a chain of operations."""

    def __init__(self, channels):
        super().__init__()
        self.slope = nn.Parameter(torch.ones(channels, 1, 1))
        self.bend = nn.Parameter(torch.zeros(channels, 1, 1))

    def forward(self, inputs):
        bounded = (self.slope * inputs + self.bend).clamp(0, 6) / 6
        return inputs * bounded + 0.1 * (inputs - bounded).abs()


def elementwise_chain():
    """Train learned activations between thin convolutions over large images."""
    model = nn.Sequential(
        Gate(8), Gate(8), nn.AvgPool2d(32), nn.Flatten(), nn.Linear(512, 4)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for images, labels in batches(4, numbers(16, 8, 256, 256), whole_numbers(4, 16)):
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield len(images)


def image_smoothed():
    """Remove noise from a large image by gradient descent on its total variation."""
    noisy = numbers(1, 1600, 1600)
    image = nn.Parameter(noisy.clone())
    optimizer = torch.optim.SGD([image], lr=0.1)
    while True:
        across = (image[..., 1:] - image[..., :-1]).abs().sum()
        down = (image[..., 1:, :] - image[..., :-1, :]).abs().sum()
        loss = (image - noisy).square().sum() / 2 + 0.5 * (across + down)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield 1


def huge_embedding():
    """Classify texts by the mean of fixed vectors out of a huge table."""
    words = nn.EmbeddingBag.from_pretrained(numbers(150_000, 128), mode="mean")
    head = mlp(128, 32, 4)
    optimizer = torch.optim.Adam(head.parameters(), lr=1e-3, fused=True)
    texts, labels = whole_numbers(150_000, 4096, 160), whole_numbers(4, 4096)
    for text, label in batches(2048, texts, labels):
        loss = F.cross_entropy(head(words(text)), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield len(text)


def vectors_factorised():
    """Factorise ratings: two wide tables, a product of a few numbers per rating."""
    users = nn.Embedding.from_pretrained(numbers(60_000, 128), freeze=True)
    things = nn.Embedding.from_pretrained(numbers(50_000, 128), freeze=True)
    scale = nn.Parameter(torch.ones(128))
    optimizer = torch.optim.SGD([scale], lr=0.01)
    who, what = whole_numbers(60_000, 80_000), whole_numbers(50_000, 80_000)
    for user, thing, rating in batches(20_000, who, what, numbers(80_000)):
        guess = (users(user) * things(thing) * scale).sum(1)
        loss = F.mse_loss(guess, rating)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield len(rating)


class ChannelsLastNorm(nn.Module):
    """Normalise over channels, which are put last and back again by copies."""

    def __init__(self, channels):
        super().__init__()
        self.norm = nn.LayerNorm(channels)

    def forward(self, images):
        images = images.permute(0, 2, 3, 1).contiguous()
        return self.norm(images).permute(0, 3, 1, 2).contiguous()


def layout_copied():
    """Train thin layers whose images change their layout again and again."""
    model = nn.Sequential(
        ChannelsLastNorm(64), nn.ReLU(), ChannelsLastNorm(64), cnn_head()
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for images, labels in batches(16, numbers(32, 64, 56, 56), whole_numbers(10, 32)):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        yield len(images)


def cnn_head():
    return nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(1024, 10))


def big_normalisations():
    """Train batch normalisations over images that do not fit a cache."""
    model = nn.Sequential(
        nn.BatchNorm2d(24),
        nn.ReLU(inplace=True),
        nn.BatchNorm2d(24),
        nn.AvgPool2d(16),
        nn.Flatten(),
        nn.Linear(24 * 49, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for images, labels in batches(16, numbers(32, 24, 112, 112), whole_numbers(10, 32)):
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield len(images)


def dense_connections():
    """Train scales of channels, each layer's beside a copy of all that came before."""
    scales = nn.ParameterList(torch.ones(8 * (i + 1), 1, 1) for i in range(3))
    head = nn.Linear(64, 5)
    optimizer = torch.optim.SGD([*scales, *head.parameters()], lr=0.01)
    for images, labels in batches(4, numbers(16, 8, 144, 144), whole_numbers(5, 16)):
        seen = images
        for scale in scales:
            fresh = F.relu(seen * scale).unflatten(1, (8, -1)).sum(2)
            seen = torch.cat([seen, fresh], dim=1)
        seen = torch.cat([seen, -seen], dim=1)
        loss = F.cross_entropy(head(seen.mean((2, 3))), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield len(images)


def wide_softmax():
    """Learn a bias for each word of a wide vocabulary: scores are added and normed."""
    bias = nn.Parameter(torch.zeros(20_000))
    warmth = nn.Parameter(torch.ones(()))
    optimizer = torch.optim.SGD([bias, warmth], lr=0.1)
    for scores, words in batches(256, numbers(768, 20_000), whole_numbers(20_000, 768)):
        loss = F.cross_entropy(scores * warmth + bias, words)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield len(words)


MEMORY = [
    Planted("a chain of elementwise operations", "memory", elementwise_chain),
    Planted("a large image smoothed", "memory", image_smoothed),
    Planted("a huge embedding", "memory", huge_embedding),
    Planted("two wide tables multiplied", "memory", vectors_factorised),
    Planted("layout copies", "memory", layout_copied),
    Planted("big normalisations", "memory", big_normalisations),
    Planted("dense connections", "memory", dense_connections),
    Planted("a softmax over many words", "memory", wide_softmax),
]
