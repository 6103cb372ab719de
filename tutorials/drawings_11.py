"""The pictures of chapter 11: where a step's time goes, and from which batch it pays.

The ten epochs that one of them shows were recorded on two cores of an AMD EPYC with
AVX-512, on 27 November 2026: LeNet from weights of standard deviation 0.01, batches of
256, a learning rate of 0.2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from kit.figures import COLORS, draw_lines, format_number, kit_look
from kit.figures.style import describe, new_figure
from kit.figures.words import is_known

#: The fraction of test images that are right after each epoch.
TEN_EPOCHS = {
    "1 rank": [
        *(0.1000, 0.6062, 0.8012, 0.8625, 0.8696),
        *(0.8611, 0.8835, 0.9098, 0.8826, 0.8605),
    ],
    "2 ranks": [
        *(0.1000, 0.6141, 0.8016, 0.8517, 0.8711),
        *(0.8623, 0.8914, 0.9045, 0.8932, 0.8534),
    ],
    "1 rank, seed 1": [0.1000, 0.5455, 0.7991, 0.8391, 0.8584],
    "2 ranks, seed 1": [0.1000, 0.5560, 0.7987, 0.8369, 0.8601],
}


_POINTS = "offset points"


@kit_look()
def draw_pieces(
    one_rank: float, alone: float, computing: float, exchange: float, waiting: float
) -> Figure:
    """Draw a step of one rank, and one of two ranks in pieces, all in milliseconds.

    `alone` is what half of the batch takes a rank if the other one rests.
    """
    half = one_rank / 2
    rest = {
        "slower beside the other": computing - alone,
        "exchange": exchange,
        "waiting for the later rank": waiting,
    }
    total = alone + sum(rest.values())
    largest = max(rest, key=rest.__getitem__)
    title = (
        f"{total:.1f} ms, and half of one rank's step is {half:.1f}: "
        f"the largest loss, {rest[largest]:.1f}, is {largest}"
    )
    figure = new_figure(title, 2.1)
    axes = figure.subplots()
    edge = {"edgecolor": COLORS["card"]}
    axes.barh(["one rank"], [one_rank], 0.6, color=COLORS["measured"], **edge)
    axes.annotate(f"{one_rank:.1f} ms", (one_rank, 0), (8, -4), textcoords=_POINTS)
    left = 0.0
    colors = ["measured", "predicted", "recorded", "baseline"]
    pieces = {"half of the batch, alone": alone, **rest}
    for color, (piece, ms) in zip(colors, pieces.items(), strict=True):
        look = {"color": COLORS[color], "label": f"{piece}: {ms:.1f}", **edge}
        axes.barh(["two ranks"], [ms], 0.6, left, **look)
        left += ms
    axes.annotate(f"{total:.1f} ms", (total, 1), (8, -4), textcoords=_POINTS)
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("ms per step")
    figure.legend(loc="outside lower center", ncols=2)
    told = [f"{piece}: {ms:.1f}" for piece, ms in pieces.items()]
    return describe(figure, title, f"One rank: {one_rank:.1f}", *told)


@kit_look()
def draw_gains(contests: Mapping[int, Any], pays_from: float) -> Figure:
    """Draw how many times as fast two ranks are as one, by the size of the batch.

    `contests` are comparisons, and `pays_from` is the batch from which the second rank
    should pay.
    """
    sizes = list(contests)
    ratios = [contest.ratio for contest in contests.values()]
    points = [[ratio.value for ratio in ratios]]
    points += [[ratio.low for ratio in ratios], [ratio.high for ratio in ratios]]
    figure = draw_lines(
        {"2 ranks": (sizes, *points, "measured")},
        title=f"{_say_from_when(sizes, ratios)}; computed: {_round(pays_from)}",
        xlabel="images in the whole batch",
        ylabel="times as fast as one rank",
        logx=True,
    )
    axes = figure.axes[0]
    known = [value for value in points[0] if is_known(value)]
    axes.set_ylim(0, max([2.2, *(1.1 * value for value in known)]))
    axes.axhline(1, color=COLORS["ink"], linewidth=1.2)
    axes.axhline(2, color=COLORS["muted"], linewidth=1, linestyle=":")
    if sizes[0] / 2 < pays_from < 2 * sizes[-1]:
        look = {"color": COLORS["predicted"], "linestyle": "--", "linewidth": 2}
        axes.axvline(pays_from, label="computed", **look)
        axes.annotate(
            "computed",
            (pays_from, 0.1),
            (6, 0),
            textcoords=_POINTS,
            color=COLORS["predicted"],
        )
    axes.annotate("half the time", (sizes[0], 2), (0, 4), textcoords=_POINTS)
    return figure


def _say_from_when(sizes: Sequence[int], ratios: Sequence[Any]) -> str:
    """Say between which sizes the second rank begins to pay."""
    losing = [
        size for size, ratio in zip(sizes, ratios, strict=True) if ratio.value < 1
    ]
    if not losing:
        return f"The second rank pays already with {sizes[0]} images"
    last = max(losing)
    later = [size for size in sizes if size > last]
    if not later:
        return f"With up to {last} images the second rank does not pay"
    return f"The second rank begins to pay between {last} and {later[0]} images"


def _round(images: float) -> str:
    return f"from {images:.0f}" if images > 0 else "never"


@kit_look()
def draw_bytes(by_layer: float, by_data: float) -> Figure:
    """Draw the bytes of a step by layer, per image, and by data, over the batch."""
    crossing = by_data / by_layer
    sizes = [16, 64, crossing, 256, 1024]
    return draw_lines(
        {
            "by layer": (sizes, [by_layer * b / 1e6 for b in sizes], *_RECORDED),
            "by data": (sizes, [by_data / 1e6 for _ in sizes], *_RECORDED),
        },
        title=f"From {crossing:.0f} images on, dividing the data sends less",
        xlabel="images in a batch",
        ylabel="MB sent in a step",
        logx=True,
    )


_RECORDED = None, None, "measured"


@kit_look()
def draw_differences(differences: Mapping[str, Sequence[float]]) -> Figure:
    """Draw differences of losses over steps, on a logarithmic axis."""
    lines = {}
    for name, values in differences.items():
        steps = range(1, len(values) + 1)
        drawn = [value or None for value in values]  # zero has no place on the axis
        lines[name] = (steps, drawn, None, None, "measured")
    ranks, seeds = (sum(values) / len(values) for values in differences.values())
    title = (
        f"Two ranks change the loss by {format_number(ranks)} on average, "
        f"another seed by {format_number(seeds)}"
    )
    figure = draw_lines(lines, title=title, xlabel="step", ylabel="difference in loss")
    figure.axes[0].set_yscale("log")
    figure.axes[0].yaxis.set_major_formatter("{x:g}")
    return figure


def draw_ten_epochs() -> Figure:
    """Draw the recorded test accuracies of ten epochs."""
    lines = {}
    for name, values in TEN_EPOCHS.items():
        lines[name] = (range(1, len(values) + 1), values, None, None, "recorded")
    ends = [f"{TEN_EPOCHS[name][-1]:.0%} with {name}" for name in ("1 rank", "2 ranks")]
    return draw_lines(
        lines,
        title=f"After ten epochs {ends[0]}, {ends[1]}",
        xlabel="epoch",
        ylabel="fraction of test images right",
    )
