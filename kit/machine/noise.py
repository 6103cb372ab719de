"""How small a difference can be seen here and now: work measured against itself."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from kit import figures, stats
from kit.machine import load, ticks
from kit.machine.sentinel import time_sentinel
from kit.progress import Progress

#: How long `kit.compare` takes by default. It has time for about eight pairs of
#: set-ups with a round each, and so has the self-test for each kind of work.
COMPARISON_SECONDS = 4.0
_SETUPS, _BLOCK_SECONDS = 16, 0.020
_SMOKE_SECONDS, _SMOKE_SETUPS, _SMOKE_BLOCK_SECONDS = 0.2, 4, 0.001
_CAUSES = (
    ("others_cores", 0.1, "other programs used {:.1f} cores: close them"),
    ("stolen", 0.02, "the host gave {:.2f} cores to other guests: try another time"),
    ("throttled", 0.02, "a quota stopped us {:.0%} of the time: use fewer threads"),
    ("unsteady", 0.05, "the machine's own speed changed by ±{:.0%}: let it cool"),
)
_LABELS = {"python": "plain Python", "matmul": "torch matmul"}

#: Does one step of work.
Step = Callable[[], object]


@dataclass(frozen=True, repr=False)
class Noise:
    """How small a difference a comparison of the default length sees here and now.

    `smallest_difference` is a fraction: 0.03 means that a true 3 % would be called
    *faster* or *slower* nine times in ten in the worse kind of work. `by_work` has it
    for each kind, `skipped` why a kind is not there, `conditions` the load
    meanwhile (see `kit.machine.load.describe`), `seconds` how long all this took.
    """

    smallest_difference: float
    by_work: Mapping[str, float]
    conditions: Mapping[str, float]
    seconds: float
    skipped: Mapping[str, str] = field(default_factory=dict)

    def sentence(self) -> str:
        """Return the finding in words, with what stands in the way of a better one."""
        told = (
            f"Here and now a comparison of {COMPARISON_SECONDS:g} s sees a difference "
            f"of {_percent(self.smallest_difference)} nine times in ten"
        )
        for name, limit, cause in _CAUSES:
            if (seen := self.conditions.get(name, 0.0)) > limit:
                return f"{told}; {cause.format(seen)} to see smaller ones."
        return f"{told}."

    def rows(self) -> list[tuple[str, str, str]]:
        """Return the report as (name, value, remark)."""
        rows = [
            (_LABELS.get(name, name), _percent(value), "seen nine times in ten")
            for name, value in self.by_work.items()
        ]
        rows += [(_LABELS.get(k, k), "–", why) for k, why in self.skipped.items()]
        seen = self.conditions
        rows += [
            ("other programs", f"{seen['others_cores']:.2f}", "cores, on average"),
            ("stolen", f"{seen['stolen']:.2f}", "cores, by the host for other guests"),
            ("throttled", f"{seen['throttled']:.0%}", "of the time, by a quota"),
        ]
        if "unsteady" in seen:
            rows.append(
                ("speed changes", f"{seen['unsteady']:.0%}", "up and down, its own")
            )
        return rows

    def __repr__(self) -> str:
        table = figures.text_table(["", "", ""], self.rows())
        return f"{self.sentence()}\n{table.lstrip()}"

    def _repr_html_(self) -> str:
        return figures.html_card(self.sentence(), self.rows())


def measure_noise(seconds: float = 5.0) -> Noise:
    """Measure plain Python and a torch matmul against themselves, by the protocol.

    Set-ups in pairs, alternating blocks of 20 ms or more, Student's t over the pairs:
    what `kit.compare` does, on the calling thread's settings, which stay as they are.
    Takes about `seconds`, at least 4; `KIT_SMOKE=1` makes it short and its result
    rough. Raises ValueError where `seconds` is not a positive number.

    >>> measure_noise(seconds=-1)
    Traceback (most recent call last):
    ...
    ValueError: noise(): seconds=-1 is not a time to measure for; leave it out for 5 s
    """
    number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not (number and 0 < seconds < math.inf):
        raise ValueError(
            f"noise(): seconds={figures.format_value(seconds)} is not a time to "
            "measure for; leave it out for 5 s"
        )
    setups, block_seconds = _SETUPS, _BLOCK_SECONDS
    if os.environ.get("KIT_SMOKE") == "1":
        seconds, setups = _SMOKE_SECONDS, _SMOKE_SETUPS
        block_seconds = _SMOKE_BLOCK_SECONDS
    kinds, skipped = _find_work()
    begun, before = ticks.CLOCK.wall(), load.read()
    sentinel: list[float] = []
    by_work = {}
    with Progress("how small a difference can be seen here?") as progress:
        for number, (name, make) in enumerate(kinds.items()):
            progress.doing = f"comparing {_LABELS[name]} with itself"
            progress.begin(number, len(kinds), seconds / len(kinds))
            alternation = _Alternation(make, setups, block_seconds, sentinel)
            octets = alternation.run(seconds / len(kinds), progress)
            by_work[name] = compute_smallest_difference(octets)
    return Noise(
        smallest_difference=max(by_work.values()),
        by_work=by_work,
        conditions=load.describe(before, load.read(), sentinel),
        seconds=ticks.CLOCK.wall() - begun,
        skipped=skipped,
    )


def compute_smallest_difference(octets: Sequence[Sequence[float]]) -> float:
    """Return what such a comparison calls nine times in ten, as a fraction.

    `octets` holds the log-ratios of each pair of set-ups. An interval of half-width h
    must clear 2 %, so its middle must lie beyond log(1.02) + h; nine times in ten it
    does where the truth is further out by as many standard errors as Student's t has
    below 90 %, and h is as many as it has below 97.5 %.

    >>> round(compute_smallest_difference([[0.0, 0.0]] * 8), 3)
    0.02
    """
    from scipy.special import stdtrit

    estimate = stats.grouped_interval(octets)
    half = (estimate.high - estimate.low) / 2
    bound, nine_in_ten = stdtrit(len(octets) - 1, [0.975, 0.9])
    return math.expm1(math.log(stats.SAME) + half * (1 + float(nine_in_ten / bound)))


def _find_work() -> tuple[dict[str, Callable[[], Step]], dict[str, str]]:
    """Return what makes a set-up of each kind, and why a kind is missing."""
    kinds: dict[str, Callable[[], Step]] = {"python": _make_python}
    try:
        import torch  # noqa: F401
    except (ImportError, OSError) as error:  # OSError: a shared library is missing
        return kinds, {"matmul": f"PyTorch cannot be imported: {error}"}
    return {**kinds, "matmul": _make_matmul}, {}


def _make_python() -> Step:
    numbers = [float(n) for n in range(5000)]

    def step() -> object:
        total = 0.0
        for number in numbers:
            total += number * 0.5
        return total

    return step


def _make_matmul() -> Step:
    import torch

    # Everything is said, so that no setting of the reader's changes the work. With
    # `out=` there is no autocast either.
    like = {"dtype": torch.float32, "device": "cpu", "requires_grad": False}
    matrix = torch.full((256, 256), 1 / 256, **like)
    result = torch.full((256, 256), 0.0, **like)
    return lambda: torch.mm(matrix, matrix, out=result)


class _Alternation:
    """One kind of work against itself: octets of log-ratios, in pairs of set-ups."""

    def __init__(
        self,
        make: Callable[[], Step],
        setups: int,
        block_seconds: float,
        sentinel: list[float],
    ) -> None:
        self.make, self.sentinel = make, sentinel
        self.setups, self.block_seconds = setups, block_seconds
        self.order = random.Random(0)  # the reader's own numbers stay as they are

    def run(self, seconds: float, progress: Progress) -> list[list[float]]:
        """Return the octets of each pair of set-ups."""
        deadline = ticks.CLOCK.wall() + seconds
        round_seconds = 4 * self.block_seconds
        logs: list[list[float]] = []
        for setup in range(self.setups):
            self.sentinel.append(time_sentinel())
            pair = [self.make(), self.make()]
            if setup % 2:  # what was created first differs a little
                pair.reverse()
            for step in pair:
                self._time_block(step)  # warm-up
            begun = ticks.CLOCK.wall()
            share = (deadline - begun) / (self.setups - setup)
            rounds = max(1, int(share / round_seconds))
            logs.append([self._time_round(pair) for _ in range(rounds)])
            progress.expect((setup + 1) / self.setups)
            took = ticks.CLOCK.wall() - begun
            round_seconds = max(took / rounds, 4 * self.block_seconds)
        return [
            [(x + y) / 2 for x, y in zip(logs[i], logs[i + 1], strict=False)]
            for i in range(0, self.setups, 2)
        ]

    def _time_round(self, pair: Sequence[Step]) -> float:
        """Time one ABBA round; return the log-ratio of the two."""
        seconds = [0.0, 0.0]
        first, second = self.order.sample([0, 1], 2)
        for index in (first, second, second, first):
            pair[index]()  # the first step after a switch is not timed
            seconds[index] += self._time_block(pair[index])
        return math.log(seconds[1] / seconds[0])

    def _time_block(self, step: Step) -> float:
        """Run steps until a block is full; return run seconds per step."""
        start, steps = ticks.CLOCK.begin(), 0
        look = start.wall + self.block_seconds
        while True:
            step()
            steps += 1
            if ticks.CLOCK.wall() < look:
                continue
            seconds = ticks.run_seconds(start, ticks.CLOCK.end())
            if seconds >= self.block_seconds:
                return seconds / steps
            look += self.block_seconds - seconds


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.{1 if fraction < 0.1 else 0}f} %"
