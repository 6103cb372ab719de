"""Lets one run of an experiment call something else than PyTorch's entry points."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from unittest.mock import patch

from kit import clock
from kit.measuring.experiment import Experiment

#: What the diagnosis itself writes into a trace.
STEP, BACKWARD = "kit: step", "kit: backward"
LOADER, WAIT = "kit: loader", "kit: wait"
_END = object()


class StepTime(NamedTuple):
    """How many seconds a step took, and whether nothing was changed in it."""

    seconds: float
    is_plain: bool


@dataclass(eq=False)
class Work:
    """The steps of one run that is watched or changed.

    `mark` surrounds a step. Where `is_plain` is False, steps are noted as changed or
    recorded ones.
    """

    is_plain: bool = True
    steps: list[StepTime] = field(default_factory=list)
    mark: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext

    def step(self, generator: Generator[Any, None, None]) -> Any:
        """Let the generator make a step, and note how long it took."""
        begun = clock.CLOCK.wall()
        with self.mark():
            value = next(generator, _END)
        if value is not None and value is not _END:  # a bare yield ends no step
            seconds = clock.CLOCK.wall() - begun
            self.steps.append(StepTime(seconds, self.is_plain))
        return value


#: Enters what changes the calls of a run, or only labels them.
Change = Callable[[Work], AbstractContextManager[None]]


def change(
    experiment: Experiment, *changes: Change, work: Work | None = None
) -> Experiment:
    """Return the experiment with changes that are at work while it runs.

    `work` is what its runs are watched by, else each by one of its own.
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
        for enter in changes:
            stack.enter_context(enter(work))
        generator = experiment.start(knobs)
        stack.callback(generator.close)
        value = next(generator, _END)
        while value is not _END:
            yield value
            value = work.step(generator)


@contextlib.contextmanager
def wrapped(
    *entries: tuple[Any, str, Callable[..., Any]],
) -> Generator[None, None, None]:
    """Call something else: of each (owner, name, function) the function.

    It gets what was there as its first argument. Everything is put back in the end.
    """
    with contextlib.ExitStack() as stack:
        for owner, name, instead in entries:
            call = _call_instead(getattr(owner, name), instead)
            stack.enter_context(patch.object(owner, name, call))
        yield


def _call_instead(
    real: Callable[..., Any], instead: Callable[..., Any]
) -> Callable[..., Any]:
    @functools.wraps(real)
    def call(*arguments: Any, **options: Any) -> Any:
        return instead(real, *arguments, **options)

    return call


@contextlib.contextmanager
def labels(work: Work) -> Generator[None, None, None]:
    """Write into a trace what PyTorch does not label itself, for every step."""
    import torch
    from torch.autograd.profiler import record_function

    def label(
        name: str, real: Callable[..., Any], *arguments: Any, **named: Any
    ) -> Any:
        with record_function(name):
            return real(*arguments, **named)

    work.mark = functools.partial(record_function, STEP)
    backward = functools.partial(label, BACKWARD)
    loader = torch.utils.data.DataLoader
    entries = [(torch.autograd, name, backward) for name in ("backward", "grad")]
    entries.append((loader, "__iter__", functools.partial(label, LOADER)))
    if torch.distributed.is_available():
        entries.append((torch.distributed.Work, "wait", functools.partial(label, WAIT)))
    with wrapped(*entries):
        yield
