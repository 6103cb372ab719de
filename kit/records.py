"""What was measured: `Trial`, its `Run`s and their `Block`s. Data, nothing that runs.

Only raw numbers are stored; rates, spreads and quantiles are derived from them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kit import statistics
from kit.figures import format_value
from kit.machine import Machine

#: The round of first runs: they are cold, and no part of a ratio.
FIRST = -1
#: Step times are told in these quantiles, in percent, from so many single steps on.
_QUANTILES, _LEAST_STEPS = (50, 95, 99), 20


@dataclass
class Block:
    """Consecutive timed steps, in seconds of run time and of wall time.

    `excluded_seconds` is the time before bare yields. `rank_seconds` is each rank's
    wall time where there are several. `metrics` are those of the steps, by a step's
    number; `ended` says that the generator ended.
    """

    seconds: float = 0.0
    wall_seconds: float = 0.0
    items: float = 0.0
    steps: int = 0
    excluded_seconds: float = 0.0
    rank_seconds: list[float] = field(default_factory=list)
    metrics: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    ended: bool = False

    def extend(self, other: Block) -> None:
        """Add the steps of a block that follows.

        >>> block = Block(1.0, 1.0, items=8, steps=2)
        >>> block.extend(Block(0.5, 0.5, items=4, steps=1))
        >>> block.seconds, block.items, block.steps
        (1.5, 12, 3)
        """
        self.metrics += [(self.steps + step, row) for step, row in other.metrics]
        self.seconds += other.seconds
        self.wall_seconds += other.wall_seconds
        self.items += other.items
        self.steps += other.steps
        self.excluded_seconds += other.excluded_seconds
        pairs = itertools.zip_longest(
            self.rank_seconds, other.rank_seconds, fillvalue=0.0
        )
        self.rank_seconds = [own + following for own, following in pairs]
        self.ended = other.ended


@dataclass
class Run:
    """One start of an experiment, and what was timed until its close.

    Runs of two variants with an equal `round` were measured together; FIRST is the
    round of first runs. `interleaved` says that the other run of the round went on
    between the blocks. `setup_seconds` is run time to the first yield, `memory_bytes`
    what start and warm-up added, where that was watched. `settled` says that warm-up
    ended with equal speeds. `metrics` has one float per timed step, None where it was
    not given.
    """

    round: int
    setup_seconds: float = math.nan
    memory_bytes: int | None = None
    settled: bool = True
    interleaved: bool = False
    blocks: list[Block] = field(default_factory=list)
    metrics: dict[str, list[float | None]] = field(default_factory=dict)

    def add(self, block: Block) -> None:
        """Keep a block, and the metrics of its steps."""
        done = self.steps
        self.blocks.append(block)
        for step, row in block.metrics:
            for name, value in row.items():
                column = self.metrics.setdefault(name, [])
                column += [None] * (done + step - len(column))
                column.append(value)
        for column in self.metrics.values():
            column += [None] * (self.steps - len(column))

    @property
    def seconds(self) -> float:
        """Run time of all blocks."""
        return math.fsum(block.seconds for block in self.blocks)

    @property
    def items(self) -> float:
        """How many items all blocks handled."""
        return math.fsum(block.items for block in self.blocks)

    @property
    def steps(self) -> int:
        """How many steps were timed."""
        return sum(block.steps for block in self.blocks)

    @property
    def items_per_second(self) -> float:
        """All items over all seconds; nan without a block."""
        return self.items / self.seconds if self.blocks else math.nan

    def last_value(self, metric: str) -> float | None:
        """Return the last value that was given of a metric; None where none was."""
        for value in reversed(self.metrics.get(metric, [])):
            if value is not None:
                return value
        return None


@dataclass(frozen=True, repr=False)
class Trial:
    """All runs of one experiment with one set of knobs.

    `complete_runs` says that each run went to the generator's end. `outcome` is
    "finished", "stopped", "not settled" or "disturbed". `conditions` says how busy the
    machine was meanwhile. Bytes are bytes, times seconds.
    """

    experiment: str
    title: str
    knobs: dict[str, object]
    runs: list[Run]
    machine: Machine
    source: str
    started: str
    outcome: str
    complete_runs: bool = False
    notes: list[str] = field(default_factory=list)
    conditions: dict[str, float] = field(default_factory=dict)

    @property
    def blocks(self) -> list[Block]:
        """The blocks of all runs, in order."""
        return [block for run in self.runs for block in run.blocks]

    @property
    def block_seconds(self) -> list[float]:
        """Run time of each block."""
        return [block.seconds for block in self.blocks]

    @property
    def setup_seconds(self) -> list[float]:
        """How long each start took to its first yield, the first one cold."""
        return [run.setup_seconds for run in self.runs]

    @property
    def peak_memory_bytes(self) -> int | None:
        """What the first start and warm-up added; None where that was not watched."""
        return self.runs[0].memory_bytes if self.runs else None

    @property
    def excluded_seconds(self) -> float:
        """How much time before bare yields was left out."""
        return math.fsum(block.excluded_seconds for block in self.blocks)

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
        values = (run.last_value(metric) for run in self.runs)
        return [value for value in values if value is not None]

    @property
    def rounds(self) -> set[int]:
        """The rounds, but the first runs', in which it was timed."""
        return {run.round for run in self.runs if run.blocks} - {FIRST}

    @property
    def timed_runs(self) -> list[Run]:
        """The runs that have blocks; first runs only where there are no others."""
        timed = [run for run in self.runs if run.blocks]
        later = [run for run in timed if run.round != FIRST]
        return later or timed

    @property
    def items_per_second(self) -> float:
        """Items over seconds of a run, all blocks together; the mean over runs.

        The mean is that of the logarithms: code that is started again is not equally
        fast, so a run is one value (Kalibera & Jones 2013, "Rigorous benchmarking in
        reasonable time").
        """
        return _geometric_mean([run.items_per_second for run in self.timed_runs])

    @property
    def step_seconds(self) -> float:
        """Seconds per step, the mean over runs as for `items_per_second`."""
        return _geometric_mean([run.seconds / run.steps for run in self.timed_runs])

    @property
    def spread(self) -> tuple[float, float]:
        """The slowest and the fastest run, in items per second.

        This is no confidence interval: a machine's speed drifts by more than a few runs
        within seconds can show. Only `compare` decides small differences.
        """
        rates = [run.items_per_second for run in self.timed_runs]
        return min(rates, default=math.nan), max(rates, default=math.nan)

    @property
    def step_quantiles(self) -> dict[int, float] | None:
        """Seconds that 50, 95 and 99 % of the steps do not exceed, by percent.

        None where blocks hold several steps, are complete runs, or are fewer than 20.
        """
        import numpy as np

        are_single = all(block.steps == 1 for block in self.blocks)
        if self.complete_runs or not are_single or len(self.blocks) < _LEAST_STEPS:
            return None
        values = np.percentile(self.block_seconds, _QUANTILES, method="inverted_cdf")
        return dict(zip(_QUANTILES, values.tolist(), strict=True))

    @property
    def has_rare_slow_steps(self) -> bool:
        """Whether the mean time per item is over 2 % above the median block's."""
        if self.complete_runs:
            return False
        items = [block.items for block in self.blocks]
        return statistics.has_rare_slow_steps(items, self.block_seconds)

    def heading(self) -> str:
        """Return experiment and knobs on one line."""
        knobs = [f"{name}={format_value(value)}" for name, value in self.knobs.items()]
        return " · ".join([self.experiment, *knobs])

    def __repr__(self) -> str:
        return _show_text(self)

    def _repr_html_(self) -> str:
        return _show_html(self)


def _geometric_mean(values: Sequence[float]) -> float:
    """Return the mean of logarithms as a value; nan where one is zero or none is."""
    if not values or not all(value > 0 for value in values):
        return math.nan
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def _show_text(trial: Trial) -> str:
    return f"<Trial of {trial.heading()}>"


def _show_html(trial: Trial) -> str:
    return _show_text(trial)


def register_report(
    show_text: Callable[[Trial], str], show_html: Callable[[Trial], str]
) -> None:
    """Say how trials are shown: these records know nothing of reports."""
    global _show_text, _show_html
    _show_text, _show_html = show_text, show_html
