"""Nine training loops of chapter 03. Read one, guess what takes its time, diagnose it.

Each is an experiment: a generator with one `yield` per step. They are sized for two
cores, where a step takes some milliseconds to some tens of them. What they learn from
is random numbers of the right shape.

What is wrong with each, if anything, is at the end of this file, in `REPAIRED`.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterator
from functools import partial

import numpy
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    RandomSampler,
    TensorDataset,
)

# Data and models


@functools.cache
def numbers(*shape: int) -> torch.Tensor:
    """Return normally distributed numbers of this shape, always the same."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


@functools.cache
def whole_numbers(below: int, *shape: int) -> torch.Tensor:
    """Return whole numbers from 0 to `below` - 1, always the same."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(below, shape, generator=generator)


def batches(size: int, *tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield whole batches out of memory, for ever; slices, so nothing is copied."""
    while True:
        yield from zip(*(tensor.split(size) for tensor in tensors), strict=True)


def mlp(*widths: int, activation: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    """Make a multilayer perceptron with these widths, the input's first."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), activation()]
    return nn.Sequential(*layers[:-1])


class Blocks(nn.Module):
    """A layer of many small blocks along the diagonal, each a parameter."""

    def __init__(self, blocks: int, width: int) -> None:
        super().__init__()
        size = (width, width)
        self.blocks = nn.ParameterList([torch.randn(size) / 4 for _ in range(blocks)])
        self.shifts = nn.ParameterList([torch.zeros(width) for _ in range(blocks)])

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        weight, shift = torch.stack(list(self.blocks)), torch.stack(list(self.shifts))
        parts = inputs.unflatten(1, weight.shape[:2])
        return torch.einsum("nbi,bio->nbo", parts, weight).add(shift).flatten(1)


class CsvRows(Dataset):
    """Rows of a CSV file, each as its numbers and its class."""

    def __init__(self) -> None:
        values, labels = numbers(512, 300).tolist(), whole_numbers(10, 512).tolist()
        self.lines = []
        for row, label in zip(values, labels, strict=True):
            self.lines.append(",".join(f"{value:.5f}" for value in row) + f",{label}")

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        *values, label = self.lines[index].split(",")
        return torch.tensor([float(value) for value in values]), int(label)


def tensor_rows() -> TensorDataset:
    """Return the same rows as tensors."""
    return TensorDataset(numbers(512, 300), whole_numbers(10, 512))


# Nine loops


def read_digits(*, part=1):
    """Read handwritten digits."""
    model = mlp(256, 32, 32, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for images, digits in batches(24, numbers(480, 256), whole_numbers(10, 480)):
        pairs = zip(images.split(part), digits.split(part), strict=True)
        losses = [F.cross_entropy(model(few), true) for few, true in pairs]
        loss = torch.stack(losses).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield len(images), {"loss": loss}


def recognise_voices(*, every=1):
    """Recognise who speaks."""
    model = mlp(256, 384, 384, 10, activation=nn.SiLU)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    data = batches(64, numbers(1024, 256), whole_numbers(10, 1024))
    for step, (voices, speakers) in enumerate(data):
        loss = F.cross_entropy(model(voices), speakers)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % every == 0:
            weights = nn.utils.parameters_to_vector(model.parameters())
            values = weights.detach().numpy()
            low, *_, high = numpy.percentile(values, [1, 5, 25, 75, 95, 99])
        yield len(voices), {"loss": loss, "spread": high - low}


def sort_photos():
    """Sort photos into albums."""
    dataset = TensorDataset(numbers(1536, 1024), whole_numbers(10, 1536))
    sampler = BatchSampler(RandomSampler(dataset), 384, drop_last=True)
    loader = DataLoader(dataset, sampler=sampler, batch_size=None)
    model = mlp(1024, 1024, 1024, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    while True:
        for photos, albums in loader:
            scores = model(photos)
            loss = F.cross_entropy(scores, albums)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            accuracy = (scores.argmax(1) == albums).float().mean().item()
            yield len(photos), {"loss": loss, "accuracy": accuracy}


def grade_wines(*, rows=CsvRows):
    """Grade wines by what a laboratory found in them."""
    loader = DataLoader(rows(), batch_size=64, shuffle=True)
    model = mlp(300, 128, 10, activation=nn.GELU)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    while True:
        for contents, grades in loader:
            loss = F.cross_entropy(model(contents), grades)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            yield len(contents), {"loss": loss}


def forecast_tides(*, foreach=False):
    """Forecast the tides in 150 harbors."""
    model = nn.Sequential(Blocks(150, 4), nn.Tanh(), Blocks(150, 4))
    options = {"lr": 1e-4, "momentum": 0.9, "centered": True, "foreach": foreach}
    optimizer = torch.optim.RMSprop(list(model.parameters()), **options)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9999)
    for levels, later in batches(32, numbers(320, 600), numbers(320, 600)):
        optimizer.zero_grad()
        loss = F.mse_loss(model(levels), later)
        loss.backward()
        optimizer.step()
        scheduler.step()
        yield len(levels), {"loss": loss}


def restore_drawings(*, per_core=4):
    """Restore faded drawings."""
    torch.set_num_threads(per_core * torch.get_num_threads())
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, stride=2, padding=1),
        nn.BatchNorm2d(16),
        nn.ELU(),
        nn.ConvTranspose2d(16, 1, 4, stride=2, padding=1),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    for (drawings,) in batches(32, numbers(320, 1, 32, 32)):
        clean = drawings.sigmoid()
        loss = F.binary_cross_entropy_with_logits(model(drawings), clean)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield len(drawings), {"loss": loss}


def teach_robots(*, detect_anomaly=True):
    """Teach robots to walk."""
    torch.autograd.set_detect_anomaly(detect_anomaly)
    model = mlp(*[64] * 24, 10, activation=nn.Tanh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    for positions, moves in batches(64, numbers(640, 64), whole_numbers(10, 640)):
        loss = F.cross_entropy(model(positions), moves)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield len(positions), {"loss": loss}


def weigh_parcels(*, dtype=torch.float64):
    """Weigh parcels by photos of them."""
    values = numpy.random.default_rng(0).normal(size=(1024, 512))
    photos = torch.from_numpy(values).to(dtype)
    model = mlp(512, 512, 512, 1).to(dtype)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    for few, weights in batches(256, photos, photos[:, :1]):
        loss = F.mse_loss(model(few), weights)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield len(few), {"loss": loss}


def name_stars(*, threads=1):
    """Name stars by their light."""
    if threads:
        torch.set_num_threads(threads)
    model = mlp(1024, 1024, 1024, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    for lights, names in batches(256, numbers(1536, 1024), whole_numbers(10, 1536)):
        loss = F.cross_entropy(model(lights), names)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield len(lights), {"loss": loss}


LOOPS = {
    "A": read_digits,
    "B": recognise_voices,
    "C": sort_photos,
    "D": grade_wines,
    "E": forecast_tides,
    "F": restore_drawings,
    "G": teach_robots,
    "H": weigh_parcels,
    "I": name_stars,
}

#: What a reader may guess, and how a diagnosis calls it.
CAUSES = {
    "waiting for data": "input",
    "Python beside the training": "python",
    "many tiny operations": "overhead",
    "updating the parameters": "optimizer",
    "threads that do not fit the cores": "threads",
    "a debugging or precision setting": "settings",
    "nothing to repair": "healthy",
}


def show(letters: str = "ABCDEFGHI") -> None:
    """Print the source of each loop, under its letter."""
    for letter in letters:
        print(f"# {letter}", inspect.getsource(LOOPS[letter]), sep="\n")


def judge(guess: str, cause: str | None, reason: str) -> str:
    """Say whether a guess is right, beside a diagnosis's verdict and its reason.

    Useful arithmetic is nothing to repair.

    >>> judge("healthy", "compute", "93% of the step is matrix products")
    '✓ You guessed nothing to repair; it is nothing to repair.'
    """
    if cause == "compute":
        cause = "healthy"
    if cause is None:
        return f"? The diagnosis cannot tell: {reason}."
    words = {verdict: words for words, verdict in CAUSES.items()}
    mark = "✓" if guess == cause else "✗"
    return f"{mark} You guessed {words[guess]}; it is {words.get(cause, cause)}."


# A loop whose parts can be exchanged


def clip(parameters):
    """Keep the gradients short."""
    return nn.utils.clip_grad_norm_(parameters, 1.0)


def track(best, loss):
    """Keep the lowest loss."""
    return min(best, loss)


def smooth(average, loss):
    """Keep an average of the losses, of which the latest count most."""
    return torch.lerp(average, loss, 0.1)


HELPERS = {"clip": clip, "track": track, "smooth": smooth}


def train_with(*, helpers=HELPERS):
    """Train with these helpers."""
    model = mlp(64, 128, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, fused=True)
    best, average = torch.tensor(torch.inf), torch.tensor(0.0)
    for rows, labels in batches(64, numbers(1024, 64), whole_numbers(10, 1024)):
        loss = F.cross_entropy(model(rows), labels)
        optimizer.zero_grad()
        loss.backward()
        helpers["clip"](list(model.parameters()))
        optimizer.step()
        best = helpers["track"](best, loss.detach())
        average = helpers["smooth"](average, loss.detach())
        yield len(rows), {"loss": average, "best": best}


# The answers: each loop as a good engineer would have written it


REPAIRED = {
    "A": partial(read_digits, part=24),
    "B": partial(recognise_voices, every=100),
    "C": sort_photos,
    "D": partial(grade_wines, rows=tensor_rows),
    "E": partial(forecast_tides, foreach=True),
    "F": partial(restore_drawings, per_core=1),
    "G": partial(teach_robots, detect_anomaly=False),
    "H": partial(weigh_parcels, dtype=torch.float32),
    "I": partial(name_stars, threads=None),
}
