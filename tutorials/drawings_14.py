"""The pictures of chapter 14, and the recorded sweep that one of them shows."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from kit.figures import COLORS, format_number, kit_look
from kit.figures.style import describe, new_figure

#: What `scripts/sweep_sending.py` has written.
SWEEP = Path(__file__).with_name("sending_sweep.json")


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
    runs = sweep["runs"]
    best: dict[str, Best] = {}
    for method in dict.fromkeys(run["method"] for run in runs):
        own = [run for run in runs if run["method"] == method]
        rates = sorted({run["rate"] for run in own})
        tried = []
        for rate in rates:
            there = [run for run in own if run["rate"] == rate]
            losses = [run["loss"] for run in there]
            megabytes, batches = there[0]["megabytes"], sweep["batches"]
            is_at_edge = rate in (rates[0], rates[-1])
            tried.append(Best(rate, losses, megabytes, batches, is_at_edge))
        best[method] = min(tried, key=lambda one: one.loss)
    return best


@kit_look()
def draw_shares(
    alone: Mapping[int, float], linked: Mapping[int, float], exchange: float
) -> Any:
    """Draw bars of two parts: the step without a link, and what the link adds.

    Milliseconds by images per rank; `exchange` is what the formula says of the link.
    """
    shares = {images: 1 - alone[images] / linked[images] for images in alone}
    few, *_, many = shares
    title = (
        f"The link takes {shares[few]:.0%} of a step with {few} images per rank, "
        f"{shares[many]:.0%} with {many}"
    )
    rows = {
        f"{images} images": (ms, linked[images], ms + exchange)
        for images, ms in alone.items()
    }
    told = []
    figure = new_figure(title, 0.5 * len(rows) + 1.2)
    axes = figure.subplots()
    for y, (label, (alone, linked, predicted)) in enumerate(rows.items()):
        added = max(0.0, linked - alone)
        parts = {"label": "the step without a link" if y == 0 else None}
        axes.barh(y, alone, 0.6, color=COLORS["measured"], **parts)
        parts = {"label": "what the link adds" if y == 0 else None}
        axes.barh(y, added, 0.6, left=alone, color=COLORS["recorded"], **parts)
        line = {"color": COLORS["predicted"], "lw": 2.5, "ls": (0, (2, 1))}
        line["label"] = "predicted" if y == 0 else None
        axes.plot([predicted, predicted], [y - 0.4, y + 0.4], **line)
        end = {"textcoords": "offset points", "va": "center"}
        axes.annotate(
            f"{format_number(linked)} ms", (max(linked, predicted), y), (8, 0), **end
        )
        told.append(f"{label}: {alone:.1f}, with the link {linked:.1f}")
    axes.set(ylim=(len(rows) - 0.4, -0.6))
    axes.set_xlim(0, 1.2 * max(max(row) for row in rows.values()))
    axes.set_yticks(range(len(rows)), list(rows))
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("ms per step")
    figure.legend(loc="outside lower right", ncols=3)
    return describe(figure, title, *told)


@kit_look()
def draw_loss_over_bytes(
    best: Mapping[str, Best], here: Mapping[str, tuple[float, float]]
) -> Any:
    """Draw each method's loss over the megabytes that a rank sends.

    Points are medians of the recorded seeds, bars their lowest and highest; the first
    method's are a band. `here` has (loss, megabytes) that were measured just now.
    """
    first, *_ = best.values()
    title = _find_title(best)
    figure = new_figure(title, 4.4)
    axes = figure.subplots()
    low, high = min(first.losses), max(first.losses)
    axes.axhspan(low, high, color=COLORS["zone"], label="plain, three seeds")
    point = {"color": COLORS["measured"], "marker": "o", "ms": 7, "ls": ""}
    point |= {"zorder": 4, "elinewidth": 1.5}
    told = []
    places = _place_names(best)
    for name, one in best.items():
        ends = [[one.loss - min(one.losses)], [max(one.losses) - one.loss]]
        label = "recorded: median, lowest, highest" if one is first else None
        axes.errorbar(one.megabytes, one.loss, ends, label=label, **point)
        side, up = places[name]
        look = {"textcoords": "offset points", "va": "center", "ha": side}
        shift = (8 if side == "left" else -8, up)
        axes.annotate(name, (one.megabytes, one.loss), shift, zorder=6, **look)
        told.append(f"{name}: {one.loss:.3f} after {one.megabytes:,.0f} MB")
    look = {"color": COLORS["predicted"], "marker": "x", "ms": 9, "mew": 2, "ls": ""}
    for number, (name, (loss, megabytes)) in enumerate(here.items()):
        label = "trained here, one seed" if number == 0 else None
        axes.plot(megabytes, loss, label=label, zorder=5, **look)
        told.append(f"here, {name}: {loss:.3f}")
    sent = [one.megabytes for one in best.values()]
    axes.set(xscale="log", xlim=(min(sent) / 2.2, max(sent) * 2.2))
    axes.xaxis.set_major_locator(_choose_ticks())
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_ylim(bottom=min(min(one.losses) for one in best.values()) - 0.03)
    axes.grid(visible=False, axis="x")
    axes.set_xlabel("megabytes that a rank sends in the whole training")
    axes.set_ylabel("loss on held-out images")
    figure.legend(loc="outside lower center", ncols=3)
    return describe(figure, title, *told)


def _choose_ticks() -> Any:
    """Return a locator with 1, 2 and 5 of each power of ten."""
    from matplotlib.ticker import LogLocator

    return LogLocator(subs=(1, 2, 5), numticks=20)


def _place_names(best: Mapping[str, Best]) -> dict[str, tuple[str, int]]:
    """Choose each name's side of its point, and by how much it is moved up.

    Points near the right edge have their name on the left; names that would lie on
    each other are moved apart.
    """
    most = max(one.megabytes for one in best.values())
    places: dict[str, tuple[str, int]] = {}
    for name, one in best.items():
        side = "right" if one.megabytes > most / 3 else "left"
        near = [
            other
            for label, other in best.items()
            if label != name
            and 1 / 4 < other.megabytes / one.megabytes < 4
            and abs(other.loss - one.loss) < 0.02
        ]
        above = sum(other.loss < one.loss for other in near)
        below = len(near) - above
        places[name] = side, 8 * (above - below)
    return places


def _find_title(best: Mapping[str, Best]) -> str:
    """Say which methods learn as well as the first, and how little they send."""
    plain, *_ = best.values()
    as_good = {
        name: one
        for name, one in best.items()
        if one is not plain and one.loss <= max(plain.losses)
    }
    if not as_good:
        return "No method learns as well as plain training"
    least = min(as_good, key=lambda name: as_good[name].megabytes)
    part = plain.megabytes / as_good[least].megabytes
    return (
        f"{len(as_good)} of {len(best) - 1} methods learn as well as plain training; "
        f"{least} does it with 1/{part:.0f} of the bytes"
    )


def tabulate(best: Mapping[str, Best]) -> Any:
    """Return a table of the best of each method: bytes, loss, learning rate."""
    import pandas as pd

    plain, *_ = best.values()
    rows = {
        name: {
            "bytes": f"1/{plain.megabytes / one.megabytes:.0f}",
            "loss": f"{one.loss:.3f}",
            "lowest to highest": f"{min(one.losses):.3f} to {max(one.losses):.3f}",
            "against plain": f"{one.loss / plain.loss:.2f} ×",
            "rate": f"{one.lr:g}{', at the edge' if one.is_at_edge else ''}",
        }
        for name, one in best.items()
    }
    return pd.DataFrame(rows).T


def tell_times(times: Any, formula: Any) -> Any:
    """Return one table of measured and predicted times; print what is to be seen."""
    links = [link for link in times.columns if link != "none"]
    for link in links:
        quickest = times[link].idxmin()
        gain = times[link].iloc[0] / times[link][quickest]
        print(f"{link}: {quickest} is quickest, {gain:.1f} times as fast as plain")
    off = _compare(times, formula)
    name, link = off.abs().idxmax()
    print(
        f"Largest difference from the formula: {off[name, link]:+.0%}, {name}, {link}"
    )
    table = times.map(lambda ms: f"{ms:.1f}")
    for link in links:
        table[link] += formula[link].map(lambda ms: f" ({ms:.1f})")
    return table.rename(columns={"none": "without a link"})


def find_worst(times: Any, formula: Any) -> str:
    """Return the method with the largest difference from the formula."""
    name, _ = _compare(times, formula).abs().idxmax()
    return name


def _compare(times: Any, formula: Any) -> Any:
    """Return by which part each time is off, by method and link."""
    linked = times.columns.drop("none")
    return (times[linked] / formula[linked] - 1).stack()
