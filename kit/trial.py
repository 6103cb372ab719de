"""`Trial`: what was measured of one experiment with one set of knobs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

from kit import figures, stats
from kit.machine import Machine

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
        """Total items over total seconds of all counted blocks."""
        if not self.block_seconds:
            return math.nan
        return math.fsum(self.block_items) / math.fsum(self.block_seconds)

    @property
    def step_seconds(self) -> float:
        """Mean seconds per step over all counted blocks."""
        if not self.block_seconds:
            return math.nan
        return math.fsum(self.block_seconds) / sum(self.block_steps)

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
    def step_quantiles(self) -> dict[int, stats.Estimate] | None:
        """Seconds that 50, 95 and 99 % of the steps do not exceed, by percent.

        None where blocks hold several steps, are whole runs, or are fewer than 20. The
        95 % intervals are those of independent steps; a bound is nan where there are
        too few steps to tell it.
        """
        single = not self.whole_runs and all(steps == 1 for steps in self.block_steps)
        if not single or len(self.block_seconds) < _LEAST_STEPS:
            return None
        return {
            percent: stats.quantile_interval(self.block_seconds, percent / 100)
            for percent in _QUANTILES
        }

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of items per second; (nan, nan) for a single block."""
        if not self.block_seconds:
            return math.nan, math.nan
        estimate = stats.rate_interval(self.block_items, self.block_seconds)
        return estimate.low, estimate.high

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
        low, high = self.interval
        many = len(self.block_seconds) > 1
        kind = "runs" if self.whole_runs else "blocks"
        span = f"[{low:,.4g}, {high:,.4g}], 95 % interval" if many else "one block"
        rows = [
            ("items per second", f"{self.items_per_second:,.4g}", span),
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
                        figures.format_seconds(estimate.value)
                        for estimate in quantiles.values()
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

    def plot(self) -> Axes:
        """Draw how long steps take; return the Axes.

        The distribution of single steps with its quantiles, or else the mean step time
        of each block.
        """
        quantiles = self.step_quantiles
        if quantiles is not None:
            figure = figures.draw_distribution(
                self.block_seconds,
                [(f"p{percent}", *quantiles[percent]) for percent in quantiles],
                title=self._finding(quantiles),
            )
            return figure.axes[0]
        figure = figures.draw_steps(
            [
                seconds / steps
                for seconds, steps in zip(
                    self.block_seconds, self.block_steps, strict=True
                )
            ],
            title=self._finding_of_blocks(),
            ylabel="milliseconds per step",
            xlabel="run" if self.whole_runs else "block",
        )
        return figure.axes[0]

    def _finding(self, quantiles: dict[int, stats.Estimate]) -> str:
        """Say what the distribution of single steps shows."""
        typical = quantiles[50].value
        # With fewer steps p99 is the slowest one, whatever it is.
        many = len(self.block_seconds) >= 100
        rare, share = (99, "one in a hundred") if many else (95, "one in twenty")
        slow = quantiles[rare].value
        if slow <= stats.SAME * typical:
            return f"Nearly all steps take {figures.format_seconds(typical)}"
        return (
            f"Half of the steps take under {figures.format_seconds(typical)}; "
            f"{share} over {figures.format_seconds(slow)}"
        )

    def _finding_of_blocks(self) -> str:
        """Say what the mean step times of blocks show, and why no more is known."""
        count, steps = len(self.block_seconds), sum(self.block_steps)
        if not count:
            return "No block was measured"
        mean = figures.format_seconds(self.step_seconds)
        if self.whole_runs:
            return f"A step takes {mean} on average, over whole runs"
        if steps == count:
            return f"A step takes {mean} on average: {count} are too few for quantiles"
        return (
            f"A step takes {mean} on average: blocks hold about {steps / count:.0f} "
            "steps, single ones are not timed"
        )

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
