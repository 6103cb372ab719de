"""The pictures of chapter 17: what a link costs, and a training with faults."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from kit.figures import COLORS, draw_lines, kit_look
from kit.figures.style import describe, new_figure

Rows = Sequence[Mapping[str, Any]]


def draw_link(race: Any, predict: Callable[[float], float]) -> Figure:
    """Draw the time of a step of two machines over the link's rate.

    The first trial is one machine alone. `predict` returns seconds for a rate in
    Mbit/s. Prints how far the formula is off.
    """
    alone, *trials = race.trials
    rates = [trial.knobs["mbit"] for trial in trials]
    took = [1000 * trial.step_seconds for trial in trials]
    limit = 1000 * alone.step_seconds
    wanted = [1000 * predict(rate) for rate in rates]
    off = [ms / formula - 1 for ms, formula in zip(took, wanted, strict=True)]
    print(f"Measured, compared with the formula: {min(off):+.0%} to {max(off):+.0%}")
    slower = [rate for rate, ms in zip(rates, took, strict=True) if ms > limit]
    faster = [rate for rate, ms in zip(rates, took, strict=True) if ms <= limit]
    title = "Two machines are slower than one at all of these rates"
    if faster and slower:
        title = (
            f"Two machines: slower than one up to {max(slower):,} Mbit/s, "
            f"faster at {min(faster):,}"
        )
    series = {
        "two machines": (rates, took, None, None, "measured"),
        "predicted, two machines": (rates, wanted, None, None, "predicted"),
        "one machine": ([rates[0], rates[-1]], [limit, limit], None, None, "recorded"),
    }
    return draw_lines(
        series,
        title=title,
        xlabel="the link's rate, Mbit/s",
        ylabel="ms per step",
        logx=True,
    )


@kit_look()
def draw_run(rows: Rows, faults: Rows) -> Figure:
    """Draw the steps of a training over its seconds, and what was done to it.

    Rows are steps, with a time and a number. Faults have the times when each was
    caused, when a process first noticed, and when the training went on.
    """
    begin = rows[0]["time"]
    end = rows[-1]["time"] - begin
    idle = sum(fault["again"] - fault["harmed"] for fault in faults)
    title = f"{idle:.0f} of {end:.0f} seconds pass between a fault and the next step"
    if not faults:
        title = f"{len(rows)} steps without a fault"
    figure = new_figure(title, 3.6)
    axes = figure.subplots()
    lives = split_at(rows, [fault["noticed"] for fault in faults])
    for life in lives:
        seconds = [row["time"] - begin for row in life]
        axes.plot(seconds, [row["step"] for row in life], color=COLORS["measured"])
    told = []
    marks = [
        ("harmed", "X", "predicted", "the fault"),
        ("noticed", "o", "recorded", "a process has noticed"),
        ("again", "^", "measured", "running again"),
    ]
    top = max(row["step"] for row in rows)
    for fault, before, after in zip(faults, lives, lives[1:], strict=False):
        left = fault["harmed"] - begin
        right = fault["again"] - begin
        axes.axvspan(left, right, color=COLORS["zone"], lw=0)
        words = fault["what"].replace(" is ", "\nis ").replace(" hangs", "\nhangs")
        middle = (left + right) / 2
        axes.text(middle, 1.08 * top, words, ha="center", va="bottom", size=9)
        last = before[-1]["step"]
        heights = {"harmed": last, "noticed": last, "again": after[0]["step"]}
        for key, marker, color, _ in marks:
            look = {"color": COLORS[color], "ms": 7, "zorder": 5}
            axes.plot(fault[key] - begin, heights[key], marker, **look)
        noticed = fault["noticed"] - fault["harmed"]
        told.append(
            f"{fault['what']}: noticed after {noticed:.1f} s, running again after "
            f"{right - left:.1f} s, from step {heights['again']}, before it {last}"
        )
    for _, marker, color, label in marks:
        axes.plot([], [], marker, color=COLORS[color], label=label)
    axes.set(xlim=(0, 1.02 * end), ylim=(0, 1.3 * top))
    axes.set_xlabel("seconds since the first step")
    axes.set_ylabel("step")
    if faults:
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return describe(figure, f"step over seconds. {title}", *told)


def split_at(rows: Rows, times: Sequence[float]) -> list[list[Any]]:
    """Split rows by their time at each of these times.

    >>> split_at([{"time": 1}, {"time": 3}], [2])
    [[{'time': 1}], [{'time': 3}]]
    """
    edges = [float("-inf"), *times, float("inf")]
    return [
        [row for row in rows if low < row["time"] <= high]
        for low, high in itertools.pairwise(edges)
    ]


def draw_young(
    simulate: Callable[[float], float], *, save: float, between: float
) -> Figure:
    """Draw the lost share over the seconds between saves, simulated and by formula."""
    best = math.sqrt(2 * save * between)
    times = [best * 2**n for n in range(-4, 5)]
    simulated = [100 * simulate(time) for time in times]
    formula = [100 * (save / time + time / (2 * between)) for time in times]
    minutes = [round(time / 60, 1) for time in times]
    lost = simulated[times.index(best)]
    series = {
        "simulated": (minutes, simulated, None, None, "measured"),
        "predicted": (minutes, formula, None, None, "predicted"),
        "Young's time": ([round(best / 60, 1)], [lost], None, None, "recorded"),
    }
    return draw_lines(
        series,
        title=f"At Young's time of {best / 60:.0f} minutes, {lost:.0f} % is lost",
        xlabel="minutes between saves",
        ylabel="lost, %",
        logx=True,
    )
