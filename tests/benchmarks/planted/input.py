"""Loops that wait for their data, and the same data made quick to read."""

import functools
import time
import zlib
from functools import partial

import numpy
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW, RMSprop
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    RandomSampler,
    TensorDataset,
)
from torchvision.transforms import v2

from kit.data import Distant, PhotoDataset, photos

from .parts import Joined, cnn, epochs, fit, mlp, numbers, plant, shown, whole

as_floats = v2.ToDtype(torch.float32, scale=True)
smoothed = partial(F.cross_entropy, label_smoothing=0.1)


class Samples(Dataset):
    """So many samples, which a function makes of their index."""

    def __init__(self, length, make):
        self.length, self.make = length, make

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return self.make(index)


def table(rows, columns):
    """Rows of numbers with a class each, in memory."""
    return TensorDataset(numbers(rows, columns), whole(10, rows))


def jpeg_photos(side):
    """Photos that are decoded from JPEG and scaled each time they are read."""
    steps = [v2.PILToTensor(), v2.Resize((side, side)), as_floats]
    return PhotoDataset(photos(64), v2.Compose(steps))


@functools.cache
def decoded_photos(side):
    """The same photos, decoded and scaled once, in memory."""
    images, labels = zip(*jpeg_photos(side), strict=True)
    return TensorDataset(torch.stack(images), torch.tensor(labels))


def photos_decoded(*, photos=jpeg_photos):
    """Classify photos that are decoded in the loader."""
    loader = DataLoader(photos(64), batch_size=8, shuffle=True)
    yield from fit(cnn(16), loader, SGD, lr=0.01, momentum=0.9)


def make_distortion():
    steps = [v2.ColorJitter(0.2, 0.2, 0.2), v2.RandomResizedCrop(48, antialias=True)]
    return v2.Compose([*steps, v2.RandomHorizontalFlip(), as_floats])


def photos_in_memory():
    return whole(256, 24, 3, 256, 256).byte(), whole(10, 24)


def distorted_photos():
    """Photos that are distorted at random one by one, at their full size."""
    (images, labels), distort = photos_in_memory(), make_distortion()
    return Samples(24, lambda index: (distort(images[index]), labels[index]))


@functools.cache
def shrunk_photos():
    """The same photos, made small once; what distorts them is then quick."""
    images, labels = photos_in_memory()
    return TensorDataset(v2.functional.resize(images, [64, 64]), labels)


def photos_augmented(*, together=False):
    """Train on photos that are distorted at random: each by itself, or a batch."""
    dataset = shrunk_photos() if together else distorted_photos()
    data = DataLoader(dataset, batch_size=4, shuffle=True, drop_last=True)
    if together:
        distort = make_distortion()
        data = ((distort(images), labels) for images, labels in epochs(data))
    yield from fit(cnn(16), data, AdamW, find_loss=smoothed, lr=1e-3)


def too_few_workers(*, num_workers=1):
    """Train on photos that one worker fetches from a store and decodes."""
    stored = Distant(jpeg_photos(56), 0.002)
    loader = DataLoader(stored, 8, num_workers=num_workers, persistent_workers=True)
    model = cnn(8)
    optimizer = SGD(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1000)
    for items in fit(model, loader, lambda _: optimizer):
        scheduler.step()
        yield items


class TogetherDistant(Distant):
    """Read a batch that lies far away with one request instead of many."""

    def __getitems__(self, indices):
        time.sleep(self.seconds)
        return [self.dataset[index] for index in indices]


def rows_far_away(*, store=Distant):
    """Train on rows that are asked for one by one from far away."""
    loader = DataLoader(store(table(2000, 64), 0.0008), batch_size=16, shuffle=True)
    yield from fit(mlp(64, 256, 256, 10), loader, Adam, fused=True)


def autoencode_from_far(*, num_workers=1):
    """Train an autoencoder on vectors that few workers fetch from far away."""
    dataset = Distant(table(4000, 256), 0.003)
    loader = DataLoader(
        dataset, 10, shuffle=True, num_workers=num_workers, persistent_workers=True
    )
    data = ((vectors, vectors) for vectors, _ in epochs(loader))
    model = mlp(256, 512, 32, 512, 256)
    yield from fit(model, data, Adam, find_loss=F.mse_loss, lr=1e-3, fused=True)


@functools.cache
def word_lists():
    words = whole(5000, 1024, 200).tolist()
    return [row[: 80 + i % 120] for i, row in enumerate(words)]


@functools.cache
def word_tensors():
    return [torch.tensor(words) for words in word_lists()]


def pad_by_hand(samples):
    """Pad word by word, and look at each word for whether it is known."""
    longest = max(len(words) for words, _ in samples)
    padded = torch.zeros(len(samples), longest, dtype=torch.long)
    for i, (words, _) in enumerate(samples):
        row = []
        for position in range(longest):
            word = words[position] if position < len(words) else 0
            row.append(word if 0 <= word < 5000 else 0)
        padded[i] = torch.tensor(row)
    return padded, torch.tensor([label for _, label in samples])


def pad_tensors(samples):
    sentences, labels = zip(*samples, strict=True)
    padded = nn.utils.rnn.pad_sequence(sentences, batch_first=True)
    return padded, torch.tensor(labels)


def sentences_padded(*, sentences=word_lists, collate=pad_by_hand):
    """Classify sentences that are padded word by word."""
    known = sentences()
    dataset = Samples(1024, lambda index: (known[index], index % 4))
    loader = DataLoader(dataset, batch_size=128, collate_fn=collate)
    model = nn.Sequential(nn.EmbeddingBag(5000, 32, mode="mean"), nn.Linear(32, 4))
    yield from fit(model, loader, SGD, lr=0.5)


def clips():
    """Short clips of sound; `collate` makes features of them."""
    return Samples(256, lambda index: (numbers(256, 4000)[index], index % 8))


def features_one_by_one(samples):
    """Make a spectrogram of each clip, normalise it, and put them together."""
    features = []
    for clip, _ in samples:
        window = torch.hann_window(256)
        spectrum = torch.stft(clip, 256, 64, window=window, return_complex=True)
        loudness = torch.log1p(spectrum.abs())
        loudness = (loudness - loudness.mean()) / loudness.std()
        features.append(F.interpolate(loudness[None], size=64)[0])
    return torch.stack(features), torch.tensor([label for _, label in samples])


@functools.cache
def ready_features():
    """The same features, made once."""
    return TensorDataset(*features_one_by_one(list(clips())))


def sounds_collated(*, dataset=clips, collate=features_one_by_one):
    """Recognise sounds whose spectrograms are made while they are collated."""
    loader = DataLoader(dataset(), 24, shuffle=True, collate_fn=collate, drop_last=True)
    layers = [nn.Conv1d(129, 64, 5, stride=2), nn.BatchNorm1d(64), nn.ReLU()]
    layers += [nn.Conv1d(64, 64, 5, stride=2), nn.ReLU(), nn.Flatten()]
    model = nn.Sequential(*layers, nn.LazyLinear(8))
    model(torch.zeros(2, 129, 64))
    yield from fit(model, loader, SGD, lr=0.01, momentum=0.9)


@functools.cache
def store_spectrograms(compressed):
    raw = [values.numpy().round(1).tobytes() for values in numbers(64, 64, 400)]
    return [zlib.compress(values) for values in raw] if compressed else raw


def spectrograms_unpacked(*, compressed=True):
    """Train a recurrent network on spectrograms that were stored compressed."""
    stored = store_spectrograms(compressed)

    def unpack(index):
        content = zlib.decompress(stored[index]) if compressed else stored[index]
        values = numpy.frombuffer(content, numpy.float32).reshape(64, 400)
        return torch.from_numpy(values.copy()), index % 5

    dataset = Samples(64, unpack)
    loader = DataLoader(dataset, batch_size=16, shuffle=True)
    encoder, head = nn.GRU(400, 32, batch_first=True), nn.Linear(32, 5)
    model = Joined(lambda x: head(encoder(x[:, ::4])[0][:, -1]), encoder, head)
    yield from fit(model, loader, RMSprop, lr=1e-3)


def samples_one_by_one(*, together=False):
    """Train on a tensor in memory whose rows are fetched one by one, or together."""
    dataset = table(8192, 144)
    loader = DataLoader(dataset, batch_size=1024, shuffle=True)
    if together:
        sampler = BatchSampler(RandomSampler(dataset), 1024, drop_last=False)
        loader = DataLoader(dataset, sampler=sampler, batch_size=None)
    yield from fit(mlp(144, 32, 32, 10), loader, SGD, lr=0.05)


def workers_restarted(*, persistent_workers=False):
    """Train on short epochs, at each of which the workers start anew."""
    loader = DataLoader(
        table(256, 32), 32, num_workers=2, persistent_workers=persistent_workers
    )
    yield from fit(mlp(32, 128, 10), loader, SGD, lr=0.1)


INPUT = [
    *plant("input", photos_decoded, photos=decoded_photos),
    *plant("input", rows_far_away, store=TogetherDistant),
    *plant("input", autoencode_from_far, num_workers=2),
    *plant("input", sentences_padded, sentences=word_tensors, collate=pad_tensors),
    *plant("input", sounds_collated, dataset=ready_features, collate=None),
    *plant("input", spectrograms_unpacked, compressed=False),
    *plant("input", too_few_workers, num_workers=2),
    *plant("input", workers_restarted, persistent_workers=True),
    *plant("input", photos_augmented, samples_one_by_one, together=True),
    shown("D", "input"),
]
