"""What chapter 12 trains: a network of many small layers, and each rank's letters."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn

from kit.data import glyphs


def make_net(blocks: int = 16, width: int = 256) -> nn.Sequential:
    """Return a network for letters of 28 × 28 pixels: blocks of three layers each.

    >>> len(list(make_net().parameters()))
    68
    """
    layers = [nn.Flatten(), nn.Linear(784, width)]
    for _ in range(blocks):
        layers += [nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def batches(images: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield this rank's part of each batch, forever.

    All ranks draw the same batches, of so many images, and each keeps its own part.
    """
    letters = glyphs()
    generator = torch.Generator().manual_seed(0)
    while True:
        chosen = torch.randint(len(letters), (images,), generator=generator)
        yield letters[chosen.tensor_split(dist.get_world_size())[dist.get_rank()]]
