"""Well-tuned ordinary loops: there is next to nothing to save."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from .parts import Planted, batches, cnn, mlp, numbers, whole_numbers


def perceptron():
    """Train a perceptron on rows in memory."""
    model = mlp(256, 768, 768, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, fused=True)
    for rows, labels in batches(512, numbers(4096, 256), whole_numbers(10, 4096)):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(rows), labels)
        loss.backward()
        optimizer.step()
        yield len(rows)


def perceptron_from_a_loader():
    """Train on shuffled batches that a DataLoader takes out of memory whole."""
    dataset = TensorDataset(numbers(8192, 200), numbers(8192, 1))
    sampler = BatchSampler(RandomSampler(dataset), 512, drop_last=True)
    loader = DataLoader(dataset, sampler=sampler, batch_size=None)
    model = mlp(200, 1024, 512, 1, activation=nn.SiLU)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    while True:
        for rows, targets in loader:
            loss = F.mse_loss(model(rows), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield len(rows)


def images():
    """Train a convolutional network on images in memory."""
    model = nn.Sequential(
        nn.Conv2d(3, 48, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(48, 96, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(96, 96, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(96, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, fused=True)
    for batch, labels in batches(32, numbers(320, 3, 32, 32), whole_numbers(10, 320)):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch), labels)
        loss.backward()
        optimizer.step()
        yield len(batch)


def images_with_a_schedule():
    """Train on whole batches from a loader with a learning rate that is scheduled."""
    dataset = TensorDataset(numbers(640, 3, 48, 48), whole_numbers(10, 640))
    sampler = BatchSampler(RandomSampler(dataset), 32, drop_last=True)
    loader = DataLoader(dataset, sampler=sampler, batch_size=None)
    model = cnn(64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)
    while True:
        for batch, labels in loader:
            loss = F.cross_entropy(model(batch), labels, label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            yield len(batch)


def small_transformer():
    """Train a small transformer to say the next word."""

    class Transformer(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(500, 192)
            layer = nn.TransformerEncoderLayer(
                192, 4, 768, dropout=0.0, activation="gelu", batch_first=True
            )
            self.body = nn.TransformerEncoder(layer, 1)
            self.head = nn.Linear(192, 500)
            mask = nn.Transformer.generate_square_subsequent_mask(64)
            self.register_buffer("mask", mask)

        def forward(self, text):
            states = self.body(self.words(text), mask=self.mask, is_causal=True)
            return self.head(states)

    model = Transformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    for (text,) in batches(16, whole_numbers(500, 160, 65)):
        scores = model(text[:, :-1])
        loss = F.cross_entropy(scores.flatten(0, 1), text[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        yield len(text)


def long_memory():
    """Train an LSTM on long series."""
    encoder, head = nn.LSTM(128, 256, batch_first=True), nn.Linear(256, 5)
    optimizer = torch.optim.Adam(
        [*encoder.parameters(), *head.parameters()], fused=True
    )
    for series, labels in batches(96, numbers(384, 20, 128), whole_numbers(5, 384)):
        states, _ = encoder(series)
        loss = F.cross_entropy(head(states[:, -1]), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield len(series)


def autoencoder():
    """Train an autoencoder."""
    encoder, decoder = mlp(784, 512, 64), mlp(64, 512, 784)
    model = nn.Sequential(encoder, nn.ReLU(), decoder, nn.Sigmoid())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    inputs = numbers(4096, 784)
    for (batch,) in batches(512, inputs):
        optimizer.zero_grad()
        loss = F.mse_loss(model(batch), batch)
        loss.backward()
        optimizer.step()
        yield len(batch)


def image_autoencoder():
    """Train a convolutional autoencoder."""
    model = nn.Sequential(
        nn.Conv2d(3, 64, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(64, 96, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.ConvTranspose2d(96, 64, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.ConvTranspose2d(64, 3, 4, stride=2, padding=1),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    for (batch,) in batches(16, numbers(160, 3, 32, 32)):
        loss = F.l1_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield len(batch)


def two_optimizers():
    """Train a generator and its critic, each with an optimizer of its own."""
    generator, critic = mlp(64, 512, 512, 256), mlp(256, 512, 512, 1)
    make = torch.optim.Adam(
        generator.parameters(), lr=2e-4, betas=(0.5, 0.9), fused=True
    )
    judge = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.9), fused=True)
    criterion = nn.BCEWithLogitsLoss()
    true, false = torch.ones(256, 1), torch.zeros(256, 1)
    for (real,) in batches(256, numbers(2048, 256)):
        made = generator(torch.randn(256, 64))
        judge.zero_grad()
        loss = criterion(critic(real), true) + criterion(critic(made.detach()), false)
        loss.backward()
        judge.step()
        make.zero_grad()
        critic.requires_grad_(False)
        criterion(critic(made), true).backward()
        critic.requires_grad_(True)
        make.step()
        yield len(real)


def accumulated():
    """Accumulate the gradients of four batches before each step."""
    model = mlp(512, 640, 640, 20, activation=nn.GELU)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    parts = batches(192, numbers(1536, 512), whole_numbers(20, 1536))
    while True:
        optimizer.zero_grad()
        for _ in range(4):
            rows, labels = next(parts)
            loss = F.cross_entropy(model(rows), labels) / 4
            loss.backward()
        optimizer.step()
        yield 4 * 192


def evaluated_now_and_then():
    """Train, and evaluate on held-out rows every fifty steps."""
    model = mlp(300, 768, 512, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, fused=True)
    held_out, truth = numbers(512, 300), whole_numbers(10, 512)
    accuracy = 0.0
    for step, (rows, labels) in enumerate(
        batches(512, numbers(4096, 300), whole_numbers(10, 4096)), start=1
    ):
        loss = F.cross_entropy(model(rows), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            model.eval()
            with torch.no_grad():
                right = model(held_out).argmax(1) == truth
            accuracy = right.float().mean().item()
            model.train()
        yield len(rows), {"accuracy": accuracy}


def segmentation():
    """Train a small U-shaped network to segment images."""

    class Segmenter(nn.Module):
        def __init__(self):
            super().__init__()
            self.down = nn.Conv2d(3, 48, 3, stride=2, padding=1)
            self.deep = nn.Conv2d(48, 96, 3, stride=2, padding=1)
            self.up = nn.ConvTranspose2d(96, 48, 2, stride=2)
            self.out = nn.ConvTranspose2d(96, 4, 2, stride=2)

        def forward(self, batch):
            shallow = F.relu(self.down(batch))
            deep = F.relu(self.deep(shallow))
            return self.out(torch.cat([shallow, F.relu(self.up(deep))], dim=1))

    model = Segmenter()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
    truth = whole_numbers(4, 64, 64, 64)
    for batch, mask in batches(8, numbers(64, 3, 64, 64), truth):
        loss = F.cross_entropy(model(batch), mask)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield len(batch)


def siamese():
    """Learn an embedding from all pairs of a batch at once."""
    model = mlp(384, 768, 128)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    for one, other in batches(384, numbers(3072, 384), numbers(384, 3072).T):
        first, second = F.normalize(model(one)), F.normalize(model(other))
        loss = F.cross_entropy(10 * first @ second.T, torch.arange(len(first)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield len(one)


HEALTHY = [
    Planted(loop.__name__.replace("_", " "), None, loop)
    for loop in (
        perceptron,
        perceptron_from_a_loader,
        images,
        images_with_a_schedule,
        small_transformer,
        long_memory,
        autoencoder,
        image_autoencoder,
        two_optimizers,
        accumulated,
        evaluated_now_and_then,
        segmentation,
        siamese,
    )
]
