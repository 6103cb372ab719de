"""Chooses which batch sizes are tried, and concludes from what they told."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

from kit import clock
from kit.costs import Line, fit_line
from kit.experiment import ExperimentError
from kit.figures import format_bytes, format_value
from kit.system import available_bytes
from kit.tuning.batch.probe import CALLER, Probe, Prober
from kit.tuning.batch.result import BatchSizeTuning, is_enough

MOST_TRIALS = 4
#: 95 % of the best throughput is to be reached: a little higher, since times scatter.
_AIM = 0.965
#: A line tells the seconds of all trials where none is further from it, relatively,
#: and none between the others is so many times as fast as the best on the line.
_STRAIGHT, _PEAK = 0.08, 1.02
#: A trial near the limit aims so far below it; what is left is reckoned.
_NEAR, _NEAR_ENOUGH = 0.93, 0.50
_REACH = 0.98
#: Without a forecast, the second size is at most so many times the first.
_BLIND = 16
#: Memory is told by so many bytes, or by this share of it, at best.
_NOISE_BYTES, _NOISE_SHARE = 4e6, 0.02
#: So many times the noise must memory rise to tell the growth.
_CLEAR = 8
#: A forecast leaves out what libraries take beside tensors: oneDNN up to 40 %.
_FORECAST_MARGIN = 1.4
#: A trial may take so many times longer than its size explains.
_PATIENCE, _LEAST_PATIENCE = 8.0, 30.0
#: Sizes closer than this tell nothing new.
_APART = 1.15
_FAR, _MUCH = 64, 1.5
#: Where a size that a forecast promised is too large, this share of it is tried.
_STEP_BACK = 0.8
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
        begun = clock.CLOCK.wall()
        size: int | None = smallest
        while size is not None and len(self.probes) < MOST_TRIALS:
            self._try(size)
            if len(self.probes) == 1:  # now it is known which devices are in use
                self.budget = _find_budget() if self.memory is None else self.memory
            self.prober.progress.expect(len(self.probes) / MOST_TRIALS)
            size = self._choose()
        if not self._fitting():
            raise self._does_not_fit()
        return self._conclude(clock.CLOCK.wall() - begun)

    def _try(self, size: int) -> None:
        before = self._fitting()
        try:
            probe = self.prober.probe(size, self.budget, self._patience(size))
        except ExperimentError as error:
            if self.probes and not before:  # batch norm refuses a batch of one
                raise self._does_not_fit() from error
            raise
        if before and not math.isnan(probe.items) and size > before[0].size:
            probe = self._check_items(before[0], probe)
        self.probes.append(probe)
        self.probes.sort(key=lambda p: p.size)

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

    def _check_items(self, small: Probe, large: Probe) -> Probe:
        """Return the trial of a batch as large as it really was, and lower `most`.

        Raises ExperimentError where it was not larger than a smaller one.
        """
        wanted = small.items * large.size / small.size
        if large.items > 0.999 * wanted:
            return large
        if large.items <= small.items:
            raise ExperimentError(
                f"{CALLER}: {self.prober.call(large.size)} yielded "
                f"{large.items:g} items, as with {self.prober.knob}={small.size}.\n"
                "Yield the number of samples: len() of a batch that is a dict counts "
                "its keys. Or is the data set as small as that?"
            )
        handled = int(large.items * small.size / small.items)
        self.most = min(self.most, handled)
        return dataclasses.replace(large, size=handled)

    def _fitting(self) -> list[Probe]:
        return [p for p in self.probes if p.memory_bytes <= self.budget]

    def _too_large(self) -> list[Probe]:
        return [p for p in self.probes if p.memory_bytes > self.budget]

    def _ceiling(self) -> float:
        """Return the largest size that may fit, as far as trials and `most` say."""
        return min([self.most, *(p.size - 1 for p in self._too_large())])

    def _choose(self) -> int | None:
        """Return the size to try next, None where no further one would tell more."""
        fitting, above = self._fitting(), self._too_large()
        if not fitting:
            smallest = above[0].size
            return max(1, smallest // 2) if smallest > 1 else None
        if len(self.probes) == 1:
            return self._apart(self._second_size(fitting[0]))
        if not self._is_near():
            near = self._size_at(_NEAR * self.budget, careful=True)
            if above and self.line is not None:
                near = min(near, _STEP_BACK * above[0].size)
            elif above:
                near = min(near, math.sqrt(fitting[-1].size * above[0].size))
            if (size := self._apart(near)) is not None:
                return size
        return self._apart(self._knee(), _MUCH) or self._apart(self._gap())

    def _is_near(self) -> bool:
        """Return whether the largest trial used most of what the smallest left."""
        fitting = self._fitting()
        least, most = fitting[0].memory_bytes, fitting[-1].memory_bytes
        return most - least >= _NEAR_ENOUGH * (self.budget - least)

    def _apart(self, size: float, factor: float = _APART) -> int | None:
        """Return a size as a whole number, None where one like it was tried."""
        whole = int(max(1.0, min(size, self._ceiling())))
        near = [p for p in self.probes if 1 / factor < p.size / whole < factor]
        return None if near else whole

    def _second_size(self, first: Probe) -> float:
        """Return a size for the second trial: the geometric middle, or what is safe."""
        if self.line is None:
            half = self._size_at((first.memory_bytes + self.budget) / 2, careful=True)
            return min(half, _BLIND * first.size)
        most = self._size_at(self.budget, careful=True)
        if most > _FAR * first.size:
            # A line from small sizes is reckoned again where it will be needed.
            self.line = self.forecast(int(min(most, self.most, 1e6))) or self.line
            most = self._size_at(self.budget, careful=True)
        return math.sqrt(first.size * min(most, self.most))

    def _size_at(self, amount: float, *, careful: bool = False) -> float:
        """Return the size at which memory comes to an amount.

        Seen from the largest that fitted; a careful answer is on the small side.
        """
        points = self._fitting()
        points += [p for p in self._too_large() if p.memory_bytes < math.inf][:1]
        noise = max(_NOISE_BYTES, _NOISE_SHARE * points[-1].memory_bytes)
        top, slope = self._fitting()[-1], self._slope(points, noise, careful)
        bend = _find_bend(points[-3:], noise)
        if bend <= 0:
            return float(top.size + (amount - top.memory_bytes) / slope)
        # A parabola through the last three, from the largest that fitted.
        before = points[points.index(top) - 1]
        now = (top.memory_bytes - before.memory_bytes) / (top.size - before.size)
        now += bend * (top.size - before.size)
        rest = now**2 + 4 * bend * (amount - top.memory_bytes)
        return top.size + (math.sqrt(max(rest, 0.0)) - now) / (2 * bend)

    def _slope(self, points: list[Probe], noise: float, careful: bool) -> float:
        """Return the bytes that one more sample takes."""
        few, many = points[0], points[-1]
        if points[-1] is not self._fitting()[-1]:
            few = points[-2]
        forecast = 0.0
        if self.line is not None:
            forecast = self.line.each * (_FORECAST_MARGIN if careful else 1.0)
        if few is many:
            if forecast:
                return forecast
            # All that came after set-up may grow with the batch.
            idle = 0.0 if math.isnan(few.idle_bytes) else few.idle_bytes
            return (max(few.memory_bytes - idle, 0.0) + noise) / few.size
        risen = many.memory_bytes - few.memory_bytes
        slope = max(risen + noise * careful, noise) / (many.size - few.size)
        return slope if risen >= _CLEAR * noise else max(slope, forecast)

    def _largest(self) -> int:
        """Return the largest size that fits, by the trials and the growth they show."""
        top, above = self._fitting()[-1], self._too_large()
        if above and math.isinf(above[0].memory_bytes):
            return top.size  # there is less memory than the budget says
        far = self._size_at(_REACH * self.budget, careful=not self._is_near())
        return max(top.size, int(min(far, self._ceiling())))

    def _times(self) -> list[tuple[int, float]]:
        """Return (size, seconds per step) of the trials, and of the largest that fits.

        They lie on a line through all trials, where one explains them: two alone take
        scatter for growth. Else the largest lies on a line through the last two.
        """
        found = [(p.size, p.step_seconds) for p in self._fitting() if p.trial]
        if len(found) < 2:
            return found
        sizes = [size for size, _ in found]
        if (largest := self._largest()) > sizes[-1]:
            sizes.append(largest)
        line = _fit_times(found)
        if _explains(line, found):
            return [(size, line.predict(size)) for size in sizes]
        line = _fit_times(found[-2:])
        return found + [(size, line.predict(size)) for size in sizes[len(found) :]]

    def _knee(self) -> float:
        """Return the smallest size that should reach the best throughput's share.

        Between two sizes, seconds per step lie on the line through both.
        """
        times = self._times()
        wanted = _AIM * max(size / seconds for size, seconds in times)
        good = [size / seconds >= wanted for size, seconds in times].index(True)
        size = times[good][0]
        if good == 0:
            return float(size)
        line = fit_line(*zip(*times[good - 1 : good + 1], strict=True))
        # b / (fixed + each b) = wanted, at b:
        rest = 1 / wanted - line.each
        knee = line.fixed / rest if rest > 0 else size
        return _round_up(min(max(knee, times[good - 1][0]), size), size)

    def _gap(self) -> float:
        """Return the middle of the wider gap beside the fastest trial.

        A better size may hide there.
        """
        times = self._times()
        rates = [size / seconds for size, seconds in times]
        best = rates.index(max(rates))
        sides = [times[i : i + 2] for i in (best - 1, best) if 0 <= i < len(times) - 1]
        gaps = [(high / low, math.sqrt(low * high)) for (low, _), (high, _) in sides]
        return max(gaps, default=(1.0, float(times[0][0])))[1]

    def _smallest_good(self) -> int:
        """Return the smallest size that reaches the share of the best rate.

        One that was tried, unless another should do that is much smaller. What lines
        say of one that was tried is not held against the trials themselves.
        """
        times = self._times()
        best = max(size / seconds for size, seconds in times)
        tried = next(b for b, seconds in times if b / seconds >= _AIM * best)
        knee = math.ceil(self._knee())
        chosen = tried if tried < _MUCH * knee else knee
        timed = {p.size: p.trial for p in self._fitting() if p.trial}
        if chosen in timed and not is_enough(timed[chosen], timed.values()):
            return next(b for b, x in timed.items() if is_enough(x, timed.values()))
        return chosen

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
            "ran out of memory, or had to be ended before it did"
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
    share = _SHARE_OF_DEVICE if clock.find_initialised() else _SHARE_OF_MACHINE
    return share * available_bytes()


def _fit_times(times: list[tuple[int, float]]) -> Line:
    """Return the line of seconds per step; it neither falls nor begins below zero."""
    line = fit_line(*zip(*times, strict=True))
    if line.fixed < 0:
        return Line(0.0, statistics.harmonic_mean([sec / size for size, sec in times]))
    if line.each < 0:
        return Line(statistics.harmonic_mean([sec for _, sec in times]), 0.0)
    return line


def _explains(line: Line, times: list[tuple[int, float]]) -> bool:
    """Return whether all times are near a line, and no peak of the rate hides."""
    best = max(size / line.predict(size) for size, _ in times)
    return all(
        abs(line.predict(size) / seconds - 1) <= _STRAIGHT for size, seconds in times
    ) and all(size / seconds <= _PEAK * best for size, seconds in times[1:-1])


def _find_bend(points: list[Probe], noise: float) -> float:
    """Return the square term of memory over size through three trials, 0 for a line.

    Only what noise cannot explain, and only upward: it bounds what may be tried.
    """
    if len(points) < 3:
        return 0.0
    (a, b, c), (x, y, z) = zip(*((p.size, p.memory_bytes) for p in points), strict=True)
    above_line = x + (z - x) * (b - a) / (c - a) - y
    if above_line < 2 * noise:
        return 0.0
    return float(((z - y) / (c - b) - (y - x) / (b - a)) / (c - a))


def _round_up(size: float, most: int) -> float:
    """Round a size up to a multiple of eight, which matrix units like, if it is large.

    >>> _round_up(41.2, 100), _round_up(9.3, 100), _round_up(98, 100)
    (48.0, 10.0, 100.0)
    """
    step = _MULTIPLE if size >= 4 * _MULTIPLE else 1
    return float(min(math.ceil(size / step) * step, most))
