"""The pictures of chapter 11: where a step's time goes, and from which batch it pays.

The ten epochs that one of them shows were recorded on two cores of an AMD EPYC with
AVX-512, on 27 November 2026: LeNet from weights of standard deviation 0.01, batches of
256, a learning rate of 0.2.
"""

from __future__ import annotations

import math
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

    `alone` is what half of the batch takes a rank if the other one rests. What is below
    zero shortens the first piece, and its label says so.
    """
    half = one_rank / 2
    # What is both lost alone and won back beside the other is not shown.
    alone = min(alone, max(half, computing))
    total = computing + exchange + waiting
    losses = {
        "costs that do not halve with the batch": alone - half,
        "slower beside the other rank": computing - alone,
        "exchange": exchange,
        "waiting for the later rank": waiting,
    }
    gained = {
        "since half of a batch takes less than half of the time": half - alone,
        "since a rank is faster beside the other": alone - computing,
    }
    losses = {name: ms for name, ms in losses.items() if ms > 0}
    gained = {name: ms for name, ms in gained.items() if ms > 0}
    first = f"half of one rank's step: {half:.1f}"
    for name, ms in gained.items():
        first += f",\n{ms:.1f} less {name}"
    title = _say_what_is_missing(half, total, losses)
    figure = new_figure(title, 2.6)
    axes = figure.subplots()
    edge = {"edgecolor": COLORS["card"]}
    axes.barh(["one rank"], [one_rank], 0.6, color=COLORS["measured"], **edge)
    axes.annotate(f"{one_rank:.1f} ms", (one_rank, 0), (8, -4), textcoords=_POINTS)
    pieces = {first: half - sum(gained.values())}
    for name, ms in losses.items():
        pieces[f"+ {ms:.1f}, {name}"] = ms
    colors = ["measured", *(_LOSSES[name][1] for name in losses)]
    left = 0.0
    for color, (label, ms) in zip(colors, pieces.items(), strict=True):
        look = {"color": COLORS[color], "label": label, **edge}
        axes.barh(["two ranks"], [ms], 0.6, left, **look)
        left += ms
    axes.annotate(f"{total:.1f} ms", (max(total, half), 1), (8, -4), textcoords=_POINTS)
    axes.axvline(half, color=COLORS["ink"], linewidth=1.2, linestyle=":")
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("ms per step; dotted: half of one rank's step")
    figure.legend(loc="outside lower center", ncols=1)
    labels = [label.replace("\n", " ") for label in pieces]
    return describe(figure, title, f"One rank: {one_rank:.1f} ms", *labels)


def _say_what_is_missing(half: float, total: float, losses: Mapping[str, float]) -> str:
    """Say how far a step of two ranks is from half of a step, and what costs most."""
    largest = max(losses, key=losses.__getitem__)
    costs = f"the largest loss is {_LOSSES[largest][0]}, {losses[largest]:.1f} ms"
    if total <= half:
        return f"Two ranks take no more than half the time; {costs}"
    return f"Two ranks take {total - half:.1f} ms more than half the time; {costs}"


# What each loss is called in the title, and its color.
_LOSSES = {
    "costs that do not halve with the batch": ("costs that do not halve", "muted"),
    "slower beside the other rank": ("slower computing", "predicted"),
    "exchange": ("the exchange", "recorded"),
    "waiting for the later rank": ("waiting", "baseline"),
}


@kit_look()
def draw_gains(contests: Mapping[int, Any], estimates: Sequence[float]) -> Figure:
    """Draw how many times as fast two ranks are as one, by the size of the batch.

    `contests` are comparisons. From a batch between the two `estimates` on the second
    rank should pay; what is not positive stands for a batch that no size reaches.
    """
    sizes = list(contests)
    ratios = [contest.ratio for contest in contests.values()]
    points = [[ratio.value for ratio in ratios]]
    points += [[ratio.low for ratio in ratios], [ratio.high for ratio in ratios]]
    low, high = (value if value > 0 else math.inf for value in estimates)
    low, high = min(low, high), max(low, high)
    figure = draw_lines(
        {"2 ranks": (sizes, *points, "measured")},
        title=f"{_say_from_when(sizes, ratios)}; estimated: {_round(low, high)}",
        xlabel="images in the whole batch",
        ylabel="times as fast as one rank",
        logx=True,
    )
    axes = figure.axes[0]
    known = [value for value in points[0] if is_known(value)]
    axes.set_ylim(0, max([2.2, *(1.1 * value for value in known)]))
    axes.axhline(1, color=COLORS["ink"], linewidth=1.2)
    axes.axhline(2, color=COLORS["muted"], linewidth=1, linestyle=":")
    left, right = axes.get_xlim()
    if left < high and low < right:
        band = max(low, left), min(high, right)
        axes.axvspan(*band, color=COLORS["predicted"], alpha=0.15, linewidth=0)
        axes.set_xlim(left, right)
        look = {"color": COLORS["predicted"], "textcoords": _POINTS}
        axes.annotate("estimated", (band[0], 0.1), (6, 0), **look)
    axes.annotate("half the time", (sizes[0], 2), (0, 4), textcoords=_POINTS)
    return figure


def _say_from_when(sizes: Sequence[int], ratios: Sequence[Any]) -> str:
    """Say between which sizes the second rank begins to pay, as the intervals show."""
    pairs = list(zip(sizes, ratios, strict=True))
    losing = [size for size, ratio in pairs if ratio.high < 1]
    not_winning = [size for size, ratio in pairs if not ratio.low > 1]
    if not not_winning:
        return f"The second rank pays already with {sizes[0]} images"
    winning = [size for size in sizes if size > max(not_winning)]
    if not winning:
        return f"With {sizes[-1]} images the second rank does not pay for sure"
    if not losing:
        return f"The second rank pays from at most {winning[0]} images on"
    last = max(losing)
    return f"Two ranks break even between {last} and {winning[0]} images"


def _round(low: float, high: float) -> str:
    """Write a range of batches."""
    if math.isinf(low):
        return "never"
    if math.isinf(high):
        return f"{low:.0f} or more"
    return f"{low:.0f} to {high:.0f}"


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
