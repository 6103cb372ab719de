"""Points of a plot: bars, or lines over a knob, and what a cost model predicts."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kit import figures
from kit.errors import ExperimentError
from kit.measuring.experiment import describe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: A value and both ends of its interval.
Quantity = tuple[float, float, float]


@dataclass(frozen=True)
class Point:
    """What a plot shows of one choice: its quantity with both ends of its interval.

    The knobs are those of the experiment, and its name as `experiment`. The quantity is
    nan where only a prediction is drawn; `origin` says where it was measured elsewhere,
    and stands beside a point with the same label.
    """

    label: str
    knobs: Mapping[str, Any]
    quantity: Quantity
    predicted: float = math.nan
    origin: str = ""


def plot_points(
    points: Sequence[Point],
    title: str,
    unit: str,
    x: str | None = None,
    *,
    baseline: int | None = None,
    width: float = figures.WIDTH,
) -> Figure:
    """Draw points as bars, or as lines over the knob `x`, one for each other choice.

    `baseline` is the number of the point that the others are compared with.
    """
    if x is not None:
        logx = figures.is_wide([p.knobs[x] for p in points if p.knobs[x] > 0])
        look = {"title": title, "xlabel": x, "ylabel": unit, "width": width}
        lines, machines = _make_lines(points, x)
        return figures.draw_lines(lines, logx=logx, machines=machines, **look)
    here = [point for point in points if not point.origin]
    recorded: dict[str, list[figures.Row]] = {}
    for point in points:
        if point.origin:
            row = (point.label, *point.quantity)
            recorded.setdefault(point.origin, []).append(row)
    return figures.draw_bars(
        [point.label for point in here],
        *zip(*(point.quantity for point in here), strict=True),
        title=title,
        unit=unit,
        baseline=baseline,
        recorded=recorded,
        predicted=[point.predicted for point in here],
        width=width,
    )


def _find_differing(points: Sequence[Point], x: str) -> list[str]:
    """Return the knobs but `x` in which points of one experiment differ."""
    names = {point.knobs["experiment"] for point in points}
    differing = ["experiment"] if len(names) > 1 else []
    for knob in dict.fromkeys(knob for point in points for knob in point.knobs):
        values = {(p.knobs["experiment"], repr(p.knobs.get(knob))) for p in points}
        if len(values) > len(names) and knob != x:
            differing.append(knob)
    return differing


def _name_line(point: Point, differing: Sequence[str]) -> str:
    words = []
    for knob in differing:
        value = point.knobs.get(knob)
        if knob == "experiment":
            words.append(str(value))
        else:
            words.append(f"{knob}={figures.format_value(value)}")
    return ", ".join(words)


def _make_lines(
    points: Sequence[Point], x: str
) -> tuple[dict[str, figures.Series], dict[str, str]]:
    """Return a line over `x` for each choice of the others, and its prediction.

    With them the machines of those that were recorded, by the line's name.
    """
    groups: dict[tuple[str, str], list[Point]] = {}
    differing = _find_differing(points, x)
    for point in sorted(points, key=lambda point: point.knobs[x]):
        key = _name_line(point, differing), point.origin
        groups.setdefault(key, []).append(point)
    lines: dict[str, figures.Series] = {}
    predicted: dict[str, figures.Series] = {}
    machines: dict[str, str] = {}
    for (name, origin), group in groups.items():
        xs = [point.knobs[x] for point in group]
        middles, lows, highs = zip(*(point.quantity for point in group), strict=True)
        if not all(map(math.isnan, middles)):
            kind = "recorded" if origin else "measured"
            shown = ", ".join(filter(None, (name, origin))) or kind
            lines[shown] = (xs, middles, lows, highs, kind)
            if origin:
                machines[shown] = origin
        heights = [point.predicted for point in group]
        if not all(map(math.isnan, heights)):
            label = ", ".join(filter(None, ("predicted", name)))
            predicted[label] = (xs, heights, None, None, "predicted")
    if len({repr(heights) for _, heights, *_ in predicted.values()}) == 1:
        predicted = {"predicted": next(iter(predicted.values()))}  # of all alike
    return lines | predicted, machines


def predict_points(
    predict: Callable[..., float] | None, points: Sequence[Mapping[str, Any]]
) -> list[float]:
    """Call a cost model for each point, with those knobs that it has names for.

    Without one the predictions are nan, and so is one that it cannot look up (a
    LookupError), if it can another. Raises ExperimentError where it fails.
    """
    if predict is None:
        return [math.nan] * len(points)
    predicted: list[float] = []
    for point in points:
        try:
            names = inspect.signature(predict).parameters
            known = {k: v for k, v in point.items() if k in names}
            predicted.append(float(predict(**known)))
        except Exception as error:
            predicted.append(math.nan)
            is_complete = len(predicted) == len(points)
            knows_none = is_complete and all(map(math.isnan, predicted))
            if not isinstance(error, LookupError) or knows_none:
                raise ExperimentError(
                    f"{describe('predict', point)} failed: {type(error).__name__}: "
                    f"{error}\nPass a function of choices, named as they are, such as "
                    "predict=lambda batch_size: 1000 / batch_size; it returns a "
                    "number, or nan where it knows none."
                ) from error
    return predicted
