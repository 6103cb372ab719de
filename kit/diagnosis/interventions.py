"""What would the step take without this? Changes to PyTorch's behaviour, on and off.

The one place that wraps PyTorch's entry points. `installed()` puts wrappers in, and
takes them out whatever happens. Each asks which intervention is at work: there is one
only while a generator runs that was made for it.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import os
import threading
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kit.clock.experiment import Experiment
from kit.clock.origin import referred_objects
from kit.diagnosis.trace import BACKWARD, LOADER, STEP

#: So many batches are kept, if they fit into so many bytes.
_MOST_BATCHES, _MOST_BYTES = 8, 500_000_000


@dataclass(frozen=True)
class Intervention:
    """One change: what it is called, which cause it removes, what is done.

    `threads` is how many threads every thread of this process gets, and 1 each worker.
    `workers` limits how many workers a loader starts. `step` is "skip", "foreach" or
    "fused". Without any of them nothing is changed. `batches` are what loaders gave, by
    loader.
    """

    label: str
    cause: str = ""
    cached: bool = False
    on_device: bool = False
    threads: int | None = None
    workers: int | None = None
    step: str | None = None
    alone: bool = False
    unread: bool = False
    marked: bool = False
    batches: dict[Any, list[Any]] = field(default_factory=dict, compare=False)

    @property
    def is_repair(self) -> bool:
        """Return whether a reader could do the same in their own code."""
        return self.cause == "threads" or self.step in ("foreach", "fused")


@dataclass
class _Life:
    """An intervention at work in one generator, and what it has kept for it.

    `begun` is set when set-up is over; `calls` counts, in each step, what is answered
    with something kept.
    """

    what: Intervention
    pid: int = field(default_factory=os.getpid)
    begun: bool = False
    calls: int = 0
    kept: dict[Any, Any] = field(default_factory=dict)
    undo: list[Callable[[], object]] = field(default_factory=list)

    def answer(self, key: Any, make: Callable[[], Any]) -> Any:
        """Return what the same call of an earlier step got, from the second step on."""
        self.calls += 1
        if not self.begun:
            return make()
        place = self.calls, key
        if place not in self.kept:
            self.kept[place] = make()
        return self.kept[place]


class _Now:
    """The life that is at work; forked workers inherit it."""

    life: _Life | None = None


def intervene(experiment: Experiment, what: Intervention) -> Experiment:
    """Return the experiment with an intervention that is at work while it runs."""
    driven = functools.partial(_drive, experiment, what)
    return replace(experiment, function=driven)


def _drive(
    experiment: Experiment, what: Intervention, /, **knobs: object
) -> Generator[Any, None, None]:
    life, mark = _Life(what), _make_mark() if what.marked else None
    try:
        _reach_optimizers(experiment, knobs, life)
        with _at_work(life):
            generator = experiment.start(knobs)
        try:
            while True:
                with _at_work(life):
                    try:
                        value = next(generator)
                    except StopIteration:
                        return
                life.begun, life.calls = True, 0
                if mark is not None:
                    mark()
                yield value
        finally:
            with _at_work(life):
                generator.close()
    finally:
        for put_back in life.undo:
            put_back()


def _reach_optimizers(
    experiment: Experiment, knobs: Mapping[str, object], life: _Life
) -> None:
    """Wrap steps that a scheduler has put into closed-over optimizers themselves."""
    import torch

    if life.what.step is None:
        return
    for _, value in referred_objects(experiment.function, knobs):
        own = vars(value) if isinstance(value, torch.optim.Optimizer) else {}
        if "step" in own:
            kept = own["step"]
            own["step"] = functools.partial(_take_step, kept, value)
            own["step"]._wrapped_by_lr_sched = True
            life.undo.append(functools.partial(own.update, step=kept))


def _take_step(
    kept: Callable[..., Any], optimizer: Any, *arguments: Any, **options: Any
) -> Any:
    return _step(lambda _, *a, **o: kept(*a, **o), optimizer, *arguments, **options)


class _at_work:  # noqa: N801 (a context manager, as quick as can be)
    def __init__(self, life: _Life) -> None:
        self.life = life

    def __enter__(self) -> None:
        _Now.life = self.life
        if self.life.what.threads is not None:
            _set_threads(self.life.what.threads)

    def __exit__(self, *_: object) -> None:
        _Now.life = None


def _make_mark() -> Callable[[], None]:
    from torch.autograd.profiler import record_function

    def mark() -> None:
        with record_function(STEP):
            pass

    return mark


@contextlib.contextmanager
def installed(*, devices: bool = False) -> Generator[None, None, None]:
    """Wrap PyTorch's entry points; put every one of them back in the end."""
    before: list[tuple[Any, str, Any]] = []

    def wrap(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        before.append((owner, name, vars(owner).get(name, _ABSENT)))
        setattr(owner, name, make(getattr(owner, name)))

    try:
        _wrap_all(wrap, devices)
        yield
    finally:
        for owner, name, value in reversed(before):
            if value is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
        _Now.life = None


_ABSENT = object()
Wrap = Callable[[Any, str, Callable[[Any], Any]], None]


def _wrap_all(wrap: Wrap, devices: bool) -> None:
    import torch
    from torch.utils.data import DataLoader
    from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

    wrap(torch, "set_num_threads", _wrap_set_num_threads)
    wrap(threading.Thread, "start", _wrap_thread_start)
    wrap(DataLoader, "__iter__", _wrap_iter)
    as_loader = functools.partial(_wrap_with_label, LOADER)
    as_backward = functools.partial(_wrap_with_label, BACKWARD)
    wrap(torch.autograd, "_engine_run_backward", as_backward)
    wrap(DataLoader, "_get_iterator", as_loader)
    wrap(_MultiProcessingDataLoaderIter, "_shutdown_workers", as_loader)
    for optimizer in _subclasses(torch.optim.Optimizer):
        if "step" in vars(optimizer):
            wrap(optimizer, "step", _wrap_step)
    wrap(torch.optim.Optimizer, "_patch_step_function", _wrap_later_steps(wrap))
    if torch.distributed.is_available():
        _wrap_exchanges(wrap)
    if devices:  # torch.compile looks at these, so they are left alone elsewhere
        for name in ("to", "cuda"):
            wrap(torch.Tensor, name, functools.partial(_wrap_copy, name))
        for name in ("item", "tolist", "__float__", "__int__", "__bool__"):
            wrap(torch.Tensor, name, functools.partial(_wrap_read, name))


def _subclasses(cls: type) -> Iterator[type]:
    for subclass in cls.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


def _set_threads(threads: int) -> None:
    import torch

    if torch.get_num_threads() != threads:
        getattr(torch.set_num_threads, "__wrapped__", torch.set_num_threads)(threads)


def _wrap_set_num_threads(real: Callable[[int], None]) -> Callable[[int], None]:
    @functools.wraps(real)
    def set_num_threads(threads: int) -> None:
        life = _Now.life
        if life is None or life.what.threads is None:
            return real(threads)
        # A worker is a process of its own: it gets one thread.
        real(life.what.threads if os.getpid() == life.pid else 1)

    return set_num_threads


def _wrap_thread_start(real: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(real)
    def start(thread: threading.Thread) -> None:
        life = _Now.life
        if life is not None and life.what.threads is not None:
            thread.run = functools.partial(  # type: ignore[method-assign]
                _run_with, thread.run, life.what.threads
            )
        real(thread)

    return start


def _run_with(run: Callable[[], None], threads: int) -> None:
    import torch

    # A new thread reports the count of the one that made it, and uses another.
    real = torch.set_num_threads
    getattr(real, "__wrapped__", real)(threads)
    run()


def _wrap_iter(real: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(real)
    def iterate(loader: Any) -> Any:
        life = _Now.life
        if life is None:
            return real(loader)
        if life.what.workers is not None and loader.num_workers > life.what.workers:
            asked = {"num_workers": loader.num_workers}
            life.undo.append(functools.partial(vars(loader).update, asked))
            vars(loader)["num_workers"] = life.what.workers
        return _cached(loader, real, life) if life.what.cached else real(loader)

    return iterate


def _cached(loader: Any, real: Callable[..., Any], life: _Life) -> Iterator[Any]:
    """Yield a few batches again and again; later lives take those of the first."""
    try:
        length = len(loader)
    except TypeError:
        length = None
    key = type(loader.dataset), length, loader.batch_size
    kept = _find_kept(life.what.batches.setdefault(key, []), loader.dataset, life)
    if kept.length is None:
        source = real(loader)
        for batch in source:
            kept.keep(batch)
            if kept.is_full():
                break
        else:
            length = len(kept.batches)
        del source
        # Persistent workers would go on without being asked for anything.
        vars(loader)["_iterator"] = None
        kept.length = math.inf if length is None else length
    return kept.repeat()


@dataclass
class _Kept:
    """Batches that one loader gave, and whose they are now.

    They are handed out as they came, even where a step changes them in place.
    """

    owner: Callable[[], Any] = lambda: None
    life: _Life | None = None
    batches: list[Any] = field(default_factory=list)
    tensors: list[list[tuple[Any, Any, int]]] = field(default_factory=list)
    length: float | None = None

    def keep(self, batch: Any) -> None:
        found = [(t, t.clone(), t._version) for t in _tensors(batch)]
        self.batches.append(batch)
        self.tensors.append(found)

    def is_full(self) -> bool:
        each = sum(tensor.nbytes for tensor, *_ in self.tensors[0])
        count = len(self.batches)
        return count >= _MOST_BATCHES or count * each > _MOST_BYTES

    def repeat(self) -> Iterator[Any]:
        count = 0
        while self.batches and count < (self.length or 0):
            place = count % len(self.batches)
            for tensor, pristine, version in self.tensors[place]:
                if tensor._version != version:
                    tensor.data.copy_(pristine)
            yield self.batches[place]
            count += 1


def _find_kept(entries: list[_Kept], dataset: Any, life: _Life) -> _Kept:
    """Return what is kept of a loader over this data set, or over its predecessor.

    A data set that is gone, or that an earlier life had, has made room for this one.
    """
    for kept in entries:
        if kept.owner() is dataset:
            kept.life = life
            return kept
    for kept in entries:
        if kept.life is not life or kept.owner() is None:
            break
    else:
        kept = _Kept()
        entries.append(kept)
    kept.life = life
    try:
        kept.owner = weakref.ref(dataset)
    except TypeError:  # a list, say
        kept.owner = lambda: dataset
    return kept


def _tensors(batch: Any) -> Iterator[Any]:
    if isinstance(batch, Mapping):
        for value in batch.values():
            yield from _tensors(value)
    elif isinstance(batch, (list, tuple)):
        for value in batch:
            yield from _tensors(value)
    elif hasattr(batch, "_version") and hasattr(batch, "nbytes"):
        yield batch


def _wrap_with_label(label: str, real: Callable[..., Any]) -> Callable[..., Any]:
    """Write into a trace what PyTorch does not label itself."""

    @functools.wraps(real)
    def labelled(*arguments: Any, **options: Any) -> Any:
        life = _Now.life
        if life is None or not life.what.marked:
            return real(*arguments, **options)
        from torch.autograd.profiler import record_function

        with record_function(label):
            return real(*arguments, **options)

    return labelled


def _wrap_step(real: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(real)
    def step(optimizer: Any, *arguments: Any, **options: Any) -> Any:
        return _step(real, optimizer, *arguments, **options)

    return step


def _step(
    real: Callable[..., Any], optimizer: Any, *arguments: Any, **options: Any
) -> Any:
    how = None if _Now.life is None else _Now.life.what.step
    if how == "skip":
        return _call_closure(*arguments, **options)
    if how is not None:
        for group in optimizer.param_groups:
            if how in group:
                group["foreach"], group["fused"] = how == "foreach", how == "fused"
    return real(optimizer, *arguments, **options)


def _wrap_later_steps(wrap: Wrap) -> Callable[[Any], Any]:
    """Reach optimizers whose class is made in set-up, when the first one is made."""

    def make(real: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(real)
        def patch(optimizer: Any) -> None:
            real(optimizer)
            for cls in type(optimizer).__mro__:
                step = vars(cls).get("step")
                if step is not None and not _is_wrapped(step):
                    wrap(cls, "step", _wrap_step)

        return patch

    return make


def _is_wrapped(step: Any) -> bool:
    """Return whether this module is among the wrappers of a method."""
    while step is not None:
        if getattr(step, "__code__", None) is _STEP_CODE:
            return True
        step = getattr(step, "__wrapped__", None)
    return False


def _call_closure(closure: Callable[[], Any] | None = None, **_: Any) -> Any:
    import torch

    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def _wrap_exchanges(wrap: Wrap) -> None:
    """Leave out what ranks tell each other: gradients stay as they are."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    def without_exchange(real: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(real)
        def forward(module: Any, *arguments: Any, **options: Any) -> Any:
            if _Now.life is None or not _Now.life.what.alone:
                return real(module, *arguments, **options)
            with module.no_sync():
                return real(module, *arguments, **options)

        return forward

    def left_out(real: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(real)

        @functools.wraps(real)
        def exchange(*arguments: Any, **options: Any) -> Any:
            if _Now.life is None or not _Now.life.what.alone:
                return real(*arguments, **options)
            bound = signature.bind(*arguments, **options).arguments
            return _Done() if bound.get("async_op") else None

        return exchange

    wrap(DistributedDataParallel, "forward", without_exchange)
    for name in ("all_reduce", "broadcast", "barrier"):
        wrap(dist, name, left_out)


_STEP_CODE = _wrap_step(lambda optimizer: None).__code__  # type: ignore[attr-defined]


class _Done:
    """Stands in for an exchange that was left out: there is nothing to wait for."""

    def wait(self, *_: object) -> bool:
        return True

    def is_completed(self) -> bool:
        return True


def _wrap_copy(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    """Give what the same copy of an earlier step gave, which is on the device."""

    @functools.wraps(real)
    def copy(tensor: Any, *arguments: Any, **options: Any) -> Any:
        life = _Now.life
        make = functools.partial(real, tensor, *arguments, **options)
        if life is None or not life.what.on_device or tensor.requires_grad:
            return make()
        key = name, tensor.shape, tensor.dtype, tensor.device, str((arguments, options))
        return life.answer(key, make)

    return copy


def _wrap_read(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    """Give the number that the same call of an earlier step read, without a wait."""

    @functools.wraps(real)
    def read(tensor: Any) -> Any:
        life = _Now.life
        if life is None or not life.what.unread or tensor.device.type == "cpu":
            return real(tensor)
        key = name, tensor.shape, tensor.dtype
        return life.answer(key, functools.partial(real, tensor))

    return read
