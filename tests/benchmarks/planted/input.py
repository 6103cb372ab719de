"""Loops that wait for their data."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset
from torchvision.transforms import v2

from kit.data import Distant

from .input_data import (
    Augmented,
    Clips,
    Sentences,
    SentenceTensors,
    Spectrograms,
    TogetherDistant,
    decoded_photos,
    features_one_by_one,
    jpeg_photos,
    pad_by_hand,
    pad_tensors,
    ready_features,
    shrunk_photos,
    table,
)
from .parts import Planted, cnn, mlp, shown


def photos_decoded(*, photos=jpeg_photos):
    """Classify photos that are decoded in the loader."""
    loader = DataLoader(photos(64), batch_size=8, shuffle=True)
    model = cnn(16)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    while True:
        for images, labels in loader:
            optimizer.zero_grad()
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
            yield len(images)


def photos_augmented():
    """Train on photos, each distorted at its full size."""
    loader = DataLoader(Augmented(48), batch_size=4, shuffle=True, drop_last=True)
    model = cnn(16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    while True:
        for images, labels in loader:
            loss = F.cross_entropy(model(images), labels, label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield len(images)


def photos_augmented_together():
    """Train on small photos, distorted a batch at a time."""
    loader = DataLoader(shrunk_photos(48), batch_size=4, shuffle=True, drop_last=True)
    distort = v2.Compose(
        [
            v2.ColorJitter(0.2, 0.2, 0.2),
            v2.RandomResizedCrop(48, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True),
        ]
    )
    model = cnn(16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    while True:
        for images, labels in loader:
            loss = F.cross_entropy(model(distort(images)), labels, label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield len(images)


def rows_far_away(*, store=Distant):
    """Train on rows that are asked for one by one from far away."""
    dataset = store(table(2000, 64), 0.0008)
    loader = DataLoader(dataset, batch_size=16, shuffle=True)
    model = mlp(64, 256, 256, 10)
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    while True:
        for rows, labels in loader:
            loss = F.cross_entropy(model(rows), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield len(rows)


def autoencode_from_far(*, num_workers=1):
    """Train an autoencoder on vectors that few workers fetch from far away."""
    dataset = Distant(table(4000, 256), 0.003)
    loader = DataLoader(
        dataset, 10, shuffle=True, num_workers=num_workers, persistent_workers=True
    )
    model = mlp(256, 512, 32, 512, 256)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    while True:
        for vectors, _ in loader:
            optimizer.zero_grad(set_to_none=True)
            loss = F.mse_loss(model(vectors), vectors)
            loss.backward()
            optimizer.step()
            yield len(vectors)


class TextClassifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.EmbeddingBag(5000, 32, mode="mean")
        self.head = nn.Linear(32, 4)

    def forward(self, text):
        return self.head(self.words(text))


def sentences_padded(*, dataset=Sentences, collate=pad_by_hand):
    """Classify sentences that are padded word by word."""
    loader = DataLoader(dataset(), batch_size=128, collate_fn=collate)
    model = TextClassifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    while True:
        for text, labels in loader:
            loss = F.cross_entropy(model(text), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield len(text)


def sounds_collated(*, dataset=Clips, collate=features_one_by_one):
    """Recognise sounds whose spectrograms are made while they are collated."""
    loader = DataLoader(dataset(), 24, shuffle=True, collate_fn=collate, drop_last=True)
    model = nn.Sequential(
        nn.Conv1d(129, 64, 5, stride=2),
        nn.BatchNorm1d(64),
        nn.ReLU(),
        nn.Conv1d(64, 64, 5, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.LazyLinear(8),
    )
    model(torch.zeros(2, 129, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    while True:
        for features, labels in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(features), labels).backward()
            optimizer.step()
            yield len(features)


def samples_one_by_one():
    """Train on a tensor in memory whose rows are fetched one by one."""
    dataset = TensorDataset(numbers_of_digits(), labels_of_digits())
    loader = DataLoader(dataset, batch_size=1024, shuffle=True)
    yield from train_on_digits(loader)


def samples_together():
    """Train on a tensor in memory of which whole batches are taken."""
    dataset = TensorDataset(numbers_of_digits(), labels_of_digits())
    sampler = BatchSampler(RandomSampler(dataset), 1024, drop_last=False)
    yield from train_on_digits(DataLoader(dataset, sampler=sampler, batch_size=None))


def numbers_of_digits():
    return table(8192, 144).tensors[0]


def labels_of_digits():
    return table(8192, 144).tensors[1]


def train_on_digits(loader):
    model = mlp(144, 32, 32, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    while True:
        for digits, labels in loader:
            loss = F.cross_entropy(model(digits), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield len(digits)


def spectrograms_unpacked(*, compressed=True):
    """Train a recurrent network on spectrograms that were stored compressed."""
    dataset = Spectrograms(compressed=compressed)
    loader = DataLoader(dataset, batch_size=16, shuffle=True)
    encoder, head = nn.GRU(400, 32, batch_first=True), nn.Linear(32, 5)
    parameters = [*encoder.parameters(), *head.parameters()]
    optimizer = torch.optim.RMSprop(parameters, lr=1e-3)
    while True:
        for spectrograms, labels in loader:
            optimizer.zero_grad()
            states, _ = encoder(spectrograms[:, ::4])
            loss = F.cross_entropy(head(states[:, -1]), labels)
            loss.backward()
            optimizer.step()
            yield len(spectrograms)


def too_few_workers(*, num_workers=1):
    """Train on photos that one worker fetches from a store and decodes."""
    stored = Distant(jpeg_photos(56), 0.002)
    loader = DataLoader(stored, 8, num_workers=num_workers, persistent_workers=True)
    model = cnn(8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1000)
    while True:
        for images, labels in loader:
            loss = F.nll_loss(F.log_softmax(model(images), dim=1), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            yield len(images)


def workers_restarted(*, persistent_workers=False):
    """Train on short epochs, at each of which the workers start anew."""
    loader = DataLoader(
        table(256, 32), 32, num_workers=2, persistent_workers=persistent_workers
    )
    model = mlp(32, 128, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    while True:
        for rows, labels in loader:
            loss = F.cross_entropy(model(rows), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield len(rows)


_PADDED = {"dataset": SentenceTensors, "collate": pad_tensors}
_COLLATED = {"dataset": ready_features, "collate": None}
_TABLE = [
    ("photos decoded", photos_decoded, {"photos": decoded_photos}),
    ("rows far away", rows_far_away, {"store": TogetherDistant}),
    ("one worker for what is far away", autoencode_from_far, {"num_workers": 2}),
    ("sentences padded by hand", sentences_padded, _PADDED),
    ("features made in the collation", sounds_collated, _COLLATED),
    ("spectrograms unpacked", spectrograms_unpacked, {"compressed": False}),
    ("one worker for photos", too_few_workers, {"num_workers": 2}),
    ("workers restarted", workers_restarted, {"persistent_workers": True}),
]
INPUT = [
    *(Planted(name, "input", slow, partial(slow, **fix)) for name, slow, fix in _TABLE),
    Planted("photos augmented", "input", photos_augmented, photos_augmented_together),
    Planted("samples one by one", "input", samples_one_by_one, samples_together),
    shown("D", "CSV parsed in each epoch", "input"),
]
