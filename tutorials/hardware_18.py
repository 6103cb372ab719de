"""Chapter 18: what a step's operations do, what cards can do, and what that bounds.

Figures of cards are in `cards.csv`, those of published trainings in `trainings.csv`;
both have the sources.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import nn
from torch.nn import functional as F
from torch.profiler import profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode
from torchvision.models import resnet50

import kit

FOLDER = Path(__file__).parent
CARDS = pd.read_csv(FOLDER / "cards.csv", index_col="card")
#: Seconds of the driver for a kernel: nominal, https://developer.nvidia.com/blog/cuda-graphs/
LAUNCH = 4e-6
#: Watts of a computer over those of its cards: a DGX H100 draws 10.2 kW at most, says
#: https://docs.nvidia.com/dgx/dgxh100-user-guide/introduction-to-dgxh100.html
COMPUTER = 10_200 / (8 * 700)
#: What one can buy: a card, the format of its products, and how many of it.
OFFERS = {
    "A100, float32 as TF32": ("A100", "tf32_tflops", 1),
    "A100, mixed precision": ("A100", "bf16_tflops", 1),
    "H100, mixed precision": ("H100", "bf16_tflops", 1),
    "H200, mixed precision": ("H200", "bf16_tflops", 1),
    "B200, mixed precision": ("B200", "bf16_tflops", 1),
    "8 × H100, mixed precision": ("H100", "bf16_tflops", 8),
}
#: Of `print_plan`, as ipywidgets' `interact` takes them.
SLIDERS = {
    "card": [*CARDS["watts"].dropna().index],
    "number": (1, 64),
    "dollars": (0.2, 12.0),
    "mfu": (0.05, 0.7, 0.05),
    "goodput": (0.5, 1.0, 0.01),
}


# What a machine does


def multiply(
    *, size: int, rows: int | None = None, dtype: torch.dtype = torch.float32
) -> Iterator[int]:
    """Multiply rows of numbers, `size` if not said, by a square matrix.

    An item is a FLOP.
    """
    device = kit.device()
    rows = rows or size
    x = torch.randn(rows, size, device=device, dtype=dtype)
    matrix = torch.randn(size, size, device=device, dtype=dtype)
    while True:
        x @ matrix
        yield 2 * rows * size**2


def scale(*, numbers: int) -> Iterator[int]:
    """Multiply a vector by 1, in place.

    An item is a byte: each number is read and written.
    """
    x = torch.ones(numbers, device=kit.device())
    while True:
        x.mul_(1.0)
        yield 2 * x.nbytes


def measure_roof(steps: Iterator[int], calls: int = 200) -> float:
    """Return the items per second of the fastest calls.

    A roof is what a machine *can* do, so what disturbs it must not count. A GPU gets
    20 calls at once, since launching one takes time, too.
    """
    number = 1 if kit.device().type == "cpu" else 20
    next(steps)
    best = 0.0
    for _ in range(calls // number):
        synchronize()
        start = perf_counter()
        items = sum(next(steps) for _ in range(number))
        synchronize()
        best = max(best, items / (perf_counter() - start))
    return best


def synchronize() -> None:
    """Wait until the device has done all that it was given; a CPU always has."""
    if kit.device().type != "cpu":
        torch.accelerator.synchronize()


# Counting


def count_traffic(func: Any, args: Any, kwargs: Any, out: Any) -> tuple[int, int]:
    """Return the bytes that an operation reads and writes, and its largest numel.

    That is of an argument, or of what comes out; a list counts as one argument. What
    is written in place is read before, so its bytes count twice.
    """
    moved, numbers = 0, [0]
    values = [*args, *kwargs.values()]
    for argument, value in zip(func._schema.arguments, values, strict=False):
        tensors = [x for x in tree_leaves(value) if torch.is_tensor(x)]
        moved += sum(x.nbytes for x in tensors)
        numbers.append(sum(x.numel() for x in tensors))
        alias = argument.alias_info
        # An optimizer may write gradients, but does so with a scaler only.
        if alias is not None and alias.is_write and argument.name != "grads":
            moved += sum(x.nbytes for x in tensors)
    if not func._schema.is_mutable:
        made = [x for x in tree_leaves(out) if torch.is_tensor(x)]
        moved += sum(x.nbytes for x in made)
        numbers.append(sum(x.numel() for x in made))
    return moved, max(numbers)


class Count(TorchDispatchMode):
    """Note the calls, the bytes and the numbers of each operation.

    What moves nothing, a *view*, is left out.

    >>> with Count() as count:
    ...     x = torch.zeros(10).add_(torch.ones(10))
    >>> count.rows["aten::add_"]
    [1, 120, 10]
    """

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run an operation, and note it."""
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if not func.is_view:
            moved, numbers = count_traffic(func, args, kwargs, out)
            row = self.rows[str(func.overloadpacket).replace(".", "::", 1)]
            row[0] += 1
            row[1] += moved
            row[2] += numbers
        return out


def count_operations(steps: Iterator[Any]) -> pd.DataFrame:
    """Return calls, FLOP and bytes of a step, by operation.

    `steps` makes one at each `next`; the first one is not counted. FLOP are those that
    PyTorch's `FlopCounterMode` counts, of products, convolutions and attention; else
    one for each number of the largest tensor.
    """
    next(steps)
    with Count() as count, FlopCounterMode(display=False) as counter:
        next(steps)
    products = {
        str(name).replace(".", "::", 1): flops
        for name, flops in counter.get_flop_counts()["Global"].items()
    }
    rows = {
        name: (calls, products.get(name, numbers), moved)
        for name, (calls, moved, numbers) in count.rows.items()
        if moved
    }
    return pd.DataFrame.from_dict(rows, "index", columns=["calls", "FLOP", "bytes"])


def time_operations(steps: Iterator[Any], number: int = 10) -> pd.Series:
    """Return the seconds of each operation, by PyTorch's profiler.

    These are the seconds of the fastest of several steps, and on a GPU those of its
    kernels.
    """
    next(steps)
    profiled = []
    for _ in range(number):
        with profile() as found:
            next(steps)
            synchronize()
        seconds = {}
        for event in found.key_averages():
            microseconds = event.device_time_total or event.cpu_time_total
            seconds[event.key] = microseconds / 1e6
        profiled.append(pd.Series(seconds))
    return min(profiled, key=lambda seconds: seconds.filter(like="aten::").sum())


# Bounds


def list_cards() -> pd.DataFrame:
    """Return the figures of the cards that decide most, with their units."""
    columns = {
        "memory_gb": "GB",
        "memory_gb_per_s": "GB/s",
        "bf16_tflops": "TFLOP/s",
        "reached_bf16_tflops": "reached",
        "link_gb_per_s": "link, GB/s",
        "watts": "W",
    }
    return CARDS[[*columns]].rename(columns=columns)


class Work(NamedTuple):
    """What a step does: items, FLOP, bytes and operations; and its gradients' bytes.

    Bytes are those of 16-bit numbers.
    """

    items: int
    flops: float
    bytes: float
    operations: int
    gradient_bytes: float


def count_work(net: nn.Module, inputs: torch.Tensor) -> Work:
    """Count a training step of a classifier on the `meta` device, without computing."""
    parameters = [*net.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9, foreach=True)
    labels = torch.zeros(len(inputs), dtype=torch.long, device="meta")

    def train() -> Iterator[None]:
        while True:
            loss = F.cross_entropy(net(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield

    table = count_operations(train())
    sums = table.sum()
    size = sum(parameter.nbytes for parameter in parameters)
    items = len(inputs)
    return Work(items, sums["FLOP"], sums["bytes"], int(sums["calls"]), size)


def count_works(make_layers: Callable[[int, int], nn.Module]) -> dict[str, Work]:
    """Count three trainings: ours, a ResNet-50, and layers as wide as a large model's.

    `make_layers` makes a network of so many blocks, of that width.
    """
    with torch.device("meta"):
        small = make_layers(30, 192).bfloat16()
        wide = make_layers(8, 8192).bfloat16()
        photos = torch.empty(32, 192, dtype=torch.bfloat16)
        images = torch.empty(256, 3, 224, 224, dtype=torch.bfloat16)
        tokens = torch.empty(16384, 8192, dtype=torch.bfloat16)
        return {
            "our 30 blocks": count_work(small, photos),
            "ResNet-50": count_work(resnet50().bfloat16(), images),
            "8 wide blocks": count_work(wide, tokens),
        }


def bound_step(
    work: Work, card: str, column: str = "bf16_tflops", devices: int = 1
) -> dict[str, float]:
    """Return the seconds that a step takes at least, for each of four reasons.

    Each device has a batch of its own, and exchanges its gradients in a ring.

    >>> work = Work(1, flops=989.4e12, bytes=335e9, operations=0, gradient_bytes=0)
    >>> {name: round(least, 6) for name, least in bound_step(work, "H100").items()}
    {'FLOP': 1.0, 'bytes': 0.1, 'launches': 0.0, 'exchange': 0.0}
    """
    row = CARDS.loc[card]
    wide = 2 if column == "tf32_tflops" else 1  # TF32 is a way to multiply float32
    sent = 2 * (devices - 1) / devices * wide * work.gradient_bytes
    return {
        "FLOP": float(work.flops / (1e12 * row[column])),
        "bytes": float(wide * work.bytes / (1e9 * row["memory_gb_per_s"])),
        "launches": work.operations * LAUNCH,
        "exchange": float(sent / (1e9 * row["link_gb_per_s"])),
    }


def list_bounds(works: dict[str, Work]) -> pd.DataFrame:
    """Return items per second at best, and what decides them, for each offer."""
    table = pd.DataFrame(index=[*OFFERS], columns=[*works], dtype=object)
    for offer, (card, column, devices) in OFFERS.items():
        for name, work in works.items():
            seconds = bound_step(work, card, column, devices)
            reason = max(seconds, key=seconds.__getitem__)
            rate = devices * work.items / seconds[reason]
            table.loc[offer, name] = f"{rate:,.0f} ({reason})"
    return table


def list_published(works: dict[str, Work]) -> pd.DataFrame:
    """Return published trainings beside their bounds, in items per second.

    Without a counted work, a model's weights give the FLOP: six for each and token.
    """
    rows = {}
    for training in pd.read_csv(FOLDER / "trainings.csv").to_dict("records"):
        work = Work(1, 6 * training["parameters"], 0, 0, 0)
        if training["model"] in works:
            work = works[training["model"]]
        devices = training["devices"]
        seconds = bound_step(work, training["card"], training["column"], devices)
        reason = max(seconds, key=seconds.__getitem__)
        best = devices * work.items / seconds[reason]
        name = f"{training['model']}, {training['setting']}"
        share = f"{training['published'] / best:.0%}"
        rows[name] = f"{training['published']:,}", f"{best:,.0f}", share, reason
    return pd.DataFrame(rows, ["published", "at best", "share", "decided by"]).T


# Money


def plan_training(
    card: str = "H100",
    number: int = 8,
    dollars: float = 3.0,
    mfu: float = 0.4,
    goodput: float = 1.0,
    flops: float = 6 * 7e9 * 140e9,
) -> tuple[float, float, float]:
    """Return the days, the dollars and the MWh of a training.

    `dollars` is what a card costs in an hour, `mfu` the share of its peak that the
    training reaches, `goodput` the useful part of the time. `flops` are those of seven
    billion weights and 140 billion tokens. Energy supposes full power of the cards and
    of the computer around them; cooling the building is left out.

    >>> [round(value, 1) for value in plan_training("H100", 8, 3.0)]
    [21.5, 12381.2, 5.3]
    """
    row = CARDS.loc[card]
    speed = number * mfu * 1e12 * row["bf16_tflops"]
    hours = flops / speed / goodput / 3600
    energy = COMPUTER * number * hours * row["watts"] / 1e6
    return float(hours / 24), float(number * hours * dollars), float(energy)


def print_plan(card: str, number: int, **options: float) -> None:
    """Print what a training takes, as `plan_training` says, with its options."""
    days, cost, energy = plan_training(card, number, **options)
    print(f"{number} × {card}: {days:.1f} days, {cost:,.0f} dollars, {energy:.1f} MWh")
