"""Twelve ways to feed a training loop: what limits each is known, how fast is not.

Sized for two cores: a batch takes some milliseconds to some tens of them.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler
from torchvision.transforms import v2

from kit.data import Distant, PhotoDataset, photos

#: An epoch that no measurement comes to the end of.
_FOR_EVER = 1_000_000


class Pipeline(NamedTuple):
    """A loader to tune: by what it is bound, how it is made, what a step does."""

    name: str
    bound: str
    make_loader: Callable[..., DataLoader]
    step: Callable[[Any], None] | None


class Numbers(Dataset):
    """Samples of so many numbers each, copied out of one tensor in memory."""

    def __init__(self, *shape: int, distinct: int = 64) -> None:
        self.values = torch.rand(distinct, *shape)

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.values[index % len(self.values)]


class Computed(Dataset):
    """Samples made by plain Python: `additions` of them on average.

    Of `spread` samples one takes nearly all of the time, the others none.
    """

    def __init__(self, additions: int, *, spread: int = 1, length: int = 4096) -> None:
        self.additions, self.spread, self.length = additions, spread, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        total = 0
        if index % self.spread == 0:
            for number in range(self.additions * self.spread):
                total += number % 7
        return torch.full((16,), float(total))


class Records(Dataset):
    """Samples that are a dict of many small tensors."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {f"column {i}": torch.full((4,), float(index)) for i in range(24)}


class Sentences(Dataset):
    """Samples that are lists of numbers, each of another length."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> list[int]:
        return list(range(200 + index % 100))


def pad(sentences: list[list[int]]) -> torch.Tensor:
    """Make one tensor of lists of unequal lengths, number by number."""
    longest = max(map(len, sentences))
    padded = [
        [word % 997 for word in words] + [0] * (longest - len(words))
        for words in sentences
    ]
    return torch.tensor(padded)


def make_loader(
    make_dataset: Callable[[], Any],
    batch_size: int,
    *,
    num_workers: int,
    prefetch_factor: int | None = None,
    persistent_workers: bool = False,
    epochs: bool = False,
    collate_fn: Callable[..., Any] | None = None,
) -> DataLoader:
    """Make a loader over random samples, for ever unless it has `epochs`."""
    dataset = make_dataset()
    many = None if epochs else _FOR_EVER
    return DataLoader(
        dataset,
        batch_size,
        sampler=RandomSampler(dataset, replacement=not epochs, num_samples=many),
        num_workers=num_workers,
        prefetch_factor=prefetch_factor,
        persistent_workers=persistent_workers,
        collate_fn=collate_fn,
    )


def multiply(units: int) -> Callable[[Any], None]:
    """Make a step that multiplies matrices on one core, `units` times."""
    a, b, out = torch.rand(160, 160), torch.rand(160, 160), torch.empty(160, 160)

    def step(batch: Any) -> None:
        for _ in range(units):
            torch.mm(a, b, out=out)

    return step


def train(channels: int, side: int) -> Callable[[Any], None]:
    """Make a step that trains a small network on as many threads as there are."""
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, channels, 3, stride=2),
        torch.nn.ReLU(),
        torch.nn.Conv2d(channels, channels, 3, stride=2),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(channels, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(batch: Any) -> None:
        images, labels = batch
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def wait(seconds: float) -> Callable[[Any], None]:
    """Make a step that waits, as a process does for its GPU."""
    return lambda batch: time.sleep(seconds)


def decode(side: int, count: int = 1024) -> PhotoDataset:
    """Read photos, cut and scaled at random to `side` × `side` pixels."""
    transforms = [v2.RandomResizedCrop(side), v2.PILToTensor()]
    scale = v2.ToDtype(torch.float32, scale=True)
    return PhotoDataset(photos(count), v2.Compose([*transforms, scale]))


def _make(*arguments: Any, **options: Any) -> Callable[..., DataLoader]:
    return functools.partial(make_loader, *arguments, **options)


def _distant(make_dataset: Callable[[], Any], seconds: float) -> Callable[[], Any]:
    return lambda: Distant(make_dataset(), seconds)


def make_pipelines() -> list[Pipeline]:
    """Make all twelve; each of their data sets is made anew for each loader."""
    small = functools.partial(Numbers, 16)
    images = functools.partial(Numbers, 3, 160, 160)
    photos_64, photos_96 = (functools.partial(decode, side) for side in (64, 96))
    uneven = functools.partial(Computed, 10_000, spread=40)
    few = functools.partial(Computed, 10_000, length=256)
    return [
        Pipeline("photos alone", "decode", _make(photos_64, 16), None),
        Pipeline("photos, trained on", "decode", _make(photos_96, 16), train(8, 96)),
        Pipeline("far away", "latency", _make(_distant(small, 1e-3), 16), None),
        Pipeline(
            "far away, a GPU", "latency", _make(_distant(small, 2e-3), 8), wait(5e-3)
        ),
        Pipeline("large images", "transport", _make(images, 32), None),
        Pipeline("many small tensors", "transport", _make(Records, 16), multiply(5)),
        Pipeline(
            "padding", "collate", _make(Sentences, 64, collate_fn=pad), multiply(20)
        ),
        Pipeline("tiny samples", "step", _make(small, 16), multiply(10)),
        Pipeline("a long step", "step", _make(photos_64, 4), multiply(60)),
        Pipeline("far photos", "mixed", _make(_distant(photos_64, 2e-3), 16), None),
        Pipeline("uneven samples", "mixed", _make(uneven, 16), multiply(30)),
        Pipeline("short epochs", "mixed", _make(few, 8, epochs=True), multiply(20)),
    ]
