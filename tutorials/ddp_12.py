"""What chapter 12 trains, two of its versions, and a sentence about two of its ratios.

A version is a function of a network and a process group. It returns the network to
call, and a function after which each gradient is the mean over all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from kit.data import glyphs

Version = tuple[nn.Module, Callable[[], None]]


class Block(nn.Module):
    """Layer norm, a linear layer and ReLU; what comes out is added to what went in."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layers(x)


def make_net(blocks: int = 12, width: int = 256) -> nn.Sequential:
    """Return a network of many small layers for letters of 28 × 28 pixels.

    >>> len(list(make_net().parameters()))
    54
    """
    middle = [Block(width) for _ in range(blocks)]
    first, last = nn.Linear(784, width), nn.Linear(width, 10)
    return nn.Sequential(nn.Flatten(), first, *middle, nn.LayerNorm(width), last)


@cache
def load_letters() -> Any:
    """Return the letters to train on, read once in each process."""
    return glyphs()


def batches(images: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield this rank's part of each batch, forever.

    All ranks draw the same batches, of so many images, and each keeps its own part.
    """
    letters = load_letters()
    generator = torch.Generator().manual_seed(0)
    while True:
        chosen = torch.randint(len(letters), (images,), generator=generator)
        yield letters[chosen.tensor_split(dist.get_world_size())[dist.get_rank()]]


def nothing() -> None:
    """Do nothing: all is done when the backward pass returns."""


def alone(net: nn.Module, group: dist.ProcessGroup) -> Version:
    """Send nothing: each rank trains by itself."""
    return net, nothing


def buckets(net: nn.Module, group: dist.ProcessGroup) -> Version:
    """Send gradients in buckets of about 1 MB while the backward pass computes."""
    bucket: list[nn.Parameter] = []
    under_way: list[tuple[Any, torch.Tensor, list[Any]]] = []

    def send() -> None:
        gradients = [parameter.grad for parameter in bucket]
        flat = parameters_to_vector(gradients) / group.size()
        handle = dist.all_reduce(flat, group=group, async_op=True)
        under_way.append((handle, flat, gradients))
        bucket.clear()

    def collect(parameter: nn.Parameter) -> None:
        bucket.append(parameter)
        if sum(parameter.nbytes for parameter in bucket) >= 1_000_000:
            send()

    def finish() -> None:
        send()  # what is left
        for handle, flat, gradients in under_way:
            handle.wait()
            vector_to_parameters(flat, gradients)
        under_way.clear()

    for parameter in net.parameters():
        parameter.register_post_accumulate_grad_hook(collect)
    return net, finish


def say_where_it_helps(loopback: Any, cable: Any) -> str:
    """Say what two ratios show: how fast four buckets are, compared with one."""
    words = {"faster": "overlap gains time, too", "slower": "four buckets lose time"}
    there = words.get(loopback.verdict, "no gain from overlap is shown")
    if cable.low > loopback.high:
        there += ". Over the cable, overlap gains more"
    return (
        f"Loopback: four buckets are {loopback} as fast as one.\n"
        f"Cable: four buckets are {cable} as fast as one.\n"
        f"On the loopback {there}."
    )
