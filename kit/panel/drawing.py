"""Picture, words and table of what a panel has measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kit import figures
from kit.comparison.quantities import SPEED, quantity_of, unit_of
from kit.panel.choices import Choices
from kit.trial import Trial

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Model = Callable[..., float]


@dataclass(frozen=True)
class Entry:
    """One line of the history: what was chosen, and what came of it."""

    label: str
    point: Mapping[str, Any]
    trial: Trial | None = None
    verdict: str = ""
    error: str = ""


def latest(entries: Sequence[Entry]) -> list[Entry]:
    """Return the newest entry of each point, failed ones left out."""
    newest = {entry.label: entry for entry in entries}
    return [entry for entry in newest.values() if entry.trial is not None]


def summarise(entries: Sequence[Entry], of: str, said: str = "") -> str:
    """Return what the picture shows as a sentence; `said` is a comparison's."""
    shown = latest(entries)
    if not shown:
        return "Nothing has been measured yet."
    if said:
        return said
    unit = unit_of(of)
    newest = entries[-1]
    if newest.trial is None:
        return f"{newest.label} failed."
    value = figures.format_number(quantity_of(newest.trial, of)[0])
    told = f"{newest.label}: {value} {unit}"
    if len(shown) == 1:
        return f"{told}."
    sign = 1 if of == SPEED else -1
    best = max(shown, key=lambda e: sign * _known(quantity_of(_trial(e), of)[0]))
    if best.label == newest.label:
        return f"{told}, the best so far."
    return f"{told}; {best.label} is the best so far."


def draw(
    choices: Choices,
    entries: Sequence[Entry],
    recorded: Sequence[Trial],
    of: str,
    title: str,
    model: Model | None,
) -> Figure:
    """Draw bars, or lines over the one knob whose choices are ordered numbers."""
    shown = latest(entries)
    knob = choices.ordered
    if knob is not None:
        return _draw_lines(choices, shown, recorded, of, title, model, knob)
    labels = [entry.label for entry in shown]
    values = [quantity_of(_trial(entry), of) for entry in shown]
    elsewhere = [(_origin(trial), trial) for trial in recorded]
    for origin, trial in elsewhere:
        point = {k: trial.knobs.get(k) for k in choices.lists if k in trial.knobs}
        labels.append(f"{choices.label(point)} · {origin}" if point else origin)
        values.append(quantity_of(trial, of))
    if model is not None:
        for entry in shown:
            labels.append(f"{entry.label}, predicted")
            values.append((_predict(model, entry.point), math.nan, math.nan))
    middles, lows, highs = zip(*values, strict=True) if values else ((), (), ())
    return figures.draw_bars(
        labels,
        middles,
        lows,
        highs,
        title=title,
        unit=unit_of(of),
        recorded=range(len(shown), len(shown) + len(elsewhere)),
    )


def _draw_lines(
    choices: Choices,
    shown: Sequence[Entry],
    recorded: Sequence[Trial],
    of: str,
    title: str,
    model: Model | None,
    knob: str,
) -> Figure:
    series: dict[str, tuple[Any, ...]] = {}
    groups: dict[str, list[tuple[float, Trial]]] = {}
    for entry in shown:
        rest = {k: v for k, v in entry.point.items() if k != knob}
        name = choices.label({**rest}) if rest else "measured"
        groups.setdefault(name, []).append((entry.point[knob], _trial(entry)))
    for name, points in groups.items():
        series[name] = _series(points, of, "measured")
    elsewhere: dict[str, list[tuple[float, Trial]]] = {}
    for trial in recorded:
        x = trial.knobs.get(knob)
        if isinstance(x, (int, float)):
            elsewhere.setdefault(_origin(trial), []).append((x, trial))
    for name, points in elsewhere.items():
        series[name] = _series(points, of, "recorded")
    if model is not None:
        xs = sorted(choices.lists[knob])
        start = shown[-1].point if shown else choices.start()
        predicted = [_predict(model, {**start, knob: x}) for x in xs]
        series["predicted"] = (xs, predicted, None, None, "predicted")
    return figures.draw_lines(series, title=title, xlabel=knob, ylabel=unit_of(of))


def _series(
    points: Sequence[tuple[float, Trial]], of: str, style: str
) -> tuple[Any, ...]:
    ordered = sorted(points, key=lambda p: p[0])
    xs = [x for x, _ in ordered]
    values = [quantity_of(trial, of) for _, trial in ordered]
    return (xs, *map(list, zip(*values, strict=True)), style)


def write_history(entries: Sequence[Entry], of: str) -> str:
    """Return the history as an HTML table, the newest first."""
    rows = []
    for number, entry in reversed(list(enumerate(entries, 1))):
        if entry.trial is None:
            rows.append((str(number), entry.label, "–", "", entry.error))
            continue
        value, low, high = quantity_of(entry.trial, of)
        span = f"[{low:,.4g}, {high:,.4g}]" if not math.isnan(low) else ""
        outcome = "" if entry.trial.outcome == "complete" else entry.trial.outcome
        note = ", ".join(word for word in (entry.verdict, outcome) if word)
        rows.append((str(number), entry.label, f"{value:,.4g}", span, note))
    headers = ("", "choice", unit_of(of), "95 % interval", "")
    return figures.html_table(headers, rows, title="Measured so far")


def _trial(entry: Entry) -> Trial:
    assert entry.trial is not None
    return entry.trial


def _origin(trial: Trial) -> str:
    return f"{trial.machine.name}, {trial.started[:10]}"


def _predict(model: Model, point: Mapping[str, Any]) -> float:
    return model(*point.values()) if len(point) == 1 else model(**point)


def _known(value: float) -> float:
    return -math.inf if math.isnan(value) else value
