"""What was measured: `Trial`, its `Run`s, their `Stretch`es. Nothing here runs.

Raw numbers are stored; rates and spreads are derived from them when they are read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from kit.figures import format_bytes, format_seconds, format_value
from kit.machine import Machine

#: The round of cold starts, which are no part of a ratio.
COLD = -1

#: Lists that get each trial, comparison and claim from now on: a recording adds one.
listeners: list[list[object]] = []


def tell_listeners(*entries: object) -> None:
    """Add what was measured or claimed to the lists that listen."""
    for listener in listeners:
        listener.extend(entries)


@dataclass
class Stretch:
    """Consecutive timed steps; devices were waited for before and after them.

    `excluded_seconds` is the time before bare yields, which `seconds` leaves out.
    `metrics` are (number of the step, values by name).
    """

    seconds: float = 0.0
    items: float = 0.0
    steps: int = 0
    excluded_seconds: float = 0.0
    metrics: list[tuple[int, dict[str, float]]] = field(default_factory=list)

    def extend(self, other: Stretch) -> None:
        """Add the steps of a stretch that follows.

        >>> stretch = Stretch(1.0, items=8, steps=2)
        >>> stretch.extend(Stretch(0.5, items=4, steps=1))
        >>> stretch.seconds, stretch.items, stretch.steps
        (1.5, 12, 3)
        """
        self.metrics += [(self.steps + step, row) for step, row in other.metrics]
        self.seconds += other.seconds
        self.items += other.items
        self.steps += other.steps
        self.excluded_seconds += other.excluded_seconds


@dataclass
class Run:
    """One start of an experiment, and what was timed until its close.

    Runs of two variants with an equal `round` belong together; COLD is the round of
    cold starts. `took_turns` says that the two runs of the round alternated.
    `setup_seconds` is the time to the first yield, `memory_bytes` what start and
    warm-up added, where that was watched. `settled` says that warm-up ended with equal
    speeds. `metrics` has one value per timed step, None where it was not given.
    """

    round: int
    setup_seconds: float = math.nan
    memory_bytes: int | None = None
    settled: bool = True
    took_turns: bool = False
    stretches: list[Stretch] = field(default_factory=list)
    metrics: dict[str, list[float | None]] = field(default_factory=dict)

    def add(self, stretch: Stretch) -> None:
        """Keep a stretch, and the metrics of its steps."""
        done = self.steps
        self.stretches.append(stretch)
        for step, row in stretch.metrics:
            for name, value in row.items():
                column = self.metrics.setdefault(name, [])
                column += [None] * (done + step - len(column))
                column.append(value)
        for column in self.metrics.values():
            column += [None] * (self.steps - len(column))

    @property
    def seconds(self) -> float:
        """The time of all timed steps; of a complete run, from its start to its end."""
        return math.fsum(stretch.seconds for stretch in self.stretches)

    @property
    def items(self) -> float:
        """How many items the timed steps handled."""
        return math.fsum(stretch.items for stretch in self.stretches)

    @property
    def steps(self) -> int:
        """How many steps were timed."""
        return sum(stretch.steps for stretch in self.stretches)

    @property
    def items_per_second(self) -> float:
        """All items over all seconds; nan where nothing was timed."""
        return self.items / self.seconds if self.stretches else math.nan

    def last_value(self, metric: str) -> float | None:
        """Return the last value that was given of a metric; None where none was."""
        for value in reversed(self.metrics.get(metric, [])):
            if value is not None:
                return value
        return None


@dataclass(frozen=True, repr=False)
class Trial:
    """All runs of one experiment with one set of knobs.

    `complete_runs` says that each run went from its start to the generator's end.
    `outcome` is "finished", "stopped", "not settled", or "quick" for quick mode, whose
    speeds say nothing. Bytes are bytes, times seconds.
    """

    experiment: str
    title: str
    knobs: dict[str, object]
    runs: list[Run]
    machine: Machine
    started: str
    outcome: str
    complete_runs: bool = False
    notes: list[str] = field(default_factory=list)

    @property
    def timed_runs(self) -> list[Run]:
        """The runs that were timed; cold ones only where there are no others."""
        timed = [run for run in self.runs if run.stretches]
        later = [run for run in timed if run.round != COLD]
        return later or timed

    @property
    def items_per_second(self) -> float:
        """The mean over runs of items per second, on the log scale.

        Code that is started again is not equally fast, so a run is one value (Kalibera
        & Jones 2013, "Rigorous benchmarking in reasonable time").
        """
        return _geometric_mean([run.items_per_second for run in self.timed_runs])

    @property
    def step_seconds(self) -> float:
        """Seconds per step, the mean over runs as for `items_per_second`."""
        timed = [run for run in self.timed_runs if run.steps]
        return _geometric_mean([run.seconds / run.steps for run in timed])

    @property
    def spread(self) -> tuple[float, float]:
        """The slowest and the fastest run, in items per second.

        This is no confidence interval: a machine's speed drifts by more than a few runs
        within seconds can show. Only `compare` decides small differences.
        """
        rates = [run.items_per_second for run in self.timed_runs]
        return min(rates, default=math.nan), max(rates, default=math.nan)

    @property
    def setup_seconds(self) -> list[float]:
        """How long each start took to its first yield, the first one cold."""
        return [run.setup_seconds for run in self.runs]

    @property
    def peak_memory_bytes(self) -> int | None:
        """What the first start and its warm-up added; None where nobody watched."""
        return self.runs[0].memory_bytes if self.runs else None

    @property
    def metrics(self) -> dict[str, list[float]]:
        """Each metric as one float per timed step, nan where it was not given."""
        columns = {name: list[float]() for run in self.runs for name in run.metrics}
        for run in self.runs:
            for name, column in columns.items():
                values = run.metrics.get(name, [None] * run.steps)
                column += [math.nan if value is None else value for value in values]
        return columns

    def last_values(self, metric: str) -> list[float]:
        """Return the last value given of a metric in each run."""
        values = [run.last_value(metric) for run in self.runs]
        return [value for value in values if value is not None]

    def __repr__(self) -> str:
        knobs = [f"{name}={format_value(value)}" for name, value in self.knobs.items()]
        lines = [" · ".join([self.experiment, *knobs])]
        if not self.runs:
            return f"{lines[0]}: nothing was timed"
        if self.timed_runs:
            lines += self._describe_speed()
        lines.append(f"{format_seconds(self.setup_seconds[0])} set-up, cold")
        if self.peak_memory_bytes is not None:
            lines[-1] += f"; peak memory {format_bytes(self.peak_memory_bytes)}"
        for name in self.metrics:
            if values := self.last_values(name):
                lines.append(f"{name}: {values[-1]:.4g} at the end")
        return "\n  ".join([*lines, *self.remarks()])

    def _describe_speed(self) -> list[str]:
        low, high = self.spread
        count = len(self.timed_runs)
        steps = sum(run.steps for run in self.timed_runs)
        run = "complete run" if self.complete_runs else "run"
        runs = f"range of {count} {run}s" if count > 1 else f"1 {run}"
        return [
            f"{self.items_per_second:,.4g} items/s [{low:,.4g}, {high:,.4g}], {runs}",
            f"{format_seconds(self.step_seconds)} a step, over {steps:,} steps",
        ]

    def remarks(self) -> list[str]:
        """Return sentences about what a reader should know before using the figures."""
        said = {
            "stopped": "Stopped early; what was measured until then is kept.",
            "not settled": "Warm-up did not settle: the speed was still changing.",
            "quick": "Quick mode: two steps, which say nothing about speed.",
        }
        return [said[self.outcome], *self.notes] if self.outcome in said else self.notes


def _geometric_mean(values: Sequence[float]) -> float:
    """Return the mean of logarithms as a value; nan where one is zero or none is."""
    if not values or not all(value > 0 for value in values):
        return math.nan
    return math.exp(math.fsum(map(math.log, values)) / len(values))
