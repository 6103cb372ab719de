"""What a panel has measured so far: a title, a picture, a table.

Nothing here measures or shows: `panel` does the one, with `widgets` the other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kit import figures
from kit.machine import this_machine
from kit.measuring.comparison import Comparison
from kit.measuring.plot import Point, Quantity, plot_points
from kit.measuring.quantity import SPEED, quantity_of, unit_of
from kit.measuring.request import Choice, Request, find_differing, label_choices
from kit.measuring.unit import read_unit
from kit.recording import RecordedChoices
from kit.records import Trial

_MOST_LINES, _MOST_BARS, _MOST_ROWS = 6, 12, 10
_WIDTH = 5.6  # inches: beside the controls, in a window of 900 pixels
_UNKNOWN: Quantity = (math.nan,) * 3
_ONE_AFTER_ANOTHER = (
    "<p>Measured one after another, so a small difference may be the machine's: "
    "Run all compares in rounds.</p>"
)


class Results:
    """What was measured of an experiment's choices, predicted and recorded.

    `few` are the choices of the picture that a notebook stores, and of the one before
    anything is measured; `recorded` is what machines have recorded of just these.
    `knobs` and `predicted` are by choice, `lists` by knob.
    """

    def __init__(
        self,
        lists: Mapping[str, Sequence[Any]],
        few: Sequence[Choice],
        knobs: Mapping[Choice, Mapping[str, Any]],
        predicted: Mapping[Choice, float],
        recorded: Sequence[RecordedChoices],
        request: Request,
    ) -> None:
        self._lists = lists
        self._few = few
        self._knobs = knobs
        self._choices = list(knobs)
        self._predicted = predicted
        self._recorded = recorded
        self._request = request
        ordered = [name for name, values in lists.items() if _is_ordered(values)]
        self._x = ordered[0] if ordered else None
        self.clear()

    def clear(self) -> None:
        """Forget what was measured."""
        self.trials: list[Trial] = []
        self.compared: Comparison | None = None
        self._measured: dict[Choice, Quantity] = {}
        self._rows: list[tuple[str, ...]] = []
        self._earlier = 0

    def keep(self, choice: Choice, trial: Trial) -> None:
        """Keep what was measured of one choice."""
        self.compared = None
        self._keep(choice, trial, self._show(trial), "")

    def keep_comparison(self, chosen: Sequence[Choice], made: Comparison) -> None:
        """Keep a comparison of these choices."""
        self.compared = made
        self._earlier = len(self._rows)
        for choice, label, trial in zip(chosen, made.labels, made.trials, strict=True):
            ratio = made.ratios.get(label)
            remark = "baseline"
            if ratio is not None:
                amount = f"{ratio} " if ratio.is_known else ""
                remark = f"{amount}{ratio.verdict}"
            self._keep(choice, trial, made.show(trial), remark)

    def drop(self, chosen: Sequence[Choice], why: str) -> None:
        """Forget what was known of these choices: to measure them has failed."""
        self.compared = None
        for choice in chosen:
            self._measured.pop(choice, None)
        self._note(chosen[0] if len(chosen) == 1 else None, _UNKNOWN, why)

    def _show(self, trial: Trial) -> Quantity:
        """Return a trial's quantity with its range in the panel's unit."""
        value = quantity_of(trial, self._request.of)
        if self._request.of != SPEED:
            return value
        items_per_step = trial.items_per_second * trial.step_seconds
        return read_unit(self._request.unit).show(value, items_per_step)

    @property
    def _unit(self) -> str:
        return self._request.unit or unit_of(self._request.of)

    def _keep(self, choice: Choice, trial: Trial, value: Quantity, remark: str) -> None:
        self.trials.append(trial)
        if not trial.runs:
            return  # stopped before it began
        if not math.isnan(value[0]):
            self._measured.pop(choice, None)  # the newest comes last
            self._measured[choice] = value
        odd = trial.outcome if trial.outcome != "finished" else ""
        self._note(choice, value, ", ".join(filter(None, (remark, odd))))

    def _note(self, choice: Choice | None, value: Quantity, remark: str) -> None:
        """Add a row to the list of what was measured, of one choice or of all."""
        names = [choice.words[name] if choice else "all" for name in self._lists]
        middle, low, high = map(self._write_amount, value)
        if not math.isnan(value[1]):
            middle = f"{middle} [{low}, {high}]"
        self._rows.append((f"{len(self._rows) + 1}", *names, middle, remark))

    def write(self) -> str:
        """Return the comparison and the list of earlier runs as HTML."""
        rows, words = self._rows, ""
        if self.compared is not None:
            words = self.compared._repr_html_()
            rows = rows[: self._earlier]
        elif len(self._measured) > 1:
            words = _ONE_AFTER_ANOTHER
        if rows:
            heads = ("", *self._lists, self._unit, "")
            title = f"Measured so far, {len(rows)} in all, the newest first"
            newest = rows[: -_MOST_ROWS - 1 : -1]
            words += figures.html_table(heads, newest, title=title)
        return words

    def draw(self) -> str:
        """Return the picture as HTML; empty where there is nothing to show."""
        return self._draw(self._measured, self.find_title())

    def find_title(self) -> str:
        """Return what the picture shows as a sentence with its figures."""
        if self.compared is not None and self._has_ratio(self.compared):
            return self.compared.headline()
        if self._measured:
            values = {each: value for each, (value, *_) in self._measured.items()}
            span = self._write_span(values)
            return f"F{span[1:]}" if span.startswith("from ") else span
        for machine in self._recorded:
            if machine.comparison is not None:
                return f"Recorded on {machine.origin}: {machine.comparison.headline()}"
        if self._recorded:
            machine = self._recorded[0]
            values = {
                self._few[number]: self._show(trial)[0]
                for number, trial in machine.trials.items()
            }
            return f"Recorded on {machine.origin}: {self._write_span(values)}"
        values = {choice: self._predicted[choice] for choice in self._few}
        return f"Predicted: {self._write_span(values)}"

    @staticmethod
    def _has_ratio(compared: Comparison) -> bool:
        """Return whether at least one round of both was measured before a stop."""
        return any(ratio.is_known for ratio in compared.ratios.values())

    def _write_span(self, values: Mapping[Choice, float]) -> str:
        """Say from where to where values go, and nothing of who is best."""
        known = {each: value for each, value in values.items() if not math.isnan(value)}
        if not known:
            return "nothing was measured"
        labels = self._label(list(known))
        low = min(known, key=lambda choice: known[choice])
        high = max(known, key=lambda choice: known[choice])
        if len(known) == 1:
            return f"{labels[low]}: {self._write(known[low])}"
        return (
            f"from {self._write_amount(known[low])} with {labels[low]} to "
            f"{self._write(known[high])} with {labels[high]}"
        )

    def _label(self, shown: Sequence[Choice]) -> dict[Choice, str]:
        """Return labels: changes where they are compared, else all that differs."""
        few = dict(zip(self._few, label_choices(self._few), strict=True))
        if not self._measured and set(shown) <= set(few):
            return {choice: few[choice] for choice in shown}
        if set(shown) == set(self._few) or self.compared is not None:
            return dict(zip(shown, label_choices(shown), strict=True))
        differing = find_differing(shown)
        return {choice: choice.name(differing or None) for choice in shown}

    def _write(self, value: float) -> str:
        """Write a value with its unit."""
        unit = self._unit.removeprefix("bytes ")
        return f"{self._write_amount(value)} {unit}"

    def _write_amount(self, value: float) -> str:
        """Write a value without its unit, a dash where it is not known."""
        if math.isnan(value):
            return "–"
        return figures.format_amount(value, self._unit)

    def draw_partial(
        self, chosen: Sequence[Choice], trials: Mapping[str, Trial]
    ) -> str:
        """Return a picture of a comparison's results so far, by label."""
        by_label = dict(zip(label_choices(chosen), chosen, strict=True))
        values = {by_label[k]: self._show(trial) for k, trial in trials.items()}
        return self._draw(values, f"So far, of {len(chosen)} choices")

    def _draw(self, measured: Mapping[Choice, Quantity], title: str) -> str:
        """Return lines over ordered numbers, with all that is predicted, or bars.

        Before anything is measured, it is a picture of what a notebook stores.
        """
        shown = list(measured)[-_MOST_BARS:] or self._few
        x = self._x if self._are_lines(shown) else None
        if x is not None:
            lines = {_find_line(choice, x) for choice in shown}
            shown = [each for each in self._choices if _find_line(each, x) in lines]
        elif set(shown) == set(self._few):
            shown = self._few
        else:
            shown = [choice for choice in self._choices if choice in shown]
        is_predicted = any(not math.isnan(self._predicted[each]) for each in shown)
        recorded = self._others() if measured else self._recorded
        if not (measured or is_predicted or recorded):
            return ""
        labels = self._label(shown)
        points = [
            Point(
                labels[choice],
                self._knobs[choice],
                measured.get(choice, _UNKNOWN),
                self._predicted[choice],
            )
            for choice in shown
        ]
        for machine in recorded:
            points += self._list_recorded(machine, labels)
        baseline = None
        if self.compared is not None and shown[0] is self._choices[0]:
            baseline = 0
        figure = plot_points(
            points, title, self._unit, x, baseline=baseline, width=_WIDTH
        )
        return figures.to_html(figure, figures.show(figure).alt)

    def _are_lines(self, shown: Sequence[Choice]) -> bool:
        """Return whether these are few enough lines over ordered numbers.

        Changes of one knob at a time are no lines: they have few points each.
        """
        if self._x is None:
            return False
        is_few = set(shown) == set(self._few)
        is_slice = is_few and len(self._few) < len(self._choices)
        lines = {_find_line(choice, self._x) for choice in shown}
        is_predicted = any(not math.isnan(value) for value in self._predicted.values())
        count = len(lines) * (2 if is_predicted else 1)
        return not is_slice and count <= _MOST_LINES

    def _others(self) -> list[RecordedChoices]:
        """Return what other machines have recorded."""
        here = this_machine().name
        return [each for each in self._recorded if each.machine != here]

    def _list_recorded(
        self, machine: RecordedChoices, labels: Mapping[Choice, str]
    ) -> list[Point]:
        """Return what a machine recorded of the choices that are shown."""
        points = []
        for number, trial in machine.trials.items():
            choice = self._few[number]
            if choice in labels:
                value = self._show(trial)
                if machine.comparison is not None:
                    unit = self._request.unit
                    value = replace(machine.comparison, unit=unit).show(trial)
                knobs = self._knobs[choice]
                points.append(
                    Point(labels[choice], knobs, value, origin=machine.origin)
                )
        return points


def _is_ordered(values: Sequence[Any]) -> bool:
    """Return whether these are three numbers or more, in order."""
    if len(values) < 3 or any(type(value) not in (int, float) for value in values):
        return False
    return values in (sorted(values), sorted(values, reverse=True))


def _find_line(choice: Choice, x: str) -> tuple[tuple[str, int], ...]:
    """Return what all choices of one line over `x` have in common."""
    return tuple((name, n) for name, n in choice.numbers.items() if name != x)
