"""Adversarial experiments, built to deceive `kit.compare`: how each does it, the truth.

Each maker takes a stage and returns two experiments by name, the baseline first. Here
only a fake clock moves; `benchmarks/real_adversarial.py` has makers where `real=None`.
"""

import functools
import itertools
from collections.abc import Callable, Generator
from dataclasses import dataclass

import torch

Maker = Callable[..., dict[str, Callable[[], Generator]]]

#: The machine's own doings. A real machine may be too busy to tell, and then says so.
DISTURBED = ("other programs", "quota", "the host")
#: Words of a reason that says: its steps are not all alike.
CHANGES = ("settle", "change", "drift", "slow steps")
#: Of pairs whose truth cannot be seen in so few seconds, or not at all.
HIDDEN = {"expected": "says why", "excuses": CHANGES}
UNSEEN = {"expected": "not catchable", "deceived": "faster"}
UNSEEN |= {"not_catchable": "Only the experiment knows how many items it handled."}
#: Milliseconds that a batch takes to load and to train, and how many are kept ready.
LOADING, TRAINING, FEW, MANY = 8, 4, 2, 32
#: The step where a batch has another shape.
NEW_SHAPE = 12

ADVERSARIAL: list["Adversarial"] = []


@dataclass
class Adversarial:
    """An adversarial pair, the truth about it, and what else a tool may answer.

    `ratio` is exact in simulated time. Who cannot tell, or refuses, gives a reason with
    one of `excuses` in it, which are in small letters. `not_catchable` says why one
    cannot be caught, which gets the verdict `deceived`. `expected` is what `judge` says
    of a verdict in simulated time: "says why" where so many seconds do not show it.
    """

    name: str
    truth: str
    simulated: Maker
    real: Maker | None = None
    ratio: float | None = None
    expected: str = "right"
    excuses: tuple[str, ...] = ()
    not_catchable: str = ""
    deceived: str = ""
    uses_device: bool = False
    seconds: float = 2.5

    @property
    def deception(self) -> str:
        return self.simulated.__doc__.splitlines()[0]

    def judge(self, verdict: str, reason: str = "", *, real: bool = False) -> str:
        """Return right, wrong, says why, undecided, or not catchable.

        Only a real machine may leave it undecided: because something else disturbs it,
        or because two that are the same cannot be told to be within 2 %.
        """
        if self.not_catchable and verdict == self.deceived:
            return "not catchable"
        if verdict == self.truth:
            return "right"
        if verdict not in ("cannot tell", "refused"):
            return "wrong"
        reason = reason.lower()
        if any(word in reason for word in self.excuses):
            return "says why"
        disturbed = any(word in reason for word in DISTURBED)
        undecided = verdict == "cannot tell" and (disturbed or self.truth == "same")
        return "undecided" if real and undecided else "wrong"


def find(name):
    return next(case for case in ADVERSARIAL if case.name == name)


def lies(name, truth, **more):
    """Put a maker into the table; it acts in real time, too, unless another does."""

    def register(make):
        ADVERSARIAL.append(Adversarial(name, truth, make, **{"real": make} | more))
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


def works(stage, **milliseconds):
    """Make two experiments of how long a step works, or what tells it of its number."""

    def make(long):
        return lambda number: stage.work(long(number) if callable(long) else long)

    return pair(**{name: make(long) for name, long in milliseconds.items()})


def twice(step):
    return pair(first=step, second=step)


@lies("prefetch head start", "same", real=None, seconds=4.0, **HIDDEN)
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


def remember(stage, first, later):
    """Return a step that takes less where an earlier start has done the same."""
    done = set()

    def step(number):
        stage.work(later if number in done else first)
        done.add(number)

    return step


# Longer is right here: the cold reads weigh less and less.
@lies("warm page cache", "same", real=None, excuses=(*CHANGES, "measure about"))
def warm_page_cache(stage):
    """The first to read the file pays the disk, the second finds it in memory."""
    return twice(remember(stage, 20, 2))


@lies("cached result", "same", **HIDDEN | {"excuses": (*CHANGES, "start")})
def cached_result(stage):
    """What an earlier start has computed is kept, so later starts have less to do."""
    return pair(plain=lambda number: stage.work(5), keeps=remember(stage, 5, 0.5))


@lies("sleeps before its first yield", "same", ratio=1.0)
def sleeps_first(stage):
    """It sleeps before its first yield, which is no step."""
    plain = repeat(lambda number: stage.work(5))

    def sleepy():
        stage.rest(300)
        yield from plain()

    return {"plain": plain, "sleepy": sleepy}


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


@lies("throttled half", "same", ratio=1.0)
def throttled_half(stage):
    """The machine halves its speed half-way, and the variant is measured last."""
    return twice(lambda number: stage.work(4 if stage.half_over else 2))


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


@lies("unequal work", "faster", ratio=1.25)
def unequal_work(stage):
    """Its steps are longer and handle more, now few items, now many."""

    def uneven(number):
        stage.work(0.16 if number % 2 else 2.4)
        return 8 if number % 2 else 120

    return pair(even=lambda number: stage.work(0.8) or 32, uneven=uneven)


@lies("fewer items than it says", "same", **UNSEEN)
def fewer_items(stage):
    """It says 64 items and handles 48."""
    return pair(fair=lambda _: stage.work(4) or 64, lies=lambda _: stage.work(3) or 64)


@lies("growing step", "slower", **HIDDEN)
def growing_step(stage):
    """Its first steps are short, and each takes longer than the one before."""
    return works(stage, even=5, grows=lambda number: 3 + 0.03 * number)


@lies("garbage-collection storm", "slower", real=None, excuses=CHANGES)
def collection_storm(stage):
    """Garbage is collected every hundred steps, which a typical step does not show."""
    return works(stage, plain=2, storms=lambda n: 62 if n % 100 == 99 else 2)


@lies("compiles late", "faster", real=None, **HIDDEN)
def compiles_late(stage):
    """It compiles in its first step, and again where a batch has another shape."""
    return works(stage, eager=5, compiled=lambda n: 300 if n in (1, NEW_SHAPE) else 2.5)


@lies("rare 100 × step", "slower", excuses=CHANGES)
def rare_step(stage):
    """Every two-hundredth step takes a hundred times as long as the others."""
    return works(stage, even=1, rare=lambda n: 100 if n % 200 == 199 else 1)


@lies("shrinking data", "same", ratio=1.0)
def shrinking_data(stage):
    """Whoever takes a batch leaves less data behind, so later steps are shorter."""
    left = [256.0]

    def step(number):
        items = max(8, int(left[0]))
        left[0] *= 0.998
        stage.work(0.5 + items * 0.02)
        return items

    return twice(step)
