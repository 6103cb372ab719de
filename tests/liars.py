"""Experiments built to deceive `kit.compare`: how each does it, and the truth.

Each maker below takes a stage and returns two experiments by name, the baseline first.
On `Stage` work takes real time, on `SimulatedStage` only a fake clock moves; where both
must differ, there are two makers. `LIARS` is the table of all of them, with what a tool
may answer:

>>> liar = find("growing step")
>>> with Stage(seconds=2.0) as stage:
...     baseline, variant = liar.real(stage).values()
>>> liar.truth, next(variant())
('slower', 1)
"""

import contextlib
import functools
import gc
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch.utils.data import DataLoader, Dataset

from kit.machine import devices

Experiments = dict[str, Callable[[], Generator]]

#: The machine's own doings. A real machine may be too busy to tell, and then says so.
DISTURBED = ("other programs", "quota", "the host", "the machine's own speed")
#: Words of a reason that says: its steps are not all alike.
CHANGES = ("settle", "change", "drift", "slow steps")


@dataclass(frozen=True)
class Liar:
    """A pair of experiments that deceives, the truth, and what a tool may answer.

    `truth` is about speed, variant over baseline, `ratio` its value where it is exact
    in simulated time. A tool may also answer that it cannot tell, or refuse, with one
    of the words `excuses` in its reason. One that nobody can catch says why in
    `not_catchable`, and `deceived` is the verdict that it gets.
    """

    name: str
    truth: str
    simulated: Callable[["SimulatedStage"], Experiments] | None
    real: Callable[["Stage"], Experiments] | None
    ratio: float | None = None
    excuses: tuple[str, ...] = ()
    not_catchable: str = ""
    deceived: str = ""
    uses_device: bool = False
    seconds: float = 2.5

    @property
    def deception(self) -> str:
        """How it deceives, in one sentence."""
        return (self.simulated or self.real).__doc__.splitlines()[0]

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
        if any(word in reason for word in self.excuses):
            return "says why"
        disturbed = any(word in reason for word in DISTURBED)
        undecided = verdict == "cannot tell" and (disturbed or self.truth == "same")
        return "undecided" if real and undecided else "wrong"


# Stages


class _Stage(contextlib.ExitStack):
    """What is entered into this context, or started here, ends with it."""

    def start(self, script, *arguments):
        """Start a Python process; it ends with the stage at the latest."""
        command = [sys.executable, "-S", "-c", script, *map(str, arguments)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE)
        self.callback(end, process)
        return process


class Stage(_Stage):
    """Work takes real time here."""

    def __init__(self, seconds):
        super().__init__()
        self.seconds, self.begun = seconds, time.perf_counter()

    @property
    def half_over(self):
        """Whether half of the seconds that a comparison may take have passed."""
        return time.perf_counter() - self.begun > self.seconds / 2

    @functools.cached_property
    def device(self):
        """A GPU, or else a stand-in that the kit is told of, and PyTorch is not."""
        if torch.cuda.is_available():
            return CudaQueue()
        queue = SleepingQueue()
        devices.EXTRA.append(queue)
        self.callback(devices.EXTRA.remove, queue)
        return queue

    def work(self, milliseconds):
        """Do a fixed amount of plain Python, about so long on a server of today."""
        for _ in range(round(20 * milliseconds)):
            spin()

    def rest(self, milliseconds):
        """Wait without using a core."""
        time.sleep(milliseconds / 1000)

    def pin(self, cores):
        """Keep this thread, and the processes that it starts, on so many cores."""
        if not hasattr(os, "sched_setaffinity"):
            return
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, set(sorted(before)[-cores:]))
        self.callback(os.sched_setaffinity, 0, before)


class SimulatedStage(_Stage):
    """Work moves a fake clock here (`helpers.FakeClock`, `helpers.FakeDevice`)."""

    def __init__(self, seconds, clock, device):
        super().__init__()
        self.clock, self.device = clock, FakeQueue(device)
        self.half = clock.now + seconds / 2

    @property
    def half_over(self):
        """Whether half of the seconds that a comparison may take have passed."""
        return self.clock.now > self.half

    def work(self, milliseconds, *, delay=0.0, own=0.0):
        """Let the clock go on; `delay` and `own` as `FakeClock.work` has them."""
        self.clock.work(milliseconds / 1000, delay=delay / 1000, own=own / 1000)

    rest = work


class FakeQueue:
    """`helpers.FakeDevice`, told milliseconds."""

    def __init__(self, device):
        self.enqueue = lambda milliseconds: device.enqueue(milliseconds / 1000)
        self.synchronize = device.synchronize


class SleepingQueue:
    """A device that works through its queue by itself; PyTorch does not know it."""

    def __init__(self):
        self.free_at = 0.0

    def enqueue(self, milliseconds):
        self.free_at = max(self.free_at, time.perf_counter()) + milliseconds / 1000

    def synchronize(self):
        # A sleep is late by as much as a tenth of a millisecond.
        time.sleep(max(0.0, self.free_at - time.perf_counter() - 5e-4))
        while time.perf_counter() < self.free_at:
            pass

    def reset_peak(self):
        return 0

    def peak(self):
        return 0


class CudaQueue:
    """The current CUDA device; a millisecond of work is so many multiplications."""

    def __init__(self):
        self.matrix = torch.ones(1024, 1024, device="cuda")
        self.out = torch.empty_like(self.matrix)

    def enqueue(self, milliseconds):
        for _ in range(round(10 * milliseconds)):
            torch.mm(self.matrix, self.matrix, out=self.out)

    def synchronize(self):
        self.out[0, 0].item()


def spin(turns=600):
    """Add numbers."""
    total = 0
    for number in range(turns):
        total += number % 7
    return total


def end(process):
    """End a process that was started here, and wait for it."""
    process.kill()
    process.wait()
    process.stdin.close()


def repeat(step):
    """Make an experiment of a function: its argument is the step's number in a start.

    What it returns is the number of items, one for None.
    """

    def experiment():
        for number in itertools.count():
            yield step(number) or 1

    return experiment


# Costs that hide behind the time spent waiting for a core


def stolen_core(stage):
    """Its workers use the trainer's own core, whose waiting is taken off elsewhere."""

    def alone(number):
        stage.work(5)

    def crowded(number):
        stage.work(10, delay=5, own=5)

    return {"alone": repeat(alone), "crowded": repeat(crowded)}


def stolen_core_for_real(stage):
    """Two worker processes of its own burn the core that the trainer runs on."""
    stage.pin(cores=1)

    def alone():
        while True:
            stage.work(2)
            yield 1

    def crowded():
        workers = [stage.start("while True: pass") for _ in range(2)]
        try:
            yield from alone()
        finally:
            for worker in workers:
                end(worker)

    return {"alone": alone, "crowded": crowded}


def eight_threads(stage):
    """Its eight threads wait for each other on two cores, which looks like waiting."""

    def two(number):
        stage.work(5, own=5)

    def eight(number):
        stage.work(12, delay=7, own=12)

    return {"two": repeat(two), "eight": repeat(eight)}


def eight_threads_for_real(stage):
    """Eight threads each do what one of two does, and two cores must do it all."""
    stage.pin(cores=2)
    torch.set_num_threads(1)

    def multiply(a):
        for _ in range(10):
            torch.mm(a, a)

    def train(threads):
        a = torch.rand(128, 128)
        quietly = {"initializer": torch.set_num_threads, "initargs": (1,)}
        with ThreadPoolExecutor(threads - 1, **quietly) as helpers:
            while True:
                others = [helpers.submit(multiply, a) for _ in range(threads - 1)]
                multiply(a)
                for other in others:
                    other.result()
                yield 1

    return {"two": lambda: train(2), "eight": lambda: train(8)}


# Head starts


#: Milliseconds that a batch takes to load and to train, and how many are kept ready.
LOADING, TRAINING, FEW, MANY = 8, 4, 2, 32


def prefetch_head_start(stage):
    """A deep queue, filled before the first yield, hides that loading is the limit."""

    def load(depth):
        ready = float(depth)
        stage.rest(depth * LOADING)
        while True:
            seconds = TRAINING if ready >= 1 else LOADING * (1 - ready)
            seconds = max(TRAINING, seconds)
            ready = min(depth, ready + seconds / LOADING - 1)
            stage.work(seconds)
            yield 1

    return {"few": lambda: load(FEW), "many": lambda: load(MANY)}


class Slow(Dataset):
    """Each batch takes a while; more of them than are ever read."""

    def __len__(self):
        return 10_000_000

    def __getitem__(self, index):
        time.sleep(LOADING / 1000)
        return index


def prefetch_head_start_for_real(stage):
    """A worker fills a deep queue during set-up, and warm-up does not empty it."""

    def load(depth):
        batches = DataLoader(
            Slow(), batch_size=None, num_workers=1, prefetch_factor=depth
        )
        batches = iter(batches)
        next(batches)
        stage.rest(1.1 * depth * LOADING)
        for _ in batches:
            stage.rest(TRAINING)
            yield 1

    return {"few": lambda: load(FEW), "many": lambda: load(MANY)}


def warm_page_cache(stage):
    """The first to read the file pays the disk, the second finds it in memory."""
    cached = set()

    def read(number):
        stage.work(2 if number in cached else 20)
        cached.add(number)

    return {"first": repeat(read), "second": repeat(read)}


def warm_page_cache_for_real(stage, chunk=1 << 16, chunks=2000):
    """The file is put out of memory; whoever reads it first brings it back."""
    folder = stage.enter_context(tempfile.TemporaryDirectory())
    path = os.path.join(folder, "data")
    with open(path, "wb") as file:
        for _ in range(chunks):
            file.write(os.urandom(chunk))
        os.fsync(file.fileno())
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def read():
        descriptor = os.open(path, os.O_RDONLY)
        if hasattr(os, "posix_fadvise"):  # it shall not read ahead
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        try:
            for number in itertools.count():
                os.pread(descriptor, chunk, number % chunks * chunk)
                stage.work(0.2)
                yield 1
        finally:
            os.close(descriptor)

    return {"first": read, "second": read}


def cached_result(stage):
    """What an earlier start has computed is kept, so later starts have less to do."""
    kept = set()

    def plain(number):
        stage.work(5)

    def keeps(number):
        stage.work(0.5 if number in kept else 5)
        kept.add(number)

    return {"plain": repeat(plain), "keeps": repeat(keeps)}


def sleeps_first(stage):
    """It sleeps before its first yield, which is no step."""

    def plain():
        while True:
            yield 1
            stage.work(5)

    def sleepy():
        stage.rest(300)
        yield from plain()

    return {"plain": plain, "sleepy": sleepy}


# State that leaks from one variant into the other


def leaked_autocast(stage):
    """The baseline switches autocast on and never off; the variant profits from it."""

    def step(number):
        stage.work(2.5 if torch.is_autocast_enabled("cpu") else 5)

    def leaks():
        torch.autocast("cpu", dtype=torch.bfloat16).__enter__()
        yield from repeat(step)()

    return {"leaks": leaks, "plain": repeat(step)}


def leaked_threads(stage):
    """The baseline sets the thread count and does not set it back."""
    usual = torch.get_num_threads()

    def step(number):
        stage.work(2.5 if torch.get_num_threads() == usual + 1 else 5)

    def leaks():
        torch.set_num_threads(usual + 1)
        yield from repeat(step)()

    return {"leaks": leaks, "plain": repeat(step)}


def model_trained_by_both(stage, model=None):
    """Both train one model, and a trained model has less left to do."""
    model = model or torch.nn.Linear(1, 1)
    untrained = model.weight.item()

    def train():
        easy = model.weight.item() != untrained
        while True:
            with torch.no_grad():
                model.weight += 1.0
            stage.work(2.5 if easy else 5)
            yield 1

    return {"first": lambda: train(), "second": lambda: train()}


# Waits until its input ends, which is when its variant does, then goes on for ever.
_LEFT_OVER = "import sys; sys.stdin.read()\nwhile True: pass"


def worker_left_over(stage):
    """A worker of the baseline lives on after it and slows down whoever comes next."""
    left = []

    def step(number):
        stage.work(10 if any(map(runs_on, left)) else 5)

    def leaves():
        worker = stage.start(_LEFT_OVER)
        try:
            yield from repeat(step)()
        finally:
            left.append(worker)

    return {"leaves": leaves, "plain": repeat(step)}


def runs_on(process):
    """Whether a process is alive; one that was killed just now has a second to end."""
    try:
        process.wait(timeout=1)
    except subprocess.TimeoutExpired:
        return True
    return False


def worker_left_over_for_real(stage):
    """The baseline's worker begins to burn the one core when the baseline ends."""
    stage.pin(cores=1)

    def plain():
        while True:
            stage.work(2)
            yield 1

    def leaves():
        worker = stage.start(_LEFT_OVER)
        try:
            yield from plain()
        finally:
            worker.stdin.close()

    return {"leaves": leaves, "plain": plain}


# A machine that changes meanwhile


def throttled_half(stage):
    """The machine halves its speed half-way, and the variant is measured last."""

    def step(number):
        stage.work(4 if stage.half_over else 2)

    return {"first": repeat(step), "second": repeat(step)}


def neighbour_half_way(stage):
    """A neighbour takes half of the core from half-way on."""

    def step(number):
        if stage.half_over:
            stage.work(10, delay=5)
        else:
            stage.work(5)

    return {"first": repeat(step), "second": repeat(step)}


# Forks and leaves, so that the system adopts it: one's own children are one's own cost.
_NEIGHBOUR = """
import os, sys, threading, time
if os.fork():
    os._exit(0)
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
time.sleep(float(sys.argv[1]))
while True:
    sum(range(1000))
"""


def neighbour_half_way_for_real(stage):
    """Somebody else's process begins to burn the one core half-way."""
    stage.pin(cores=1)
    starter = stage.start(_NEIGHBOUR, stage.seconds / 2)
    starter.wait()

    def step(number):
        stage.work(2)

    return {"first": repeat(step), "second": repeat(step)}


def jumping_clock(stage, seconds=50.0):
    """The clock jumps ahead by 50 s in the middle of a step, once."""
    numbers = itertools.count()

    def step(number):
        stage.work(5 + (1000 * seconds if next(numbers) == 300 else 0))

    return {"first": repeat(step), "second": repeat(step)}


# Devices with a queue


def never_synchronised(stage):
    """It only enqueues its work, so its steps seem to take no time."""

    def waits(number):
        stage.device.enqueue(5)
        stage.device.synchronize()

    def enqueues(number):
        stage.device.enqueue(10)

    return {"waits": repeat(waits), "enqueues": repeat(enqueues)}


def item_in_one(stage):
    """`.item()` makes one variant wait in each step for what both have to do."""

    def plain(number):
        stage.device.enqueue(5)

    def reads(number):
        stage.device.enqueue(5)
        stage.device.synchronize()  # as reading a tensor does

    return {"plain": repeat(plain), "reads": repeat(reads)}


# Steps that are not alike


def unequal_work(stage):
    """Its steps are longer and handle more, now few items, now many."""

    def even(number):
        stage.work(0.8)
        return 32

    def uneven(number):
        items = 8 if number % 2 else 120
        stage.work(items * 0.02)
        return items

    return {"even": repeat(even), "uneven": repeat(uneven)}


def fewer_items(stage):
    """It says 64 items and handles 48."""

    def honest(number):
        stage.work(4)
        return 64

    def boasts(number):
        stage.work(3)
        return 64

    return {"honest": repeat(honest), "boasts": repeat(boasts)}


def growing_step(stage):
    """Its first steps are short, and each takes longer than the one before."""

    def even(number):
        stage.work(5)

    def grows(number):
        stage.work(3 + 0.03 * number)

    return {"even": repeat(even), "grows": repeat(grows)}


_COLLECT_EVERY = 100


def collection_storm(stage):
    """Garbage is collected every hundred steps, which a typical step does not show."""

    def plain(number):
        stage.work(2)

    def storms(number):
        stage.work(2 + 60 * (number % _COLLECT_EVERY == _COLLECT_EVERY - 1))

    return {"plain": repeat(plain), "storms": repeat(storms)}


def collection_storm_for_real(stage):
    """Every hundred steps the collector looks through half a million objects."""
    heap = [[] for _ in range(500_000)]

    def plain(number):
        stage.work(2 if heap else 0)

    def storms(number):
        stage.work(2)
        if number % _COLLECT_EVERY == _COLLECT_EVERY - 1:
            gc.collect()

    return {"plain": repeat(plain), "storms": repeat(storms)}


_NEW_SHAPE = 12


def compiles_late(stage):
    """It compiles in its first step, and again where a batch has another shape."""

    def eager(number):
        stage.work(5)

    def compiled(number):
        stage.work(300 if number in (1, _NEW_SHAPE) else 2.5)

    return {"eager": repeat(eager), "compiled": repeat(compiled)}


def compiles_late_for_real(stage):
    """`torch.compile` compiles in the first step and for the first shorter batch."""
    if not shutil.which(os.environ.get("CXX", "g++")):
        return compiles_late(stage)

    def compute(x):
        for _ in range(8):
            x = torch.sin(x) * torch.sigmoid(x)
        return x

    fast = torch.compile(compute)
    whole, short = torch.rand(64, 500), torch.rand(63, 500)

    def train(function):
        for number in itertools.count():
            function(short if number == _NEW_SHAPE else whole)
            yield 1

    return {"eager": lambda: train(compute), "compiled": lambda: train(fast)}


_RARE = 200


def rare_step(stage):
    """Every two-hundredth step takes a hundred times as long as the others."""

    def even(number):
        stage.work(1)

    def rare(number):
        stage.work(100 if number % _RARE == _RARE - 1 else 1)

    return {"even": repeat(even), "rare": repeat(rare)}


def shrinking_data(stage):
    """Whoever takes a batch leaves less data behind, so later steps are shorter."""
    left = [256.0]

    def step(number):
        items = max(8, int(left[0]))
        left[0] *= 0.998
        stage.work(0.5 + items * 0.02)
        return items

    return {"first": repeat(step), "second": repeat(step)}


# The table


def _both(name, truth, make, **more):
    return Liar(name, truth, make, make, **more)


LIARS = [
    Liar("stolen core", "slower", stolen_core, stolen_core_for_real, 1 / 2),
    Liar("eight threads", "slower", eight_threads, eight_threads_for_real, 5 / 12),
    Liar(
        "prefetch head start",
        "same",
        prefetch_head_start,
        prefetch_head_start_for_real,
        excuses=CHANGES,
    ),
    _both("leaked autocast", "slower", leaked_autocast, ratio=1 / 2),
    _both("leaked thread count", "slower", leaked_threads, ratio=1 / 2),
    Liar(
        "warm page cache",
        "same",
        warm_page_cache,
        warm_page_cache_for_real,
        # Longer is right: the cold reads weigh less and less.
        excuses=(*CHANGES, "measure about"),
    ),
    _both("throttled half", "same", throttled_half, ratio=1.0),
    _both(
        "queue never synchronised",
        "slower",
        never_synchronised,
        ratio=1 / 2,
        uses_device=True,
    ),
    _both(".item() in one", "same", item_in_one, ratio=1.0, uses_device=True),
    _both("unequal work", "faster", unequal_work, ratio=1.25),
    _both(
        "fewer items than it says",
        "same",
        fewer_items,
        not_catchable="Only the experiment knows how many items it handled.",
        deceived="faster",
    ),
    _both("growing step", "slower", growing_step, excuses=CHANGES),
    Liar(
        "garbage-collection storm",
        "slower",
        collection_storm,
        collection_storm_for_real,
        excuses=CHANGES,
    ),
    Liar(
        "compiles late",
        "faster",
        compiles_late,
        compiles_late_for_real,
        excuses=CHANGES,
    ),
    _both("cached result", "same", cached_result, excuses=(*CHANGES, "start")),
    _both("rare 100 × step", "slower", rare_step, excuses=CHANGES),
    Liar(
        "neighbour half-way",
        "same",
        neighbour_half_way,
        neighbour_half_way_for_real,
        1.0,
    ),
    _both("model trained by both", "same", model_trained_by_both, ratio=1.0),
    Liar("worker left over", "same", worker_left_over, worker_left_over_for_real, 1.0),
    Liar("jumping clock", "same", jumping_clock, None, excuses=CHANGES),
    _both("sleeps before its first yield", "same", sleeps_first, ratio=1.0),
    _both("shrinking data", "same", shrinking_data, ratio=1.0),
]


def find(name):
    """Return the liar of this name."""
    return next(liar for liar in LIARS if liar.name == name)
