"""Chooses which batch sizes are tried, and concludes from what they told."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from kit.clock.experiment import ExperimentError
from kit.costs import Line, fit_line
from kit.figures import format_bytes, format_value
from kit.machine import devices, ticks
from kit.machine.memory import available_bytes
from kit.tuning.batch.probe import CALLER, Probe, Prober
from kit.tuning.batch.result import BatchSizeTuning

MOST_TRIALS = 4
#: "The best throughput" is reached from this share of it on.
_SHARE = 0.95
#: A size that is to reach it aims a little higher, since times scatter.
_AIM = 0.965
#: A trial near the limit aims so far below it; what is left is reckoned.
_NEAR, _NEAR_ENOUGH = 0.93, 0.60
_REACH = 0.98
#: The second trial stays below this share of the memory.
_CAREFUL = 0.5
#: Memory is told by so many bytes, or by this share of it, at best.
_NOISE_BYTES, _NOISE_SHARE = 4e6, 0.02
#: A forecast leaves out what libraries take beside tensors: oneDNN up to 40 %.
_FORECAST_MARGIN = 1.4
#: A trial may take so many times longer than its size explains.
_PATIENCE, _LEAST_PATIENCE = 8.0, 30.0
#: Sizes closer than this tell nothing new.
_APART = 1.15
_FAR = 64
_MULTIPLE = 8
#: Of what is free, the rest is left to others, and to what was not foreseen.
_SHARE_OF_MACHINE, _SHARE_OF_DEVICE = 0.8, 0.98


@dataclass
class Search:
    """The trials of one search, at most four, and what they say together.

    `memory` is the bytes that were allowed, None where they are to be found out. `most`
    is the largest size that comes into question. `line` are the bytes that were
    reckoned at small sizes, None where that did not work; `forecast` reckons them anew
    at another.
    """

    prober: Prober
    forecast: Callable[[int], Line | None]
    memory: float | None
    most: float
    line: Line | None
    probes: list[Probe] = field(default_factory=list)
    budget: float = math.inf

    def find(self, smallest: int) -> BatchSizeTuning:
        """Try sizes until there is nothing to gain from one more, or four were tried.

        Raises ExperimentError where not even one sample fits.
        """
        begun = ticks.CLOCK.wall()
        size: int | None = smallest
        while size is not None and len(self.probes) < MOST_TRIALS:
            self._try(size)
            if len(self.probes) == 1:  # now it is known which devices are in use
                self.budget = _find_budget() if self.memory is None else self.memory
            self.prober.progress.expect(len(self.probes) / MOST_TRIALS)
            size = self._choose()
        if not self._fitting():
            raise self._does_not_fit()
        return self._conclude(ticks.CLOCK.wall() - begun)

    def _try(self, size: int) -> None:
        before = self._fitting()
        probe = self.prober.probe(size, self.budget, self._patience(size))
        self.probes.append(probe)
        self.probes.sort(key=lambda p: p.size)
        if before and not math.isnan(probe.items):
            self._check_items(before[0], probe)

    def _patience(self, size: int) -> float | None:
        """Return after how many seconds a trial must have come to its first steps.

        A step of more samples takes longer, at most in proportion; so does set-up. The
        first trial may take as long as it likes: it may have to fetch things.
        """
        timed = [p for p in self._fitting() if p.trial]
        if not timed:
            return None
        last = timed[-1]
        assert last.trial is not None
        spent = last.trial.setup_seconds[0] + 3 * last.step_seconds
        return _LEAST_PATIENCE + _PATIENCE * spent * max(1.0, size / last.size)

    def _check_items(self, small: Probe, large: Probe) -> None:
        """Raise ExperimentError, or lower `most`, where a batch was not a full one."""
        wanted = small.items * large.size / small.size
        if large.items > 0.999 * wanted:
            return
        if large.items <= small.items:
            raise ExperimentError(
                f"{CALLER}: {self.prober.call(large.size)} yielded "
                f"{large.items:g} items, as with {self.prober.knob}={small.size}.\n"
                "Yield the number of samples: len() of a batch that is a dict counts "
                "its keys. Or is the data set as small as that?"
            )
        per_sample = small.items / small.size
        self.most = min(self.most, int(large.items / per_sample))

    def _fitting(self) -> list[Probe]:
        return [p for p in self.probes if p.memory_bytes <= self.budget]

    def _too_large(self) -> list[Probe]:
        return [p for p in self.probes if p.memory_bytes > self.budget]

    def _choose(self) -> int | None:
        """Return the size to try next, None where no further one would tell more."""
        fitting, above = self._fitting(), self._too_large()
        if not fitting:
            smallest = above[0].size
            return max(1, smallest // 2) if smallest > 1 else None
        ceiling = min([self.most, *(p.size - 1 for p in above)])
        top = fitting[-1]
        if len(self.probes) == 1:
            return self._apart(self._second_size(top), ceiling)
        left = self._size_at(_NEAR * self.budget, careful=True)
        if top.memory_bytes < _NEAR_ENOUGH * self.budget and not above:
            size = self._apart(min(left, ceiling), ceiling)
            if size is not None:
                return size
        return self._apart(self._knee(), ceiling)

    def _apart(self, size: float, ceiling: float) -> int | None:
        """Return a size as a whole number, None where one like it was tried."""
        size = int(max(1.0, min(size, ceiling)))
        near = [p for p in self.probes if 1 / _APART < p.size / size < _APART]
        return None if near else size

    def _second_size(self, first: Probe) -> float:
        """Return a size for the second trial: the geometric middle, or what is safe."""
        most = self._size_at(self.budget, careful=True)
        if self.line is not None and most > _FAR * first.size:
            # A line from small sizes is reckoned again where it will be needed.
            self.line = self.forecast(int(min(most, self.most, 1e6))) or self.line
            most = self._size_at(self.budget, careful=True)
        safe = self._size_at(_CAREFUL * self.budget, careful=True)
        middle = math.sqrt(first.size * min(most, self.most))
        return min(safe, middle) if self.line is not None else min(safe, self.most)

    def _size_at(self, amount: float, *, careful: bool = False) -> float:
        """Return the size at which memory comes to an amount, seen from the largest."""
        top = self._fitting()[-1]
        slope, power = self._growth(careful)
        if power > 1:
            return float(top.size * (amount / top.memory_bytes) ** (1 / power))
        return float(top.size + (amount - top.memory_bytes) / slope)

    def _growth(self, careful: bool) -> tuple[float, float]:
        """Return the bytes that one more sample takes, and a power where it is more.

        A careful one is on the high side.
        """
        fitting, above = self._fitting(), self._too_large()
        top = fitting[-1]
        measured = [p for p in above if p.memory_bytes < math.inf]
        if measured:
            pair = top, measured[0]
        elif len(fitting) > 1:
            pair = fitting[0], top
        else:
            if self.line is not None:
                return self.line.each * (_FORECAST_MARGIN if careful else 1.0), 1.0
            # All that came after set-up may grow with the batch.
            idle = 0.0 if math.isnan(top.idle_bytes) else top.idle_bytes
            grows = max(top.memory_bytes - idle, 0.0) + _NOISE_BYTES
            return grows / top.size, 1.0
        few, many = pair
        risen = many.memory_bytes - few.memory_bytes
        noise = max(_NOISE_BYTES, _NOISE_SHARE * many.memory_bytes)
        samples = many.size - few.size
        if self.line is not None and risen < 8 * noise:
            return self.line.each * (_FORECAST_MARGIN if careful else 1.0), 1.0
        slope = max(risen + (noise if careful else 0.0), noise) / samples
        if few.memory_bytes > noise and risen > 8 * noise:
            power = math.log(many.memory_bytes / few.memory_bytes) / math.log(
                many.size / few.size
            )
            # More than in proportion: the line through both would promise too much.
            if power > 1:
                return slope, power
        return slope, 1.0

    def _largest(self) -> int:
        """Return the largest size that fits, by the trials and the growth they show."""
        fitting, above = self._fitting(), self._too_large()
        top = fitting[-1]
        far = self._size_at(_REACH * self.budget)
        if top.memory_bytes < _NEAR_ENOUGH * self.budget:
            far = min(far, self._size_at(_REACH * self.budget, careful=True))
        ceiling = min([self.most, *(p.size - 1 for p in above)])
        return max(top.size, int(min(far, ceiling)))

    def _knee(self) -> float:
        """Return the smallest size that should reach the best throughput's share.

        Between two trials, seconds per step lie on the line through both.
        """
        timed = [p for p in self._fitting() if p.trial]
        rates = [p.size / p.step_seconds for p in timed]
        wanted = _AIM * max(rates)
        for index, (probe, rate) in enumerate(zip(timed, rates, strict=True)):
            if rate < wanted:
                continue
            if index == 0:
                return float(probe.size)
            before = timed[index - 1]
            line = _join(before, probe)
            # b / (fixed + each b) = wanted, at b:
            rest = 1 / wanted - line.each
            size = line.fixed / rest if rest > 0 else probe.size
            size = min(max(size, before.size), probe.size)
            return _round_up(size, probe.size)
        raise AssertionError("one of them is the best")

    def _smallest_good(self) -> int:
        """Return the smallest size that reaches the share, tried if there is one."""
        timed = [p for p in self._fitting() if p.trial]
        rates = [p.size / p.step_seconds for p in timed]
        good = [
            p.size
            for p, rate in zip(timed, rates, strict=True)
            if rate >= _SHARE * max(rates)
        ]
        return int(min(good[0], math.ceil(self._knee())))

    def _conclude(self, seconds: float) -> BatchSizeTuning:
        fitting = self._fitting()
        timed = [p for p in fitting if p.trial]
        sizes = [p.size for p in fitting]
        several = len(fitting) > 1
        bytes_ = [max(p.memory_bytes, 1.0) for p in fitting]
        memory = fit_line(sizes, bytes_) if several else None
        steps = [p.step_seconds for p in timed]
        time = fit_line([p.size for p in timed], steps) if len(timed) > 1 else None
        return BatchSizeTuning(
            experiment=self.prober.experiment.name,
            knob=self.prober.knob,
            batch_size=self._smallest_good(),
            largest=self._largest(),
            budget_bytes=self.budget,
            most=self.most,
            memory=memory,
            time=time,
            forecast=self.line,
            trials=tuple(p.trial for p in timed if p.trial),
            too_large={p.size: p.memory_bytes for p in self._too_large()},
            seconds=seconds,
        )

    def _does_not_fit(self) -> ExperimentError:
        least = self.probes[0]
        call = self.prober.call(least.size)
        needs = (
            "ran out of memory"
            if math.isinf(least.memory_bytes)
            else f"takes {format_bytes(least.memory_bytes)}"
        )
        return ExperimentError(
            f"{CALLER}: {call} {needs}, and memory={format_value(self.budget)} "
            f"({format_bytes(self.budget)}) is all there is.\nNo batch fits. A smaller "
            "model or input, checkpointing, or an optimizer with less state may: "
            "chapter 06, tutorials/06_memory.ipynb."
        )


def _find_budget() -> float:
    """Return the bytes that an experiment may take, where nothing else is said."""
    on_device = any(device.available() for device in devices.initialised())
    share = _SHARE_OF_DEVICE if on_device else _SHARE_OF_MACHINE
    return share * available_bytes()


def _join(few: Probe, many: Probe) -> Line:
    """Return the line of seconds per step through two trials."""
    each = (many.step_seconds - few.step_seconds) / (many.size - few.size)
    return Line(few.step_seconds - each * few.size, each)


def _round_up(size: float, most: int) -> float:
    """Round a size up to a multiple of eight, which matrix units like, if it is large.

    >>> _round_up(41.2, 100), _round_up(9.3, 100), _round_up(98, 100)
    (48.0, 10.0, 100.0)
    """
    step = _MULTIPLE if size >= 4 * _MULTIPLE else 1
    return float(min(math.ceil(size / step) * step, most))
