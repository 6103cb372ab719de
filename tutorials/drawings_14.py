"""The pictures of chapter 14, and the recorded sweep that one of them shows."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from kit.figures import COLORS, format_number, kit_look
from kit.figures.style import describe, new_figure

#: What `scripts/sweep_sending.py` has written.
SWEEP = Path(__file__).with_name("sending_sweep.json")
#: It sends as many bytes as plain training, so the picture leaves it out.
_NOT_DRAWN = "late by one"
#: Where a method's name stands, in points from its point, so that names lie apart.
_RIGHT = 8, -3
_PLACES = {
    "plain": (-32, 7),
    "16 bits": (-44, -8),
    "PowerSGD": (8, 10),
    "local SGD, 8": (8, 4),
    "DiLoCo, 16": (8, -20),
}


class Best(NamedTuple):
    """A method at the learning rate with the lowest median loss."""

    lr: float
    losses: list[float]  # one per seed, in their order
    megabytes: float  # that a rank sent in the whole training
    batches: int  # that a rank trained on
    is_at_edge: bool  # whether that rate is the lowest or the highest that was tried

    @property
    def loss(self) -> float:
        return statistics.median(self.losses)

    @property
    def batch_bytes(self) -> float:
        return 1e6 * self.megabytes / self.batches


def read_sweep(path: Path = SWEEP) -> dict[str, Best]:
    """Return the best of each method that the sweep has recorded."""
    sweep = json.loads(path.read_text("utf-8"))
    runs = pd.DataFrame(sweep["runs"])
    best = {}
    for method, own in runs.groupby("method", sort=False):
        rate = own.groupby("rate")["loss"].median().idxmin()
        chosen = own[own["rate"] == rate]
        best[method] = Best(
            lr=rate,
            losses=chosen["loss"].to_list(),
            megabytes=chosen["megabytes"].iloc[0],
            batches=sweep["batches"],
            is_at_edge=rate in (own["rate"].min(), own["rate"].max()),
        )
    return best


@kit_look()
def draw_shares(
    alone: Mapping[int, float], linked: Mapping[int, float], exchange: float
) -> Figure:
    """Draw bars of two parts: the step without a link, and what the link adds.

    Milliseconds by images per rank; `exchange` is what the formula says of the link.
    """
    own, whole = pd.Series(alone), pd.Series(linked)
    added, predicted = whole - own, own + exchange
    shares = added / whole
    few, many = own.index[0], own.index[-1]
    title = (
        f"The link takes {shares[few]:.0%} of a step with {few} images per rank, "
        f"{shares[many]:.0%} with {many}"
    )
    labels = [f"{images} images" for images in own.index]
    figure = new_figure(title, 0.5 * len(labels) + 1.2)
    axes = figure.subplots()
    look = {"color": COLORS["measured"], "label": "the step without a link"}
    axes.barh(labels, own, 0.6, **look)
    look = {"color": COLORS["recorded"], "label": "what the link adds"}
    bars = axes.barh(labels, added, 0.6, own, **look)
    axes.bar_label(bars, [f"{format_number(ms)} ms" for ms in whole], padding=8)
    rows = np.arange(len(labels))
    look = {"color": COLORS["predicted"], "lw": 2.5, "ls": (0, (2, 1))}
    axes.vlines(predicted, rows - 0.4, rows + 0.4, label="predicted", **look)
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("ms per step")
    figure.legend(loc="outside lower right", ncols=3)
    told = []
    for images, ms in alone.items():
        told.append(f"{images} images: {ms:.1f}, with the link {linked[images]:.1f}")
    return describe(figure, title, *told)


@kit_look()
def draw_loss_over_bytes(best: Mapping[str, Best]) -> Figure:
    """Draw each method's loss over the megabytes that a rank sends.

    Points are medians of the recorded seeds, bars their lowest and highest; the first
    method's are a band.
    """
    best = {name: one for name, one in best.items() if name != _NOT_DRAWN}
    plain, *_ = best.values()
    title = _find_title(best)
    figure = new_figure(title, 4.4)
    axes = figure.subplots()
    band = min(plain.losses), max(plain.losses)
    axes.axhspan(*band, color=COLORS["zone"], label="plain, three seeds")
    told = []
    look = {"color": COLORS["measured"], "fmt": "o", "elinewidth": 1.5}
    for name, one in best.items():
        point = one.megabytes, one.loss
        ends = [[one.loss - min(one.losses)], [max(one.losses) - one.loss]]
        label = "recorded: median, lowest, highest" if one is plain else None
        axes.errorbar(*point, ends, label=label, **look)
        shift = _PLACES.get(name, _RIGHT)
        axes.annotate(name, point, shift, textcoords="offset points")
        told.append(f"{name}: {one.loss:.3f} after {one.megabytes:,.0f} MB")
    axes.set(xscale="log", xlim=(10, 4000))
    axes.set_xticks([20, 50, 100, 200, 500, 1000, 2000])
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.grid(visible=False, axis="x")
    axes.set_xlabel("megabytes that a rank sends in the whole training")
    axes.set_ylabel("loss on held-out images")
    figure.legend(loc="outside lower center", ncols=2)
    return describe(figure, title, *told)


def _find_title(best: Mapping[str, Best]) -> str:
    """Say which methods learn as well as the first, and how little they send."""
    plain, *others = best.values()
    worst = max(plain.losses)
    as_good = {name: one.megabytes for name, one in best.items() if one.loss <= worst}
    least = min(as_good, key=as_good.get)
    part = plain.megabytes / as_good[least]
    return (
        f"{len(as_good) - 1} of {len(others)} methods learn as well as plain training; "
        f"{least} does it with 1/{part:.0f} of the bytes"
    )


def tabulate(best: Mapping[str, Best]) -> pd.DataFrame:
    """Return a table of the best of each method: bytes, loss, learning rate."""
    plain, *_ = best.values()
    rows = {}
    for name, one in best.items():
        rows[name] = {
            "bytes": f"1/{plain.megabytes / one.megabytes:.0f}",
            "loss": f"{one.loss:.3f}",
            "lowest to highest": f"{min(one.losses):.3f} to {max(one.losses):.3f}",
            "against plain": f"{one.loss / plain.loss:.2f} ×",
            "rate": f"{one.lr:g}{', at the edge' if one.is_at_edge else ''}",
        }
    return pd.DataFrame(rows).T


def tell_times(times: pd.DataFrame, formula: pd.DataFrame) -> pd.DataFrame:
    """Return one table of measured and predicted times; print what is to be seen."""
    links = times.columns.drop("none")
    for link in links:
        quickest = times[link].idxmin()
        gain = times[link].iloc[0] / times[link][quickest]
        print(f"{link}: {quickest} is quickest, {gain:.1f} times as fast as plain")
    off = (times[links] / formula[links] - 1).stack()
    name, link = off.abs().idxmax()
    print(
        f"Largest difference from the formula: {off[name, link]:+.0%}, {name}, {link}"
    )
    table = times.map("{:.1f}".format)
    for link in links:
        table[link] += formula[link].map(" ({:.1f})".format)
    return table.rename(columns={"none": "without a link"})
