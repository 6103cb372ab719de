"""Ten models to find a batch size for, each an experiment with that one knob.

Small images and short sequences: a step takes some milliseconds to a second or so on
one thread, and the budget of memory is reached at some tens to some thousands of
samples. Everything is made inside, so that its memory counts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
import torchvision.models as vision
from torch import nn
from torch.nn import functional as F

_CLASSES = 10
MB = 1_000_000


class Case(NamedTuple):
    """A model, what it is trained on and with, and the bytes that it may take.

    `make_batch` takes a batch size; `optimize` takes parameters.
    """

    name: str
    budget: int
    make_model: Callable[[], nn.Module]
    make_batch: Callable[[int], tuple[torch.Tensor, torch.Tensor]]
    optimize: Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]
    find_loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = F.cross_entropy

    def make_experiment(self) -> Callable[..., Iterator[int]]:
        """Return a generator function that has `batch_size` as its knob."""

        def train(*, batch_size: int = 8) -> Iterator[int]:
            """Train a model on one batch of random data, for ever."""
            device = "cuda" if torch.cuda.is_available() else "cpu"
            model = self.make_model().to(device)
            inputs, targets = (x.to(device) for x in self.make_batch(batch_size))
            optimizer = self.optimize(model.parameters())
            while True:
                optimizer.zero_grad()
                loss = self.find_loss(model(inputs), targets)
                loss.backward()
                optimizer.step()
                yield batch_size

        return train


def make_cases() -> list[Case]:
    """Return the ten, those that see images first."""
    return [
        *(
            Case(
                name,
                budget * MB,
                functools.partial(_make_vision, name, **more),
                functools.partial(_make_images, side, 3),
                optimize,
            )
            for name, side, budget, optimize, more in _VISION
        ),
        Case("lenet", 300 * MB, LeNet, functools.partial(_make_images, 28, 1), _SGD),
        Case("u-net", 200 * MB, UNet, _make_masks, _ADAM),
        Case("lstm", 200 * MB, LSTM, _make_sequences, _ADAM),
        Case("gpt", 300 * MB, Decoder, _make_text, _ADAMW, _find_token_loss),
        Case(
            "recommender",
            300 * MB,
            Recommender,
            _make_clicks,
            _SGD,
            F.binary_cross_entropy_with_logits,
        ),
    ]


_SGD = functools.partial(torch.optim.SGD, lr=1e-3)
_MOMENTUM = functools.partial(torch.optim.SGD, lr=1e-3, momentum=0.9)
_ADAM = functools.partial(torch.optim.Adam, lr=1e-3)
_ADAMW = functools.partial(torch.optim.AdamW, lr=1e-3)

#: torchvision's name, the side of an image in pixels, megabytes, optimizer, the rest.
_VISION = [
    ("resnet18", 32, 220, _MOMENTUM, {}),
    ("resnet50", 32, 530, _ADAM, {}),
    ("mobilenet_v3_small", 64, 250, _MOMENTUM, {}),
    ("vgg11", 32, 1120, _SGD, {}),
    ("vit_b_16", 32, 1190, _MOMENTUM, {"image_size": 32}),
]


def _make_vision(name: str, **more: object) -> nn.Module:
    return vision.get_model(name, weights=None, num_classes=_CLASSES, **more)


def _make_labels(size: int) -> torch.Tensor:
    return torch.randint(_CLASSES, (size,))


def _make_images(side: int, channels: int, size: int) -> tuple:
    return torch.rand(size, channels, side, side), _make_labels(size)


class LeNet(nn.Sequential):
    """LeCun et al. 1998, with max pooling and ReLU."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 6, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(400, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
            nn.Linear(84, _CLASSES),
        )


class UNet(nn.Module):
    """One class per pixel: down twice, up twice, and across (Ronneberger 2015)."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first = _make_block(3, width)
        self.second = _make_block(width, 2 * width)
        self.bottom = _make_block(2 * width, 4 * width)
        self.up_second = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.back_second = _make_block(4 * width, 2 * width)
        self.up_first = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.back_first = _make_block(2 * width, width)
        self.head = nn.Conv2d(width, _CLASSES, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        first = self.first(images)
        second = self.second(F.max_pool2d(first, 2))
        up = self.up_second(self.bottom(F.max_pool2d(second, 2)))
        up = self.up_first(self.back_second(torch.cat([up, second], 1)))
        return self.head(self.back_first(torch.cat([up, first], 1)))


def _make_block(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


def _make_masks(size: int) -> tuple:
    return torch.rand(size, 3, 48, 48), torch.randint(_CLASSES, (size, 48, 48))


class LSTM(nn.Module):
    """Two layers over a sequence, its last state classified."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.layers = nn.LSTM(64, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, _CLASSES)

    def forward(self, sequences: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(sequences)[0][:, -1])


def _make_sequences(size: int) -> tuple:
    return torch.rand(size, 32, 64), _make_labels(size)


_WORDS, _LENGTH = 2000, 32


class Decoder(nn.Module):
    """A small GPT: each word sees those before it; the next one is predicted."""

    def __init__(self, width: int = 256, depth: int = 4) -> None:
        super().__init__()
        self.words = nn.Embedding(_WORDS, width)
        self.places = nn.Parameter(torch.zeros(_LENGTH, width))
        self.blocks = nn.ModuleList(DecoderBlock(width) for _ in range(depth))
        self.head = nn.Linear(width, _WORDS, bias=False)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        states = self.words(text) + self.places
        for block in self.blocks:
            states = block(states)
        return self.head(states)


class DecoderBlock(nn.Module):
    """Causal attention and a feed-forward net, each normed before and added."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.join = nn.Linear(width, width)
        self.feed_forward = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        parts = self.queries_keys_values(self.norms[0](states)).chunk(3, -1)
        queries, keys, values = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts
        )
        seen = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        states = states + self.join(seen.transpose(1, 2).flatten(2))
        return states + self.feed_forward(self.norms[1](states))


def _make_text(size: int) -> tuple:
    words = torch.randint(_WORDS, (size, _LENGTH + 1))
    return words[:, :-1], words[:, 1:]


def _find_token_loss(scores: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(scores.flatten(0, 1), words.flatten())


class Recommender(nn.Module):
    """Large tables of embeddings below a small net: nearly all of it is looked up."""

    def __init__(self, tables: int = 8, rows: int = 40_000, width: int = 64) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.net = nn.Sequential(
            nn.Linear(tables * width, 256), nn.ReLU(), nn.Linear(256, 1)
        )

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        columns = rows.unbind(1)
        found = [t(c) for t, c in zip(self.tables, columns, strict=True)]
        return self.net(torch.cat(found, 1)).squeeze(1)


def _make_clicks(size: int) -> tuple:
    return torch.randint(40_000, (size, 8)), torch.rand(size).round()
