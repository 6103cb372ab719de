"""Picture, words and table of what a panel has measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kit import figures
from kit.choices import is_same
from kit.figures import format_bytes, format_number
from kit.panel.choices import Choices
from kit.panel.prediction import Prediction
from kit.ratio import SPEED, quantity_of, unit_of
from kit.trial import Trial

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Result = tuple[Mapping[str, Any], Trial]

_WIDTH = 5.6  # inches: beside the controls, in a window of 900 pixels
_MOST_BARS, _MOST_LINES, _MOST_ROWS = 12, 6, 10


@dataclass(frozen=True)
class Entry:
    """One line of the history: what was chosen, and what came of it.

    A comparison that failed has no point: it leaves all earlier results in doubt.
    """

    label: str
    point: Mapping[str, Any] | None
    trial: Trial | None = None
    verdict: str = ""
    error: str = ""


@dataclass(frozen=True)
class Drawing:
    """Draws and tells what a panel has measured of one quantity."""

    choices: Choices
    of: str
    prediction: Prediction | None
    recorded: Sequence[Trial]
    #: Of trials that were compared, the quantity beside the baseline's, by identity.
    compared: dict[int, tuple[float, float, float]] = field(default_factory=dict)

    def summarise(self, entries: Sequence[Entry]) -> str:
        """Return the newest result in words, beside the best one."""
        shown = latest(entries)
        if entries and entries[-1] not in shown:
            happened = (
                "was stopped before it measured" if entries[-1].trial else "failed"
            )
            return f"{entries[-1].label} {happened}"
        if not shown:
            return "Nothing has been measured yet"
        points = [entry.point or {} for entry in shown]
        names = [self.choices.label(point, points) for point in points]
        values = [self._quantity(e.trial)[0] if e.trial else math.nan for e in shown]
        told = [
            f"{name}: {self._say(value)}"
            for name, value in zip(names, values, strict=True)
        ]
        known = [i for i, value in enumerate(values) if not math.isnan(value)]
        if len(shown) == 1 or not known:
            return told[-1]
        best = (max if self.of == SPEED else min)(known, key=values.__getitem__)
        side = "Fastest" if self.of == SPEED else "Least"
        if best != len(shown) - 1:
            return f"{told[-1]}. {side} until now: {told[best]}"
        return f"{told[-1]}, the {side.lower()} until now"

    def _say(self, value: float) -> str:
        if self.of == "peak_memory_bytes":
            return f"{format_bytes(value)} of peak memory"
        return f"{format_number(value)} {unit_of(self.of)}"

    def draw(self, entries: Sequence[Entry], title: str, baseline: bool) -> Figure:
        """Draw bars, or lines over a knob whose choices are ordered numbers.

        So many lines that nobody could tell them apart become bars. `baseline` says
        whether the first choice is the baseline of the others.
        """
        results = [(e.point or {}, e.trial) for e in latest(entries) if e.trial]
        if self.choices.ordered is None or self._is_crowded(results):
            return self._draw_bars(results, title, 0 if baseline else None)
        return self._draw_lines(results, title)

    def _is_crowded(self, shown: Sequence[Result]) -> bool:
        """Return whether each line and its prediction together would be too many."""
        rests = [{**point, self.choices.ordered: None} for point, _ in shown]
        lines = len({repr(rest) for rest in rests})
        return lines * (1 + (self.prediction is not None)) > _MOST_LINES

    def is_empty(self, entries: Sequence[Entry]) -> bool:
        """Return whether there is neither result, prediction nor recording."""
        points = [entry.point or {} for entry in latest(entries)]
        return not (points or self.prediction or self._recorded_beside(points))

    def _draw_bars(
        self, shown: Sequence[Result], title: str, baseline: int | None
    ) -> Figure:
        order = list(map(self.choices.label, self.choices.points()))
        place = {label: number for number, label in enumerate(order)}
        label = self.choices.label
        shown = sorted(shown[-_MOST_BARS:], key=lambda r: place[label(r[0])])
        points = [point for point, _ in shown]
        values = [self._quantity(trial) for _, trial in shown]
        if not shown and self.prediction is not None:
            points = self.choices.points()[:_MOST_BARS]
            values = [(math.nan,) * 3] * len(points)
        labels = [label(point, points) for point in points]
        for trial in self._recorded_beside(points)[:_MOST_BARS]:
            point = self._point(trial)
            labels.append(f"{label(point, [*points, point])}, {origin(trial)}")
            values.append(self._quantity(trial))
        middles, lows, highs = zip(*values, strict=True)
        return figures.draw_bars(
            labels,
            middles,
            lows,
            highs,
            title=title,
            unit=unit_of(self.of),
            baseline=baseline,
            recorded=range(len(points), len(labels)),
            predicted=[self.prediction.at(p) for p in points]
            if self.prediction
            else (),
            width=_WIDTH,
        )

    def _draw_lines(self, shown: Sequence[Result], title: str) -> Figure:
        knob = str(self.choices.ordered)
        points = [point for point, _ in shown]
        elsewhere = self._recorded_beside(points)[-_MOST_BARS:]
        found = [
            *((point, trial, "") for point, trial in shown),
            *((self._point(trial), trial, origin(trial)) for trial in elsewhere),
        ]
        rests = [{k: v for k, v in p.items() if k != knob} for p, _, _ in found]
        groups: dict[str, list[tuple[Any, Trial]]] = {}
        for rest, (point, trial, where) in zip(rests, found, strict=True):
            apart = len({repr(other) for other in rests}) > 1
            name = self.choices.label(rest, rests) if apart else ""
            name = ", ".join(filter(None, (name, where))) or "measured"
            groups.setdefault(name, []).append((point[knob], trial))
        series = {
            name: self._series(
                group, "recorded" if group[0][1] in elsewhere else "measured"
            )
            for name, group in list(groups.items())[:_MOST_LINES]
        }
        xs = sorted(self.choices.lists[knob])
        if self.prediction is not None:
            series |= self._predict_lines(self.prediction, knob, xs, points)
        return figures.draw_lines(
            series,
            title=title,
            xlabel=knob,
            ylabel=unit_of(self.of),
            logx=figures.is_wide(xs),
            width=_WIDTH,
        )

    def _predict_lines(
        self,
        prediction: Prediction,
        knob: str,
        xs: list[Any],
        points: Sequence[Mapping[str, Any]],
    ) -> dict[str, figures.Series]:
        """Return the model's line for each of the points, equal ones once."""
        points = points or [self.choices.start()]
        lines = {
            tuple(prediction.at({**point, knob: x}) for x in xs): {
                k: v for k, v in point.items() if k != knob
            }
            for point in points
        }
        rests = list(lines.values())
        return {
            "predicted" + f", {self.choices.label(rest, rests)}" * (len(rests) > 1): (
                *(xs, list(heights), None, None, "predicted"),
            )
            for heights, rest in lines.items()
        }

    def _series(
        self, points: Sequence[tuple[Any, Trial]], style: str
    ) -> figures.Series:
        ordered = sorted(points, key=lambda point: point[0])
        values = [self._quantity(trial) for _, trial in ordered]
        middles, lows, highs = map(list, zip(*values, strict=True))
        return [x for x, _ in ordered], middles, lows, highs, style

    def _quantity(self, trial: Trial) -> tuple[float, float, float]:
        return self.compared.get(id(trial)) or quantity_of(trial, self.of)

    def _point(self, trial: Trial) -> dict[str, Any]:
        """Return a recorded trial's place among the choices."""
        found = dict(trial.knobs)
        if self.choices.selector:
            found[self.choices.selector] = trial.experiment
        return {knob: found[knob] for knob in self.choices.lists if knob in found}

    def _recorded_beside(self, points: Sequence[Mapping[str, Any]]) -> list[Trial]:
        """Return recorded trials of these points; of all that could be chosen if none.

        Along the ordered knob every choice counts, so that its whole line is seen.
        """
        free = self.choices.ordered
        beside = points or self.choices.points()

        def fits(trial: Trial) -> bool:
            own = self._point(trial)
            return len(own) == len(self.choices.lists) and any(
                all(k == free or is_same(own[k], v) for k, v in point.items())
                for point in beside
            )

        found = [trial for trial in self.recorded if fits(trial)]
        if free is None:
            return found
        allowed = self.choices.lists[free]
        return [t for t in found if any(is_same(t.knobs[free], v) for v in allowed)]

    def complain(self, entries: Sequence[Entry]) -> str:
        """Return in words why the newest result has no prediction, or nothing."""
        points = [entry.point for entry in latest(entries) if entry.point]
        last = points[-1] if points else self.choices.start()
        return self.prediction.complain(last) if self.prediction else ""

    def history(self, entries: Sequence[Entry]) -> str:
        """Return the history as an HTML table, the newest first."""
        headers, rows = self.list_rows(list(enumerate(entries, 1))[-_MOST_ROWS:][::-1])
        earlier = len(entries) - len(rows)
        note = f"and {earlier} earlier" if earlier else ""
        title = "Measured so far, the newest first"
        return figures.html_table(headers, rows, title=title, note=note)

    def list_rows(
        self, numbered: Sequence[tuple[int, Entry]]
    ) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return a table's headers, and its rows for these lines of the history."""
        rows = []
        for number, entry in numbered:
            chosen = [
                "all"
                if entry.point is None
                else self.choices.write(knob, entry.point[knob])
                for knob in self.choices.lists
            ]
            if entry.trial is None:
                rows.append((str(number), *chosen, "–", "", entry.error))
                continue
            value, low, high = self._quantity(entry.trial)
            known = not math.isnan(low)
            span = f"[{format_number(low)}, {format_number(high)}]" if known else ""
            outcome = entry.trial.outcome
            words = (entry.verdict, outcome if outcome != "complete" else "")
            remark = ", ".join(word for word in words if word)
            rows.append((str(number), *chosen, format_number(value), span, remark))
        return ("", *self.choices.lists, unit_of(self.of), "95 % interval", ""), rows


def latest(entries: Sequence[Entry]) -> list[Entry]:
    """Return the newest result of each point, in the order of measuring.

    A point whose newest run failed has none; one that was stopped before it measured
    anything keeps its older one.
    """
    newest: dict[str, Entry] = {}
    for entry in entries:
        if entry.trial is not None and not entry.trial.block_seconds:
            continue
        if entry.point is None:
            newest.clear()
        newest.pop(entry.label, None)
        newest[entry.label] = entry
    return [entry for entry in newest.values() if entry.trial is not None]


def origin(trial: Trial) -> str:
    """Return where and when a recorded trial was measured."""
    return f"{trial.machine.name}, {trial.started[:10]}"
