"""Loops with nothing to repair: bound by arithmetic, or ordinary and well tuned."""

import itertools
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from .parts import (
    Joined,
    batches,
    clip_to_one,
    cnn,
    convolve,
    fit,
    mlp,
    numbers,
    plant,
    shown,
    whole,
)


def residual_convolutions():
    """Train residual blocks of wide convolutions."""

    def make_block():
        first, second = (nn.Conv2d(96, 96, 3, padding=1) for _ in range(2))
        return Joined(lambda x: x + second(F.relu(first(x))), first, second)

    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(96, 10)
    model = nn.Sequential(make_block(), make_block(), *head)
    data = batches(16, numbers(64, 96, 16, 16), whole(10, 64))
    yield from fit(model, data, SGD, lr=0.01, momentum=0.9, fused=True)


def long_attention():
    """Train attention over long sequences."""
    project, out = nn.Linear(128, 384), nn.Linear(128, 16)

    def attend(states):
        parts = project(states).unflatten(-1, (3, 2, 64)).permute(2, 0, 3, 1, 4)
        return out(F.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2))

    data = batches(2, numbers(16, 768, 128), numbers(16, 768, 16))
    model = Joined(attend, project, out)
    yield from fit(model, data, AdamW, find_loss=F.mse_loss, lr=1e-3, fused=True)


def kernel_matrix():
    """Fit a linear map by a loss that multiplies large square matrices."""
    matrix = nn.Parameter(torch.eye(896) + 0.01 * torch.randn(896, 896))
    target = numbers(896, 896) / 30
    model = Joined(lambda x: matrix @ (matrix.t() @ x), nn.ParameterList([matrix]))
    data = itertools.repeat((target, target))
    yield from fit(model, data, SGD, find_loss=F.mse_loss, lr=1e-3, fused=True)


def sound_convolutions():
    """Train convolutions with long kernels over sound."""
    layers = nn.Conv1d(32, 96, 15, stride=2), nn.Conv1d(96, 128, 15, stride=2)
    model = convolve(*layers, classes=12)
    data = batches(16, numbers(64, 32, 400), whole(12, 64))
    yield from fit(model, data, Adam, lr=1e-3, fused=True)


def vision_transformer():
    """Train a vision transformer with wide layers."""
    cut, head = nn.Conv2d(3, 256, 8, stride=8), nn.Linear(256, 10)
    layer = nn.TransformerEncoderLayer(
        256, 4, 1024, dropout=0.0, activation="gelu", batch_first=True
    )

    def see(images):
        return head(layer(cut(images).flatten(2).transpose(1, 2)).mean(1))

    data = batches(8, numbers(64, 3, 64, 64), whole(10, 64))
    yield from fit(Joined(see, cut, layer, head), data, SGD, lr=0.01, fused=True)


def volumes_convolved():
    """Train a convolutional network on small volumes."""
    layers = nn.Conv3d(16, 48, 3, padding=1), nn.Conv3d(48, 48, 3, padding=1)
    data = batches(4, numbers(16, 16, 12, 12, 12), whole(3, 16))
    yield from fit(convolve(*layers, classes=3), data, SGD, lr=0.01)


COMPUTE = [
    shown("C", "compute"),
    *plant("compute", residual_convolutions, long_attention, kernel_matrix),
    *plant("compute", sound_convolutions, vision_transformer, volumes_convolved),
]

# Healthy: well-tuned ordinary loops, where there is next to nothing to save


def load_whole_batches(size, *tensors):
    """Return a loader that takes shuffled batches out of memory whole."""
    dataset = TensorDataset(*tensors)
    sampler = BatchSampler(RandomSampler(dataset), size, drop_last=True)
    return DataLoader(dataset, sampler=sampler, batch_size=None)


def perceptron():
    """Train a perceptron on rows in memory."""
    data = batches(512, numbers(4096, 256), whole(10, 4096))
    model = mlp(256, 768, 768, 10)
    yield from fit(model, data, SGD, lr=0.05, momentum=0.9, fused=True)


def perceptron_from_a_loader():
    """Train on shuffled batches that a DataLoader takes out of memory whole."""
    model = mlp(200, 1024, 512, 1, activation=nn.SiLU)
    data = load_whole_batches(512, numbers(8192, 200), numbers(8192, 1))
    yield from fit(model, data, AdamW, find_loss=F.mse_loss, lr=1e-3, fused=True)


def images():
    """Train a convolutional network on images in memory."""
    wide = (nn.Conv2d(n, 96, 3, stride=2, padding=1) for n in (48, 96))
    model = convolve(nn.Conv2d(3, 48, 3, padding=1), *wide)
    data = batches(32, numbers(320, 3, 32, 32), whole(10, 320))
    yield from fit(model, data, SGD, lr=0.05, momentum=0.9, fused=True)


def images_with_a_schedule():
    """Train on whole batches from a loader with a learning rate that is scheduled."""
    model = cnn(64)
    optimizer = AdamW(model.parameters(), lr=1e-3, fused=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)
    data = load_whole_batches(32, numbers(640, 3, 48, 48), whole(10, 640))
    find_loss = partial(F.cross_entropy, label_smoothing=0.1)
    for items in fit(model, data, lambda _: optimizer, find_loss=find_loss):
        scheduler.step()
        yield items


def small_transformer():
    """Train a small transformer to say the next word."""
    words, head = nn.Embedding(500, 192), nn.Linear(192, 500)
    layer = nn.TransformerEncoderLayer(
        192, 4, 768, dropout=0.0, activation="gelu", batch_first=True
    )
    body = nn.TransformerEncoder(layer, 1)
    mask = nn.Transformer.generate_square_subsequent_mask(64)

    def read(text):
        return head(body(words(text[:, :-1]), mask=mask, is_causal=True))

    def find_loss(scores, text):
        return F.cross_entropy(scores.flatten(0, 1), text[:, 1:].flatten())

    model, text = Joined(read, words, body, head), whole(500, 160, 65)
    options = {"clip": clip_to_one, "lr": 3e-4, "fused": True}
    data = batches(16, text, text)
    yield from fit(model, data, AdamW, find_loss=find_loss, **options)


def long_memory():
    """Train an LSTM on long series."""
    encoder, head = nn.LSTM(128, 256, batch_first=True), nn.Linear(256, 5)
    model = Joined(lambda series: head(encoder(series)[0][:, -1]), encoder, head)
    data = batches(96, numbers(384, 20, 128), whole(5, 384))
    yield from fit(model, data, Adam, fused=True)


def autoencoder():
    """Train an autoencoder."""
    encoder, decoder = mlp(784, 512, 64), mlp(64, 512, 784)
    model = nn.Sequential(encoder, nn.ReLU(), decoder, nn.Sigmoid())
    data = batches(512, numbers(4096, 784), numbers(4096, 784))
    yield from fit(model, data, Adam, find_loss=F.mse_loss, lr=1e-3, fused=True)


def image_autoencoder():
    """Train a convolutional autoencoder."""
    down = (nn.Conv2d(a, b, 4, stride=2, padding=1) for a, b in ((3, 64), (64, 96)))
    up = (nn.ConvTranspose2d(a, b, 4, 2, padding=1) for a, b in ((96, 64), (64, 3)))
    layers = [part for layer in (*down, *up) for part in (layer, nn.ReLU())]
    data = batches(16, numbers(160, 3, 32, 32), numbers(160, 3, 32, 32))
    model = nn.Sequential(*layers[:-1])
    yield from fit(model, data, AdamW, find_loss=F.l1_loss, lr=1e-3, fused=True)


def two_optimizers():
    """Train a generator and its critic, each with an optimizer of its own."""
    generator, critic = mlp(64, 512, 512, 256), mlp(256, 512, 512, 1)
    options = {"lr": 2e-4, "betas": (0.5, 0.9), "fused": True}
    make, judge = (Adam(net.parameters(), **options) for net in (generator, critic))
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
    optimizer = AdamW(model.parameters(), lr=1e-3, fused=True)
    parts = batches(192, numbers(1536, 512), whole(20, 1536))
    while True:
        optimizer.zero_grad()
        for rows, labels in itertools.islice(parts, 4):
            loss = F.cross_entropy(model(rows), labels) / 4
            loss.backward()
        optimizer.step()
        yield 4 * 192


def evaluated_now_and_then():
    """Train, and evaluate on held-out rows every fifty steps."""
    model, accuracy = mlp(300, 768, 512, 10), 0.0
    held_out, truth = numbers(512, 300), whole(10, 512)
    data = batches(512, numbers(4096, 300), whole(10, 4096))
    steps = fit(model, data, SGD, lr=0.05, fused=True)
    for step, items in enumerate(steps, start=1):
        if step % 50 == 0:
            model.eval()
            with torch.no_grad():
                right = model(held_out).argmax(1) == truth
            accuracy = right.float().mean().item()
            model.train()
        yield items, {"accuracy": accuracy}


def segmentation():
    """Train a small U-shaped network to segment images."""
    down = nn.Conv2d(3, 48, 3, stride=2, padding=1)
    deep = nn.Conv2d(48, 96, 3, stride=2, padding=1)
    up, out = (nn.ConvTranspose2d(96, n, 2, stride=2) for n in (48, 4))

    def segment(batch):
        shallow = F.relu(down(batch))
        returned = F.relu(up(F.relu(deep(shallow))))
        return out(torch.cat([shallow, returned], dim=1))

    data = batches(8, numbers(64, 3, 64, 64), whole(4, 64, 64, 64))
    model = Joined(segment, down, deep, up, out)
    yield from fit(model, data, SGD, lr=0.01, momentum=0.9, fused=True)


def siamese():
    """Learn an embedding from all pairs of a batch at once."""
    model = mlp(384, 768, 128)
    data = batches(384, numbers(3072, 384), numbers(384, 3072).T)

    def tell_apart(first, other):
        first, second = F.normalize(first), F.normalize(model(other))
        return F.cross_entropy(10 * first @ second.T, torch.arange(len(first)))

    yield from fit(model, data, AdamW, find_loss=tell_apart, lr=1e-3, fused=True)


HEALTHY = [
    *plant(None, perceptron, perceptron_from_a_loader, images, images_with_a_schedule),
    *plant(None, small_transformer, long_memory, autoencoder, image_autoencoder),
    *plant(None, two_optimizers, accumulated, evaluated_now_and_then, segmentation),
    *plant(None, siamese),
]
