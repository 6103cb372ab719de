"""What chapter 10 trains, counts and draws: networks, kept bytes, and gains."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

import kit
from kit.figures import COLORS, format_number, kit_look
from kit.figures.style import describe, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from kit.measuring.verdict import Ratio

DEVICE = kit.device()
#: The deep network's layers, and how long it is trained.
DEEP, STEPS = 17, 20 if kit.quick else 300
NO_SCALER = partial(torch.amp.GradScaler, DEVICE.type, enabled=False)


def make_net(width: int, depth: int) -> nn.Sequential:
    """Make a network of hidden layers, from images with noise to images without."""
    layers = [nn.Linear(784, width), nn.GELU()]
    for _ in range(depth - 1):
        layers += [nn.Linear(width, width), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(width, 784)).to(DEVICE)


@cache
def load_letters() -> kit.data.GreyImages:
    """Put the letters on the device once: the smaller part, which is enough here."""
    return kit.data.glyphs(train=False).to(DEVICE)


def draw_batch(batch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw images of letters at random; return them without and with noise."""
    letters = load_letters()
    numbers = torch.randint(len(letters), (batch_size,), device=DEVICE)
    images, _ = letters[numbers]
    clean = images.flatten(1)
    return clean, clean + 0.5 * torch.randn_like(clean)


def train_deep(
    find_loss: Callable[[nn.Module, str, int], torch.Tensor],
    *,
    precision: str = "float32",
    make_scaler: Callable[[], Any] = NO_SCALER,
) -> Iterator[tuple[int, dict[str, object]]]:
    """Train a deep network; the loss is a running mean."""
    net, mean = make_net(64, DEEP), torch.tensor(0.25, device=DEVICE)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.001)
    scaler = make_scaler()
    for _ in range(STEPS):
        loss = find_loss(net, precision, 64)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        mean = mean.lerp(loss.detach(), 0.05)
        yield 64, {"loss": mean, "scale": scaler.get_scale()}


def read_step(name: str) -> str:
    """Return the function `train_step` of a script in the folder take_home."""
    script = Path(__file__).with_name("take_home").joinpath(name).read_text()
    start, end = script.index("def train_step"), script.index("@torch.inference")
    return script[start:end].rstrip()


def count_kept(
    net: nn.Module, compute_loss: Callable[[nn.Module], torch.Tensor]
) -> float:
    """Return how many megabytes autograd keeps for the backward pass, but for weights.

    A hook sees each tensor that is kept. What is kept twice lies at one address, and
    counts once.
    """
    kept = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.data_ptr()] = tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        compute_loss(net)
    for weight in net.parameters():
        kept.pop(weight.data_ptr(), None)
    return sum(kept.values()) / 1e6


@kit_look()
def draw_gains(ratios: Mapping[str, Ratio]) -> Figure:
    """Draw ratios on a logarithmic axis: from 1, gains to the right, losses left."""
    values = [ratio.value for ratio in ratios.values()]
    title = f"Autocast: {min(values):.2g} to {max(values):.2g} × the speed of float32"
    unit = "× the speed of float32"
    figure = new_figure(title, 0.5 * len(ratios) + 0.7)
    axes = figure.subplots()
    words = []
    for y, (label, ratio) in enumerate(ratios.items()):
        is_gain = ratio.value >= 1
        color = COLORS["measured" if is_gain else "predicted"]
        axes.hlines(y, 1, ratio.value, color=color, lw=3)
        axes.hlines(y, ratio.low, ratio.high, color=COLORS["ink"], lw=1.5, zorder=4)
        axes.plot(ratio.value, y, "o", color=color, markersize=9)
        axes.annotate(
            format_number(ratio.value),
            (ratio.high if is_gain else ratio.low, y),
            (9 if is_gain else -9, 0),
            textcoords="offset points",
            ha="left" if is_gain else "right",
            va="center",
        )
        ends = f"{format_number(ratio.low)} to {format_number(ratio.high)}"
        words.append(f"{label}: {format_number(ratio.value)} (95 % interval {ends})")
    axes.axvline(1, color=COLORS["ink"], lw=1)
    axes.set_xscale("log")
    limits = 0.6 * min([1.0, *values]), 1.7 * max([1.0, *values])
    axes.set(xlim=limits, ylim=(len(ratios) - 0.5, -0.5), xlabel=unit)
    ticks = [t for t in (0.1, 0.2, 0.5, 1, 2, 5, 10) if limits[0] < t < limits[1]]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_yticks(range(len(ratios)), [*ratios], color=COLORS["ink"])
    axes.grid(visible=False, axis="y")
    return describe(figure, f"Bars from 1, {unit}", title, "; ".join(words))
