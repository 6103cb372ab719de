"""Pairs of experiments, built to deceive `kit.compare`: how each does it, the truth.

Each maker takes a stage and returns two experiments by name, the baseline first. On a
`SimulatedStage` only a fake clock moves; in `benchmarks/` work takes real time.
"""

import functools
import itertools
from collections.abc import Callable, Generator
from dataclasses import dataclass

import torch

#: Milliseconds that a batch takes to load and to train, and how many are kept ready.
LOADING, TRAINING, FEW, MANY = 8, 4, 2, 32

ADVERSARIAL: list["Adversarial"] = []


@dataclass(frozen=True)
class Adversarial:
    """A pair, the truth about it, and how long it is compared.

    `ratio` is exact in simulated time. `may_be_open`: so many seconds need not show it,
    so that it may be *cannot tell*. `undetected` says why the verdict is wrong.
    """

    name: str
    truth: str
    make: Callable[..., dict[str, Callable[[], Generator]]]
    ratio: float | None = None
    may_be_open: bool = False
    undetected: str = ""
    uses_device: bool = False
    seconds: float = 4.0

    @property
    def deception(self) -> str:
        return self.make.__doc__

    def is_right(self, verdict: str) -> bool:
        return verdict == self.truth or (self.may_be_open and verdict == "cannot tell")


def lies(name, truth, **more):
    """Put a maker into the table."""

    def register(make):
        ADVERSARIAL.append(Adversarial(name, truth, make, **more))
        return make

    return register


class SimulatedStage:
    """Where they act: work moves a fake clock (`helpers.FakeClock`, `FakeDevice`)."""

    def __init__(self, seconds, clock, device):
        self.clock, self.half = clock, clock.now + seconds / 2
        self.synchronize = device.synchronize
        self.enqueue = lambda milliseconds: device.enqueue(milliseconds / 1000)

    @property
    def half_over(self):
        return self.clock.now > self.half

    def work(self, milliseconds):
        self.clock.work(milliseconds / 1000)

    rest = work


def repeat(step):
    """Make an experiment of what a step does, which returns items, or None for 1."""

    def experiment():
        for number in itertools.count():
            yield step(number) or 1

    return experiment


def pair(**steps):
    return {name: repeat(step) for name, step in steps.items()}


def remember(stage, first, later):
    """Return a step that takes less where an earlier start has done the same."""
    done = set()

    def step(number):
        stage.work(later if number in done else first)
        done.add(number)

    return step


# What a start leaves behind


@lies("warm page cache", "same", may_be_open=True)
def warm_page_cache(stage):
    """The first to read the file pays the disk, the second finds it in memory."""
    read = remember(stage, 20, 2)
    return pair(first=read, second=read)


@lies("cached result", "same", may_be_open=True, seconds=8.0)
def cached_result(stage):
    """What an earlier start has computed is kept, so later starts have less to do."""
    return pair(plain=lambda number: stage.work(5), keeps=remember(stage, 5, 0.5))


def leak(stage, do, is_fast):
    plain = repeat(lambda number: stage.work(2.5 if is_fast() else 5))

    def leaks():
        do()
        yield from plain()

    return {"leaks": leaks, "plain": plain}


@lies("leaked autocast", "slower", ratio=1 / 2)
def leaked_autocast(stage):
    """The baseline switches autocast on and never off; the variant profits from it."""
    enter = torch.autocast("cpu", dtype=torch.bfloat16).__enter__
    return leak(stage, enter, lambda: torch.is_autocast_enabled("cpu"))


@lies("leaked thread count", "slower", ratio=1 / 2)
def leaked_threads(stage):
    """The baseline sets the thread count and does not set it back."""
    more = torch.get_num_threads() + 1
    set_more = functools.partial(torch.set_num_threads, more)
    return leak(stage, set_more, lambda: torch.get_num_threads() == more)


@lies("model trained by both", "same", ratio=1.0)
def model_trained_by_both(stage):
    """Both train one model, and a trained model has less left to do."""
    model = torch.nn.Linear(1, 1)
    untrained = model.weight.item()

    def train():
        easy = model.weight.item() != untrained
        while True:
            with torch.no_grad():
                model.weight += 1.0
            stage.work(2.5 if easy else 5)
            yield 1

    return {"first": train, "second": lambda: train()}


@lies("shrinking data", "same", ratio=1.0)
def shrinking_data(stage):
    """Whoever takes a batch leaves less data behind, so later steps are shorter."""
    left = [256.0]

    def step(number):
        items = max(8, int(left[0]))
        left[0] *= 0.998
        stage.work(0.5 + items * 0.02)
        return items

    return pair(first=step, second=step)


# What is no step, or not all steps


@lies("sleeps before its first yield", "same", ratio=1.0)
def sleeps_first(stage):
    """It sleeps before its first yield, which is no step."""
    plain = repeat(lambda number: stage.work(5))

    def sleepy():
        stage.rest(300)
        yield from plain()

    return {"plain": plain, "sleepy": sleepy}


@lies("unequal work", "faster", ratio=1.25)
def unequal_work(stage):
    """Its steps are longer and handle more, now few items, now many."""

    def uneven(number):
        stage.work(0.16 if number % 2 else 2.4)
        return 8 if number % 2 else 120

    return pair(even=lambda number: stage.work(0.8) or 32, uneven=uneven)


@lies("rare 100 × step", "slower", may_be_open=True)
def rare_step(stage):
    """Every two-hundredth step takes a hundred times as long as the others."""
    return pair(
        even=lambda number: stage.work(1),
        rare=lambda number: stage.work(100 if number % 200 == 199 else 1),
    )


@lies("compiles late", "faster", may_be_open=True)
def compiles_late(stage):
    """It compiles in its first step, and again where a batch has another shape."""
    return pair(
        eager=lambda number: stage.work(5),
        compiled=lambda number: stage.work(300 if number in (1, 12) else 2.5),
    )


# What the machine does


@lies("throttled half", "same", ratio=1.0)
def throttled_half(stage):
    """The machine halves its speed half-way, and the variant is measured last."""

    def step(number):
        stage.work(4 if stage.half_over else 2)

    return pair(first=step, second=step)


def wait(stage):
    stage.enqueue(5)
    stage.synchronize()  # as reading a tensor does


@lies("queue never synchronised", "slower", ratio=1 / 2, uses_device=True)
def never_synchronized(stage):
    """It only enqueues its work, so its steps seem to take no time."""
    return pair(waits=lambda _: wait(stage), enqueues=lambda _: stage.enqueue(10))


@lies(".item() in one", "same", ratio=1.0, uses_device=True)
def item_in_one(stage):
    """`.item()` makes one variant wait in each step for what both have to do."""
    return pair(plain=lambda _: stage.enqueue(5), reads=lambda _: wait(stage))


# What changes only after the longest run, which MEASURING names as unseen

TOO_LATE = {"may_be_open": True, "undetected": "it changes after the longest run"}


@lies("prefetch head start", "same", **TOO_LATE)
def prefetch_head_start(stage):
    """A deep queue, filled before the first yield, hides that loading is the limit."""

    def load(depth):
        ready = float(depth)
        stage.rest(depth * LOADING)
        while True:
            seconds = max(TRAINING, LOADING * (1 - ready))
            ready = min(depth, ready + seconds / LOADING - 1)
            stage.work(seconds)
            yield 1

    return {"few": lambda: load(FEW), "many": lambda: load(MANY)}


@lies("growing step", "slower", **TOO_LATE)
def growing_step(stage):
    """Its first steps are short, and each takes longer than the one before."""
    return pair(
        even=lambda number: stage.work(5),
        grows=lambda number: stage.work(3 + 0.03 * number),
    )
