"""Data sets that are slow to read, and the same data made quick to read."""

from __future__ import annotations

import functools
import time
import zlib

import numpy
import torch
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset
from torchvision.transforms import v2

from kit.data import Distant, PhotoDataset, photos

from .parts import numbers, whole_numbers


def jpeg_photos(side):
    """Photos that are decoded from JPEG and scaled each time they are read."""
    scale = v2.ToDtype(torch.float32, scale=True)
    steps = [v2.PILToTensor(), v2.Resize((side, side)), scale]
    return PhotoDataset(photos(64), v2.Compose(steps))


@functools.cache
def decoded_photos(side):
    """The same photos, decoded and scaled once, in memory."""
    images, labels = zip(*jpeg_photos(side), strict=True)
    return TensorDataset(torch.stack(images), torch.tensor(labels))


@functools.cache
def raw_photos():
    return whole_numbers(256, 24, 3, 256, 256).byte()


class Augmented(Dataset):
    """Photos in memory, distorted at random one by one at their full size."""

    def __init__(self, side):
        self.images = raw_photos()
        self.labels = whole_numbers(10, len(self.images))
        self.distort = v2.Compose(
            [
                v2.ColorJitter(0.2, 0.2, 0.2),
                v2.RandomResizedCrop(side, antialias=True),
                v2.RandomHorizontalFlip(),
                v2.ToDtype(torch.float32, scale=True),
            ]
        )

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.distort(self.images[index]), self.labels[index]


@functools.cache
def shrunk_photos(side):
    """The same photos, made small once; what distorts them is then quick."""
    full = Augmented(side)
    images = v2.functional.resize(full.images, [side + 16, side + 16])
    return TensorDataset(images, full.labels)


class TogetherDistant(Distant):
    """Read a batch that lies far away with one request instead of many."""

    def __getitems__(self, indices):
        time.sleep(self.seconds)
        return [self.dataset[index] for index in indices]


def table(rows, columns):
    """Rows of numbers with a class each, in memory."""
    return TensorDataset(numbers(rows, columns), whole_numbers(10, rows))


class Spectrograms(Dataset):
    """Spectrograms that were stored compressed, or not."""

    def __init__(self, *, compressed):
        self.compressed = compressed
        self.stored = packed_spectrograms() if compressed else raw_spectrograms()

    def __len__(self):
        return len(self.stored)

    def __getitem__(self, index):
        stored = self.stored[index]
        content = zlib.decompress(stored) if self.compressed else stored
        values = numpy.frombuffer(content, numpy.float32).reshape(64, 400)
        return torch.from_numpy(values.copy()), index % 5


@functools.cache
def raw_spectrograms():
    return [values.numpy().round(1).tobytes() for values in numbers(64, 64, 400)]


@functools.cache
def packed_spectrograms():
    return [zlib.compress(values) for values in raw_spectrograms()]


class Sentences(Dataset):
    """Sentences of different lengths as lists of word numbers, with a class each."""

    def __init__(self):
        words = whole_numbers(5000, 1024, 200).tolist()
        self.sentences = [row[: 80 + i % 120] for i, row in enumerate(words)]

    def __len__(self):
        return len(self.sentences)

    def __getitem__(self, index):
        return self.sentences[index], index % 4


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


class SentenceTensors(Sentences):
    """The same sentences, made tensors once."""

    def __init__(self):
        self.sentences = sentence_tensors()


@functools.cache
def sentence_tensors():
    return [torch.tensor(words) for words in Sentences().sentences]


def pad_tensors(samples):
    sentences, labels = zip(*samples, strict=True)
    padded = torch.nn.utils.rnn.pad_sequence(sentences, batch_first=True)
    return padded, torch.tensor(labels)


class Clips(Dataset):
    """Short clips of sound; `collate` makes features of them."""

    def __init__(self):
        self.clips = numbers(256, 4000)

    def __len__(self):
        return len(self.clips)

    def __getitem__(self, index):
        return self.clips[index], index % 8


def features_one_by_one(samples):
    """Make a spectrogram of each clip, normalise it, and put them together."""
    features = []
    for clip, _ in samples:
        spectrum = torch.stft(
            clip, 256, 64, window=torch.hann_window(256), return_complex=True
        )
        loudness = torch.log1p(spectrum.abs())
        loudness = (loudness - loudness.mean()) / loudness.std()
        features.append(F.interpolate(loudness[None], size=64)[0])
    return torch.stack(features), torch.tensor([label for _, label in samples])


@functools.cache
def ready_features():
    """The same features, made once."""
    return TensorDataset(*features_one_by_one(list(Clips())))
