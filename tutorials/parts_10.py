"""What chapter 10 counts and draws: the bytes that autograd keeps, and gains."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import nn

from kit.figures import COLORS, format_number, kit_look
from kit.figures.style import describe, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from kit.measuring.verdict import Ratio


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
