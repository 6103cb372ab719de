"""Finders: settings that suit this machine, on top of `measure` and `compare`.

`tune_loader` finds how many workers a DataLoader needs: it compares some numbers of
them. `find_batch_size` measures a small batch and ever larger ones, until memory ends.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from numbers import Integral, Real
from typing import Any, NamedTuple

from kit import clock, figures
from kit.errors import ExperimentError, naming
from kit.figures import format_bytes, format_number, format_value
from kit.machine import this_machine
from kit.measuring.compare import Request, compare_variants, measure_variant
from kit.measuring.experiment import Experiment, resolve
from kit.measuring.records import Trial
from kit.measuring.report import Comparison
from kit.measuring.run import Variant
from kit.measuring.verdict import SAME, Ratio, compare_trials
from kit.system import available_bytes

__all__ = [
    "BatchSizeTuning",
    "Line",
    "LoaderTuning",
    "find_batch_size",
    "fit_line",
    "tune_loader",
]

#: What an argument should have been, and what to do.
_SECONDS = "a valid time to measure.\nPass a positive number of seconds, or omit it."
_BYTES = "a number of bytes.\nPass memory=2e9, or omit it to use what is free."
_SAMPLES = "a number of samples.\nPass a whole number, most=len(data), or omit it."
_WORKERS = "a number of workers to compare with none.\nPass num_workers=[1, 2, 4]."


def _check_number(name: str, value: Any, kind: type, advice: str) -> None:
    """Raise ExperimentError for what is no positive number of this kind."""
    is_number = isinstance(value, kind) and not isinstance(value, bool)
    if not is_number or not 0 < value < math.inf:
        raise ExperimentError(f"{name}={format_value(value)} is not {advice}")


# What grows along a straight line


class Line(NamedTuple):
    """An amount with a fixed part, and a part that each sample of a batch adds.

    A step's seconds t(b) = t₀ + b / r, its bytes m(b) = m₀ + c b, and a message's
    seconds α + m / β are such lines.

    >>> Line(fixed=0.5, each=0.25).predict(2)
    1.0
    """

    fixed: float
    each: float

    def predict(self, size: float) -> float:
        """Return the amount at a size."""
        return self.fixed + self.each * size

    def find_size(self, amount: float) -> float:
        """Return the size, not rounded, at which an amount is reached.

        Infinite where samples add nothing.

        >>> Line(fixed=0.5, each=0.25).find_size(1.0)
        2.0
        """
        return (amount - self.fixed) / self.each if self.each > 0 else math.inf

    def find_knee(self, share: float = 0.95) -> float:
        """Return the size, not rounded, that reaches a share of the best rate.

        Of seconds per step: b / t(b) comes to `share` of 1 / each, which it never
        reaches, at b = share / (1 - share) · fixed / each. 0 where nothing is fixed,
        infinite where samples add nothing.

        >>> round(Line(fixed=0.5, each=0.25).find_knee(0.8), 6)
        8.0
        """
        if self.each <= 0:
            return math.inf if self.fixed > 0 else 0.0
        return max(0.0, share / (1 - share) * self.fixed / self.each)


def fit_line(sizes: Sequence[float], amounts: Sequence[float]) -> Line:
    """Fit a line to amounts at sizes: least squares of the relative errors.

    Through two points it goes exactly. An error of a tenth counts the same at every
    size, so that the largest does not decide alone. Raises ValueError for fewer than
    two different sizes, and for sizes and amounts that are not finite and above 0.

    >>> line = fit_line([1, 4], [0.75, 1.5])
    >>> round(line.fixed, 6), round(line.each, 6)
    (0.5, 0.25)
    """
    import numpy

    are_positive = all(0 < value < math.inf for value in (*sizes, *amounts))
    if len(sizes) != len(amounts) or len(set(sizes)) < 2 or not are_positive:
        raise ValueError(
            f"fit_line(): sizes={list(sizes)} and amounts={list(amounts)}: give a "
            "finite amount above 0 for each of two or more different sizes above 0"
        )
    weights = [1 / amount for amount in amounts]
    each, fixed = numpy.polyfit(sizes, amounts, 1, w=weights).tolist()
    return Line(fixed, each)


# How many workers

#: Batches are counted: how many items one has, not every loader tells.
_UNIT = "steps/s"


@dataclass(frozen=True)
class LoaderTuning(Comparison):
    """A comparison of numbers of workers; none is the baseline."""

    @property
    def num_workers(self) -> int:
        """The fewest workers whose loop is not surely slower than the fastest one."""
        best = max(self.trials, key=lambda trial: trial.items_per_second)
        enough = [best]
        for trial in self.trials:
            if trial is not best and not _is_slower(compare_trials(best, trial)):
                enough.append(trial)
        return min(map(_count_workers, enough))

    def advice(self) -> str:
        """Return the line of code to write, as a sentence."""
        line = f"Write DataLoader(…, num_workers={self.num_workers})."
        if 0 < self.num_workers == max(map(_count_workers, self.trials)):
            line += f" More may be faster: try num_workers=[{2 * self.num_workers}]."
        return line

    def __repr__(self) -> str:
        return f"{super().__repr__()}\n  {self.advice()}"

    def _repr_html_(self) -> str:
        return super()._repr_html_() + figures.html_sentence(self.advice())


def _count_workers(trial: Trial) -> int:
    return int(trial.knobs["num_workers"])  # type: ignore[call-overload,no-any-return]


def _is_slower(ratio: Ratio) -> bool:
    """Return whether a loop is slower for sure, or was not compared.

    In quick mode there is no interval, and the ratio counts.
    """
    high = ratio.value if math.isnan(ratio.high) else ratio.high
    return not high >= 1 / SAME


def tune_loader(
    make_loader: Callable[..., Any],
    *,
    step: Callable[[Any], object] | None = None,
    num_workers: int | Iterable[int] | None = None,
    seconds: float = 20.0,
) -> LoaderTuning:
    """Find how many workers a DataLoader needs for a training loop to be fastest.

    `make_loader(*, num_workers)` returns a DataLoader. `step(batch)` does one training
    step; without it, batches are only loaded. Each of `num_workers` is compared with
    none: by default powers of two up to the number of cores. That takes about
    `seconds`, longer where starts are expensive. What the step trains is put back.
    Errors of loader, worker and step come as they are, with a note; a loader that gives
    no batch is a ValueError.

    >>> from torch.utils.data import DataLoader
    >>> def make_loader(*, num_workers):
    ...     return DataLoader(range(10_000), batch_size=8, num_workers=num_workers)
    >>> tune_loader(make_loader, num_workers=1, seconds=1.0).num_workers
    0
    """
    name = getattr(make_loader, "__name__", "make_loader")
    with naming("tune_loader()"):
        _check_number("seconds", seconds, Real, _SECONDS)
        variants = [
            _make_loop(name, make_loader, step, count)
            for count in _list_counts(num_workers)
        ]
        made = compare_variants(variants, Request(seconds=seconds, unit=_UNIT))
    return LoaderTuning(made.trials, made.labels, unit=_UNIT)


def _list_counts(num_workers: int | Iterable[int] | None) -> list[int]:
    """Return the numbers of workers that come into question, none first."""
    if num_workers is None:
        cores = this_machine().cores or 1
        powers = {2**exponent for exponent in range(cores.bit_length())}
        return sorted({0, *powers, cores})
    asked = [*num_workers] if isinstance(num_workers, Iterable) else [num_workers]
    some = [count for count in asked if count != 0]
    for count in some or [0]:
        _check_number("num_workers", count, Integral, _WORKERS)
    return sorted({0, *map(int, some)})


def _make_loop(name: str, make_loader: Any, step: Any, num_workers: int) -> Variant:
    """Make a training loop over what `make_loader` makes as a variant."""
    function = partial(_take_batches, make_loader, step)
    # What these reach is put back. A partial has no name: no report of an error shall
    # propose to run the reader's function as if it were an experiment.
    written = partial(step or make_loader)
    experiment = Experiment(function, name, "Take batches.", written=written)
    label = f"num_workers={num_workers}"
    return Variant(experiment, {"num_workers": num_workers}, label)


def _take_batches(make_loader: Any, step: Any, *, num_workers: int) -> Iterator[Any]:
    """Train on one batch after another."""
    loader = make_loader(num_workers=num_workers)
    is_empty = False
    while not is_empty:
        is_empty = True
        for batch in loader:
            is_empty = False
            if step is not None:
                step(batch)
            yield 1
    raise ValueError("no batch arrived: is its data set empty, or drop_last=True?")


# How large a batch

#: The first size. Two samples are started before, for so many seconds: that loads
#: libraries, which are no size's memory, and initializes the accelerator, which then
#: tells how much is free. One sample alone is too few for batch norm.
_FIRST = 8
_SMALLEST = 2
_BRIEFLY = 0.01
#: Each trial is timed for this share of the seconds.
_SHARE_OF_A_TRIAL = 0.1
#: Where nobody says how much memory there is, it is this share of what is free.
_OF_WHAT_IS_FREE = 0.9
#: So often, a size between one that fits and one that does not is tried.
_BISECTIONS = 2
#: A size that is not so many times as large as the last one tells nothing new.
_APART = 1.1
#: A size is enough with this share of the highest speed: smaller differences are for
#: `compare`.
_ENOUGH = 0.95
_OUT_OF_MEMORY = re.compile(
    "out of memory|allocate memory|MemoryError|ALLOC_FAILED", re.IGNORECASE
)
_HEADERS = "size", "per second", "range of its runs", "peak memory"


@dataclass(repr=False)
class BatchSizeTuning:
    """A batch size to train with, the largest that fits, and the trials behind both.

    `trials` are those that fitted into `budget_bytes`, by size; `too_large` has the
    bytes of those that did not, inf where memory ran out. No size above `most` comes
    into question, and none with longer steps than `longest_step` seconds.
    """

    experiment: str
    knob: str
    budget_bytes: float
    most: float
    longest_step: float = math.inf
    trials: dict[int, Trial] = field(default_factory=dict)
    too_large: dict[int, float] = field(default_factory=dict)
    _bisections: int = 0

    @property
    def batch_size(self) -> int:
        """The smallest size tried that is as fast as any, within 5 %."""
        speeds = {n: trial.items_per_second for n, trial in self.trials.items()}
        enough = _ENOUGH * max(speeds.values())
        return min(size for size, speed in speeds.items() if speed >= enough)

    @property
    def largest(self) -> int:
        """The largest size that was tried and fits."""
        return max(self.trials)

    def add(self, size: int, trial: Trial | None) -> None:
        """Keep the trial of a size; None is one that ran out of memory."""
        peak = math.inf if trial is None else _read_peak(trial)
        if trial is None or peak > self.budget_bytes:
            self.too_large[size] = peak
        else:
            self.trials[size] = trial
            self._check_items(size)

    def _check_items(self, size: int) -> None:
        """Raise ExperimentError where steps handle far fewer samples than the size.

        An epoch's last batch may be short, but that halves the average at most.
        """
        smallest = min(self.trials)
        before = _count_items(self.trials[smallest])
        items = _count_items(self.trials[size])
        if items < before * size / smallest / 2:
            raise ExperimentError(
                f"a step yielded {items:.3g} items with {self.knob}={size}, and "
                f"{before:.3g} with {smallest}.\nYield the number of samples (len() of "
                "a batch that is a dict counts its keys), and if the data set has no "
                f"more, pass most={items:.0f}."
            )

    def choose_next(self) -> int | None:
        """Return the size to try next, None where no further one would tell more."""
        above = min(self.too_large, default=math.inf)
        if not self.trials:
            return int(above) // 2 or None
        size = min(2 * self.largest, self.most)
        if above < math.inf:
            size = self._bisect(above)
        while size and self._predict_peak(size) > self.budget_bytes:
            size = self._bisect(size)
        if not clock.find_initialised():
            # Only the machine's memory ends without a word. Memory grows at most with
            # the square, as of a loss over all pairs, so no trial takes more than is
            # free.
            peak = _read_peak(self.trials[self.largest])
            size = min(size, self.largest * math.sqrt(available_bytes() / peak))
        chosen = int(size)
        takes = self.trials[self.largest].step_seconds * chosen / self.largest
        if chosen < _APART * self.largest or takes > self.longest_step:
            return None
        return chosen

    def _bisect(self, above: float) -> float:
        """Return a size between the largest that fits and a larger one; 0 for none."""
        if self._bisections == _BISECTIONS:
            return 0
        self._bisections += 1
        return math.sqrt(self.largest * above)

    def _predict_peak(self, size: float) -> float:
        """Return what a size takes at least: memory grows along a line, or faster."""
        known = sorted(self.trials)
        if len(known) == 1:
            return 0.0
        below, top = (_read_peak(self.trials[n]) for n in known[-2:])
        growth = max(0.0, top - below) / (known[-1] - known[-2])
        return top + growth * (size - known[-1])

    def finding(self) -> str:
        """Return the result in one sentence."""
        speed = f"{self.knob}={self.batch_size:,} is as fast as any size tried"
        budget = format_bytes(self.budget_bytes)
        return (
            f"{self.experiment}: {speed}, within {1 - _ENOUGH:.0%}; "
            f"{self.largest:,} fits into {budget}"
        )

    def rows(self) -> list[tuple[str, ...]]:
        """Return a row per trial: size, items per second, range, peak memory."""
        rows = []
        for size, trial in self.trials.items():
            rate = format_number(trial.items_per_second)
            low, high = map(format_number, trial.spread)
            taken = format_bytes(_read_peak(trial))
            rows.append((f"{size:,}", rate, f"[{low}, {high}]", taken))
        for size, peak in self.too_large.items():
            taken = "ran out" if peak == math.inf else format_bytes(peak)
            rows.append((f"{size:,}", "–", "–", f"{taken}, too much"))
        return rows

    def __repr__(self) -> str:
        return f"{self.finding()}\n{figures.text_table(_HEADERS, self.rows())}"

    def _repr_html_(self) -> str:
        return figures.html_table(_HEADERS, self.rows(), title=self.finding())


def find_batch_size(
    experiment: object,
    /,
    *,
    memory: float | None = None,
    knob: str = "batch_size",
    most: int | None = None,
    seconds: float = 8.0,
    **knobs: object,
) -> BatchSizeTuning:
    """Find the batch size to train with, and the largest that fits into memory.

    `memory` is how many bytes the experiment may take; without it, most of what is
    free: on the accelerator that it uses, else in this machine. `most` is the largest
    size that comes into question, the number of samples for example. The first trial
    has eight samples, each further one twice as many, until memory ends, or a step
    would take longer than `seconds`; then two sizes in between. Each is timed for a
    tenth of `seconds`. Raises ExperimentError for what cannot be asked for, where not
    even one sample fits, and where the experiment fails.

    >>> import torch
    >>> def train(*, batch_size=8):
    ...     net = torch.nn.Sequential(torch.nn.Linear(64, 4096), torch.nn.ReLU())
    ...     while True:
    ...         net(torch.randn(batch_size, 64)).sum().backward()
    ...         yield batch_size
    >>> result = find_batch_size(train, memory=2e8, most=10_000, seconds=0.4)
    >>> result.batch_size <= result.largest <= 10_000
    True
    """
    with naming("find_batch_size()"):
        _check_number("seconds", seconds, Real, _SECONDS)
        if memory is not None:
            _check_number("memory", memory, Real, _BYTES)
        if most is not None:
            _check_number("most", most, Integral, _SAMPLES)
        if knob in knobs:
            raise ExperimentError(
                f"{knob}={format_value(knobs[knob])} is set, but also searched for.\n"
                "Omit it, or name the knob to search for: knob=…."
            )
        resolved = resolve(experiment)
        smallest = min(_SMALLEST, most or _SMALLEST)
        before = _measure(resolved, {**knobs, knob: smallest}, _BRIEFLY)
        budget = memory or _OF_WHAT_IS_FREE * available_bytes()
        result = BatchSizeTuning(resolved.name, knob, budget, most or math.inf, seconds)
        size: int | None = _choose_first(before, most or _FIRST)
        while size is not None:
            each = _SHARE_OF_A_TRIAL * seconds
            result.add(size, _measure(resolved, {**knobs, knob: size}, each))
            size = result.choose_next()
        if not result.trials:
            raise ExperimentError(
                f"{resolved.name} does not fit into {format_bytes(budget)} with "
                f"{knob}={min(result.too_large)}.\nA smaller model or input, "
                "checkpointing, or an optimizer with less state may fit: chapter 07."
            )
    return result


def _choose_first(before: Trial | None, most: int) -> int:
    """Return the first size, given the trial of the smallest; None ran out of memory.

    Where memory ends without a word, it takes no more than there is.
    """
    if before is None:
        return 1
    sizes = [_FIRST, most]
    if not clock.find_initialised():
        sizes.append(int(_SMALLEST * available_bytes() / _read_peak(before)))
    return max(1, min(sizes))


def _measure(
    experiment: Experiment, knobs: Mapping[str, object], seconds: float
) -> Trial | None:
    """Measure a size; None where it runs out of memory, which is an answer, too."""
    variant = Variant(experiment, experiment.bind(knobs))
    try:
        return measure_variant(variant, seconds)
    except Exception as error:
        if not _OUT_OF_MEMORY.search(repr(error)):
            raise
        return None


def _count_items(trial: Trial) -> float:
    """Return the items of a step, on average."""
    return trial.items_per_second * trial.step_seconds


def _read_peak(trial: Trial) -> float:
    """Return the bytes that a trial took; at least one, for a line through them."""
    return max(float(trial.peak_memory_bytes or 0), 1.0)
