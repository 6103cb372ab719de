"""`Comparison`: trials that were measured in rounds, their ratios, table and plot."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kit import figures
from kit.measuring.experiment import describe
from kit.measuring.records import Trial, tell_listeners
from kit.measuring.units import Quantity, read_unit
from kit.measuring.verdict import (
    MEMORY,
    QUANTITIES,
    RUN_SECONDS,
    SPEED,
    Ratio,
    compare_trials,
    read_values,
    share_confidence,
)

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes

#: What each quantity is called in a sentence; a metric has a name of its own.
_NOUNS = {SPEED: "speed", RUN_SECONDS: "time", MEMORY: "memory"}
_WORKERS_DO_NOT_COUNT = "Memory of this process; worker processes are not counted."


# What was compared


@dataclass(frozen=True, repr=False)
class Comparison:
    """Trials that were measured in rounds, the baseline first, and their ratios.

    Ratios are computed from the raw runs of the trials, whenever a recording is read,
    too. `of` is what is compared, `within` which difference of a metric counts as the
    same, `unit` how a rate is shown, as in "ms per step". `took_seconds` is how long it
    took, None where that was not written down.
    """

    trials: list[Trial]
    labels: list[str]
    of: str = SPEED
    within: float | None = None
    unit: str | None = None
    took_seconds: float | None = None

    @property
    def baseline(self) -> Trial:
        """The trial that the others are compared with: the first choice."""
        return self.trials[0]

    @functools.cached_property
    def ratios(self) -> dict[str, Ratio]:
        """The ratio of each challenger by its label."""
        confidence = share_confidence(len(self.trials) - 1)
        return {
            label: compare_trials(
                self.baseline,
                trial,
                self.of,
                self.within,
                confidence=confidence,
                took_seconds=self.took_seconds,
            )
            for label, trial in zip(self.labels[1:], self.trials[1:], strict=True)
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
        """Return the finding in words, of one challenger or of the most telling one.

        That is the fastest, or the one that needs least. What nobody can tell never
        stands before a clear verdict. Of several metrics it names both ends.
        """
        if label is None and self.of not in QUANTITIES and len(self.ratios) > 1:
            return self._name_ends()
        label = label or self._find_best()
        ratio, base = self.ratios[label], self.labels[0]
        noun = _NOUNS.get(self.of, self.of)
        if ratio.verdict == "cannot tell":
            said = f"Cannot tell {label} from {base} by their {noun}"
            return f"{said}: {ratio}" if ratio.is_known else said
        if ratio.verdict == "same":
            return f"{label} and {base} have the same {noun}: {ratio}"
        if self.of not in QUANTITIES:
            way = "higher" if ratio.verdict == "more" else "lower"
            return f"{noun} is {way} with {label} than with {base}: {ratio}"
        verb = f"takes {ratio.verdict} {noun}"
        if self.of == SPEED:
            verb = f"is {ratio.verdict}"
        return f"{label} {verb}: {ratio.amount} the {noun} of {base} {ratio.interval}"

    def _find_best(self) -> str:
        """Return the label of the largest gain; what is sure comes first."""
        gain, sign = ("faster", -1) if self.of == SPEED else ("less", 1)

        def rank(label: str) -> tuple[bool, bool, float]:
            ratio = self.ratios[label]
            is_open = ratio.verdict == "cannot tell"
            value = sign * ratio.value if ratio.is_known else math.inf
            return ratio.verdict != gain, is_open, value

        return min(self.ratios, key=rank)

    def _name_ends(self) -> str:
        """Say where a metric is highest and lowest, not which of them is good."""
        values = {}
        for label, trial in zip(self.labels, self.trials, strict=True):
            if not math.isnan(value := self.quantity(trial)[0]):
                values[label] = value
        if not values:
            return f"Nothing is known about {self.of}"
        ends = {
            "highest": max(values, key=lambda label: values[label]),
            "lowest": min(values, key=lambda label: values[label]),
        }
        said = [f"{end}: {label} ({values[label]:.4g})" for end, label in ends.items()]
        return f"{self.of}: {', '.join(said)}"

    # The table

    def quantity(self, trial: Trial) -> Quantity:
        """Return the compared quantity of one trial, with its 95 % interval.

        The baseline's is what it measured. The others' are the baseline's times their
        ratio (plus their difference), so that no two figures contradict each other.
        """
        number = next(i for i, other in enumerate(self.trials) if other is trial)
        base = self._read_mean(self.baseline)
        if number == 0:
            return base, math.nan, math.nan
        ratio = self.ratios[self.labels[number]]
        if not ratio.is_known or math.isnan(base):
            return self._read_mean(trial), math.nan, math.nan
        if self.of in QUANTITIES:
            return base * ratio.value, base * ratio.low, base * ratio.high
        return base + ratio.value, base + ratio.low, base + ratio.high

    def _read_mean(self, trial: Trial) -> float:
        """Return the mean of a quantity over the runs of one trial."""
        if self.of == SPEED:
            return trial.items_per_second
        values = [*read_values(trial, self.of).values()]
        return math.fsum(values) / len(values) if values else math.nan

    def show(self, trial: Trial, unit: str | None = None) -> Quantity:
        """Return the quantity of a trial, with its interval, in its unit."""
        if self.of != SPEED:
            return self.quantity(trial)
        items_per_step = trial.items_per_second * trial.step_seconds
        return read_unit(unit or self.unit).show(self.quantity(trial), items_per_step)

    def unit_name(self, unit: str | None = None) -> str:
        """Return the unit in words; a metric is its own."""
        if self.of == SPEED:
            return read_unit(unit or self.unit).text
        return QUANTITIES.get(self.of, self.of)

    def rows(self) -> list[tuple[str, ...]]:
        """Return the table as text: label, quantity, ratio, interval, verdict."""
        rows = []
        for label, trial in zip(self.labels, self.trials, strict=True):
            value = self.show(trial)[0]
            shown = "–" if math.isnan(value) else self._write(value)
            if label in self.ratios:
                ratio = self.ratios[label]
                amount = ratio.amount.removesuffix(" ×") if ratio.is_known else "–"
                rows.append((label, shown, amount, ratio.interval, ratio.verdict))
            else:
                own = "1" if self.of in QUANTITIES else "0"
                rows.append((label, shown, own, "", "baseline"))
        return rows

    def _write(self, value: float) -> str:
        if self.of == MEMORY:
            return figures.format_bytes(value)
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"

    @property
    def _ratio_name(self) -> str:
        return "ratio" if self.of in QUANTITIES else "difference"

    def table(self) -> pandas.DataFrame:
        """Return one row per trial: quantity, ratio, interval, verdict, reason, knobs.

        In the order asked for; a metric has a difference in place of the ratio. The
        quantity is in its own unit, items per second for a rate.
        """
        import pandas

        rows = []
        for label, trial in zip(self.labels, self.trials, strict=True):
            own = 1.0 if self.of in QUANTITIES else 0.0
            ratio = self.ratios.get(label, Ratio(own, math.nan, math.nan, "baseline"))
            row: dict[str, Any] = {
                self.of: self.quantity(trial)[0],
                self._ratio_name: ratio.value,
                "low": ratio.low,
                "high": ratio.high,
                "verdict": ratio.verdict,
                "reason": ratio.reason,
            }
            for knob, value in trial.knobs.items():
                row[f"{knob} (knob)" if knob in row else knob] = value
            rows.append(row)
        return pandas.DataFrame(rows, index=pandas.Index(self.labels, name="label"))

    # What is shown

    def remarks(self) -> list[str]:
        """Return what a reader should know before using the ratios."""
        reasons: dict[str, list[str]] = {}
        for label, ratio in self.ratios.items():
            if ratio.reason:
                reasons.setdefault(ratio.reason, []).append(label)
        remarks = [f"{', '.join(labels)}: {why}" for why, labels in reasons.items()]
        count = len(self.ratios)
        if count > 1:
            remarks.append(
                f"All {count} intervals hold at once with 95 % "
                f"confidence, {share_confidence(count):.2%} each (Šidák)."
            )
        if self.of == MEMORY and not self.baseline.machine.accelerators:
            remarks.append(_WORKERS_DO_NOT_COUNT)
        for label, trial in zip(self.labels, self.trials, strict=True):
            remarks += [f"{label}: {note}" for note in trial.notes]
        return remarks

    def _headers(self) -> tuple[str, ...]:
        return "", self.unit_name(), self._ratio_name, "95 % interval", "verdict"

    def __repr__(self) -> str:
        table = figures.text_table(self._headers(), self.rows())
        lines = [self.sentence(), table]
        return "\n".join([*lines, *(f"  {remark}" for remark in self.remarks())])

    def _repr_html_(self) -> str:
        return figures.html_sentence(self.sentence()) + self.html_table()

    def html_table(self) -> str:
        """Write the table, and below it the remarks, folded."""
        return figures.html_table(self._headers(), self.rows(), details=self.remarks())

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
        is by default the finding, `unit` the comparison's own.
        """
        if unit is not None and self.of != SPEED:
            raise ValueError(
                f"Comparison.plot: unit={unit!r} is for {SPEED}, but {self.of} has "
                "its own unit. Omit it."
            )
        predicted = predict_choices(predict, _list_knobs(self.trials))
        plot = Plot(self, predicted, x, title or self.sentence(), unit)
        axes = plot.draw()
        tell_listeners(plot)
        return axes


@dataclass(frozen=True)
class Plot:
    """A picture of a comparison; a recording keeps what it predicted.

    `predicted` has a number for each trial, nan where nothing was predicted.
    """

    comparison: Comparison
    predicted: list[float]
    x: str | None
    title: str
    unit: str | None

    def draw(self) -> Axes:
        """Draw it; return the Axes."""
        comparison = self.comparison
        values = [comparison.show(trial, self.unit) for trial in comparison.trials]
        name = comparison.unit_name(self.unit)
        if self.x is not None:
            knobs = _list_knobs(comparison.trials)
            return _plot_lines(self.x, knobs, values, self.predicted, self.title, name)
        figure = figures.draw_bars(
            comparison.labels,
            *zip(*values, strict=True),
            title=self.title,
            unit=name,
            baseline=0,
            predicted=self.predicted,
        )
        return figure.axes[0]


def _list_knobs(trials: Sequence[Trial]) -> list[dict[str, Any]]:
    return [{"experiment": trial.experiment, **trial.knobs} for trial in trials]


def _plot_lines(
    x: str,
    knobs: Sequence[Mapping[str, Any]],
    values: Sequence[Quantity],
    predicted: Sequence[float],
    title: str,
    unit: str,
) -> Axes:
    """Draw a line over the knob `x` for each choice of the other knobs."""
    positions = [each.get(x) for each in knobs]
    if not all(isinstance(position, (int, float)) for position in positions):
        raise ValueError(
            f"Comparison.plot: x={x!r} is not a knob with numbers in every trial; its "
            f"values are {positions}. Omit x for bars."
        )
    names = [_name_line(each, knobs, x) for each in knobs]
    series: dict[str, figures.Series] = {}
    for name in dict.fromkeys(names):
        own = [number for number, other in enumerate(names) if other == name]
        own.sort(key=lambda number: positions[number])
        xs = [positions[number] for number in own]
        middles, lows, highs = zip(*(values[number] for number in own), strict=True)
        if not all(map(math.isnan, middles)):
            series[name or "measured"] = xs, middles, lows, highs, "measured"
        heights = [predicted[number] for number in own]
        if not all(map(math.isnan, heights)):
            model = f"predicted, {name}" if name else "predicted"
            series[model] = xs, heights, None, None, "predicted"
    logx = figures.is_wide([position for position in positions if position > 0])
    look = {"title": title, "xlabel": x, "ylabel": unit}
    return figures.draw_lines(series, logx=logx, **look).axes[0]


def _name_line(
    choice: Mapping[str, Any], choices: Sequence[Mapping[str, Any]], x: str
) -> str:
    """Return the knobs but `x` in which a choice may differ from others, as words."""
    words = []
    for knob, value in choice.items():
        if knob != x and len({repr(each.get(knob)) for each in choices}) > 1:
            is_name = knob == "experiment"
            words.append(value if is_name else f"{knob}={figures.format_value(value)}")
    return ", ".join(words)


def predict_choices(
    predict: Callable[..., float] | None, choices: Sequence[Mapping[str, Any]]
) -> list[float]:
    """Call a cost model for each choice, with those knobs that it has names for.

    Without one the predictions are nan, and so is one that it cannot look up (a
    LookupError).
    """
    if predict is None:
        return [math.nan] * len(choices)
    names = inspect.signature(predict).parameters
    predicted = []
    for choice in choices:
        known = {knob: value for knob, value in choice.items() if knob in names}
        try:
            predicted.append(float(predict(**known)))
        except LookupError:
            predicted.append(math.nan)
        except Exception as error:
            error.add_note(f"in {describe('predict', known)}, called by the kit")
            raise
    return predicted
