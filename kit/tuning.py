"""Finders: settings that suit this machine, on top of `measure` and `compare`.

`tune_loader` finds how many workers a DataLoader needs: loading and the step are timed
without any, a formula predicts the loop for each number of workers, and the best few
are compared. `find_batch_size` measures a small batch and ever larger ones, until
memory ends.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from numbers import Integral, Real
from statistics import fmean
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
    "predict_loader",
    "tune_loader",
]

#: What an argument should have been, and what to do.
_SECONDS = "a time to measure for.\nSay a positive number of seconds, or leave it out."
_BYTES = "a number of bytes.\nSay memory=2e9, or leave it out to take what is free."
_SAMPLES = "a number of samples.\nSay a whole number, most=len(data), or leave it out."
_WORKERS = "a number of workers to compare with none.\nSay some, num_workers=[1, 2, 4]."


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


def predict_loader(
    num_workers: int,
    *,
    load_seconds: float,
    step_seconds: float = 0.0,
    waiting_seconds: float = 0.0,
    cores: float | None = None,
    step_cores: float = 1.0,
) -> float:
    """Predict the seconds per batch of a training loop that a DataLoader feeds.

    `load_seconds` is what one process needs to make a batch. For `waiting_seconds` of
    them it waits, for storage say, and needs no core. `step_seconds` is the training
    step alone, which keeps `step_cores` cores busy (its threads; few where a GPU does
    the work). `cores=None` means more cores than are needed.

    Without workers one process does everything in turn. With n workers a batch takes as
    long as the slowest of three: the workers, n at a time; the main process; the cores,
    which share all the computing. This is the bottleneck law of queueing networks
    (Lazowska et al. 1984, "Quantitative System Performance", chapter 5): no loop is
    faster than it, and one with enough batches in flight comes close.

    >>> predict_loader(4, load_seconds=0.08, step_seconds=0.03, cores=2)
    0.055
    >>> predict_loader(8, load_seconds=0.4, waiting_seconds=0.36, cores=2)
    0.05
    """
    if num_workers == 0:
        return load_seconds + step_seconds
    computing = load_seconds - waiting_seconds + step_cores * step_seconds
    shared = computing / (cores or math.inf)
    return max(load_seconds / num_workers, step_seconds, shared)


#: Batches are counted: how many items one has, not every loader tells.
_UNIT = "steps/s"
#: Loading and the step are timed for this share of the time beforehand.
_SHARE_OF_PARTS = 0.1
#: The rounds have this share: five pairs of them take longer than they may.
_SHARE_OF_ROUNDS = 0.5


@dataclass(frozen=True)
class LoaderTuning(Comparison):
    """A comparison of numbers of workers, none the baseline, and what was predicted.

    `predicted` has batches per second for each number that came into question.
    """

    predicted: dict[int, float] = field(default_factory=dict)

    @property
    def num_workers(self) -> int:
        """The fewest workers whose loop is not slower than the fastest one."""
        best = max(self.trials, key=lambda trial: trial.items_per_second)
        enough = [best]
        for trial in self.trials:
            if trial is not best and not _is_slower(compare_trials(best, trial)):
                enough.append(trial)
        return min(int(trial.knobs["num_workers"]) for trial in enough)  # type: ignore[call-overload]

    def advice(self) -> tuple[str, str]:
        """Return the line of code to write, and what was predicted, as sentences."""
        line = f"Write DataLoader(…, num_workers={self.num_workers})."
        if 0 < self.num_workers == max(self.predicted):
            line += f" More may be faster: num_workers=[{2 * self.num_workers}] asks."
        rates = (f"{n}: {format_number(rate)}" for n, rate in self.predicted.items())
        return line, f"Predicted {_UNIT} by workers: {', '.join(rates)}."

    def __repr__(self) -> str:
        return "\n  ".join([super().__repr__(), *self.advice()])

    def _repr_html_(self) -> str:
        return super()._repr_html_() + figures.html_sentence(*self.advice())


def _is_slower(ratio: Ratio) -> bool:
    """Return whether a loop is slower for sure; in quick mode, whether it seems so."""
    high = ratio.value if math.isnan(ratio.high) else ratio.high
    return high < 1 / SAME


def tune_loader(
    make_loader: Callable[..., Any],
    *,
    step: Callable[[Any], object] | None = None,
    num_workers: int | Iterable[int] | None = None,
    seconds: float = 20.0,
) -> LoaderTuning:
    """Find how many workers a DataLoader needs for a training loop to be fastest.

    `make_loader(*, num_workers)` returns a DataLoader. `step(batch)` does one training
    step; without it, batches are only loaded. Both are timed without workers. From
    that, `predict_loader` predicts the loop for each of `num_workers`, by
    default powers of two up to the number of cores. The fewest that should be enough,
    one choice below them, and the most are compared with none. That takes about
    `seconds`, longer where starts are expensive. What the step trains is put back.
    Errors of loader, worker and step come as they are, with a note; a loader that
    gives no batch is a ValueError.

    >>> from torch.utils.data import DataLoader
    >>> def make_loader(*, num_workers):
    ...     return DataLoader(range(10_000), batch_size=8, num_workers=num_workers)
    >>> tune_loader(make_loader, num_workers=1, seconds=1.0).num_workers
    0
    """
    name = getattr(make_loader, "__name__", "make_loader")
    with naming("tune_loader()"):
        _check_number("seconds", seconds, Real, _SECONDS)
        counts = _list_counts(num_workers)
        make_loop = partial(_make_loop, name, make_loader, step)
        timed = make_loop(0, wait=clock.synchronize)
        trial = measure_variant(timed, _SHARE_OF_PARTS * seconds)
        parts = _find_parts(trial)
        predicted = {count: 1 / predict_loader(count, **parts) for count in counts}
        variants = [make_loop(count) for count in _choose_counts(predicted)]
        request = Request(seconds=_SHARE_OF_ROUNDS * seconds, unit=_UNIT)
        made = compare_variants(variants, request)
    return LoaderTuning(made.trials, made.labels, unit=_UNIT, predicted=predicted)


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


def _find_parts(trial: Trial) -> dict[str, Any]:
    """Return what a prediction needs of a loop that was timed without workers."""
    step = fmean(trial.metrics["step"])
    computing = fmean(trial.metrics["computing"])
    return {
        "load_seconds": trial.step_seconds - step,
        "step_seconds": step,
        # Of both; less than none where several cores compute at once.
        "waiting_seconds": trial.step_seconds - computing,
        "cores": this_machine().cores,
    }


def _choose_counts(predicted: Mapping[int, float]) -> list[int]:
    """Return the numbers of workers to compare, none first."""
    none, *counts = predicted
    best = max(predicted[count] for count in counts)
    enough = next(count for count in counts if predicted[count] * SAME >= best)
    # No formula knows what is uneven, or in the way: it shows on either side.
    below = counts[max(0, counts.index(enough) - 1)]
    return sorted({none, below, enough, counts[-1]})


def _make_loop(
    name: str, make_loader: Any, step: Any, num_workers: int, wait: Any = None
) -> Variant:
    """Make a training loop over what `make_loader` makes as a variant."""
    function = partial(_take_batches, make_loader, step, wait)
    # What these reach is put back. A partial has no name: no report of an error shall
    # propose to run the reader's function as if it were an experiment.
    written = partial(step or make_loader)
    experiment = Experiment(function, name, "Take batches.", written=written)
    label = f"num_workers={num_workers}"
    return Variant(experiment, {"num_workers": num_workers}, label)


def _take_batches(
    make_loader: Any, step: Any, wait: Any, *, num_workers: int
) -> Iterator[Any]:
    """Train on one batch after another; time the step, and what this process computes.

    `wait` waits for an accelerator: only where the step is to be timed.
    """
    loader = make_loader(num_workers=num_workers)
    is_empty = False
    while not is_empty:
        is_empty = True
        before = clock.processor_seconds()
        for batch in loader:
            is_empty = False
            begun = clock.CLOCK.wall()
            if step is not None:
                step(batch)
            if wait is not None:
                wait()
            took = clock.CLOCK.wall() - begun
            now = clock.processor_seconds()
            yield 1, {"step": took, "computing": now - before}
            before = now
    raise ValueError("no batch came: is its data set empty, or drop_last=True?")


# How large a batch

#: So many trials are made at most; they share the time.
_MOST_TRIALS = 5
#: The first size. Two samples are started before, for so many seconds: that loads
#: libraries, which are no size's memory, and initializes the accelerator, which then
#: tells how much is free. One sample alone is too few for batch norm.
_FIRST = 8
_SMALLEST = 2
_BRIEFLY = 0.01
#: The next size is at most so many times as large as the last one.
_LEAP = 8
#: A size aims at this share of the memory. Where nobody says how much there is, it is
#: this share of what is free.
_AIM = 0.9
#: The largest size is computed for this share of it.
_REACH = 0.98
#: The largest size that takes more than this share of it is tried again: memory differs
#: from start to start.
_SURE = 0.95
#: A size that is not so many times as large as the last one tells nothing new.
_APART = 1.05
#: A smaller difference in memory than this share, or than so many bytes, says nothing
#: about how memory grows: an allocator keeps what was freed, and hands it out again in
#: pieces.
_NOISE_SHARE = 0.1
_NOISE_BYTES = 4e6
#: A size is enough with this share of the highest speed: smaller differences are for
#: `compare`.
_ENOUGH = 0.97
_OUT_OF_MEMORY = re.compile(
    "out of memory|allocate memory|MemoryError|ALLOC_FAILED", re.IGNORECASE
)
_HEADERS = "size", "per second", "range of its runs", "peak memory"


@dataclass(repr=False)
class BatchSizeTuning:
    """A batch size to train with, the largest that fits, and the trials behind both.

    `trials` are those that fitted into `budget_bytes`, by size; `too_large` has the
    bytes of those that did not, inf where memory ran out; `repeated` are the sizes that
    were tried twice, of which the trial with more memory counts. No size above `most`
    comes into question.
    """

    experiment: str
    knob: str
    budget_bytes: float
    most: float
    trials: dict[int, Trial] = field(default_factory=dict)
    too_large: dict[int, float] = field(default_factory=dict)
    repeated: list[int] = field(default_factory=list)

    @property
    def trials_made(self) -> int:
        """How many trials were made, those of one size again included."""
        return len(self.trials) + len(self.too_large) + len(self.repeated)

    @property
    def batch_size(self) -> int:
        """The smallest size tried that is as fast as any, within 3 %."""
        speeds = {n: trial.items_per_second for n, trial in self.trials.items()}
        enough = _ENOUGH * max(speeds.values())
        return min(size for size, speed in speeds.items() if speed >= enough)

    @property
    def largest(self) -> int:
        """The largest size that fits; by the growth that was seen, if not tried."""
        top = max(self.trials)
        size = self._predict_size(_REACH * self.budget_bytes, is_cautious=True)
        if size >= min(self.too_large, default=math.inf):
            return top  # its prediction is refuted, or there is none
        return max(top, int(min(size, self.most)))

    def _predict_size(self, amount: float, is_cautious: bool = False) -> float:
        """Return the size at which memory comes to an amount; inf where nobody knows.

        On the line through the largest size whose memory is known, which may have been
        too large, and the next smaller one that took clearly less. A step's memory is
        no line where gradients hide what a small batch needs, but it bends upward only:
        what lies between two sizes lies below their line.
        """
        peaks = {size: _read_peak(trial) for size, trial in self.trials.items()}
        if self.too_large:
            above = min(self.too_large)
            if self.too_large[above] < math.inf:
                peaks[above] = self.too_large[above]
        top = max(peaks)
        noise = max(_NOISE_BYTES, _NOISE_SHARE * peaks[top])
        clearly_less = [n for n, peak in peaks.items() if peaks[top] - peak > noise]
        if not clearly_less:
            return math.inf
        below = max(clearly_less)
        end = peaks[top] + (noise if is_cautious else 0.0)
        return fit_line([below, top], [peaks[below], end]).find_size(amount)

    def add(self, size: int, trial: Trial | None) -> None:
        """Keep the trial of a size; None is one that ran out of memory."""
        before = self.trials.pop(size, None)
        if before is not None:
            self.repeated.append(size)
        if trial is None:
            self.too_large[size] = math.inf
            return
        if before is not None:
            trial = max(before, trial, key=_read_peak)
        if _read_peak(trial) > self.budget_bytes:
            self.too_large[size] = _read_peak(trial)
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
                "a batch that is a dict counts its keys), and where the data set has "
                f"no more, say most={items:.0f}."
            )

    def choose_next(self) -> int | None:
        """Return the size to try next, None where no further one would tell more."""
        if self.trials_made == _MOST_TRIALS:
            return None
        if not self.trials:
            return None if 1 in self.too_large else 1
        top = max(self.trials)
        peak = _read_peak(self.trials[top])
        above = min(self.too_large, default=math.inf)
        aim = max(_AIM * self.budget_bytes, (peak + self.budget_bytes) / 2)
        if self.too_large.get(above, math.inf) < math.inf:
            aim = _REACH * self.budget_bytes  # what lies below their line fits
        predicted = self._predict_size(aim)
        sizes = [self.most, _LEAP * top, predicted]
        if predicted >= above:
            sizes.append(math.sqrt(top * above))
        if not clock.find_initialised():
            # Only the machine's memory ends without a word. Memory grows at most with
            # the square, as of a loss over all pairs, so no trial takes more than is
            # free.
            sizes.append(top * math.sqrt(available_bytes() / peak))
        size = int(min(sizes))
        if size > _APART * top:
            return size
        is_sure = peak <= _SURE * self.budget_bytes or top in self.repeated
        return None if is_sure else top

    def finding(self) -> str:
        """Return the result in one sentence."""
        speed = f"{self.knob}={self.batch_size:,} is as fast as any size tried"
        fits = "fits" if self.largest in self.trials else "should fit"
        budget = format_bytes(self.budget_bytes)
        return (
            f"{self.experiment}: {speed}, within {1 - _ENOUGH:.0%}; "
            f"{self.largest:,} {fits} into {budget}"
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
    size that comes into question, the number of samples for example. At most five
    trials are made, the first with eight samples; `seconds` are timed in all. Raises
    ExperimentError for what cannot be asked for, where not even one sample fits, and
    where the experiment fails.

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
                f"{knob}={format_value(knobs[knob])} is set, and searched for.\n"
                "Leave it out, or name the knob to search for: knob=…."
            )
        resolved = resolve(experiment)
        smallest = min(_SMALLEST, most or _SMALLEST)
        before = _measure(resolved, {**knobs, knob: smallest}, _BRIEFLY)
        budget = memory or _AIM * available_bytes()
        size: int | None = _choose_first(before, most or _FIRST)
        result = BatchSizeTuning(resolved.name, knob, budget, most or math.inf)
        while size is not None:
            trial = _measure(resolved, {**knobs, knob: size}, seconds / _MOST_TRIALS)
            result.add(size, trial)
            size = result.choose_next()
        if not result.trials:
            raise ExperimentError(
                f"{resolved.name} does not fit into {format_bytes(budget)} with "
                f"{knob}={min(result.too_large)}.\nA smaller model or input, "
                "checkpointing, or an optimizer with less state may: chapter 07."
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
