"""The pictures of chapter 16: a call in parts, two servers, a game that is solved."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from kit.figures import COLORS, draw_lines, kit_look
from kit.figures.style import describe, new_figure

#: What happens in each part of a call.
_PARTS = ["pack", "way there", "unpack, run, pack", "way back", "unpack"]
#: The row of each part's process, and how its text stands; ways have none.
_ROWS = {
    "pack": (0, "left"),
    "unpack, run, pack": (1, "center"),
    "unpack": (0, "right"),
}
#: So many updates are averaged for a point of a curve.
_UPDATES = 20


@kit_look()
def draw_call(parts: Sequence[float]) -> Figure:
    """Draw a call over time, in milliseconds; `parts` are those of `take_apart`."""
    ways = parts[1] + parts[3]
    title = f"Of a Python call's {sum(parts):.2f} ms, both ways take {ways:.2f} ms"
    figure = new_figure(title, 2.3)
    axes = figure.subplots()
    told = []
    start = 0.0
    for name, length in zip(_PARTS, parts, strict=True):
        text = f"{name} {length:.2f}"
        told.append(f"{text} ms")
        stop = start + length
        if name in _ROWS:
            row, align = _ROWS[name]
            axes.barh(row, length, 0.5, start, color=COLORS["measured"])
            place = {"left": start, "center": start + length / 2, "right": stop}[align]
            look = {"ha": align, "va": "top" if row else "bottom", "size": 9.5}
            axes.text(place, 1.33 if row else -0.33, text, **look)
        else:
            high, low = (0.3, 0.7) if name == "way there" else (0.7, 0.3)
            look = {"arrowstyle": "-|>", "color": COLORS["ink"], "lw": 1.2}
            look |= {"shrinkA": 0, "shrinkB": 0}
            axes.annotate("", (stop, low), (start, high), arrowprops=look)
            card = {"facecolor": COLORS["card"], "edgecolor": "none", "pad": 1.5}
            look = {"ha": "center", "va": "center", "size": 9.5, "bbox": card}
            axes.text(start + length / 2, 0.5, text, **look)
        start = stop
    axes.set(xlim=(0, start), ylim=(1.75, -0.75))
    axes.set_yticks([0, 1], ["notebook", "worker0"], color=COLORS["ink"])
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("ms since the call; each part is a median")
    return describe(figure, title, *told)


def draw_servers(servers: Mapping[str, Any]) -> Figure:
    """Draw the losses of two servers over seconds, each point a mean of 20 updates.

    The title says how many updates both have seen.
    """
    curves = {}
    for name, server in servers.items():
        curves[name] = *_average(server), None, None, "measured"
    (alone, one), (name, other) = servers.items()
    many, few = len(other.losses), len(one.losses)
    title = f"{name.capitalize()} make {many} updates while {alone} makes {few}"
    return draw_lines(
        curves, title=title, xlabel="seconds", ylabel="loss, mean of 20 updates"
    )


def _average(server: Any) -> tuple[list[float], list[float]]:
    """Return seconds and losses: a mean of each twenty updates."""
    seconds, losses = [], []
    count = len(server.losses)
    for stop in range(min(_UPDATES, count), count + 1, _UPDATES):
        seconds.append(server.seconds[stop - 1])
        losses.append(statistics.mean(server.losses[max(0, stop - _UPDATES) : stop]))
    return seconds, losses


def draw_game(means: Mapping[str, Sequence[float]], title: str) -> Figure:
    """Draw running means of rewards over rounds."""
    curves = {
        name: (range(len(ys)), ys, None, None, "measured") for name, ys in means.items()
    }
    return draw_lines(
        curves, title=title, xlabel="round", ylabel="running mean of rewards"
    )
