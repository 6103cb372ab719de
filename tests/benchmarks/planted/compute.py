"""Loops that compute as fast as the machine can: there is nothing to repair."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from .parts import Planted, batches, numbers, shown, whole_numbers


def residual_convolutions():
    """Train residual blocks of wide convolutions."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Conv2d(96, 96, 3, padding=1)
            self.second = nn.Conv2d(96, 96, 3, padding=1)

        def forward(self, images):
            return images + self.second(F.relu(self.first(images)))

    model = nn.Sequential(
        Block(), Block(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(96, 10)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
    for images, labels in batches(16, numbers(64, 96, 16, 16), whole_numbers(10, 64)):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        yield len(images)


def long_attention():
    """Train attention over long sequences."""
    project, out = nn.Linear(128, 384), nn.Linear(128, 16)
    parameters = [*project.parameters(), *out.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, fused=True)
    for states, targets in batches(2, numbers(16, 768, 128), numbers(16, 768, 16)):
        parts = project(states).unflatten(-1, (3, 2, 64)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2)
        loss = F.mse_loss(out(attended), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield len(states)


def kernel_matrix():
    """Fit a linear map by a loss that multiplies large square matrices."""
    matrix = nn.Parameter(torch.eye(896) + 0.01 * torch.randn(896, 896))
    target = numbers(896, 896) / 30
    optimizer = torch.optim.SGD([matrix], lr=1e-3, fused=True)
    while True:
        loss = F.mse_loss(matrix @ (matrix.t() @ target), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield 1


def sound_convolutions():
    """Train convolutions with long kernels over sound."""
    model = nn.Sequential(
        nn.Conv1d(32, 96, 15, stride=2),
        nn.ReLU(),
        nn.Conv1d(96, 128, 15, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Linear(128, 12),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    for clips, labels in batches(16, numbers(64, 32, 400), whole_numbers(12, 64)):
        loss = F.cross_entropy(model(clips), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield len(clips)


def vision_transformer():
    """Train a vision transformer with wide layers."""
    cut = nn.Conv2d(3, 256, 8, stride=8)
    layer = nn.TransformerEncoderLayer(
        256, 4, 1024, dropout=0.0, activation="gelu", batch_first=True
    )
    head = nn.Linear(256, 10)
    parts = nn.ModuleList([cut, layer, head])
    optimizer = torch.optim.SGD(parts.parameters(), lr=0.01, fused=True)
    for images, labels in batches(8, numbers(64, 3, 64, 64), whole_numbers(10, 64)):
        tokens = cut(images).flatten(2).transpose(1, 2)
        loss = F.cross_entropy(head(layer(tokens).mean(1)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield len(images)


def volumes_convolved():
    """Train a convolutional network on small volumes."""
    model = nn.Sequential(
        nn.Conv3d(16, 48, 3, padding=1),
        nn.ReLU(),
        nn.Conv3d(48, 48, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool3d(1),
        nn.Flatten(),
        nn.Linear(48, 3),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for volumes, labels in batches(
        4, numbers(16, 16, 12, 12, 12), whole_numbers(3, 16)
    ):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(volumes), labels)
        loss.backward()
        optimizer.step()
        yield len(volumes)


COMPUTE = [
    shown("C", "a wide perceptron", "compute"),
    Planted("residual convolutions", "compute", residual_convolutions),
    Planted("attention over long sequences", "compute", long_attention),
    Planted("large matrices", "compute", kernel_matrix),
    Planted("convolutions over sound", "compute", sound_convolutions),
    Planted("a vision transformer", "compute", vision_transformer),
    Planted("convolutions over volumes", "compute", volumes_convolved),
]
