"""`Trial`: what was measured of one experiment with one set of knobs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from kit import figures, stats
from kit.life import COLD, Block, Life
from kit.machine import Machine, this_machine
from kit.variant import Variant

#: Lists of what was measured and claimed, of whoever asked for one. Without them a
#: model among the knobs is let go with the last trial that the reader keeps.
_JOURNALS: list[list[object]] = []
#: Quantiles of step time, in percent, and how many single steps they need.
_QUANTILES, _LEAST_STEPS = (50, 95, 99), 20
_RARE = "Rare slow steps: the mean is over 2 % above the typical block. They count."
_OUTCOMES = {
    "stopped": "Stopped before the end; what was measured until then is kept.",
    "not settled": "Warm-up did not settle: the speed was still changing. Measure "
    "longer, or look for what changes from step to step.",
}


@dataclass(frozen=True)
class Trial:
    """The lives of one experiment; statistics are derived from their blocks.

    Lives of two trials with equal turns were measured together; turn -1 is the first
    one of a comparison, which is cold and alone. Bytes are bytes, times seconds.
    """

    experiment: str
    title: str
    knobs: dict[str, object]
    lives: list[Life]
    machine: Machine
    source: str
    started: str
    outcome: str
    whole_runs: bool = False
    notes: list[str] = field(default_factory=list)
    conditions: dict[str, float] = field(default_factory=dict)

    @property
    def blocks(self) -> list[Block]:
        """The blocks of all lives, in order."""
        return [block for life in self.lives for block in life.blocks]

    @property
    def block_seconds(self) -> list[float]:
        """Run time of each block."""
        return [block.seconds for block in self.blocks]

    @property
    def block_items(self) -> list[float]:
        """How many items each block handled."""
        return [block.items for block in self.blocks]

    @property
    def setup_seconds(self) -> list[float]:
        """How long each start took to its first yield, the first one cold."""
        return [life.setup_seconds for life in self.lives]

    @property
    def peak_memory_bytes(self) -> int | None:
        """What the first start and its warm-up added; None where it was not watched."""
        return self.lives[0].memory_bytes if self.lives else None

    @property
    def excluded_seconds(self) -> float:
        """How much time before bare yields was left out."""
        return math.fsum(block.excluded_seconds for block in self.blocks)

    @property
    def metrics(self) -> dict[str, list[float]]:
        """Each metric as one float per timed step, nan where it was not given."""
        found = {name: list[float]() for life in self.lives for name in life.metrics}
        for life in self.lives:
            for name, column in found.items():
                given = life.metrics.get(name, [None] * _steps(life.blocks))
                column += [math.nan if value is None else value for value in given]
        return found

    def last_values(self, metric: str) -> list[float]:
        """Return the last value given of a metric in each life (or whole run)."""
        given = (life.last_value(metric) for life in self.lives)
        return [value for value in given if value is not None]

    @property
    def items_per_second(self) -> float:
        """Items over seconds of a life, all blocks together; the mean over lives.

        The mean is that of the logarithms. The cold start, which comes before the lives
        of a comparison, counts only where there is no other.
        """
        return math.exp(self._over_lives("items").value)

    @property
    def step_seconds(self) -> float:
        """Seconds per step, the mean over lives as for `items_per_second`."""
        return math.exp(-self._over_lives("steps").value)

    def _over_lives(self, what: str) -> stats.Estimate:
        """Estimate the logarithm of items or steps a second, each life being one value.

        The same code started again is not equally fast, so blocks of one life say
        nothing about the next (Kalibera & Jones 2013, "Rigorous benchmarking in
        reasonable time").
        """
        rates = [rate(life, what) for life in self.timed_lives]
        logs = [math.log(each) if each > 0 else math.nan for each in rates]
        return stats.student_interval(logs)

    @property
    def timed_lives(self) -> list[Life]:
        """The lives that have blocks; the cold one only where it is alone."""
        timed = [life for life in self.lives if life.blocks]
        return [life for life in timed if life.turn != COLD] or timed

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of items per second; (nan, nan) for a single block.

        Student's t over lives. A single life has that of its blocks, which is an
        interval of this start alone.
        """
        if len(self.timed_lives) == 1:
            blocks = self.timed_lives[0].blocks
            items, seconds = [b.items for b in blocks], [b.seconds for b in blocks]
            return stats.rate_interval(items, seconds)[1:]
        _, low, high = self._over_lives("items")
        return stats.exp(low), stats.exp(high)

    @property
    def step_quantiles(self) -> dict[int, float] | None:
        """Seconds that 50, 95 and 99 % of the steps do not exceed, by percent.

        None where blocks hold several steps, are whole runs, or are fewer than 20.
        """
        import numpy as np

        single = not self.whole_runs and all(block.steps == 1 for block in self.blocks)
        if not single or len(self.blocks) < _LEAST_STEPS:
            return None
        values = np.percentile(self.block_seconds, _QUANTILES, method="inverted_cdf")
        return dict(zip(_QUANTILES, values.tolist(), strict=True))

    @property
    def has_rare_slow_steps(self) -> bool:
        """Whether the mean time per item is over 2 % above the median block's."""
        items, seconds = self.block_items, self.block_seconds
        return not self.whole_runs and stats.has_rare_slow_steps(items, seconds)

    def rows(self) -> list[tuple[str, str, str]]:
        """Return the report as (name, value, remark)."""
        write, starts = figures.format_seconds, len(self.lives)
        kind = "runs" if self.whole_runs else "blocks"
        counted = f"{_steps(self.blocks):,} steps in {len(self.blocks)} {kind}"
        rows = [
            ("items per second", f"{self.items_per_second:,.4g}", self._span()),
            ("time per step", write(self.step_seconds), counted),
        ]
        if known := self.step_quantiles:
            names = " · ".join(f"p{percent}" for percent in known)
            times = " · ".join(map(write, known.values()))
            rows.append((names, times, "so many % of the steps take no longer"))
        if self.whole_runs and self.blocks:
            mean = math.fsum(self.block_seconds) / len(self.blocks)
            rows.append(("time per run", write(mean), "to its end"))
        if starts:
            remark = "the cold start" if starts == 1 else f"cold, first of {starts}"
            rows.append(("set-up", write(self.setup_seconds[0]), remark))
        if excluded := self.excluded_seconds:
            rows.append(("excluded", write(excluded), "time before bare yields"))
        if self.peak_memory_bytes is not None:
            size = figures.format_bytes(self.peak_memory_bytes)
            rows.append(("peak memory", size, "increase during its first start"))
        for name in self.metrics:
            if given := self.last_values(name):
                rows.append((name, f"{given[-1]:.4g}", "last value"))
        return rows

    def _span(self) -> str:
        """Say what the interval of items per second is, and over what."""
        low, high = self.interval
        if math.isnan(low):
            return "one run" if self.whole_runs else "one block"
        lives = len(self.timed_lives)
        kind = "runs" if self.whole_runs else "starts"
        over = f"over {lives} {kind}" if lives > 1 else "of this start"
        return f"[{low:,.4g}, {high:,.4g}], 95 % interval {over}"

    def remarks(self) -> list[str]:
        """Return sentences about what a reader should know before using the numbers."""
        told = [_RARE] if self.has_rare_slow_steps else []
        return [*told, *filter(None, [_OUTCOMES.get(self.outcome)]), *self.notes]

    def heading(self) -> str:
        """Return experiment and knobs on one line."""
        knobs = [f"{k}={figures.format_value(v)}" for k, v in self.knobs.items()]
        return " · ".join([self.experiment, *knobs])

    def __repr__(self) -> str:
        table = figures.text_table(("", "", ""), self.rows()).splitlines()[1:]
        return "\n  ".join([self.heading(), *table, *self.remarks()])

    def _repr_html_(self) -> str:
        when = self.started[:16].replace("T", " ")
        footer = f"{self.title} · measured on {self.machine.name}, {when}"
        said = {"note": " ".join(self.remarks()), "footer": footer}
        return figures.html_card(self.heading(), self.rows(), **said)


def make_trial(variant: Variant, *, whole_runs: bool) -> Trial:
    """Make a Trial of a variant's lives so far."""
    notes, names = list(variant.notes), ", ".join(variant.shared.names)
    if names:
        notes.append(f"Shared and put back at each start: {names}.")
    if children := ", ".join(variant.ended_children):
        notes.append(f"Processes still alive after the end were ended: {children}.")
    outcome, settled = variant.outcome, [life.settled for life in variant.lives]
    if outcome == "complete" and 2 * sum(settled) < len(settled):
        outcome = "not settled"
    return Trial(
        experiment=variant.experiment.name,
        title=variant.experiment.title,
        knobs=dict(variant.knobs),
        lives=list(variant.lives),
        machine=this_machine(),
        source=variant.source,
        started=variant.started,
        outcome=outcome,
        whole_runs=whole_runs,
        notes=notes,
        conditions=dict(variant.conditions),
    )


def keep_journal() -> list[object]:
    """Return a list that gets all trials, comparisons and claims from now on."""
    _JOURNALS.append(journal := [])
    return journal


def write_down(*entries: object) -> None:
    """Add to the journals that are kept."""
    for journal in _JOURNALS:
        journal.extend(entries)


def _steps(blocks: list[Block]) -> int:
    return sum(block.steps for block in blocks)


def rate(life: Life, what: str = "items") -> float:
    """Return the items (or steps) per second of a life, all of its blocks together."""
    seconds = math.fsum(block.seconds for block in life.blocks) or math.nan
    return math.fsum(getattr(block, what) for block in life.blocks) / seconds
