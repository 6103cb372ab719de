"""The pictures of chapter 09: gradients, losses, errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from drawing import Drawing

from kit.figures import draw_lines

if TYPE_CHECKING:
    from kit.measuring.report import Comparison

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def draw_gradients(gradients: Sequence[torch.Tensor], scale: float) -> Drawing:
    """Draw how large gradients are, as they are and times a scale."""
    sizes = torch.cat([gradient.flatten().abs() for gradient in gradients])
    lost = (sizes < 2.0**-25).double().mean().item()
    kept = (scale * sizes >= 2.0**-25).double().mean().item()
    powers = sizes[sizes >= 2.0**-55].log2().floor().clamp(max=-1).long()
    shift = round(torch.tensor(scale).log2().item())
    counts = (powers + 55).bincount(minlength=55)
    middle = int(powers.median())
    drawing = Drawing(
        f"float16 makes zero of {lost:.1%} of the gradients, "
        f"and keeps {kept:.0%} of them times {_power(shift)}",
        columns=55,
        rows=6,
        alt=(
            "Two hills over powers of two from −55 to 0. float16 makes zero of what is "
            "below −25, is subnormal up to −14, and normal above. The gradients: most "
            f"of them are around 2 to the {middle}. Scaled: the same hill, {shift} "
            "powers further right"
        ),
    )
    for start, stop, text in (
        (0, 30, "zero in float16"),
        (30, 41, "subnormal"),
        (41, 55, "normal"),
    ):
        drawing.box(start, 0, stop - start, 0.7, text)
        drawing.box(start, 0.7, stop - start, 4.5)
    tallest = counts.max().item()
    for column, count in enumerate(counts.tolist()):
        height = 4 * count / tallest
        if height > 0.02:
            drawing.box(column, 5.2 - height, 1, height, "", "baseline")
            drawing.box(column + shift, 5.2 - height, 1, height, "", "measured")
    place = middle + 55
    drawing.arrow((place + 4, 2), (place + shift - 2, 2), f"times {_power(shift)}")
    for power in range(-50, 0, 10):
        drawing.box(power + 53, 5.3, 4, 0.6, _power(power), "zone")
    return drawing


def _power(exponent: int) -> str:
    return "2" + str(exponent).translate(_SUPERSCRIPTS)


def draw_curves(comparison: Comparison, title: str) -> Any:
    """Draw the losses of the last run of each variant, every tenth step."""
    curves = {}
    for label, trial in zip(comparison.labels, comparison.trials, strict=True):
        losses = trial.runs[-1].metrics["loss"][::10]
        curves[label] = (range(0, 10 * len(losses), 10), losses, None, None, "measured")
    return draw_lines(curves, title=title, xlabel="step", ylabel="loss")


def draw_errors(
    sizes: Mapping[str, int], errors: Mapping[str, Sequence[float]], title: str
) -> Any:
    """Draw the error of each format over how many numbers share a scale."""
    places = list(range(len(sizes)))
    lines = {name: (places, ys, None, None, "measured") for name, ys in errors.items()}
    words = {"xlabel": "numbers that share a scale", "ylabel": "mean error"}
    figure = draw_lines(lines, title=title, **words)
    figure.axes[0].set_xticks(places, [name.replace(" ", "\n", 1) for name in sizes])
    return figure
