"""`BatchSizeTuning`: the sizes that were found, and what stands behind them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kit import figures
from kit.costs import Line
from kit.stats import Estimate
from kit.trial import Trial
from kit.tuning.reasons import compare_rates

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_HEADERS = ("size", "per second", "95 %", "reckoned", "peak memory", "reckoned")
#: A size is good enough that reaches this share of the fastest one's speed.
_ENOUGH = 0.95


@dataclass(frozen=True, repr=False)
class BatchSizeTuning:
    """A batch size to train with, the largest that fits, and the trials behind both.

    `batch_size` is the smallest that seems to reach 95 % of the best throughput, and
    none that was tried is clearly faster by more; `largest` is the largest that fits
    into `budget_bytes`. Where no trial had one, it lies on the line of those that were
    near. `time` (seconds per step) and `memory` (bytes) are lines over
    the batch size, fitted to the trials, None where there was only one size. `trials`
    are the real ones that fitted, by size; `too_large` has the bytes of those that did
    not, inf where memory ran out. `forecast` is the line of bytes that was reckoned
    before, None where that did not work.
    """

    experiment: str
    knob: str
    batch_size: int
    largest: int
    budget_bytes: float
    most: float
    memory: Line | None
    time: Line | None
    forecast: Line | None
    trials: tuple[Trial, ...]
    too_large: Mapping[int, float]
    seconds: float

    def _size(self, trial: Trial) -> int:
        return int(str(trial.knobs[self.knob]))

    def finding(self) -> str:
        """Return the result in one sentence, which the trials' intervals support."""
        knob, budget = self.knob, figures.format_bytes(self.budget_bytes)
        tried = {self._size(trial): trial for trial in self.trials}
        will = "" if self.largest in tried else "should "
        if self.largest >= self.most:
            fits = f"all of the {self.largest:,} samples {will}fit into {budget}"
        else:
            fit = f"{will}fit" if will else "fits"
            fits = f"up to {knob}={self.largest:,} {fit} into {budget}"
        return f"{self.experiment}: {self._judge_speed(tried)}; {fits}"

    def _judge_speed(self, tried: Mapping[int, Trial]) -> str:
        chosen = f"{self.knob}={self.batch_size:,}"
        if self.batch_size not in tried:
            return f"{chosen}, which was not tried, should be nearly as fast as any"
        others = [trial for size, trial in tried.items() if size != self.batch_size]
        own = tried[self.batch_size]
        if not others:
            return f"{chosen} is the only size that was timed"
        if all(compare_trials(own, other).low >= _ENOUGH for other in others):
            return f"{chosen} is as fast as any size tried, within 5 %"
        return f"no size tried is clearly more than 5 % faster than {chosen}"

    def table(self) -> list[tuple[str, str, str, str, str, str]]:
        """Return a row per trial: size, items per second and bytes, with the lines'."""
        rows = []
        for trial in self.trials:
            size = self._size(trial)
            per_step = trial.items_per_second * trial.step_seconds
            time = self.time.predict(size) if self.time else math.nan
            memory = self.memory.predict(size) if self.memory else math.nan
            low, high = map(figures.format_number, trial.interval)
            rows.append(
                (
                    f"{size:,}",
                    figures.format_number(trial.items_per_second),
                    "–" if math.isnan(trial.interval[0]) else f"[{low}, {high}]",
                    "–" if math.isnan(time) else figures.format_number(per_step / time),
                    figures.format_bytes(_bytes(trial)),
                    "–" if math.isnan(memory) else figures.format_bytes(memory),
                )
            )
        for size, bytes_ in self.too_large.items():
            taken = (
                "ran out" if math.isinf(bytes_) else figures.format_bytes(bytes_)
            ) + ", too much"
            rows.append((f"{size:,}", "–", "–", "–", taken, "–"))
        return rows

    def rows(self) -> list[tuple[str, str, str]]:
        """Return the answer as (name, value, remark)."""
        tried = {self._size(trial) for trial in self.trials}

        def remark(size: int) -> str:
            return "tried" if size in tried else "reckoned from the trials"

        rows = [
            ("to train with", f"{self.batch_size:,}", remark(self.batch_size)),
            ("largest that fits", f"{self.largest:,}", remark(self.largest)),
        ]
        if self.time and self.memory:
            fixed, each = self.time
            rows.append(
                (
                    "a step takes",
                    figures.format_seconds(max(fixed, 0.0)),
                    f"and {figures.format_seconds(each)} more for each sample",
                )
            )
            fixed, each = self.memory
            rows.append(
                (
                    "it needs",
                    figures.format_bytes(max(fixed, 0.0)),
                    f"and {figures.format_bytes(each)} more for each sample",
                )
            )
        return rows

    def plot(self, of: str = "items_per_second") -> Axes:
        """Draw trials and line over the batch size; return Axes.

        `of` is "items_per_second" or "peak_memory_bytes". Raises ValueError for others.
        """
        sizes = [self._size(trial) for trial in self.trials]
        if of == "items_per_second":
            measured = [trial.items_per_second for trial in self.trials]
            spans = [trial.interval for trial in self.trials]
            lows: list[float | None] = [low for low, _ in spans]
            highs: list[float | None] = [high for _, high in spans]
            per_sample = measured[0] * self.trials[0].step_seconds / sizes[0]
            reckoned = [
                per_sample * size / self.time.predict(size) if self.time else math.nan
                for size in sizes
            ]
            label = "items per second"
        elif of == "peak_memory_bytes":
            measured = [_bytes(trial) for trial in self.trials]
            lows = highs = [None] * len(sizes)
            reckoned = [
                self.memory.predict(size) if self.memory else math.nan for size in sizes
            ]
            label = "bytes of peak memory"
        else:
            raise ValueError(
                f"plot(): of={of!r} is neither 'items_per_second' nor "
                "'peak_memory_bytes'"
            )
        figure = figures.draw_lines(
            {
                "line": (sizes, reckoned, None, None, "predicted"),
                "measured": (sizes, measured, lows, highs, "measured"),
            },
            title=self.finding(),
            xlabel=self.knob,
            ylabel=label,
        )
        return figure.axes[0]

    def _note(self) -> str:
        count = len(self.trials) + len(self.too_large)
        trials = f"{count} trial" + ("s" if count > 1 else "")
        reckoned = "reckoned beforehand" if self.forecast else "from trials alone"
        return f"{self.seconds:.0f} s, {trials}; memory was {reckoned}."

    def __repr__(self) -> str:
        return "\n".join(
            [
                self.finding(),
                f"  {self._note()}",
                _indent(figures.text_table(_HEADERS, self.table())),
                _indent(figures.text_table(["", "", ""], self.rows()).lstrip("\n ")),
            ]
        )

    def _repr_html_(self) -> str:
        card = figures.html_card(self.finding(), self.rows(), note=self._note())
        return card + figures.html_table(_HEADERS, self.table(), title="Trials")


def compare_trials(one: Trial, other: Trial) -> Estimate:
    """Return the ratio of two trials' speeds, with the interval of both."""
    rates = (Estimate(x.items_per_second, *x.interval) for x in (one, other))
    return compare_rates(*rates)


def is_enough(trial: Trial, others: Iterable[Trial]) -> bool:
    """Return whether none of the others is clearly more than 5 % faster."""
    return not any(compare_trials(trial, x).high < _ENOUGH for x in others)


def _bytes(trial: Trial) -> float:
    return float(trial.peak_memory_bytes or 0)


def _indent(text: str) -> str:
    return "\n".join(f"  {line}".rstrip() for line in text.splitlines())
