"""The pictures of chapter 09: gradients, losses, errors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from matplotlib.figure import Figure

from kit.figures import COLORS, draw_lines, kit_look
from kit.figures.style import describe, new_figure

if TYPE_CHECKING:
    from kit.measuring.report import Comparison

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
#: float16 by powers of two, from the least that is drawn: where each zone begins.
_LEAST = -55
_ZONES = {"zero in float16": _LEAST, "subnormal": -25, "normal": -14}


@kit_look()
def draw_gradients(gradients: Sequence[torch.Tensor], scale: float) -> Figure:
    """Draw how large gradients are, as they are and times a scale."""
    sizes = torch.cat([gradient.flatten().abs() for gradient in gradients]).cpu()
    lost = (sizes < 2.0**-25).double().mean().item()
    kept = (scale * sizes >= 2.0**-25).double().mean().item()
    powers = sizes[sizes >= 2.0**_LEAST].log2()
    middle = math.floor(powers.median())
    shift = round(math.log2(scale))
    title = (
        f"float16 rounds {lost:.0%} of the gradients to zero; "
        f"times {_power(shift)}, it keeps {kept:.0%}"
    )
    figure = new_figure(title, 3.0)
    axes = figure.subplots()
    bins = range(_LEAST, 1)
    look = {"rwidth": 0.9, "zorder": 3}
    axes.hist(powers.numpy(), bins, color=COLORS["muted"], label="gradients", **look)
    label = f"times {_power(shift)}"
    axes.hist(
        powers.numpy() + shift, bins, color=COLORS["measured"], label=label, **look
    )
    above = {"transform": axes.get_xaxis_transform(), "color": COLORS["muted"]}
    for name, power in _ZONES.items():
        axes.axvline(power, color=COLORS["ink"], lw=1)
        axes.text(power + 0.5, 1.02, name, **above)
    ticks = range(-50, 1, 10)
    axes.set_xticks(ticks, [_power(power) for power in ticks])
    axes.set(xlim=(_LEAST, 0), yticks=[])
    figure.legend(loc="outside lower right", ncols=2)
    return describe(
        figure,
        title,
        "Two hills over powers of two from −55 to 0. float16 rounds to zero what is "
        "below −25, is subnormal up to −14, and normal above. The gradients: most "
        f"of them are around 2 to the {middle}. Scaled: the same hill, {shift} "
        "powers further right",
    )


def _power(exponent: int) -> str:
    return "2" + str(exponent).translate(_SUPERSCRIPTS)


def draw_curves(comparison: Comparison) -> Figure:
    """Draw the losses of the last run of each variant, every tenth step.

    The title has the means of all runs.
    """
    losses = comparison.table()["loss"]
    title = (
        f"float32 ends at {losses['float32']:.3f}, float16 at "
        f"{losses['float16']:.3f}, float32 with the default eps at "
        f"{losses['default eps']:.3f}"
    )
    curves = {}
    for label, trial in zip(comparison.labels, comparison.trials, strict=True):
        points = trial.runs[-1].metrics["loss"][::10]
        steps = range(0, 10 * len(points), 10)
        curves[label] = (steps, points, None, None, "measured")
    return draw_lines(curves, title=title, xlabel="step", ylabel="loss")


def draw_errors(
    sizes: Mapping[str, int], errors: Mapping[str, Sequence[float]], title: str
) -> Figure:
    """Draw the error of each format over how many numbers share a scale."""
    places = list(range(len(sizes)))
    lines = {name: (places, ys, None, None, "measured") for name, ys in errors.items()}
    words = {"xlabel": "numbers that share a scale", "ylabel": "mean error"}
    figure = draw_lines(lines, title=title, **words)
    figure.axes[0].set_xticks(places, [name.replace(" ", "\n", 1) for name in sizes])
    return figure
