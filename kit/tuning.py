"""Finders: settings that suit this machine, predicted first and then measured.

`tune_loader` finds how many workers a DataLoader needs: each part of the loop is timed
alone, a formula predicts the loop for each number of workers, and the best few are
compared. `find_batch_size` tries a small batch, then larger ones along two lines, of
seconds and of bytes; what it says of speed, it says of sizes that were tried.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import re
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from kit import clock, figures
from kit.costs import fit_line, predict_loader
from kit.errors import ExperimentError, naming
from kit.figures import format_bytes, format_number, format_value
from kit.machine import this_machine
from kit.measuring.comparison import Comparison
from kit.measuring.experiment import Experiment, resolve
from kit.measuring.measurement import compare_watched
from kit.measuring.request import Request, make_variant
from kit.measuring.run import Driver, drive
from kit.measuring.variant import Variant, make_trial
from kit.mode import is_quick
from kit.progress import Progress, take_turn
from kit.records import FIRST, Trial
from kit.statistics import SAME, Estimate, judge_ratio, rate_interval
from kit.system import available_bytes

__all__ = ["BatchSizeTuning", "LoaderTuning", "find_batch_size", "tune_loader"]

# How many workers

#: Loading and the step are timed for this share of the time beforehand; five pairs
#: take longer than they may.
_SHARE_OF_A_PART, _SHARE_OF_PAIRS = 0.05, 0.5


@dataclass(frozen=True)
class LoaderTuning(Comparison):
    """A comparison of numbers of workers, none the baseline, and what was predicted.

    `predicted` has items per second for each number that came into question.
    """

    predicted: dict[int, float] = field(default_factory=dict)

    @property
    def num_workers(self) -> int:
        """The fewest workers whose loop is as fast as the fastest one, within 2 %."""
        told = {t.knobs["num_workers"]: self.quantity(t)[0] for t in self.trials}
        good = [n for n, rate in told.items() if rate * SAME >= max(told.values())]
        return min(map(int, map(str, good)))

    def advice(self) -> tuple[str, str]:
        """Return the line of code to write, and what was predicted, as sentences."""
        line = f"Write DataLoader(…, num_workers={self.num_workers})."
        if 0 < self.num_workers == max(self.predicted):
            line += f" More may be faster: num_workers=[{2 * self.num_workers}] asks."
        rates = (f"{n}: {format_number(rate)}" for n, rate in self.predicted.items())
        return line, f"Predicted items per second by workers: {', '.join(rates)}."

    def __repr__(self) -> str:
        return "\n  ".join([super().__repr__(), *self.advice()])

    def _repr_html_(self) -> str:
        return super()._repr_html_() + figures.html_sentence(*self.advice())


def tune_loader(
    make_loader: Callable[..., Any],
    *,
    step: Callable[[Any], object] | None = None,
    num_workers: int | Iterable[int] | None = None,
    seconds: float = 20.0,
) -> LoaderTuning:
    """Find how many workers a DataLoader needs for a training loop to be fastest.

    `make_loader(*, num_workers)` returns a DataLoader. `step(batch)` does one training
    step; without it, batches are only loaded. Loading a batch and the step are timed
    alone. From both, `kit.costs.predict_loader` predicts the loop for each of
    `num_workers`, by default up to twice the cores. The fewest that should be enough,
    one choice below them, and the most are compared with none. That takes about
    `seconds`, longer where starts are dear. What the step trains is put back. Raises
    ExperimentError where loader, worker or step fails.

    >>> from torch.utils.data import DataLoader
    >>> def make_loader(*, num_workers):
    ...     return DataLoader(range(10_000), batch_size=8, num_workers=num_workers)
    >>> tune_loader(make_loader, num_workers=1, seconds=1.0).num_workers
    0
    """
    name = getattr(make_loader, "__name__", "make_loader")
    with _told(name), Progress(f"tuning {name}") as progress, take_turn(progress):
        counts = _check_counts(num_workers)
        Request(seconds=seconds or 0).check()
        loop = partial(_make_loop, name, step or make_loader)
        read = loop(make_loader, None, 0)
        items, load, busy = _time(read, progress, _SHARE_OF_A_PART * seconds)
        parts = {"load_seconds": load, "waiting_seconds": max(0.0, load - busy)}
        if step is not None:
            repeat = loop(partial(_keep, make_loader), step, 0)
            _, took, busy = _time(repeat, progress, _SHARE_OF_A_PART * seconds)
            parts |= {"step_seconds": took, "step_cores": busy / took}
        predict = partial(predict_loader, cores=this_machine().cores, **parts)
        predicted = {count: items / predict(count) for count in (0, *counts)}
        best = max(predicted[count] for count in counts)
        enough = next(n for n, c in enumerate(counts) if predicted[c] * SAME >= best)
        # No formula knows what is uneven, or in the way: it shows on either side.
        near = {*counts[max(0, enough - 1) : enough + 1], counts[-1]}
        variants = [loop(make_loader, step, count) for count in (0, *sorted(near))]
        request = Request(seconds=_SHARE_OF_PAIRS * seconds, is_kept=False)
        made = compare_watched(variants, progress, request)
    return LoaderTuning(made.trials, made.labels, predicted=predicted)


@contextlib.contextmanager
def _told(name: str) -> Generator[None, None, None]:
    """Say whose error it is, and how to see what failed in a loop without the kit."""
    try:
        yield
    except ExperimentError as error:
        lines = f"tune_loader(): {error}".splitlines()
        if error.__cause__ is not None:
            lines[-1] = "The traceback shows the line. Without the kit: batch = next("
            lines[-1] += f"iter({name}(num_workers=1))), and the step with it."
        raise ExperimentError("\n".join(lines)) from error.__cause__


def _check_counts(num_workers: int | Iterable[int] | None) -> list[int]:
    """Return the numbers of workers that come into question besides none."""
    if num_workers is None:
        num_workers = range(2 * (this_machine().cores or 1) + 1)
    asked = [*num_workers] if isinstance(num_workers, Iterable) else [num_workers]
    if not (all(type(n) is int and n >= 0 for n in asked) and any(asked)):
        raise ExperimentError(
            f"num_workers={format_value(num_workers)} is no choice of workers.\n"
            "Pass some, [1, 2, 4] say, or leave it out; none is always tried."
        )
    return sorted({*asked} - {0})


def _keep(make_loader: Callable[..., Any], *, num_workers: int) -> Iterator[Any]:
    """Return one batch of a loader, again and again."""
    return itertools.repeat(next(iter(make_loader(num_workers=num_workers))))


def _make_loop(name: str, written: Any, make: Any, step: Any, count: int) -> Variant:
    """Make a training loop over what `make` makes as a variant."""

    def feed(*, num_workers: int) -> Iterator[int]:
        loader, taken = make(num_workers=num_workers), True
        items = getattr(getattr(loader, "batch_sampler", None), "batch_size", 1)
        while taken:
            taken = False
            for batch in loader:
                taken = True
                if step is not None:
                    step(batch)
                yield items
        raise ValueError("no batch came: is its data set empty, or drop_last=True?")

    experiment = Experiment(feed, name, "Take batches.", written=written)
    label = f"num_workers={count}"
    return make_variant(experiment, {"num_workers": count}, label=label)


def _time(variant: Variant, progress: Progress, seconds: float) -> tuple[float, ...]:
    """Time one run; return items, seconds and processor seconds per step."""
    with contextlib.closing(variant), drive(variant, 0, progress) as driver:
        driver.open()
        driver.warm_up(seconds)
        busy = clock.processor_seconds()
        _time_blocks(driver, seconds)
        busy = clock.processor_seconds() - busy
    run = driver.run
    return run.items / run.steps, run.seconds / run.steps, busy / run.steps


def _time_blocks(driver: Driver, seconds: float, least: int = 1) -> None:
    """Time blocks for so many seconds, and at least so many."""
    begun = clock.CLOCK.wall()
    blocks = driver.run.blocks
    while not (is_quick() and blocks):
        driver.time_block()
        if clock.CLOCK.wall() - begun >= seconds and len(blocks) >= least:
            break


# How large a batch

#: The first size is small; one sample alone is too few for batch norm.
_SMALLEST, _MOST_TRIALS = 2, 5
#: The second size is so many times the first. A later one's step takes so many times as
#: long as the last one's, and has at most so many times as many samples.
_SECOND, _LONGER, _LARGER = 4, 4, 16
#: A trial aims at this share of the budget; where nobody says one, it is this share of
#: what is free. The largest size is reckoned for the second. Sizes closer than the
#: third tell nothing new.
_SHARE, _REACH, _APART = 0.9, 0.98, 1.15
#: Memory is told by so many bytes, or by this share of it, at best: an allocator keeps
#: what was freed, and hands it out again in pieces.
_NOISE_BYTES, _NOISE_SHARE = 4e6, 0.1
#: Two blocks tell next to nothing about each other; a long step needs no warm-up.
_LEAST_BLOCKS, _LONG_STEP = 4, 0.1
#: However wide the intervals, a size so much slower than the best is not as good.
_ENOUGH = 0.95
_OUT_OF_MEMORY = re.compile("out of memory|allocate memory|MemoryError", re.IGNORECASE)
_HEADERS = "size", "per second", "95 %, of this start", "peak memory"


@dataclass(repr=False)
class BatchSizeTuning:
    """A batch size to train with, the largest that fits, and the trials behind both.

    `trials` are those that fitted into `budget_bytes`, by size; `too_large` has the
    bytes of those that did not, inf where memory ran out. No size above `most` comes
    into question.
    """

    experiment: str
    knob: str
    budget_bytes: float
    most: float
    trials: dict[int, Trial] = field(default_factory=dict)
    too_large: dict[int, float] = field(default_factory=dict)

    @property
    def batch_size(self) -> int:
        """The smallest size tried that is not slower than the fastest one tried.

        As far as intervals tell; where they are wide, within 5 %.
        """
        best = max(self.trials.values(), key=lambda trial: trial.items_per_second)
        return next(n for n, trial in self.trials.items() if _is_as_fast(trial, best))

    @property
    def largest(self) -> int:
        """The largest size that fits; by the growth that was seen, if not tried."""
        far = self._find_size(_REACH * self.budget_bytes, at_worst=True)
        top = max(self.trials)
        return max(top, int(min(far, self.most))) if far < math.inf else top

    def _find_size(self, amount: float, *, at_worst: bool = False) -> float:
        """Return the size at which memory comes to an amount; inf where none is seen.

        On the line through the last two trials, one of which may have been too large.
        A step's memory is no line where gradients hide what a small batch needs, but it
        bends upward only: what lies between two sizes lies below their line.
        """
        peaks = {size: _read_peak(trial) for size, trial in self.trials.items()}
        peaks |= dict([*self.too_large.items()][-1:])  # each is smaller than the last
        (before, start), (top, peak) = [(0, 0.0), *peaks.items()][-2:]
        noise = max(_NOISE_BYTES, _NOISE_SHARE * peak)
        risen = peak - start
        grown = max(risen, 0.0) + noise if at_worst else risen * (risen > noise)
        is_known = before and grown and peak < math.inf
        each = grown / (top - before)
        return before + (amount - start) / each if is_known else math.inf

    def choose_next(self) -> int | None:
        """Return the size to try next, None where no further one would tell more."""
        if not self.trials:
            return 1 if min(self.too_large) > 1 else None
        top, last = [*self.trials.items()][-1]
        peak, longer = _read_peak(last), _SECOND * top
        if len(self.trials) > 1:
            steps = [trial.step_seconds for trial in self.trials.values()]
            times = fit_line([*self.trials], steps)
            longer = times.find_size(_LONGER * last.step_seconds)
        goal = max(_SHARE * self.budget_bytes, (peak + self.budget_bytes) / 2)
        above = min(self.too_large, default=math.inf)
        sizes = [self.most, longer, _LARGER * top, self._find_size(goal)]
        sizes.append(math.sqrt(top * above))
        if not clock.find_initialised():
            # Only the machine's memory ends without a word. Memory grows at most in
            # proportion, so a trial takes no more than there is.
            sizes.append(top * available_bytes() / peak)
        size = int(min(sizes))
        return size if size > _APART * top else None

    def finding(self) -> str:
        """Return the result in one sentence, which the trials' intervals support."""
        own, chosen = self.trials[self.batch_size], f"{self.knob}={self.batch_size:,}"
        lows = [_compare(own, x).low for x in self.trials.values() if x is not own]
        sure = all(low >= 1 / SAME for low in lows)
        speed = f"no size tried is clearly faster than {chosen}"
        speed = f"{chosen} is as fast as any size tried" if sure else speed
        fits = "fits" if self.largest in self.trials else "should fit"
        budget = format_bytes(self.budget_bytes)
        return f"{self.experiment}: {speed}; {self.largest:,} {fits} into {budget}"

    def rows(self) -> list[tuple[str, ...]]:
        """Return a row per trial: size, items per second, interval, peak memory."""
        rows = []
        for size, trial in self.trials.items():
            rate, low, high = map(format_number, _estimate_rate(trial))
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
    sizes are tried, the first with two samples; `seconds` are timed in all, and four
    steps at least of each. Raises ExperimentError for what cannot be asked for, where
    not even one sample fits, and where the experiment fails.

    >>> import torch
    >>> def train(*, batch_size=8):
    ...     net = torch.nn.Sequential(torch.nn.Linear(64, 4096), torch.nn.ReLU())
    ...     while True:
    ...         net(torch.randn(batch_size, 64)).sum().backward()
    ...         yield batch_size
    >>> found = find_batch_size(train, memory=2e8, most=10_000, seconds=0.4)
    >>> found.batch_size <= found.largest <= 10_000
    True
    """
    with naming("find_batch_size()"):
        resolved = resolve(experiment)
        _check_amounts(memory=memory, most=most, seconds=seconds)
        budget, samples = memory or math.inf, most or math.inf
        found = BatchSizeTuning(resolved.name, knob, budget, samples)
        title = f"finding {knob} of {resolved.name}"
        size: int | None = min(_SMALLEST, most or _SMALLEST)
        with Progress(title) as progress, take_turn(progress):
            for number in range(_MOST_TRIALS):
                progress.begin(number, _MOST_TRIALS)
                variant = Variant(resolved, resolved.bind({**knobs, knob: size}))
                _try(found, variant, progress, seconds / _MOST_TRIALS)
                if memory is None and number == 0:  # now its devices are in use
                    found.budget_bytes = _SHARE * available_bytes()
                if (size := found.choose_next()) is None:
                    break
        if not found.trials:
            raise ExperimentError(
                f"{resolved.name} does not fit into {format_bytes(found.budget_bytes)} "
                f"with {knob}={min(found.too_large)}.\nA smaller model or input, "
                "checkpointing, or an optimizer with less state may: chapter 07."
            )
    return found


def _check_amounts(**amounts: float | None) -> None:
    """Raise ExperimentError for bytes, samples or seconds that cannot be."""
    for name, amount in amounts.items():
        is_number = isinstance(amount, (int, float)) and 0 < amount < math.inf
        if amount is not None and not is_number:
            raise ExperimentError(
                f"{name}={format_value(amount)} is not a positive number.\n"
                "Say bytes, memory=2e9, samples, most=len(data), or seconds=8."
            )


def _try(
    found: BatchSizeTuning, variant: Variant, progress: Progress, seconds: float
) -> None:
    """Try a size: memory first, and where that is within the budget, time.

    Running out of memory is an answer, too.
    """
    size = int(str(variant.knobs[found.knob]))
    try:
        with contextlib.closing(variant):
            if not found.trials and not found.too_large:
                with drive(variant, FIRST, progress) as driver:
                    driver.open()
                    driver.skip(2)
                variant.runs.clear()  # it loaded libraries: that is no size's memory
            with drive(variant, 0, progress) as driver:
                driver.open(watch_memory=True)
                variant.block_seconds, usual = 0.0, variant.block_seconds
                # An optimizer makes its state at the end of the first step. The last
                # batch of a data set may be short, its neighbour is not.
                first, second = driver.time_block(), driver.time_block()
                driver.read_memory()
                _check_items(found, size, max(first.items, second.items))
                variant.block_seconds = usual
                driver.run.blocks.clear()
                driver.run.metrics.clear()
                if (driver.run.memory_bytes or 0) <= found.budget_bytes:
                    if second.seconds < _LONG_STEP * seconds:
                        driver.warm_up(seconds)
                    _time_blocks(driver, seconds, _LEAST_BLOCKS)
    except ExperimentError as error:
        if not _OUT_OF_MEMORY.search(repr(error.__cause__)):
            raise
        found.too_large[size] = math.inf
    else:
        trial = make_trial(variant, complete_runs=False)
        if trial.blocks:
            found.trials[size] = trial
        else:
            found.too_large[size] = _read_peak(trial)


def _check_items(found: BatchSizeTuning, size: int, items: float) -> None:
    """Raise ExperimentError where a step handled fewer samples than the size says."""
    for before, trial in found.trials.items():
        least = trial.blocks[0].items / trial.blocks[0].steps * size / before
        if items < 0.98 * least:
            raise ExperimentError(
                f"a step yielded {items:g} items with {found.knob}={size}, and "
                f"{least * before / size:g} with {before}.\nYield the number of "
                "samples (len() of a batch that is a dict counts its keys), and where "
                f"the data set has no more, say most={items:.0f}."
            )


def _read_peak(trial: Trial) -> float:
    return max(float(trial.peak_memory_bytes or 0), 1.0)


def _estimate_rate(trial: Trial) -> Estimate:
    """Return a trial's items per second with the interval of its one start."""
    return rate_interval([block.items for block in trial.blocks], trial.block_seconds)


def _is_as_fast(one: Trial, other: Trial) -> bool:
    value, low, high = _compare(one, other)
    return value >= _ENOUGH and judge_ratio(low, high) != "slower"


def _compare(one: Trial, other: Trial) -> Estimate:
    """Return the ratio of two trials' speeds; its interval has the errors of both."""
    value = one.items_per_second / other.items_per_second
    intervals = _estimate_rate(one), _estimate_rate(other)
    half = math.hypot(*(math.log(each.high / each.low) / 2 for each in intervals))
    return Estimate(value, value * math.exp(-half), value * math.exp(half))
