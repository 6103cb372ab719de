"""Lets one run of an experiment call something else than PyTorch's entry points.

A wrapper asks who calls it: it acts for the thread that drives this run, and for
threads that the run starts; in the reader's own cells, which may run meanwhile, it does
not.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from unittest.mock import patch

from kit import clock
from kit.measuring.experiment import Experiment

#: What the diagnosis itself writes into a trace.
STEP, BACKWARD, CLOSURE = "kit: step", "kit: backward", "kit: closure"
LOADER, WAIT = "kit: loader", "kit: wait"
_END = object()


class _Now(threading.local):
    """Which run a thread drives, or belongs to."""

    work: Work | None = None


_NOW = _Now()


class StepTime(NamedTuple):
    """When a step began, how many seconds it took, and whether nothing was changed."""

    begun: float
    seconds: float
    is_plain: bool


@dataclass(eq=False)
class Work:
    """One run that is watched or changed; enter it around each of its steps.

    `mark` surrounds a step, `greeters` are called in threads that the run starts. Where
    `is_plain` is set to False, steps are noted as changed or recorded ones.
    """

    has_begun: bool = False
    is_over: bool = False
    is_plain: bool = True
    #: When the step that goes on now began; 0 between two steps.
    step_begun: float = 0.0
    steps: list[StepTime] = field(default_factory=list)
    #: How often each entry point was called in this step.
    calls: Counter[Any] = field(default_factory=Counter)
    mark: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext
    greeters: list[Callable[[], object]] = field(default_factory=list)
    #: The run in a step of which this one is made, if so.
    _outer: Work | None = None

    def __enter__(self) -> None:
        self._outer, _NOW.work = _NOW.work, self

    def __exit__(self, *_: object) -> None:
        _NOW.work = self._outer

    def is_here(self) -> bool:
        """Return whether the calling thread belongs to this run."""
        return _NOW.work is self and not self.is_over

    def step(self, generator: Generator[Any, None, None]) -> Any:
        """Let the generator make a step, and note how long it took."""
        self.calls.clear()
        self.step_begun = clock.CLOCK.wall()
        begun = self.step_begun
        try:
            with self, self.mark():
                value = next(generator, _END)
        finally:
            self.step_begun = 0.0
        if value is not None and value is not _END:  # a bare yield ends no step
            seconds = clock.CLOCK.wall() - begun
            self.steps.append(StepTime(begun, seconds, self.is_plain))
        return value


#: Enters what changes the calls of a run, or only labels them.
Change = Callable[[Work], AbstractContextManager[None]]


def change(
    experiment: Experiment, *changes: Change, work: Work | None = None
) -> Experiment:
    """Return the experiment with changes that are at work while it runs.

    `work` is what its first run is watched by.
    """
    driven = functools.partial(_drive, experiment, changes, work)
    return replace(experiment, function=driven, written=experiment.own)


def _drive(
    experiment: Experiment,
    changes: Sequence[Change],
    work: Work | None,
    /,
    **knobs: object,
) -> Generator[Any, None, None]:
    work = work or Work()
    with contextlib.ExitStack() as stack:
        entry = threading.Thread, "start", functools.partial(_start_thread, work)
        stack.enter_context(wrapped(work, entry))
        for enter in changes:
            stack.enter_context(enter(work))
        with work:
            generator = experiment.start(knobs)
        try:
            with work:
                value = next(generator, _END)
            while value is not _END:
                work.has_begun = True
                yield value
                value = work.step(generator)
        finally:
            with work:
                generator.close()
            work.is_over = True


@contextlib.contextmanager
def wrapped(
    work: Work, *entries: tuple[Any, str, Callable[..., Any]]
) -> Generator[None, None, None]:
    """Let a run call something else: of each (owner, name, function) the function.

    It gets what was there as its first argument. Everything is put back in the end.
    """
    with contextlib.ExitStack() as stack:
        for owner, name, instead in entries:
            asking = ask(work, getattr(owner, name), instead)
            stack.enter_context(patch.object(owner, name, asking))
        yield


def ask(
    work: Work, real: Callable[..., Any], instead: Callable[..., Any]
) -> Callable[..., Any]:
    """Return what calls `instead` for a run, and `real` for everybody else."""

    @functools.wraps(real)
    def call(*arguments: Any, **options: Any) -> Any:
        if work.is_here():
            return instead(real, *arguments, **options)
        return real(*arguments, **options)

    return call


def _start_thread(
    work: Work, real: Callable[..., None], thread: threading.Thread
) -> None:
    """Start a thread that belongs to a run, as who starts it does."""
    own = thread.run

    def run() -> None:
        del vars(thread)["run"]
        _NOW.work = work
        for greet in work.greeters:
            greet()
        own()

    thread.run = run  # type: ignore[method-assign]
    real(thread)


@contextlib.contextmanager
def labels(work: Work) -> Generator[None, None, None]:
    """Write into a trace what PyTorch does not label itself, for every step."""
    import torch
    from torch.autograd.profiler import record_function
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    def label(
        name: str, real: Callable[..., Any], *arguments: Any, **named: Any
    ) -> Any:
        with record_function(name):
            return real(*arguments, **named)

    def label_closure(_: Any, arguments: Any, named: Any) -> Any:
        """Part an optimizer's own arithmetic from that of the closure it calls."""
        if not work.is_here():
            return None
        places = [n for n, each in enumerate(arguments) if callable(each)]
        for place in places:
            closure = functools.partial(label, CLOSURE, arguments[place])
            arguments = (*arguments[:place], closure, *arguments[place + 1 :])
        if callable(closure := named.get("closure")):
            named = {**named, "closure": functools.partial(label, CLOSURE, closure)}
        return arguments, named

    work.mark = functools.partial(record_function, STEP)
    backward = functools.partial(label, BACKWARD)
    loader = torch.utils.data.DataLoader
    entries = [(torch.autograd, name, backward) for name in ("backward", "grad")]
    entries.append((loader, "__iter__", functools.partial(label, LOADER)))
    if torch.distributed.is_available():
        entries.append((torch.distributed.Work, "wait", functools.partial(label, WAIT)))
    with register_optimizer_step_pre_hook(label_closure), wrapped(work, *entries):
        yield
