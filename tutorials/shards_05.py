"""Chapter 05's photos as samples, in a module: worker processes cannot see cells.

`Shards` is the class of `take_home/05_read_shards.py`. It is given this module's name,
so that workers of any start method find it.
"""

from __future__ import annotations

import io
import runpy
import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import PIL.Image
import torch
from torch import nn
from torch.nn import functional as F

SCRIPT = Path(__file__).parent / "take_home" / "05_read_shards.py"
Shards = runpy.run_path(str(SCRIPT))["Shards"]
Shards.__module__ = __name__
#: Numbers in a decoded photo.
NUMBERS = 7500


def show_class() -> None:
    """Print the class as the script has it."""
    text = SCRIPT.read_text("utf-8")
    begin = text.index("class Shards")
    print(text[begin : text.index("\n\n\n", begin)])


def decode(data: bytes) -> torch.Tensor:
    """Return a photo of 400 × 400 as numbers from 0 to 1, 50 × 50 for each color."""
    image = PIL.Image.open(io.BytesIO(data))
    image.draft("RGB", (50, 50))  # decodes an eighth of its height and width
    return torch.tensor(np.asarray(image)).flatten() / 255


def pack(photos: Mapping[int, bytes]) -> bytes:
    """Return a tar file of photos; photo 12 is `00012.2.jpg`, since its label is 2."""
    with tarfile.open(fileobj=(packed := io.BytesIO()), mode="w") as tar:
        for number, photo in photos.items():
            member = tarfile.TarInfo(f"{number:05}.{number % 10}.jpg")
            member.size = len(photo)
            tar.addfile(member, io.BytesIO(photo))
    return packed.getvalue()


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
