"""Chapter 05's photos as samples, in a module: worker processes cannot see cells.

`Shards` is the class of `take_home/05_read_shards.py`. It is given this module's name,
so that workers of any start method find it.
"""

from __future__ import annotations

import io
import math
import runpy
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from time import perf_counter

import numpy as np
import PIL.Image
import torch
from far_store import FarStore
from s3fs import S3FileSystem
from torch import nn
from torch.nn import functional as F

SCRIPT = Path(__file__).parent / "take_home" / "05_read_shards.py"
Shards = runpy.run_path(str(SCRIPT))["Shards"]
Shards.__module__ = __name__
#: Numbers in a decoded photo.
NUMBERS = 7500


def show_class() -> None:
    """Print how the script's class divides the shards among processes, and fetches."""
    text = SCRIPT.read_text("utf-8")
    begin = text.index("    def choose")
    print(text[begin : text.index("    def __iter__", begin)].rstrip())


def decode(data: bytes) -> torch.Tensor:
    """Return a photo of 400 × 400 as numbers from 0 to 1, 50 × 50 for each color."""
    image = PIL.Image.open(io.BytesIO(data))
    image.draft("RGB", (50, 50))  # decodes an eighth of its height and width
    return torch.tensor(np.asarray(image)).flatten() / 255


def pack(photos: Mapping[int, bytes]) -> bytes:
    """Return a tar file of photos; photo 12 is `00012.1.jpg`, since its label is 1."""
    with tarfile.open(fileobj=(packed := io.BytesIO()), mode="w") as tar:
        for number, photo in photos.items():
            member = tarfile.TarInfo(f"{number:05}.{number // 8 % 10}.jpg")
            member.size = len(photo)
            tar.addfile(member, io.BytesIO(photo))
    return packed.getvalue()


def put_photos(store: FarStore, files: Sequence[Path]) -> list[str]:
    """Put each photo into the store as an object; return their names."""
    names = [f"data/photos/{file.name}" for file in files]
    for name, file in zip(names, files, strict=True):
        store.put(name, file.read_bytes())
    return names


def put_shards(store: FarStore, files: Sequence[Path], size: int = 8) -> list[str]:
    """Put photos into the store as shards, `size` in each; return their names."""
    names = []
    for first in range(0, len(files), size):
        numbers = range(first, first + size)
        names.append(f"data/shards/{first:05}.tar")
        store.put(names[-1], pack({n: files[n].read_bytes() for n in numbers}))
    return names


def unpack(data: bytes) -> Iterator[tuple[torch.Tensor, int]]:
    """Yield the photos of a tar file, decoded, each with its label."""
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for member in tar:
            file = tar.extractfile(member)
            assert file is not None, f"{member.name} is no file"
            yield decode(file.read()), int(member.name.split(".")[1])


def make_step(device: torch.device, hidden: int) -> Callable[..., torch.Tensor]:
    """Return a function that trains a small network on a batch and returns the loss."""
    layers = [nn.Linear(NUMBERS, hidden), nn.ReLU(), nn.Linear(hidden, 10)]
    net = nn.Sequential(*layers).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

    def step(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(net(images.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step


def time_requests(client: S3FileSystem, names: Sequence[str], in_flight: int) -> float:
    """Fetch objects, and return the seconds for each."""
    begin = perf_counter()
    client.cat([*names], batch_size=in_flight)
    return (perf_counter() - begin) / len(names)


def time_overhead(
    store: FarStore, client: S3FileSystem, names: Sequence[str], in_flight: int
) -> float:
    """Fetch objects from a store without a distance; return the seconds for each."""
    distance = store.latency, store.bandwidth
    store.latency = 0
    store.bandwidth = math.inf
    seconds = time_requests(client, names, in_flight)
    store.latency, store.bandwidth = distance
    return seconds


def mean_size(files: Sequence[Path]) -> float:
    """Return how many bytes files have, on average."""
    return sum(file.stat().st_size for file in files) / len(files)


def time_work(files: Sequence[Path], step: Callable[..., torch.Tensor]) -> float:
    """Decode local photos and train on them, ten times; return seconds for each."""
    labels = torch.zeros(len(files), dtype=torch.int64)
    for turn in range(11):
        if turn == 1:
            begin = perf_counter()  # the first one warms up
        images = torch.stack([decode(file.read_bytes()) for file in files])
        step(images, labels).item()
    return (perf_counter() - begin) / (10 * len(files))
