"""`Comparison`: trials that were measured in rounds, and what they say together."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kit import figures
from kit.measuring import finding, report
from kit.measuring.plot import Point, Quantity, plot_points, predict_points
from kit.measuring.quantity import MEMORY, QUANTITIES, SPEED, quantity_of, unit_of
from kit.measuring.ratio import Ratio, compare_trials
from kit.measuring.unit import Unit, read_unit
from kit.records import Trial
from kit.statistics import hold_together

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Comparison:
    """Trials that were measured in rounds, the baseline first, and their ratios.

    Ratios are computed from the raw blocks of the trials, whenever a recording is read,
    too. `title` is what stands above reports and pictures, by default the finding;
    `unit` is how a rate is shown, as in "ms per step".
    """

    trials: list[Trial]
    labels: list[str]
    of: str = SPEED
    within: float | None = None
    title: str | None = None
    unit: str | None = None

    @property
    def baseline(self) -> Trial:
        """The trial that the others are compared with: the first choice."""
        return self.trials[0]

    @functools.cached_property
    def ratios(self) -> dict[str, Ratio]:
        """The ratio of each challenger by its label."""
        confidence = hold_together(len(self.trials) - 1)
        challengers = zip(self.labels[1:], self.trials[1:], strict=True)
        return {
            label: compare_trials(
                self.baseline, trial, self.of, self.within, confidence=confidence
            )
            for label, trial in challengers
        }

    @property
    def ratio(self) -> Ratio:
        """The one ratio of two trials; raises ValueError where there are several."""
        if len(self.ratios) != 1:
            names = ", ".join(map(repr, self.ratios))
            raise ValueError(f"choose one ratio: comparison.ratios[label], of {names}")
        return next(iter(self.ratios.values()))

    # The finding

    def sentence(self, label: str | None = None) -> str:
        """Return the finding in words, of one challenger or of the best.

        The best is the fastest, or the one that needs least; what cannot be told from
        it is named beside it.
        """
        return finding.write_finding(self.of, *self._find_subject(label))

    def headline(self) -> str:
        """Return the title, else the finding without the reason of a doubt."""
        if self.title:
            return self.title
        return finding.write_headline(self.of, *self._find_subject(None))

    def _find_subject(
        self, label: str | None
    ) -> tuple[str, str, Ratio, Sequence[Ratio]]:
        """Return of whom the finding is: names, baseline, ratio, and others' ratios."""
        labels = [label] if label else self._find_best()
        first = labels[0]
        base = self._shorten_baseline(first)
        if self.ratios[first].verdict == "cannot tell":
            return first, base, self.ratios[first], ()
        in_order = [each for each in self.labels if each in labels]
        others = [self.ratios[each] for each in labels[1:]]
        return finding.join_labels(in_order), base, self.ratios[first], others

    def _find_best(self) -> list[str]:
        return finding.find_best(self.ratios, self.of, self.within)

    def _shorten_baseline(self, label: str) -> str:
        """Return the baseline's label; of one changed knob, only the baseline's value.

        It has other values, too, where each challenger changes one knob only.
        """
        knob, equals, _ = label.partition("=")
        if not equals or ", " in label:
            return self.labels[0]
        value = rf"(?:^|, ){re.escape(knob)}=(.*?)(?=, \w+=|$)"
        found = re.search(value, self.labels[0])
        return found[1] if found else self.labels[0]

    # The table

    def quantity(self, trial: Trial) -> Quantity:
        """Return the compared quantity of one trial, with its 95 % interval.

        The baseline's is what it measured; it has no interval, since all others are
        told beside it. Theirs is the baseline's times their ratio (plus their
        difference), so that no two figures contradict each other.
        """
        number = next(i for i, other in enumerate(self.trials) if other is trial)
        base = quantity_of(self.baseline, self.of)[0]
        if number == 0:
            return base, math.nan, math.nan
        ratio = self.ratios[self.labels[number]]
        if math.isnan(ratio.value) or math.isnan(base):
            return quantity_of(trial, self.of)[0], math.nan, math.nan
        if self.of in QUANTITIES:
            return base * ratio.value, base * ratio.low, base * ratio.high
        return base + ratio.value, base + ratio.low, base + ratio.high

    def show(self, trial: Trial) -> Quantity:
        """Return the quantity of a trial, with its interval, in its unit."""
        return self._show(trial, read_unit(self.unit))

    def _show(self, trial: Trial, unit: Unit) -> Quantity:
        if self.of != SPEED:
            return self.quantity(trial)
        items_per_step = trial.items_per_second * trial.step_seconds
        return unit.show(self.quantity(trial), items_per_step)

    def _unit_name(self, unit: Unit) -> str:
        return unit.text if self.of == SPEED else unit_of(self.of)

    def rows(self) -> list[tuple[str, ...]]:
        """Return the table as text: label, quantity, ratio, interval, verdict.

        What was never started before a stop is left out, and counted in the remarks.
        """
        unit = read_unit(self.unit)
        rows = []
        for label, trial in self._sorted():
            if not trial.runs:
                continue
            value = self._write(self._show(trial, unit)[0])
            if label in self.ratios:
                ratio = self.ratios[label]
                amount = ratio.amount.removesuffix(" ×") if ratio.is_known else "–"
                rows.append((label, value, amount, ratio.interval, ratio.verdict))
            else:
                rows.append((label, value, f"{self._own_ratio:g}", "", "baseline"))
        return rows

    def _write(self, value: float) -> str:
        """Write with four digits, and every digit before the point; memory in MB or GB.

        A dash stands for what is not known.
        """
        if math.isnan(value):
            return "–"
        if self.of == MEMORY:
            return figures.format_bytes(value)
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"

    def table(self) -> pandas.DataFrame:
        """Return one row per trial: quantity, ratio, interval, verdict, reason.

        A metric has a difference in place of the ratio. Two trials are in the order
        asked for, several by their ratios, best first. The quantity is in its own unit,
        items per second for a rate. A knob that is called as a column is "knob (knob)".
        """
        import pandas

        columns = (self.of, self._ratio_name, "low", "high", "verdict", "reason")
        labels, trials = zip(*self._sorted(), strict=True)
        nothing = Ratio(self._own_ratio, math.nan, math.nan, "baseline")
        rows = []
        for label, trial in zip(labels, trials, strict=True):
            ratio = self.ratios.get(label, nothing)
            row: dict[str, Any] = {}
            for knob, value in trial.knobs.items():
                row[f"{knob} (knob)" if knob in columns else knob] = value
            row[self.of] = self.quantity(trial)[0]
            row[self._ratio_name] = ratio.value
            row["low"], row["high"] = ratio.low, ratio.high
            row["verdict"], row["reason"] = ratio.verdict, ratio.reason
            rows.append(row)
        frame = pandas.DataFrame(rows, index=pandas.Index(labels, name="label"))
        knobs = [name for name in frame.columns if name not in columns]
        return frame[[*knobs, *columns]]

    @property
    def _ratio_name(self) -> str:
        return "ratio" if self.of in QUANTITIES else "difference"

    @property
    def _own_ratio(self) -> float:
        """What the baseline is beside itself: 1, or a difference of 0."""
        return 1.0 if self.of in QUANTITIES else 0.0

    def _sorted(self) -> list[tuple[str, Trial]]:
        """Return labels and trials, of more than two the best first, unknown last."""
        pairs = list(zip(self.labels, self.trials, strict=True))
        if len(pairs) == 2:
            return pairs
        sign = -1 if self.of == SPEED else 1

        def rank(pair: tuple[str, Trial]) -> tuple[bool, float]:
            ratio = self.ratios.get(pair[0])
            value = ratio.value if ratio else self._own_ratio
            return math.isnan(value), sign * value

        return sorted(pairs, key=rank)

    # Pictures and pages

    def plot(
        self,
        x: str | None = None,
        predict: Callable[..., float] | None = None,
        title: str | None = None,
        unit: str | None = None,
    ) -> Axes:
        """Draw the quantity of each trial with 95 % intervals; return the Axes.

        Bars, or lines over the knob `x` where its values are numbers: one for each
        choice of the other knobs. `predict` maps the knobs that it has names for to
        a predicted quantity in the unit that is shown, drawn as dashed lines. `title`
        and `unit` are by default the comparison's own, else the finding and items per
        second.
        """
        positions = [trial.knobs.get(x) for trial in self.trials] if x else []
        if not all(isinstance(p, (int, float)) for p in positions):
            raise ValueError(
                f"Comparison.plot: x={x!r} is not a knob with numbers in every trial; "
                f"its values are {positions}. Leave x out for bars."
            )
        if unit is not None and self.of != SPEED:
            raise ValueError(
                f"Comparison.plot: unit={unit!r} is for {SPEED}, and {self.of} has a "
                "unit of its own. Leave it out."
            )
        shown_in = read_unit(unit or self.unit)
        knobs = [{"experiment": t.experiment, **t.knobs} for t in self.trials]
        values = [self._show(trial, shown_in) for trial in self.trials]
        predicted = predict_points(predict, knobs)
        points = list(map(Point, self.labels, knobs, values, predicted))
        title = title or self.headline()
        name = self._unit_name(shown_in)
        return plot_points(points, title, name, x, baseline=0).axes[0]

    def __repr__(self) -> str:
        lines = [self.title] if self.title else []
        lines.append(self.sentence())
        lines.append(figures.text_table(self._headers(), self.rows()))
        lines += [f"  {remark}" for remark in self.remarks()]
        return "\n".join(lines)

    def _headers(self) -> tuple[str, ...]:
        unit = self._unit_name(read_unit(self.unit))
        return "", unit, self._ratio_name, "95 % interval", "verdict"

    def remarks(self) -> list[str]:
        """Return what a reader should know before using the ratios."""
        sentence = self.sentence()
        remarks = [
            f"{label}: {ratio.reason}"
            for label, ratio in self.ratios.items()
            if ratio.reason and ratio.reason not in sentence
        ]
        missing = [trial for trial in self.trials if not trial.runs]
        if missing:
            remarks.append(f"Not measured: {len(missing)} of {len(self.trials)}.")
        count = len(self.ratios)
        if count > 1:
            remarks.append(
                f"The {count} intervals hold together: all at once with 95 % "
                f"confidence, {hold_together(count):.2%} each (Šidák)."
            )
        return remarks + self._list_remarks_of_trials()

    def _list_remarks_of_trials(self) -> list[str]:
        """Return the remarks of all trials, with the labels of those that have one."""
        labels: dict[str, list[str]] = {}
        for label, trial in zip(self.labels, self.trials, strict=True):
            for remark in report.list_remarks(trial):
                labels.setdefault(remark, []).append(label)
        everyone = len(self.labels)
        return [
            remark if len(having) == everyone else f"{', '.join(having)}: {remark}"
            for remark, having in labels.items()
        ]

    def _repr_html_(self) -> str:
        headline, sentence = self.headline(), self.sentence()
        lead = ""
        if sentence != headline:
            lead = sentence.removeprefix(headline).lstrip(":. ")
        return figures.html_table(
            self._headers(),
            self.rows(),
            title=headline,
            lead=lead,
            details=self.remarks(),
        )
