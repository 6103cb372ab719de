"""The pictures of chapter 19: a ladder of changes, and two gains of each change."""

from __future__ import annotations

from collections.abc import Mapping

import pandas
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from kit.figures import COLORS, kit_look
from kit.figures.style import ROW, describe, new_figure


@kit_look()
def draw_ladder(table: pandas.DataFrame) -> Figure:
    """Draw a bar for each loop, what it handles per second, with its MFU."""
    rates, unit = table.iloc[:, 0], table.columns[0]
    title = f"From {rates.iloc[0]:,.0f} to {rates.iloc[-1]:,.0f} {unit}"
    figure = new_figure(title, 0.8 * ROW * len(table) + 0.6)
    axes = figure.subplots()
    colors = [COLORS["baseline"], *[COLORS["measured"]] * (len(table) - 1)]
    places, words = range(len(table)), []
    axes.barh(places, rates, color=colors, height=0.7)
    for place, (name, rate) in enumerate(rates.items()):
        text = f"{rate:,.0f}, MFU {table.loc[name, 'MFU']}"
        words.append(f"{name}: {text}")
        look = {"xytext": (5, 0), "textcoords": "offset points", "va": "center"}
        axes.annotate(text, (rate, place), **look)
    axes.set_yticks(places, [*table.index], color=COLORS["ink"])
    axes.set(xlim=(0, 1.3 * rates.max()), xlabel=unit, ylim=(len(table) - 0.5, -0.5))
    axes.grid(visible=False, axis="y")
    return describe(figure, f"Bars, {unit}", title, "; ".join(words))


@kit_look()
def draw_dumbbells(gains: Mapping[str, tuple[float, float]]) -> Figure:
    """Draw two dots for each change: its gain when it came, and in the end."""
    apart = {name: end / came for name, (came, end) in gains.items()}
    most = max(apart, key=lambda name: abs(apart[name] - 1))
    came, end = gains[most]
    title = f"{most}: {came:.1f} × when it came, {end:.1f} × in the end"
    figure = new_figure(title[0].upper() + title[1:], ROW * len(gains) + 0.8)
    axes = figure.subplots()
    words = []
    for place, (name, (came, end)) in enumerate(gains.items()):
        axes.hlines(place, came, end, color=COLORS["muted"], lw=2.5, zorder=1)
        looks = {"markersize": 9, "zorder": 3}
        labels = ("when it came", "in the end") if place == 0 else (None, None)
        axes.plot(came, place, "o", color=COLORS["baseline"], label=labels[0], **looks)
        axes.plot(end, place, "D", color=COLORS["measured"], label=labels[1], **looks)
        words.append(f"{name}: {came:.2f}, {end:.2f}")
    axes.axvline(1, color=COLORS["ink"], lw=1)
    axes.set_xscale("log")
    least, most = _find_ends(gains)
    ticks = [tick for tick in (0.5, 1, 2, 3, 5, 10, 20) if least <= tick <= most]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_yticks(range(len(gains)), [*gains], color=COLORS["ink"])
    axes.set(xlabel="times as fast with the change", xlim=(least, most))
    axes.set_ylim(len(gains) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.25), ncols=2)
    return describe(figure, "Two gains of each change", title, "; ".join(words))


def _find_ends(gains: Mapping[str, tuple[float, float]]) -> tuple[float, float]:
    values = [1.0, *(value for pair in gains.values() for value in pair)]
    return 0.85 * min(values), 1.2 * max(values)
