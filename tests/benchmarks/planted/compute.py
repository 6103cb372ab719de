"""Loops bound by arithmetic or by memory, and healthy ones, ordinary and well tuned."""

import itertools
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from . import parts
from .parts import Joined, batches, convolve, fit, mlp, numbers, plant, whole


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
    parts.shown("C", "compute"),
    *plant("compute", residual_convolutions, long_attention, kernel_matrix),
    *plant("compute", sound_convolutions, vision_transformer, volumes_convolved),
]

# Bound by memory: few operations on each number that is moved


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
    model = parts.cnn(64)
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
    options = {"clip": parts.clip_to_one, "lr": 3e-4, "fused": True}
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
