"""Chapter 15: a network to divide, what each division holds and sends, and its price.

`watch` runs in a rank: it trains a divided network and compares it with the whole one.
The rest calculates, for models of any size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pandas as pd
import torch
import torch.distributed as dist
from costs import LINKS
from matplotlib.figure import Figure
from pipelines import count_received
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

from kit.figures import COLORS, kit_look
from kit.figures.style import describe, new_figure

#: What the bytes of a device are for, in the order in which bars stack them.
KINDS = ("weights", "gradients", "optimizer state", "activations")
#: Of one H100: bytes, and bfloat16 operations per second at 40 % of the peak of
#: cards.csv.
CARD, SPEED = 80e9, 0.4 * 989.4e12
#: Micro-batches of the pipeline that is calculated.
MICRO_BATCHES = 32


class Block(nn.Module):
    """Two linear layers: a transformer's block without attention."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what has the shape of `x`."""
        return x + self.down(F.gelu(self.up(x)))


def make(
    size: int = 64, width: int = 256
) -> tuple[nn.Sequential, torch.Tensor, torch.Tensor]:
    """Return a network of four blocks, inputs and targets, from the same seed.

    They are on this rank's own GPU where two ranks have one each, else on the CPU.
    """
    has_own = torch.cuda.device_count() >= 2
    device = torch.device("cuda", torch.cuda.current_device()) if has_own else "cpu"
    torch.manual_seed(0)
    net = nn.Sequential(*[Block(width) for _ in range(4)])
    x, y = torch.randn(2, size, width)
    return net.to(device), x.to(device), y.to(device)


def mine(whole: torch.Tensor) -> torch.Tensor:
    """Return this rank's equal part of a tensor's rows."""
    return whole.chunk(dist.get_world_size())[dist.get_rank()]


# What a rank holds and receives


def watch(train: Callable[..., Any], divide: Callable[..., Any]) -> str:
    """Train a divided network on this rank; return what it holds and receives.

    `train` makes three steps with a network, inputs and targets, and returns its
    optimizer. `divide` turns the whole network, batch and targets into what this rank
    trains. Raises AssertionError where gradients or weights are not those of the whole
    network, within rounding.
    """
    whole, x, y = make()
    train(whole, x, y)
    size = sum(p.nbytes for p in whole.parameters())
    net, x, y = divide(*make())
    optimizer = train(net, x, y)
    for p, q in zip(net.parameters(), whole.parameters(), strict=True):
        near = {"rtol": 1e-3, "atol": 1e-5}
        torch.testing.assert_close(join(p.grad, q.grad), q.grad, **near)
        torch.testing.assert_close(join(p.detach(), q), q.detach(), rtol=0, atol=1e-4)
    held = [*net.parameters(), *(p.grad for p in net.parameters())]
    for state in optimizer.state.values():
        held += [tensor for tensor in state.values() if tensor.dim()]
    share = sum(map(count_bytes, held)) / size
    dist.barrier()
    before = count_received()
    train(net, x, y)
    dist.barrier()
    received = (count_received() - before) / 3
    told = f"Same gradients and weights. A rank holds {share:.1f} P and receives "
    if x.device.type == "cuda" or not before:
        return f"{told}what only Linux counts, and only on CPUs."
    return f"{told}{received / size:.1f} P per step, {received / 1e6:.2f} MB."


def join(part: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """Return a divided tensor whole: a DTensor, or rows of it on each rank."""
    if isinstance(part, DTensor):
        return part.full_tensor()
    if part.shape == whole.shape:
        return part
    joined = torch.empty_like(whole)
    dist.all_gather_into_tensor(joined, part.contiguous())
    return joined


def count_bytes(tensor: torch.Tensor) -> int:
    """Return the bytes of a tensor that are on this rank."""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.nbytes


# What a division costs, calculated


class Model(NamedTuple):
    """A transformer, as far as its memory and its messages go."""

    parameters: float
    layers: int
    width: int


def estimate_memory(model: Model, tokens: int, n: int = 8) -> dict[str, list[float]]:
    """Return the gigabytes on each of n devices, by division, in the order of KINDS.

    32-bit weights and gradients, two numbers of Adam, and activations of 16 bits: 16
    numbers of `width` for each token and layer. `tokens` is for each device and step;
    where several devices share a batch, they share n times as many. The first stage of
    a pipeline with 1F1B keeps n micro-batches. Within layers, 12 of the 16 numbers are
    divided, and 4 are not.
    """
    p = 4 * model.parameters / 1e9
    a = 32 * model.width * model.layers * tokens / 1e9
    return {
        "data parallel (DDP)": [p, p, 2 * p, a],
        "ZeRO-1": [p, p, 2 * p / n, a],
        "ZeRO-2": [p, p / n, 2 * p / n, a],
        "fully sharded (FSDP, ZeRO-3)": [p / n, p / n, 2 * p / n, a],
        "tensor parallel": [p / n, p / n, 2 * p / n, a * (4 * n + 12) / 16],
        "pipeline parallel": [p / n, p / n, 2 * p / n, a * n / MICRO_BATCHES],
    }


@kit_look()
def draw_memory(model: Model, tokens: int, n: int = 8) -> Figure:
    """Draw the memory of each device as stacked bars, and what a card has."""
    found = estimate_memory(model, tokens, n)
    totals = {way: sum(kinds) for way, kinds in found.items()}
    fits = [way for way, total in totals.items() if total <= CARD / 1e9]
    title = (
        f"{n * tokens:,} tokens on {n} devices: "
        f"{len(fits)} of {len(found)} divisions fit {CARD / 1e9:.0f} GB"
    )
    figure = new_figure(title, 3.4)
    axes = figure.subplots()
    colors = ("measured", "predicted", "recorded", "baseline")
    left = dict.fromkeys(found, 0.0)
    for place, kind in enumerate(KINDS):
        values = [kinds[place] for kinds in found.values()]
        look = {"color": COLORS[colors[place]], "label": kind, "zorder": 3}
        axes.barh(list(found), values, 0.7, list(left.values()), **look)
        left = {way: left[way] + kinds[place] for way, kinds in found.items()}
    for row, total in enumerate(totals.values()):
        axes.text(total + 1, row, f"{total:.0f}", va="center")
    axes.axvline(CARD / 1e9, color=COLORS["ink"], linestyle="--", zorder=4)
    axes.set(ylim=(len(found) - 0.5, -0.5), xlim=(0, 1.08 * max(totals.values())))
    axes.set_xlabel("GB on each device · dashed: what the device has")
    axes.grid(visible=False, axis="y")
    figure.legend(loc="outside lower left", ncols=4)
    told = []
    for way, kinds in found.items():
        parts = zip(KINDS, kinds, strict=True)
        words = ", ".join(f"{kind} {value:.0f}" for kind, value in parts)
        told.append(f"{way}: {words}, in all {totals[way]:.0f} GB")
    return describe(figure, title, *told)


def tabulate(model: Model, all_tokens: list[int], n: int = 8) -> pd.DataFrame:
    """Return what n devices hold, compute and send per step, and what hides.

    The formulas are those of the chapter's table, by the book: in a ring each rank
    sends (n - 1) / n of a tensor for an all-gather or a reduce-scatter.
    """
    rows = list(_tabulate(model, all_tokens, n))
    columns = ["tokens each", "division", "GB", "compute, s"]
    for link in ("NVLink", "network"):
        columns += [f"{link}, s", f"{link} hides?"]
    return pd.DataFrame(rows, columns=columns)


def _tabulate(model: Model, all_tokens: list[int], n: int) -> Iterator[list[Any]]:
    b = 2 * model.parameters  # bytes of the weights in 16 bits
    part = (n - 1) / n
    for tokens in all_tokens:
        memory = estimate_memory(model, tokens, n)
        compute = 6 * model.parameters * tokens / SPEED
        a = 2 * model.width * n * tokens  # of all tokens, between two layers
        ways = {
            "data parallel (DDP)": (2 * part * b, 2 / 3 * compute),
            "fully sharded (FSDP, ZeRO-3)": (3 * part * b, compute),
            "tensor parallel": (4 * model.layers * 2 * part * a, 0.0),
            "pipeline parallel": (2 * a, compute),
        }
        for way, (sent, room) in ways.items():
            held = sum(memory[way])
            busy = compute
            if way == "pipeline parallel":
                busy *= (MICRO_BATCHES + n - 1) / MICRO_BATCHES  # with its bubble
            row = [f"{tokens:,}", way.split(" (")[0], round(held), f"{busy:.2f}"]
            for link in ("NVLink 4", "InfiniBand NDR"):
                seconds = sent / LINKS[link].bytes_per_second
                row += [f"{seconds:.2f}", "yes" if seconds <= room else "no"]
            yield row


def find_tokens(link: str = "InfiniBand NDR", n: int = 8) -> float:
    """Return from how many tokens per device on FSDP's messages hide on a link.

    6 P tokens / speed = 3 (n - 1) / n · 2 P / bandwidth: P is on both sides.
    """
    return (n - 1) / n * SPEED / LINKS[link].bytes_per_second
