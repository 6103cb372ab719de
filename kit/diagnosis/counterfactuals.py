"""What would a step take without this? One context manager for each cause.

Each wraps some of PyTorch's entry points while one run goes on. A wrapper asks who
calls it: for the thread that drives this run, and for threads that it starts, it
leaves something out; in the reader's own cells, which may run meanwhile, it does not.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import itertools
import operator
import os
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

from kit.measuring.experiment import Experiment

#: What the diagnosis itself writes into a trace.
STEP, BACKWARD, LOADER, WAIT = "kit: step", "kit: backward", "kit: loader", "kit: wait"
#: So many batches of a loader are kept; one with two workers has as many ready.
_MOST_BATCHES = 4
_END = object()


class _Now(threading.local):
    """Which run a thread drives, or belongs to."""

    work: Work | None = None


_NOW = _Now()


@dataclass(eq=False)
class Work:
    """One run in which something is changed; enter it around each of its steps.

    `kept` outlives it: the next run of the same variant finds it again. `begun` says
    that set-up is over. `mark` surrounds a step, `greet` is called in threads that the
    run starts.
    """

    kept: dict[Any, Any]
    begun: bool = False
    over: bool = False
    calls: Counter[Any] = field(default_factory=Counter)
    mark: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext
    greet: Callable[[], object] = bool

    def __enter__(self) -> None:
        _NOW.work = self

    def __exit__(self, *_: object) -> None:
        _NOW.work = None

    def is_here(self) -> bool:
        """Return whether the calling thread belongs to this run."""
        return _NOW.work is self and not self.over

    def answer(
        self, key: Any, make: Callable[[], Any], but: Callable[[Any], bool]
    ) -> Any:
        """Return what the same call of an earlier step got; set-up gets its own.

        Nothing is kept that is `but`.
        """
        self.calls[key] += 1
        place = key, self.calls[key]
        if self.begun and place in self.kept:
            return self.kept[place]
        value = make()
        if not but(value):
            self.kept[place] = value
        return value


Change = Callable[[Work], AbstractContextManager[None]]


def change(experiment: Experiment, *changes: Change) -> Experiment:
    """Return the experiment with changes that are at work while it runs."""
    driven = functools.partial(_drive, experiment, changes, {})
    return replace(experiment, function=driven, written=experiment.own)


def _drive(
    experiment: Experiment,
    changes: Sequence[Change],
    kept: dict[Any, Any],
    /,
    **knobs: object,
) -> Generator[Any, None, None]:
    work = Work(kept)
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
                work.begun = True
                work.calls.clear()
                yield value
                with work, work.mark():
                    value = next(generator, _END)
        finally:
            with work:
                generator.close()
            work.over = True


@contextlib.contextmanager
def wrapped(
    work: Work, *entries: tuple[Any, str, Callable[..., Any]]
) -> Generator[None, None, None]:
    """Let a run call something else: of each (owner, name, function) the function.

    It gets what was there as its first argument. Everything is put back in the end.
    """

    def ask(real: Any, instead: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(real)
        def call(*arguments: Any, **options: Any) -> Any:
            if work.is_here():
                return instead(real, *arguments, **options)
            return real(*arguments, **options)

        return call

    with contextlib.ExitStack() as stack:
        for owner, name, instead in entries:
            asking = ask(getattr(owner, name), instead)
            stack.enter_context(patch.object(owner, name, asking))
        yield


def _start_thread(
    work: Work, real: Callable[..., None], thread: threading.Thread
) -> None:
    """Start a thread that belongs to a run, as who starts it does."""
    own = thread.run

    def run() -> None:
        del vars(thread)["run"]
        _NOW.work = work
        work.greet()
        own()

    thread.run = run  # type: ignore[method-assign]
    real(thread)


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
    with wrapped(work, *entries):
        yield


# One context manager for each cause that can be left out


@contextlib.contextmanager
def batches_at_hand(work: Work) -> Generator[None, None, None]:
    """Let loaders hand out their first batches again and again."""
    from torch.utils.data import DataLoader

    # The data sets of this run, by kind: an earlier run's lay in the same order.
    owners: dict[Any, dict[int, tuple[int, Any]]] = {}

    def iterate(real: Callable[..., Any], loader: Any) -> Iterator[Any]:
        length = operator.length_hint(loader) or None  # None for a stream
        # By name: a script's class would keep the script alive.
        kind = type(loader.dataset).__qualname__, length, loader.batch_size
        alike = owners.setdefault(kind, {})
        own = id(loader.dataset)
        place = kind, alike.setdefault(own, (len(alike), loader.dataset))[0]
        if place not in work.kept:
            twin = copy.copy(loader)  # its workers end with it, persistent ones too
            vars(twin)["_iterator"] = None
            batches = [*itertools.islice(real(twin), _MOST_BATCHES)]
            if len(batches) < _MOST_BATCHES:
                length = len(batches)
            work.kept[place] = batches, length
        batches, length = work.kept[place]
        again = itertools.islice(itertools.cycle(batches), length)
        return map(copy.deepcopy, again)  # a step may change a batch in place

    with wrapped(work, (DataLoader, "__iter__", iterate)):
        yield


@contextlib.contextmanager
def batches_on_device(work: Work) -> Generator[None, None, None]:
    """Give what the same copy of an earlier step gave, which is on the device."""
    import torch

    def move(real: Callable[..., Any], tensor: Any, *options: Any, **named: Any) -> Any:
        make = functools.partial(real, tensor, *options, **named)
        if tensor.requires_grad:
            return make()
        key = tensor.shape, tensor.dtype, tensor.device, str((options, named))
        return work.answer(key, make, lambda moved: moved.device == tensor.device)

    entries = [(torch.Tensor, name, move) for name in ("to", "cuda")]
    with wrapped(work, *entries):
        yield


@contextlib.contextmanager
def numbers_unread(work: Work) -> Generator[None, None, None]:
    """Give the number that the same call of an earlier step read, without a wait."""
    import torch

    def read(real: Callable[..., Any], tensor: Any) -> Any:
        if tensor.device.type == "cpu":
            return real(tensor)
        key = real.__name__, tensor.shape, tensor.dtype
        return work.answer(key, functools.partial(real, tensor), lambda _: False)

    names = ("item", "tolist", "__float__", "__int__", "__bool__")
    with wrapped(work, *((torch.Tensor, name, read) for name in names)):
        yield


@contextlib.contextmanager
def no_update(work: Work) -> Generator[None, None, None]:
    """Let `optimizer.step()` find no parameters; closures are still called."""
    from torch.optim import optimizer as hooks

    emptied: list[tuple[Any, Any]] = []

    def empty(optimizer: Any, *_: Any) -> None:
        if work.is_here():
            emptied.append((optimizer, optimizer.param_groups))
            optimizer.param_groups = []

    def refill(optimizer: Any, *_: Any) -> None:
        if work.is_here():
            optimizer.param_groups = emptied.pop()[1]

    before = hooks.register_optimizer_step_pre_hook(empty)
    after = hooks.register_optimizer_step_post_hook(refill)
    try:
        with before, after:
            yield
    finally:
        for optimizer, groups in reversed(emptied):  # of a step that raised
            optimizer.param_groups = groups


@contextlib.contextmanager
def other_threads(work: Work, threads: int) -> Generator[None, None, None]:
    """Compute with another number of threads, in every thread of the run."""
    import torch

    real = torch.set_num_threads

    def set_number(_: Callable[[int], None], asked: int) -> None:
        # A worker is a process of its own: it has the one thread that it asks for.
        real(threads if os.getpid() == pid else asked)

    # A new thread reports the count of the one that made it, and uses another.
    pid, work.greet = os.getpid(), functools.partial(real, threads)
    before = torch.get_num_threads()
    try:
        with wrapped(work, (torch, "set_num_threads", set_number)):
            work.greet()
            yield
    finally:
        real(before)


@contextlib.contextmanager
def no_exchange(work: Work) -> Generator[None, None, None]:
    """Leave out what ranks tell each other: gradients stay as they are."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    def forward(real: Callable[..., Any], module: Any, *args: Any, **named: Any) -> Any:
        with module.no_sync():
            return real(module, *args, **named)

    def skip(real: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        given = inspect.signature(real).bind(*arguments, **named).arguments
        return _Done() if given.get("async_op") else None

    entries = [(dist, name, skip) for name in ("all_reduce", "broadcast", "barrier")]
    with wrapped(work, (DistributedDataParallel, "forward", forward), *entries):
        yield


class _Done:
    """Stands in for an exchange that was left out: there is nothing to wait for."""

    def wait(self, *_: object) -> bool:
        return True

    is_completed = wait
