"""The drawings of chapter 09: formats, gaps, gradients, bytes, groups with a scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from kit.figures import Drawing, draw_lines

if TYPE_CHECKING:
    from kit.measuring.report import Comparison

#: How many bits each format has for the exponent and for the mantissa.
BITS = {
    "float32": (8, 23),
    "tfloat32": (8, 10),
    "bfloat16": (8, 7),
    "float16": (5, 10),
    "float8_e5m2": (5, 2),
    "float8_e4m3": (4, 3),
    "float4_e2m1": (2, 1),
}
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def draw_formats() -> Drawing:
    """Draw the bits of each format: sign, exponent, mantissa."""
    told = "; ".join(f"{name}: 1, {e}, {m}" for name, (e, m) in BITS.items())
    drawing = Drawing(
        "The exponent's bits are range, the mantissa's are precision",
        columns=32,
        rows=len(BITS),
        alt=f"Bits of sign, exponent and mantissa. {told}",
    )
    for row, (name, (exponent, mantissa)) in enumerate(BITS.items()):
        texts = str(exponent), str(mantissa)
        if name == "float32":
            texts = f"{exponent} exponent", f"{mantissa} mantissa"
        start = 1 + exponent
        blocks = [
            (0, 1, "±", "zone"),
            (1, start, texts[0], "predicted"),
            (start, start + mantissa, texts[1], "measured"),
        ]
        drawing.lane(row, name, blocks)
    return drawing


def draw_neighbors() -> Drawing:
    """Draw the gaps between numbers just above 1, and an update of 0.001."""
    drawing = Drawing(
        "An update of 0.001 is less than half a gap of bfloat16",
        columns=20,
        rows=3,
        alt=(
            "A number line from 1 to 1.02. bfloat16 has numbers at 1, 1.0078 and "
            "1.0156, float16 has one every 0.00098. An update of 0.001 is an eighth of "
            "bfloat16's gap, and a little more than float16's"
        ),
    )
    gap = 1000 * 2**-7
    wide = [
        (0, gap, "from 1 to 1.0078", "measured"),
        (gap, 2 * gap, "to 1.0156", "measured"),
        (2 * gap, 20, "…", "measured"),
    ]
    drawing.lane(0, "bfloat16", wide)
    gap = 1000 * 2**-10
    drawing.lane(
        1, "float16", [(i * gap, (i + 1) * gap, "", "measured") for i in range(20)]
    )
    drawing.lane(2, "0.001", [(0, 1, "", "predicted")])
    return drawing


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


def draw_bytes() -> Drawing:
    """Draw what a training keeps for each weight, in bytes."""
    ways = {
        "float32": (4, 0, 4, 8),
        "masters": (2, 4, 2, 8),
        "masters, means 16": (2, 4, 2, 4),
        "weights 16": (2, 0, 2, 8),
        "all 16": (2, 0, 2, 4),
    }
    names = "weight", "master", "gradient", "two means"
    roles = "measured", "predicted", "recorded", "baseline"
    told = []
    for way, sizes in ways.items():
        parts = [f"{name} {size}" for name, size in zip(names, sizes, strict=True)]
        told.append(f"{way}: {', '.join(parts)}, together {sum(sizes)}")
    drawing = Drawing(
        "Bytes for each weight: masters cost what 16 bits have saved",
        columns=16,
        rows=len(ways),
        alt="; ".join(told),
    )
    for row, (way, sizes) in enumerate(ways.items()):
        blocks, start = [], 0
        for name, size, role in zip(names, sizes, roles, strict=True):
            if size:
                blocks.append((start, start + size, name, role))
            start += size
        drawing.lane(row, f"{way}: {start}", blocks)
    return drawing


def draw_groups() -> Drawing:
    """Draw a matrix with one scale per tensor, row, and block."""
    drawing = Drawing(
        "One scale for how many? Each colored group has its own",
        columns=35,
        rows=5.2,
        alt=(
            "The same matrix four times. One scale for the tensor; one for each row; "
            "one for each half of a row; one for each quarter of a row"
        ),
    )
    roles = ["measured", "predicted", "recorded", "baseline"]
    kinds = {"tensor": 32, "row": 8, "block": 4, "smaller block": 2}
    for number, (name, size) in enumerate(kinds.items()):
        left = 9 * number
        drawing.box(left, 0, 8, 0.8, f"one per {name}", "zone")
        for place in range(32):
            row, column = divmod(place, 8)
            group = place // size + (row if size < 8 else 0)
            role = roles[group % 4]
            drawing.box(left + column, 1 + row, 1, 1, "", role)
    return drawing


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
