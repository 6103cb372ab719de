"""`Trial`: what was measured of one experiment with one set of knobs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import accumulate

from kit import figures, stats
from kit.machine import Machine

#: Everything that was measured in this process, in order: trials, comparisons and
#: claims. `python -m kit record` writes it down.
JOURNAL: list[object] = []


@dataclass(frozen=True)
class Trial:
    """Raw blocks of one experiment; statistics are derived from them.

    `block_seconds` is run time (wall time less the waiting for a core that others
    caused), `block_wall_seconds` wall time. `block_setups` and `block_rounds` say which
    start and which round of a comparison a block belongs to: blocks of two trials with
    equal numbers were measured side by side; `start_setups` and `start_memory_bytes`
    say the same of each entry of `setup_seconds`, the cold start first. `metrics`
    holds one float per counted step. Bytes are bytes, times seconds.
    """

    experiment: str
    title: str
    knobs: dict[str, object]
    block_seconds: list[float]
    block_wall_seconds: list[float]
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
        return told + list(self.notes)

    def heading(self) -> str:
        """Return experiment and knobs on one line."""
        knobs = [
            f"{name}={figures.format_value(value)}"
            for name, value in self.knobs.items()
        ]
        return " · ".join([self.experiment, *knobs])

    def __repr__(self) -> str:
        rows = [f"  {n:<18}{v:>12}  {r}" for n, v, r in self.rows()]
        return "\n".join([self.heading(), *rows, *(f"  {r}" for r in self.remarks())])

    def _repr_html_(self) -> str:
        when = self.started[:16].replace("T", " ")
        return figures.html_card(
            self.heading(),
            self.rows(),
            note=" ".join(self.remarks()),
            footer=f"{self.title} · measured on {self.machine.name}, {when}",
        )
