"""`Comparison`: trials that were measured by turns, and what they say together."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kit import figures
from kit.comparison.prediction import Prediction
from kit.comparison.quantities import QUANTITIES, SPEED, quantity_of
from kit.comparison.ratio import Ratio, compare_trials, write_ratio
from kit.trial import Trial

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes


def hold_together(challengers: int, confidence: float = 0.95) -> float:
    """Return the confidence of each interval so that all hold together.

    Each challenger has baseline pairs of its own, so their intervals are independent,
    and Šidák's level is exact (Šidák 1967).

    >>> hold_together(1), round(hold_together(5), 4)
    (0.95, 0.9898)
    """
    return confidence ** (1 / max(1, challengers))


@dataclass(frozen=True)
class Comparison:
    """Trials that were measured by turns, the baseline first, and their ratios.

    `ratios` maps each challenger's label to its Ratio; it is computed from the raw
    blocks of the trials, here and whenever a recording is read.
    """

    trials: list[Trial]
    labels: list[str]
    of: str = SPEED
    within: float | None = None
    ratios: dict[str, Ratio] = field(init=False)

    def __post_init__(self) -> None:
        each = hold_together(len(self.trials) - 1)
        ratios = {
            label: compare_trials(
                self.baseline, trial, self.of, self.within, confidence=each
            )
            for label, trial in zip(self.labels[1:], self.trials[1:], strict=True)
        }
        object.__setattr__(self, "ratios", ratios)

    @property
    def baseline(self) -> Trial:
        """The trial that the others are compared with: the first choice."""
        return self.trials[0]

    @property
    def ratio(self) -> Ratio:
        """The one ratio of two trials; raises ValueError where there are several."""
        if len(self.ratios) != 1:
            names = ", ".join(map(repr, self.ratios))
            raise ValueError(
                f"this comparison has {len(self.ratios)} ratios; choose one: "
                f"comparison.ratios[label], label one of {names}"
            )
        return next(iter(self.ratios.values()))

    def sentence(self, label: str | None = None) -> str:
        """Return the finding in words, of one challenger or of the best.

        The best is the fastest, or the one that needs least.
        """
        label = label or self._best()
        ratio, base = self.ratios[label], self._short_baseline(label)
        if ratio.verdict == "cannot tell":
            if math.isnan(ratio.value):
                return f"Cannot tell how {label} compares with {base}: {ratio.reason}"
            return (
                f"Cannot tell how {label} compares with {base}: {ratio} "
                f"({ratio.reason})"
            )
        if self.of not in QUANTITIES:
            side = {"same": "the same as", "more": "above", "less": "below"}
            return (
                f"{self.of} of {label} is {side[ratio.verdict]} that of {base}: {ratio}"
            )
        if self.of == SPEED and ratio.verdict == "same":
            return f"{label} is as fast as {base}: {ratio}"
        value, _, interval = str(ratio).partition(" × ")
        text = QUANTITIES[self.of].sentence.format(a=label, ratio=f"{value} ×", b=base)
        return f"{text} {interval}"

    def _best(self) -> str:
        best_first = [label for label, _ in self._sorted() if label in self.ratios]
        return best_first[0]

    @property
    def _unity(self) -> float:
        """The baseline beside itself: a ratio of 1, a metric's difference of 0."""
        return 1.0 if self.of in QUANTITIES else 0.0

    def _sorted(self) -> list[tuple[str, Trial]]:
        """Return labels and trials, of more than two the best first, unknown last."""
        pairs = list(zip(self.labels, self.trials, strict=True))
        if len(pairs) == 2:
            return pairs
        sign = -1 if self.of == SPEED else 1

        def rank(pair: tuple[str, Trial]) -> tuple[bool, float]:
            ratio = self.ratios.get(pair[0])
            value = ratio.value if ratio else self._unity
            return math.isnan(value), sign * value

        return sorted(pairs, key=rank)

    def _short_baseline(self, label: str) -> str:
        """Return the baseline's label, without a knob's name that was just said."""
        knob, equals, value = self.labels[0].partition("=")
        alone = equals and ", " not in label and label.startswith(f"{knob}=")
        return value if alone else self.labels[0]

    def quantity(self, trial: Trial) -> tuple[float, float, float]:
        """Return the compared quantity of one trial with its 95 % interval."""
        return quantity_of(trial, self.of)

    def rows(self) -> list[tuple[str, ...]]:
        """Return the table as text: label, quantity, ratio, interval, verdict."""
        rows = []
        for label, trial in self._sorted():
            value, ratio = self.quantity(trial)[0], self.ratios.get(label)
            shown = (f"{self._unity:g}", "", "baseline")
            if ratio is not None:
                span = f"[{write_ratio(ratio.low)}, {write_ratio(ratio.high)}]"
                shown = (write_ratio(ratio.value), span, ratio.verdict)
            rows.append((label, _write(value), *shown))
        return rows

    def table(self) -> pandas.DataFrame:
        """Return one row per trial: quantity, ratio, interval, verdict, reason.

        Two trials are in the order asked for, several by their ratios, best first.
        """
        import pandas

        records = []
        for label, trial in self._sorted():
            ratio = self.ratios.get(label)
            records.append(
                {
                    **trial.knobs,
                    self.of: self.quantity(trial)[0],
                    "ratio": ratio.value if ratio else self._unity,
                    "low": ratio.low if ratio else math.nan,
                    "high": ratio.high if ratio else math.nan,
                    "verdict": ratio.verdict if ratio else "baseline",
                    "reason": ratio.reason if ratio else "",
                }
            )
        index = pandas.Index([label for label, _ in self._sorted()], name="label")
        return pandas.DataFrame(records, index=index)

    def plot(
        self, x: str | None = None, model: Callable[..., float] | None = None
    ) -> Axes:
        """Draw the quantity of each trial with 95 % intervals; return the Axes.

        Bars, or lines over the knob `x` where its values are numbers: one for each
        choice of the other knobs. `model` maps the knobs that it has names for, or the
        value of `x`, to a predicted quantity, drawn as dashed lines.
        """
        if x is None:
            values, lows, highs = zip(*map(self.quantity, self.trials), strict=True)
            bars = figures.draw_bars(
                self.labels,
                values,
                lows,
                highs,
                title=self.sentence(),
                unit=self._unit(),
                baseline=0,
            )
            return bars.axes[0]
        positions = [trial.knobs.get(x) for trial in self.trials]
        if not all(isinstance(p, (int, float)) for p in positions):
            raise ValueError(
                f"Comparison.plot: x={x!r} is not a knob with numbers in every trial; "
                f"its values are {positions}. Leave x out for bars."
            )
        lines = figures.draw_lines(
            self._lines(x, model),
            title=self.sentence(),
            xlabel=x,
            ylabel=self._unit(),
            logx=figures.is_wide(positions),
        )
        return lines.axes[0]

    def _lines(
        self, x: str, model: Callable[..., float] | None
    ) -> dict[str, figures.Series]:
        """Return a line over `x` for each choice of the others, and predictions."""
        knobs = self.baseline.knobs
        told = [
            knob
            for knob in knobs
            if knob != x and len({repr(t.knobs.get(knob)) for t in self.trials}) > 1
        ]
        groups: dict[str, list[Trial]] = {}
        for trial in self.trials:
            words = [f"{k}={figures.format_value(trial.knobs.get(k))}" for k in told]
            groups.setdefault(", ".join(words), []).append(trial)
        groups = {n: sorted(g, key=lambda t: t.knobs[x]) for n, g in groups.items()}
        series: dict[str, figures.Series] = {}
        for name, trials in groups.items():
            xs = [trial.knobs[x] for trial in trials]
            rows = zip(*map(self.quantity, trials), strict=True)
            series[name or "measured"] = (xs, *map(list, rows), "measured")
        for name, trials in groups.items() if model is not None else ():
            xs = [trial.knobs[x] for trial in trials]
            heights = [Prediction(model, x).call(trial.knobs) for trial in trials]
            label = ", ".join(filter(None, ("predicted", name)))
            series[label] = (xs, heights, None, None, "predicted")
        return series

    def _unit(self) -> str:
        return QUANTITIES[self.of].unit if self.of in QUANTITIES else self.of

    def __repr__(self) -> str:
        headers = ("", self._unit(), "ratio", "95 % interval", "verdict")
        lines = [self.sentence(), figures.text_table(headers, self.rows())]
        return "\n".join([*lines, *(f"  {note}" for note in self.remarks())])

    def remarks(self) -> list[str]:
        """Return what a reader should know before using the ratios."""
        told = [
            f"{label}: {ratio.reason}."
            for label, ratio in self.ratios.items()
            if ratio.reason and ratio.reason not in self.sentence()
        ]
        if len(self.ratios) > 1:
            told.append(
                f"The {len(self.ratios)} intervals hold together: all at once with "
                f"95 % confidence, {hold_together(len(self.ratios)):.2%} each (Šidák)."
            )
        seen: dict[str, None] = {}
        for trial in self.trials:
            seen.update(dict.fromkeys(trial.remarks()))
        said = any("rare slow steps" in remark for remark in told)
        return told + [r for r in seen if not (said and r.startswith("Rare slow"))]

    def _repr_html_(self) -> str:
        headers = ("", self._unit(), "ratio", "95 % interval", "verdict")
        return figures.html_table(
            headers, self.rows(), title=self.sentence(), note=" ".join(self.remarks())
        )


def _write(value: float) -> str:
    """Write with four digits, and every digit before the point."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
