"""Loops that wait for memory: few operations on each number that is moved."""

import itertools

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam

from .parts import Joined, batches, fit, mlp, numbers, plant, whole


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
    head = nn.AvgPool2d(32), nn.Flatten(), nn.Linear(512, 4)
    data = batches(4, numbers(16, 8, 256, 256), whole(4, 16))
    yield from fit(nn.Sequential(Gate(8), Gate(8), *head), data, SGD, lr=0.01)


def image_smoothed():
    """Remove noise from a large image by gradient descent on its total variation."""
    noisy = numbers(1, 1600, 1600)
    image = nn.Parameter(noisy.clone())

    def vary(clean, noisy):
        across = (clean[..., 1:] - clean[..., :-1]).abs().sum()
        down = (clean[..., 1:, :] - clean[..., :-1, :]).abs().sum()
        return (clean - noisy).square().sum() / 2 + 0.5 * (across + down)

    model = Joined(lambda noisy: image, nn.ParameterList([image]))
    data = itertools.repeat((noisy, noisy))
    yield from fit(model, data, SGD, find_loss=vary, lr=0.1)


def huge_embedding():
    """Classify texts by the mean of fixed vectors out of a huge table."""
    words = nn.EmbeddingBag.from_pretrained(numbers(150_000, 128), mode="mean")
    head = mlp(128, 32, 4)
    data = batches(2048, whole(150_000, 4096, 160), whole(4, 4096))
    model = Joined(lambda text: head(words(text)), head)
    yield from fit(model, data, Adam, lr=1e-3, fused=True)


def vectors_factorised():
    """Factorise ratings: two wide tables, a product of a few numbers per rating."""
    users = nn.Embedding.from_pretrained(numbers(60_000, 128), freeze=True)
    things = nn.Embedding.from_pretrained(numbers(50_000, 128), freeze=True)
    scale = nn.Parameter(torch.ones(128))
    who, what = whole(60_000, 80_000), whole(50_000, 80_000)

    def rate(pairs):
        user, thing = pairs.unbind(1)
        return (users(user) * things(thing) * scale).sum(1)

    data = batches(20_000, torch.stack([who, what], 1), numbers(80_000))
    model = Joined(rate, nn.ParameterList([scale]))
    yield from fit(model, data, SGD, find_loss=F.mse_loss, lr=0.01)


class ChannelsLastNorm(nn.LayerNorm):
    """Normalise over channels, which are put last and back again by copies."""

    def forward(self, images):
        images = images.permute(0, 2, 3, 1).contiguous()
        return super().forward(images).permute(0, 3, 1, 2).contiguous()


def layout_copied():
    """Train thin layers whose images change their layout again and again."""
    layers = ChannelsLastNorm(64), nn.ReLU(), ChannelsLastNorm(64)
    head = nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(1024, 10)
    data = batches(16, numbers(32, 64, 56, 56), whole(10, 32))
    yield from fit(nn.Sequential(*layers, *head), data, SGD, lr=0.01, momentum=0.9)


def big_normalisations():
    """Train batch normalisations over images that do not fit a cache."""
    layers = nn.BatchNorm2d(24), nn.ReLU(inplace=True), nn.BatchNorm2d(24)
    head = nn.AvgPool2d(16), nn.Flatten(), nn.Linear(24 * 49, 10)
    data = batches(16, numbers(32, 24, 112, 112), whole(10, 32))
    yield from fit(nn.Sequential(*layers, *head), data, SGD, lr=0.01)


def dense_connections():
    """Train scales of channels, each layer's beside a copy of all that came before."""
    scales = nn.ParameterList(torch.ones(8 * (i + 1), 1, 1) for i in range(3))
    head = nn.Linear(64, 5)

    def connect(seen):
        for scale in scales:
            fresh = F.relu(seen * scale).unflatten(1, (8, -1)).sum(2)
            seen = torch.cat([seen, fresh], dim=1)
        seen = torch.cat([seen, -seen], dim=1)
        return head(seen.mean((2, 3)))

    data = batches(4, numbers(16, 8, 144, 144), whole(5, 16))
    yield from fit(Joined(connect, scales, head), data, SGD, lr=0.01)


def wide_softmax():
    """Learn a bias for each word of a wide vocabulary: scores are added and normed."""
    bias, warmth = nn.Parameter(torch.zeros(20_000)), nn.Parameter(torch.ones(()))
    data = batches(256, numbers(768, 20_000), whole(20_000, 768))
    model = Joined(lambda s: s * warmth + bias, nn.ParameterList([bias, warmth]))
    yield from fit(model, data, SGD, lr=0.1)


MEMORY = [
    *plant("memory", elementwise_chain, image_smoothed, huge_embedding, layout_copied),
    *plant("memory", vectors_factorised, big_normalisations, dense_connections),
    *plant("memory", wide_softmax),
]
