"""`Comparison`: trials that were measured by turns, and what they say together."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kit import figures
from kit.plot import Point, plot_points, predict_points
from kit.ratio import QUANTITIES, SPEED, Ratio, compare_trials, quantity_of, unit_of
from kit.stats import SAME
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

    Ratios are computed from the raw blocks of the trials, whenever a recording is read,
    too. `title` is what stands above reports and pictures, by default the finding.
    """

    trials: list[Trial]
    labels: list[str]
    of: str = SPEED
    within: float | None = None
    title: str | None = None

    @functools.cached_property
    def ratios(self) -> dict[str, Ratio]:
        """The ratio of each challenger by its label."""
        each = hold_together(len(self.trials) - 1)
        how = {"of": self.of, "within": self.within, "confidence": each}
        pairs = zip(self.labels, self.trials, strict=True)
        return {
            label: compare_trials(self.baseline, trial, **how)
            for label, trial in itertools.islice(pairs, 1, None)
        }

    @property
    def baseline(self) -> Trial:
        """The trial that the others are compared with: the first choice."""
        return self.trials[0]

    @property
    def ratio(self) -> Ratio:
        """The one ratio of two trials; raises ValueError where there are several."""
        if len(self.ratios) != 1:
            names = ", ".join(map(repr, self.ratios))
            raise ValueError(f"choose one ratio: comparison.ratios[label], of {names}")
        return next(iter(self.ratios.values()))

    def sentence(self, label: str | None = None) -> str:
        """Return the finding in words, of one challenger or of the best.

        The best is the fastest, or the one that needs least; what cannot be told from
        it is named beside it.
        """
        group = [label] if label else self._find_best()
        ratio = self.ratios[group[0]]
        if ratio.verdict != "cannot tell":
            return self._say(group)
        base, name = self._short_baseline(group[0]), group[0]
        known = "" if math.isnan(ratio.value) else f"{ratio} "
        reason = f"({ratio.reason})" if known else ratio.reason
        return f"Cannot tell how {name} compares with {base}: {known}{reason}"

    def headline(self) -> str:
        """Return the title, else the finding without the reason of a doubt."""
        if self.title:
            return self.title
        reason = self.ratios[self._find_best()[0]].reason
        return self.sentence().removesuffix(f"({reason})").rstrip()

    def _say(self, group: Sequence[str]) -> str:
        """Say how challengers compare that cannot be told from the first of them."""
        ratios = [self.ratios[label] for label in group]
        name = join_labels([label for label in self.labels if label in group])
        base, verdict = self._short_baseline(group[0]), ratios[0].verdict
        said = str(ratios[0])
        if len(group) > 1:
            said = f"about {summarise(ratios)}"
        if self.of not in QUANTITIES:
            where = {"same": "the same as", "more": "above", "less": "below"}[verdict]
            return f"{self.of} of {name} is {where} that of {base}: {said}"
        if self.of == SPEED and verdict == "same":
            return f"{name} is as fast as {base}: {said}"
        value, interval = said.split(" × ")
        return f"{name} {QUANTITIES[self.of][0].format(f'{value} ×')} {base} {interval}"

    def _find_best(self) -> list[str]:
        """Return the best challenger's label, then those not to be told from it.

        Best is who surely gains most, else who seems to; beside it stands only who has
        the same verdict, so that what nobody can tell hides no finding. Two are told
        apart where the interval of their difference, by the two half-widths at right
        angles, lies outside what counts as the same.
        """
        ordered = [label for label, _ in self._sorted() if label in self.ratios]
        gain = "faster" if self.of == SPEED else "less"
        ordered.sort(key=lambda label: self.ratios[label].verdict != gain)
        best = self.ratios[ordered[0]]
        same = math.log(SAME) if self.of in QUANTITIES else self.within or 0.0

        def is_close(ratio: Ratio) -> bool:
            apart = abs(ratio.middle - best.middle)
            reach = math.hypot(ratio.half_width, best.half_width) + same
            return ratio is best or (ratio.verdict == best.verdict and apart <= reach)

        return [label for label in ordered if is_close(self.ratios[label])]

    @property
    def _beside(self) -> str:
        """What a variant is beside the baseline, as columns are called."""
        return "ratio" if self.of in QUANTITIES else "difference"

    def _ratio(self, label: str) -> Ratio:
        """Return the ratio of a row; the baseline's is 1, a metric's difference 0."""
        unity = float(self.of in QUANTITIES)
        itself = Ratio(unity, math.nan, math.nan, "baseline")
        return self.ratios.get(label, itself)

    def _sorted(self) -> list[tuple[str, Trial]]:
        """Return labels and trials, of more than two the best first, unknown last."""
        pairs = list(zip(self.labels, self.trials, strict=True))
        if len(pairs) == 2:
            return pairs
        sign = -1 if self.of == SPEED else 1

        def rank(pair: tuple[str, Trial]) -> tuple[bool, float]:
            value = self._ratio(pair[0]).value
            return math.isnan(value), sign * value

        return sorted(pairs, key=rank)

    def _short_baseline(self, label: str) -> str:
        """Return the baseline's label, without a knob's name that was just said."""
        knob, equals, value = self.labels[0].partition("=")
        alone = equals and ", " not in label and label.startswith(f"{knob}=")
        return value if alone else self.labels[0]

    def quantity(self, trial: Trial) -> tuple[float, float, float]:
        """Return the compared quantity of one trial with its 95 % interval.

        Of the baseline, what it measured; of others the baseline's times their ratio
        (plus their difference), so that no two figures contradict each other.
        """
        number = next(i for i, other in enumerate(self.trials) if other is trial)
        ratio = self._ratio(self.labels[number])
        base = quantity_of(self.baseline, self.of)
        if number == 0 or math.isnan(ratio.value) or math.isnan(base[0]):
            return quantity_of(trial, self.of)
        value, low, high = ratio.value, ratio.low, ratio.high
        if self.of in QUANTITIES:
            return base[0] * value, base[0] * low, base[0] * high
        return base[0] + value, base[0] + low, base[0] + high

    def rows(self) -> list[tuple[str, ...]]:
        """Return the table as text: label, quantity, ratio, interval, verdict."""
        rows = []
        for label, trial in self._sorted():
            value, ratio = self.quantity(trial)[0], self._ratio(label)
            beside, _, span = str(ratio).rpartition(" [")
            shown = beside.rstrip(" ×"), f"[{span}"
            if ratio.verdict == "baseline":
                shown = f"{ratio.value:g}", ""
            rows.append((label, _write(value), *shown, ratio.verdict))
        return rows

    def table(self) -> pandas.DataFrame:
        """Return one row per trial: quantity, ratio, interval, verdict, reason.

        A metric has a difference in place of the ratio. Two trials are in the order
        asked for, several by their ratios, best first.
        """
        import pandas

        labels, trials = zip(*self._sorted(), strict=True)
        ratios = [self._ratio(label) for label in labels]
        index = pandas.Index(labels, name="label")
        table = pandas.DataFrame([trial.knobs for trial in trials], index=index)
        table[self.of] = [self.quantity(trial)[0] for trial in trials]
        table[self._beside] = [ratio.value for ratio in ratios]
        for name in ("low", "high", "verdict", "reason"):
            table[name] = [getattr(ratio, name) for ratio in ratios]
        return table

    def plot(
        self,
        x: str | None = None,
        predict: Callable[..., float] | None = None,
        title: str | None = None,
    ) -> Axes:
        """Draw the quantity of each trial with 95 % intervals; return the Axes.

        Bars, or lines over the knob `x` where its values are numbers: one for each
        choice of the other knobs. `predict` maps the knobs that it has names for to
        a predicted quantity, drawn as dashed lines. `title` is by
        default the comparison's own, else the finding.
        """
        positions = [trial.knobs.get(x) for trial in self.trials] if x else []
        if not all(isinstance(p, (int, float)) for p in positions):
            raise ValueError(
                f"Comparison.plot: x={x!r} is not a knob with numbers in every trial; "
                f"its values are {positions}. Leave x out for bars."
            )
        told = [{"experiment": t.experiment, **t.knobs} for t in self.trials]
        values, predicted = (
            map(self.quantity, self.trials),
            predict_points(predict, told),
        )
        points = list(map(Point, self.labels, told, values, predicted))
        title = title or self.headline()
        return plot_points(points, title, unit_of(self.of), x, baseline=0).axes[0]

    def __repr__(self) -> str:
        lines = [self.title] * bool(self.title)
        lines += [self.sentence(), figures.text_table(self._headers(), self.rows())]
        return "\n".join([*lines, *(f"  {note}" for note in self.remarks())])

    def _headers(self) -> tuple[str, ...]:
        return "", unit_of(self.of), self._beside, "95 % interval", "verdict"

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
        remarks = [remark for trial in self.trials for remark in trial.remarks()]
        return told + list(dict.fromkeys(remarks))

    def _repr_html_(self) -> str:
        headline, sentence = self.headline(), self.sentence()
        more = "" if sentence == headline else sentence.removeprefix(headline).strip()
        said = {"title": headline, "lead": more, "details": self.remarks()}
        return figures.html_table(self._headers(), self.rows(), **said)


def join_labels(labels: Sequence[str]) -> str:
    """Write labels as one; a knob's name that all of them share is said once.

    >>> join_labels(["workers=2", "workers=4"]), join_labels(["ring", "tree"])
    ('workers=2 or 4', 'ring or tree')
    """
    knob = labels[0].partition("=")[0] + "="
    if all(label.startswith(knob) and ", " not in label for label in labels):
        labels = [labels[0], *(label.removeprefix(knob) for label in labels[1:])]
    *others, last = labels
    return f"{', '.join(others)} or {last}" if others else last


def summarise(ratios: Sequence[Ratio]) -> Ratio:
    """Return the middle of ratios to two digits, and the reach of their intervals.

    >>> print(summarise([Ratio(1.7, 1.6, 1.9, "faster"), Ratio(1.9, 1.8, 2, "faster")]))
    1.8 × [1.6, 2]
    """
    first, middle = ratios[0], math.fsum(r.middle for r in ratios) / len(ratios)
    value = math.exp(middle) if first.unit == "×" else middle
    low, high = min(r.low for r in ratios), max(r.high for r in ratios)
    return Ratio(float(f"{value:.2g}"), low, high, first.verdict, unit=first.unit)


def _write(value: float) -> str:
    """Write with four digits, and every digit before the point."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
