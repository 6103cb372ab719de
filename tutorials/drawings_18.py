"""The pictures of chapter 18: rooflines, of this machine and of an H100."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy
import pandas
from matplotlib.figure import Figure

import kit
from kit.figures import COLORS, format_number, kit_look
from kit.figures.style import describe, new_figure

H100 = Path(__file__).parent / "more" / "h100"
MARKERS = "osD^vPX*<>"
#: Of a data sheet: dense products in TFLOP/s, and GB/s of its memory.
SHEET = {"bfloat16": 989.4, "TF32": 494.7, "float32": 66.9}
MEMORY = 3350.0


@kit_look()
def draw_roofline(
    slopes: Mapping[str, float],
    roofs: Mapping[str, float],
    dots: Mapping[str, tuple[float, float]],
    *,
    title: str,
) -> Figure:
    """Draw operations under the roofs of a machine, on two logarithmic axes.

    `slopes` are bytes per second of memories, `roofs` FLOP per second of products.
    A dot is an operation's FLOP per byte, and its FLOP per second.
    """
    figure = new_figure(title, 3.6)
    axes = figure.subplots()
    highest = max(roofs.values())
    left = 0.5 * min(x for x, _ in dots.values())
    right = 200 * max(x for x, _ in dots.values())
    xs = numpy.geomspace(left, right, 400)
    look = {"color": COLORS["ink"], "linewidth": 1.4}
    for style, (name, speed) in zip(("-", "--"), slopes.items(), strict=False):
        ys = numpy.minimum(speed * xs, highest)
        label = f"{name}: {speed / 1e9:,.0f} GB/s"
        axes.plot(xs, ys, linestyle=style, label=label, **look)
    for name, roof in roofs.items():
        begin = roof / max(slopes.values())
        axes.plot([begin, right], [roof, roof], **look)
        text = f"{name}: {_write(roof)}"
        offset = {"xytext": (-2, 3), "textcoords": "offset points"}
        align = {"ha": "right", "va": "bottom", "size": 8.5}
        axes.annotate(text, (right, roof), **offset, **align)
    for number, (name, (x, y)) in enumerate(dots.items()):
        marker = MARKERS[number % len(MARKERS)]
        axes.plot(x, y, marker, color=f"C{number % 6}", markersize=7, label=name)
    axes.set(xscale="log", yscale="log", xlim=(left, right))
    axes.set_ylim(0.4 * min(y for _, y in dots.values()), 3 * highest)
    axes.xaxis.set_major_formatter("{x:,g}")
    axes.yaxis.set_major_formatter(lambda y, _: _write(y))
    axes.minorticks_off()
    axes.set_xlabel("FLOP per byte")
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    lines = [
        f"{name} {format_number(speed / 1e9)} GB/s" for name, speed in slopes.items()
    ]
    lines += [f"{name} {_write(roof)}" for name, roof in roofs.items()]
    told = [f"{name} ({x:.3g}, {_write(y)})" for name, (x, y) in dots.items()]
    alt = f"Roofs: {', '.join(lines)}. Operations: {'; '.join(told)}"
    return describe(figure, "FLOP per second over FLOP per byte", title, alt)


def _write(speed: float) -> str:
    """Write FLOP per second in a unit that keeps numbers small."""
    if speed >= 1e12:
        return f"{format_number(speed / 1e12)} TFLOP/s"
    return f"{format_number(speed / 1e9)} GFLOP/s"


def draw_step(
    slopes: Mapping[str, float], peak: float, table: pandas.DataFrame, number: int = 7
) -> Figure:
    """Draw the operations that take the longest, of a table with their seconds.

    The roof of the title, and of the legend's shares, is that of the memory.
    """
    longest = table.sort_values("seconds", ascending=False).head(number)
    dots = {}
    for name, row in longest.iterrows():
        x = row["FLOP"] / row["bytes"]
        y = row["FLOP"] / row["seconds"]
        short = str(name).removeprefix("aten::").strip("_").removeprefix("native_")
        share = y / min(peak, x * slopes["memory"])
        dots[f"{short}: {share:.0%}"] = (x, y)
    least = bound_operations(table, slopes["memory"], peak)
    factor = table["seconds"].sum() / least.sum()
    title = f"A step's operations take {factor:.1f} times what the roof allows"
    return draw_roofline(slopes, {"products": peak}, dots, title=title)


def bound_operations(
    table: pandas.DataFrame, bytes_per_second: float, peak: float
) -> pandas.Series:
    """Return the seconds that each operation takes at least."""
    computing = table["FLOP"] / peak
    return computing.clip(lower=table["bytes"] / bytes_per_second)


def draw_h100() -> Figure:
    """Draw what an H100 was recorded to do under the roofs of its data sheet."""
    dots = {}
    adding = kit.load(H100 / "adding.json")
    for trial, size in zip(adding.trials, (4, 2), strict=True):
        name = f"add, {str(trial.knobs['dtype']).removeprefix('torch.')}"
        speed = trial.items_per_second / size / 3  # bytes of two inputs, one output
        dots[name] = (1 / (3 * size), speed)
    products = kit.load(H100 / "products.json")
    for trial in products.trials:
        precision = trial.knobs["precision"]
        if precision in SHEET:
            size = 2 if precision == "bfloat16" else 4
            dots[f"8,192², {precision}"] = (8192 / 3 / size * 2, trial.items_per_second)
    tiles = kit.load(H100 / "tiles.json")
    dots["4,096², bfloat16"] = (4096 / 3, tiles.baseline.items_per_second)
    speed = tiles.baseline.items_per_second * tiles.ratios["size=4097"].value
    dots["4,097², bfloat16"] = (4097 / 3, speed)
    share = adding.trials[0].items_per_second / (1e9 * MEMORY)
    product = dots["8,192², bfloat16"][1] / (1e12 * SHEET["bfloat16"])
    miss = dots["4,097², bfloat16"][1] / (1e12 * SHEET["bfloat16"])
    title = f"H100: sums reach {share:.0%} of their roof, "
    title += f"8,192² in bfloat16 {product:.0%}, 4,097² {miss:.0%}"
    roofs = {name: 1e12 * speed for name, speed in SHEET.items()}
    return draw_roofline({"memory": 1e9 * MEMORY}, roofs, dots, title=title)
