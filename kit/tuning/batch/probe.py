"""One real trial of a batch size: how high memory rises, how long a step takes."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import math
import threading
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass

from kit import clock
from kit.experiment import Experiment, ExperimentError, describe, smoke
from kit.figures import format_seconds
from kit.life import BLOCK_SECONDS, Block, Life
from kit.progress import Progress
from kit.system import MemoryWatch, available_bytes
from kit.trial import Trial, make_trial
from kit.variant import Variant, let_go

CALLER = "find_batch_size()"
#: An optimizer makes its state at the end of the first step, so the second has all.
_STEPS_IN_FULL = 2
#: A trial is ended where it takes so much more than the budget, or of what is free.
_OVER, _SHARE_OF_FREE = 1.1, 0.9
_SECONDS_BETWEEN_LOOKS = 0.02
#: A step that takes a larger share of the time for measuring needs no warm-up.
_LONG_STEP = 0.1


@dataclass(frozen=True)
class Probe:
    """What one real trial told of a batch size.

    `idle_bytes` is the memory that set-up took, `memory_bytes` the peak, inf where
    memory ran out, or a trial had to be ended before it did; `items` is what a full
    step handled. `trial` has the timed blocks, none where the budget was exceeded.
    """

    size: int
    idle_bytes: float
    memory_bytes: float
    items: float
    trial: Trial | None

    @property
    def step_seconds(self) -> float:
        """Seconds per step; nan where it was not timed."""
        return self.trial.step_seconds if self.trial else math.nan


@dataclass
class Prober:
    """Tries batch sizes of one experiment, each in a life of its own."""

    experiment: Experiment
    knobs: Mapping[str, object]
    knob: str
    seconds: float
    progress: Progress
    tried: int = 0

    def call(self, size: int) -> str:
        """Return the call of a size as a reader would write it."""
        return describe(self.experiment.name, {**self.knobs, self.knob: size})

    def probe(
        self, size: int, budget: float, most_seconds: float | None = None
    ) -> Probe:
        """Try a size: memory first, and where that is within the budget, time.

        Running out of memory is an answer, too. Raises ExperimentError where the
        experiment fails otherwise, its loss is no number, or no first steps came within
        `most_seconds`.
        """
        knobs = {**self.knobs, self.knob: size}
        watch, variant = MemoryWatch(), Variant(self.experiment, knobs)
        variant.block_seconds = 0.0
        life = variant.lead(self.tried, self.progress)
        self.tried += 1
        most_bytes = min(_OVER * budget, _SHARE_OF_FREE * available_bytes())
        self.progress.doing = f"trying {self.call(size)}"

        def is_full() -> bool:
            # A device says so itself; only the machine's memory ends without a word.
            return watch.highest > most_bytes and not clock.find_initialised()

        idle, failed = math.nan, None
        with contextlib.closing(variant):
            try:
                with life:
                    with guard(most_seconds, is_full):
                        life.open(watch=watch)
                        idle = watch.rise()
                        for _ in range(_STEPS_IN_FULL):
                            life.block()
                            self._check(life, size)
                        life.read_memory()
                    if watch.increase <= budget:
                        self._time(life, size)
            except ExperimentError as error:
                failed = error
        if failed is not None:
            if not _ran_out_of_memory(failed):
                raise self._explain(failed, size, most_seconds) from failed.__cause__
            _free(failed)
            return Probe(size, idle, math.inf, math.nan, None)
        # The last batch of a data set may be a short one, its neighbour is not.
        items = max(block.items for block in life.blocks[:_STEPS_IN_FULL])
        if watch.increase > budget:
            return Probe(size, idle, watch.increase, items, None)
        del life.blocks[:_STEPS_IN_FULL]
        trial = make_trial(variant, whole_runs=False)
        return Probe(size, idle, watch.increase, items, trial)

    def _time(self, life: Life, size: int) -> None:
        """Time blocks of steps, after warm-up where steps are short."""
        life.variant.block_seconds = BLOCK_SECONDS
        if life.blocks[-1].seconds < _LONG_STEP * self.seconds:
            life.settle(self.seconds)
        begun = clock.CLOCK.wall()
        while True:
            life.block()
            self._check(life, size)
            if clock.CLOCK.wall() - begun >= self.seconds or smoke():
                return

    def _check(self, life: Life, size: int) -> None:
        """Raise ExperimentError where a loss of the last block is not a number."""
        block = life.blocks[-1]
        before = sum(earlier.steps for earlier in life.blocks[:-1])
        found = _find_bad_loss(block)
        if found is None:
            return
        step, name, value = found
        # As in other messages, the first yield, which ends set-up, is step 1.
        raise ExperimentError(
            f"{CALLER}: {self.call(size)} yielded {name}={value} in step "
            f"{before + step + 2}.\nTraining is lost from there on, so no batch size "
            "is found: look at its learning rate and its data first."
        )

    def _explain(
        self, error: ExperimentError, size: int, most_seconds: float | None
    ) -> ExperimentError:
        """Say what a failure may have to do with the batch size."""
        hint = (
            f"Is the data set smaller than a batch of {size}? Say how many samples "
            f"there are: find_batch_size(…, most=len(data))."
        )
        overdue = isinstance(error.__cause__, Overdue)
        if overdue and most_seconds is not None:
            return ExperimentError(
                f"{CALLER}: {self.call(size)} made no steps within "
                f"{format_seconds(most_seconds)}, although smaller batches did.\n{hint}"
                " With drop_last=True a loader is then empty, and `while True` around "
                "it never ends."
            )
        text = str(error)
        if "without a single `yield n`" in text or "before warm-up" in text:
            return ExperimentError(f"{CALLER}: {text}\n{hint}")
        return ExperimentError(text if CALLER in text else f"{CALLER}: {text}")


def rehearse() -> None:
    """Take steps of a tiny net, of nobody's: PyTorch loads much of itself at first use.

    Else the first trial would be charged for it, with a hundred megabytes and more.
    """
    import torch
    from torch import nn

    with torch.enable_grad():
        layers = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(288, 4)
        net = nn.Sequential(*layers)
        for optimizer in (
            torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9),
            torch.optim.Adam(net.parameters()),
        ):
            net(torch.zeros(2, 3, 8, 8)).sum().backward()
            optimizer.step()


def _find_bad_loss(block: Block) -> tuple[int, str, float] | None:
    for step, metrics in block.metrics:
        for name, value in metrics.items():
            if "loss" in name.lower() and not math.isfinite(value):
                return step, name, value
    return None


def _ran_out_of_memory(error: BaseException) -> bool:
    """Return whether an error, or what it came from, says that memory ran out."""
    link: BaseException | None = error
    while link is not None:
        said = str(link)
        if (
            isinstance(link, (MemoryError, Overfull))
            or type(link).__name__ == "OutOfMemoryError"
        ):
            return True
        if isinstance(link, RuntimeError) and (
            "can't allocate memory" in said
            or "not enough memory" in said
            or "out of memory" in said
        ):
            return True
        link = link.__cause__
    return False


def _free(error: BaseException) -> None:
    """Free what a failed trial still holds."""
    let_go(error)
    gc.collect()
    if clock.find_initialised():
        import torch

        with contextlib.suppress(RuntimeError):  # Apple's before PyTorch 2.14
            torch.accelerator.empty_cache()


class Overdue(BaseException):
    """Raised in the middle of a trial that takes far longer than it can."""


class Overfull(BaseException):
    """Raised in the middle of a trial that takes more memory than it may."""


@contextlib.contextmanager
def guard(
    most_seconds: float | None, is_full: Callable[[], bool] | None = None
) -> Generator[None, None, None]:
    """Raise Overdue or Overfull in this thread, between two lines of Python.

    A loop over an empty loader never comes to a yield, and a system that runs out of
    memory kills without a word: nothing else would end them in time.
    """
    thread, left = ctypes.c_ulong(threading.get_ident()), threading.Event()
    throw = ctypes.pythonapi.PyThreadState_SetAsyncExc
    deadline = clock.CLOCK.wall() + (math.inf if most_seconds is None else most_seconds)

    def watch() -> None:
        while not left.wait(_SECONDS_BETWEEN_LOOKS):
            full = is_full is not None and is_full()
            if full or clock.CLOCK.wall() > deadline:
                throw(thread, ctypes.py_object(Overfull if full else Overdue))
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        left.set()
        watcher.join()
        throw(thread, None)  # it may be on its way
