"""`compare` and the `Comparison` that it returns."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kit import figures, stats
from kit.clock.log import smoke
from kit.clock.measuring import check_arguments
from kit.clock.progress import Progress, Stopped
from kit.comparison import alternation
from kit.comparison.alternation import Variant
from kit.comparison.choices import check_metric, check_quantity, make_variants
from kit.comparison.ratio import QUANTITIES, SPEED, Ratio, compare_trials
from kit.trial import JOURNAL, Trial

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes

_SENTENCES = {
    SPEED: "{a} is {ratio} as fast as {b}",
    "run_seconds": "{a} takes {ratio} the time of {b}",
    "setup_seconds": "{a} takes {ratio} the set-up time of {b}",
    "peak_memory_bytes": "{a} adds {ratio} the memory of {b}",
}
_UNITS = {
    SPEED: "items per second",
    "run_seconds": "seconds per run",
    "setup_seconds": "seconds of set-up",
    "peak_memory_bytes": "bytes of peak memory",
}


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
        ratios = {
            label: compare_trials(self.baseline, trial, self.of, self.within)
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
        text = _SENTENCES[self.of].format(a=label, ratio=f"{value} ×", b=base)
        return f"{text} {interval}"

    def _best(self) -> str:
        sign = 1 if self.of == SPEED else -1
        known = [k for k, r in self.ratios.items() if not math.isnan(r.value)]
        return max(
            known or list(self.ratios),
            key=lambda k: sign * self.ratios[k].value,
        )

    def _short_baseline(self, label: str) -> str:
        """Return the baseline's label, without a knob's name that was just said."""
        knob, equals, value = self.labels[0].partition("=")
        alone = equals and ", " not in label and label.startswith(f"{knob}=")
        return value if alone else self.labels[0]

    def quantity(self, trial: Trial) -> tuple[float, float, float]:
        """Return the compared quantity of one trial with its 95 % interval."""
        if self.of == SPEED:
            return (trial.items_per_second, *trial.interval)
        if self.of == "peak_memory_bytes":
            values = [float(m) for m in trial.start_memory_bytes if m is not None]
        elif self.of == "setup_seconds":
            values = trial.setup_seconds
        elif self.of == "run_seconds":
            values = trial.block_seconds
        else:
            values = trial.last_values(self.of)
        later = self.of in ("setup_seconds", "peak_memory_bytes") and len(values) > 1
        return tuple(stats.student_interval(values[1:] if later else values))

    def rows(self) -> list[tuple[str, ...]]:
        """Return the table as text: label, quantity, ratio, interval, verdict."""
        rows = []
        for label, trial in zip(self.labels, self.trials, strict=True):
            value, ratio = self.quantity(trial)[0], self.ratios.get(label)
            shown = ("1", "", "baseline")
            if ratio is not None:
                span = f"[{ratio.low:.3g}, {ratio.high:.3g}]"
                shown = (f"{ratio.value:.3g}", span, ratio.verdict)
            rows.append((label, f"{value:,.4g}", *shown))
        return rows

    def table(self) -> pandas.DataFrame:
        """Return one row per trial: quantity, ratio, interval, verdict, reason."""
        import pandas

        records = []
        for label, trial in zip(self.labels, self.trials, strict=True):
            ratio = self.ratios.get(label)
            records.append(
                {
                    **trial.knobs,
                    self.of: self.quantity(trial)[0],
                    "ratio": ratio.value if ratio else 1.0,
                    "low": ratio.low if ratio else math.nan,
                    "high": ratio.high if ratio else math.nan,
                    "verdict": ratio.verdict if ratio else "baseline",
                    "reason": ratio.reason if ratio else "",
                }
            )
        index = pandas.Index(self.labels, name="label")
        return pandas.DataFrame(records, index=index)

    def plot(
        self, x: str | None = None, model: Callable[[Any], float] | None = None
    ) -> Axes:
        """Draw the quantity of each trial with 95 % intervals; return the Axes.

        Bars, or a line over the knob `x` where its values are numbers. `model` maps a
        value of `x` to a predicted quantity, drawn as a dashed line.
        """
        values, lows, highs = zip(*map(self.quantity, self.trials), strict=True)
        if x is None:
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
        series: dict[str, tuple[object, ...]] = {
            "measured": (positions, values, lows, highs, "measured")
        }
        if model is not None:
            predicted = [model(position) for position in positions]
            series["predicted"] = (positions, predicted, None, None, "predicted")
        lines = figures.draw_lines(
            series, title=self.sentence(), xlabel=x, ylabel=self._unit()
        )
        return lines.axes[0]

    def _unit(self) -> str:
        return _UNITS.get(self.of, self.of)

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


def compare(
    experiment: object,
    /,
    *,
    of: str = SPEED,
    seconds: float | None = 4.0,
    repeats: int = 5,
    within: float | None = None,
    on: None = None,
    patient: bool = False,
    **choices: object,
) -> Comparison:
    """Compare every combination of the choices by turns; the first is the baseline.

    Lists and ranges are choices, everything else is a value. `experiment` may also be
    a dict of experiments by name. `seconds` is the total; `seconds=None` runs each
    generator to its end, `repeats` times. `of` names what is compared: a quantity
    or a metric, which needs `within`, the difference that counts as the same.
    `patient=True` goes on to three times the budget where the interval is wide.
    Raises ExperimentError where something cannot be compared.

    >>> def add(*, upto=1000):
    ...     while True:
    ...         yield sum(range(upto)) and 1
    >>> compare(add, upto=[1000, 4000], seconds=0.5).ratio.verdict
    'slower'
    """
    check_arguments("compare()", seconds, repeats, on)
    check_quantity(of, seconds, within)
    variants = make_variants(experiment, choices, whole_runs=seconds is None)
    labels = [variant.label for variant in variants]
    with Progress(f"comparing {' · '.join(labels)}"[:100]) as progress:
        try:
            _alternate(variants, of, seconds, repeats, patient, progress)
        except Stopped:
            for variant in variants:
                variant.log.stopped = True
        finally:
            for variant in variants:
                variant.shared.restore()
    trials = [variant.trial() for variant in variants]
    comparison = Comparison(trials, labels, of, within)
    JOURNAL.extend([*trials, comparison])
    return comparison


def _run_whole(of: str, progress: Progress) -> Callable[[Variant, int, int], None]:
    """Return an act: one whole run, checked for the metric that is compared."""
    run = alternation.run_to_the_end(progress)

    def act(variant: Variant, setup: int, repeat: int) -> None:
        run(variant, setup, repeat)
        if of not in QUANTITIES:
            check_metric(of, [variant.trial()])

    return act


def _alternate(
    variants: Sequence[Variant],
    of: str,
    seconds: float | None,
    repeats: int,
    patient: bool,
    progress: Progress,
) -> None:
    """Start each variant cold and alone, then each challenger beside the baseline."""
    baseline, *challengers = variants
    repeats = 2 if smoke() else repeats
    if seconds is not None:
        for variant in variants:
            variant.start_cold(progress, seconds)
    setup = 0
    for index, challenger in enumerate(challengers):
        part = index, len(challengers)
        if of == SPEED and seconds is not None:
            setup = alternation.alternate_rates(
                baseline,
                challenger,
                first_setup=setup,
                seconds=seconds / len(challengers),
                least_pairs=repeats,
                patient=patient,
                progress=progress,
                part=part,
            )
            continue
        if of == "setup_seconds":
            act = alternation.start_only(progress)
        elif of == "peak_memory_bytes":
            act = alternation.watch_memory(progress, seconds or 0.0)
        else:
            act = _run_whole(of, progress)
        setup = alternation.alternate_whole(
            baseline,
            challenger,
            act,
            first_setup=setup,
            repeats=repeats,
            progress=progress,
            part=part,
        )
