"""`Trial`: what was measured of one experiment with one set of knobs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from kit import figures, stats
from kit.machine import Machine

#: Everything that was measured in this process, in order: trials, comparisons and
#: claims. `python -m kit record` writes it down.
JOURNAL: list[object] = []
#: The number of the set-up that is started alone, before any comparison.
COLD = -1

#: Quantiles of step time, in percent, and how many single steps they need.
_QUANTILES = (50, 95, 99)
_LEAST_STEPS = 20


@dataclass(frozen=True)
class Trial:
    """Raw blocks of one experiment; statistics are derived from them.

    `block_seconds` is run time (wall time less the waiting for a core that others
    caused), `block_wall_seconds` wall time, `block_device_seconds` the time between the
    block's ends by an accelerator's own clock, None where unknown. `block_setups` and
    `block_rounds` say which start and which round of a comparison a block belongs to:
    blocks of two trials with equal numbers were measured side by side; `start_setups`
    and `start_memory_bytes` say the same of each entry of `setup_seconds`, the cold
    start first. `block_rank_seconds` is the wall time of each rank in each block, empty
    where there were no ranks. `metrics` holds one float per counted step. Bytes are
    bytes, times seconds.
    """

    experiment: str
    title: str
    knobs: dict[str, object]
    block_seconds: list[float]
    block_wall_seconds: list[float]
    block_device_seconds: list[float | None]
    block_items: list[float]
    block_steps: list[int]
    block_setups: list[int]
    block_rounds: list[int]
    setup_seconds: list[float]
    start_setups: list[int]
    start_memory_bytes: list[int | None]
    excluded_seconds: float
    peak_memory_bytes: int | None
    metrics: dict[str, list[float]]
    machine: Machine
    source: str
    started: str
    outcome: str
    whole_runs: bool = False
    block_rank_seconds: list[list[float]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    conditions: dict[str, float] = field(default_factory=dict)

    @property
    def items_per_second(self) -> float:
        """Items over seconds of a life, all blocks together; the mean over lives.

        The mean is that of the logarithms. The cold start, which comes before the lives
        of a comparison, counts only where there is no other.
        """
        return math.exp(self._over_lives(self.block_items, self.block_seconds).value)

    @property
    def step_seconds(self) -> float:
        """Seconds per step, the mean over lives as for `items_per_second`."""
        return math.exp(self._over_lives(self.block_seconds, self.block_steps).value)

    def _over_lives(
        self, amounts: Sequence[float], per: Sequence[float]
    ) -> stats.Estimate:
        """Estimate the logarithm of amounts per something, each life being one value.

        The same code started again is not equally fast, so blocks of one life say
        nothing about the next (Kalibera & Jones 2013, "Rigorous benchmarking in
        reasonable time").
        """
        return stats.student_interval(
            [
                _log_ratio(sum(amounts[i] for i in life), sum(per[i] for i in life))
                for life in self._lives()
            ]
        )

    def _lives(self) -> list[list[int]]:
        """Return the numbers of each life's blocks; the cold one's only where alone."""
        lives: dict[int, list[int]] = {}
        for number, setup in enumerate(self.block_setups):
            lives.setdefault(setup, []).append(number)
        if len(lives) > 1:
            lives.pop(COLD, None)
        return list(lives.values())

    @property
    def device_step_seconds(self) -> float:
        """Mean seconds per step by an accelerator's own clock; nan where unknown."""
        known = [
            (seconds, steps)
            for seconds, steps in zip(
                self.block_device_seconds, self.block_steps, strict=True
            )
            if seconds is not None
        ]
        if not known:
            return math.nan
        return math.fsum(s for s, _ in known) / sum(steps for _, steps in known)

    @property
    def step_quantiles(self) -> dict[int, float] | None:
        """Seconds that 50, 95 and 99 % of the steps do not exceed, by percent.

        None where blocks hold several steps, are whole runs, or are fewer than 20.
        """
        import numpy as np

        single = not self.whole_runs and all(steps == 1 for steps in self.block_steps)
        if not single or len(self.block_seconds) < _LEAST_STEPS:
            return None
        values = np.percentile(self.block_seconds, _QUANTILES, method="inverted_cdf")
        return dict(zip(_QUANTILES, values.tolist(), strict=True))

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of items per second; (nan, nan) for a single block.

        Student's t over lives. A single life has that of its blocks, which is an
        interval of this start alone.
        """
        lives = self._lives()
        if len(lives) == 1:
            columns = self.block_items, self.block_seconds
            estimate = stats.rate_interval(*([c[i] for i in lives[0]] for c in columns))
            return estimate.low, estimate.high
        spread = self._over_lives(self.block_items, self.block_seconds)
        return math.exp(spread.low), math.exp(spread.high)

    @property
    def has_rare_slow_steps(self) -> bool:
        """Whether the mean time per item is over 2 % above the median block's."""
        return not self.whole_runs and stats.has_rare_slow_steps(
            self.block_items, self.block_seconds
        )

    def last_values(self, metric: str) -> list[float]:
        """Return the metric's last value of each block (each run, for whole runs)."""
        ends = accumulate(self.block_steps)
        return [self.metrics[metric][end - 1] for end in ends]

    def rows(self) -> list[tuple[str, str, str]]:
        """Return the report as (name, value, remark)."""
        kind = "runs" if self.whole_runs else "blocks"
        rows = [
            ("items per second", f"{self.items_per_second:,.4g}", self._span()),
            (
                "time per step",
                figures.format_seconds(self.step_seconds),
                f"{sum(self.block_steps):,} steps in {len(self.block_seconds)} {kind}",
            ),
        ]
        device_time = self.device_step_seconds
        if not math.isnan(device_time):
            rows.append(
                (
                    "device time per step",
                    figures.format_seconds(device_time),
                    "by the device's own clock",
                )
            )
        quantiles = self.step_quantiles
        if quantiles is not None:
            rows.append(
                (
                    " · ".join(f"p{percent}" for percent in quantiles),
                    " · ".join(
                        figures.format_seconds(seconds)
                        for seconds in quantiles.values()
                    ),
                    "so many % of the steps take no longer",
                )
            )
        if self.whole_runs and self.block_seconds:
            mean = math.fsum(self.block_seconds) / len(self.block_seconds)
            rows.append(("time per run", figures.format_seconds(mean), "to its end"))
        starts = len(self.setup_seconds)
        if starts:
            remark = "the cold start" if starts == 1 else f"cold, first of {starts}"
            rows.append(
                ("set-up", figures.format_seconds(self.setup_seconds[0]), remark)
            )
        if self.peak_memory_bytes is not None:
            rows.append(
                (
                    "peak memory",
                    figures.format_bytes(self.peak_memory_bytes),
                    "increase during its first start",
                )
            )
        if self.excluded_seconds:
            rows.append(
                (
                    "excluded",
                    figures.format_seconds(self.excluded_seconds),
                    "time before bare yields",
                )
            )
        rows += [
            (name, f"{values[-1]:.4g}", "last value")
            for name, values in self.metrics.items()
            if values
        ]
        return rows

    def _span(self) -> str:
        """Say what the interval of items per second is, and over what."""
        low, high = self.interval
        if math.isnan(low):
            return "one run" if self.whole_runs else "one block"
        lives = len(self._lives())
        kind = "runs" if self.whole_runs else "starts"
        over = f"over {lives} {kind}" if lives > 1 else "of this start"
        return f"[{low:,.4g}, {high:,.4g}], 95 % interval {over}"

    def remarks(self) -> list[str]:
        """Return sentences about what a reader should know before using the numbers."""
        told = []
        if self.has_rare_slow_steps:
            told.append(
                "Rare slow steps: the mean is over 2 % above the typical block. "
                "They count."
            )
        if self.outcome == "stopped":
            told.append("Stopped before the end; what was measured until then is kept.")
        if self.outcome == "not settled":
            told.append(
                "Warm-up did not settle: the speed was still changing. Measure longer, "
                "or look for what changes from step to step."
            )
        smallest = self.conditions.get("smallest_difference")
        if smallest is not None:
            told.append(
                "When this was recorded, a comparison could see differences of "
                f"{smallest:.1%} and more there."
            )
        return told + list(self.notes)

    def heading(self) -> str:
        """Return experiment and knobs on one line."""
        knobs = [
            f"{name}={figures.format_value(value)}"
            for name, value in self.knobs.items()
        ]
        return " · ".join([self.experiment, *knobs])

    def __repr__(self) -> str:
        rows = self.rows()
        wide = max(18, *(len(name) + 2 for name, _, _ in rows))
        room = max(12, *(len(value) for _, value, _ in rows))
        lines = [f"  {n:<{wide}}{v:>{room}}  {r}" for n, v, r in rows]
        return "\n".join([self.heading(), *lines, *(f"  {r}" for r in self.remarks())])

    def _repr_html_(self) -> str:
        when = self.started[:16].replace("T", " ")
        return figures.html_card(
            self.heading(),
            self.rows(),
            note=" ".join(self.remarks()),
            footer=f"{self.title} · measured on {self.machine.name}, {when}",
        )


def _log_ratio(amount: float, per: float) -> float:
    """Return the logarithm of a ratio; nan where there was nothing."""
    return math.log(amount / per) if amount > 0 and per > 0 else math.nan
