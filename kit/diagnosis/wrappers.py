"""PyTorch's entry points, each asking which intervention is at work now."""

from __future__ import annotations

import copy
import functools
import inspect
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

from kit.diagnosis.batches import repeat_batches
from kit.diagnosis.effects import NOW, Effect, find_effect, lending
from kit.diagnosis.trace import BACKWARD, LOADER

Wrap = Callable[[Any, str, Callable[[Any], Any]], None]


def wrap_all(wrap: Wrap, devices: bool) -> None:
    """Wrap every entry point that an intervention may change."""
    import torch
    from torch.utils.data import DataLoader
    from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

    wrap(torch, "set_num_threads", _wrap_set_num_threads)
    wrap(threading.Thread, "start", _wrap_thread_start)
    wrap(DataLoader, "__iter__", _wrap_iter)
    as_loader = functools.partial(_wrap_with_label, LOADER)
    wrap(torch.autograd, "_engine_run_backward", _wrap_backward)
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


def set_threads(threads: int) -> None:
    """Set the calling thread's count, whatever is wrapped."""
    import torch

    if torch.get_num_threads() != threads:
        getattr(torch.set_num_threads, "__wrapped__", torch.set_num_threads)(threads)


def _subclasses(cls: type) -> Iterator[type]:
    for subclass in cls.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


def _wrap_set_num_threads(real: Callable[[int], None]) -> Callable[[int], None]:
    @functools.wraps(real)
    def set_num_threads(threads: int) -> None:
        effect = find_effect()
        if effect is None or effect.what.threads is None:
            return real(threads)
        # A worker is a process of its own: it gets one thread.
        real(effect.what.threads if os.getpid() == effect.pid else 1)

    return set_num_threads


def _wrap_thread_start(real: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(real)
    def start(thread: threading.Thread) -> None:
        effect = find_effect()
        if effect is not None:
            run = functools.partial(_run_for, effect, thread, thread.run)
            thread.run = run  # type: ignore[method-assign]
        real(thread)

    return start


def _run_for(effect: Effect, thread: threading.Thread, run: Callable[[], None]) -> None:
    """Run a thread that a life has started: it has the same intervention."""
    import torch

    del vars(thread)["run"]
    NOW.effect = effect
    if effect.what.threads is not None:
        # A new thread reports the count of the one that made it, and uses another.
        real = torch.set_num_threads
        getattr(real, "__wrapped__", real)(effect.what.threads)
    run()


def _wrap_iter(real: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(real)
    def iterate(loader: Any) -> Any:
        effect = find_effect()
        if effect is None:
            return real(loader)
        most, asked = effect.what.workers, loader.num_workers
        workers = asked if most is None else min(most, asked)
        if workers != asked or loader.persistent_workers:
            loader = _find_twin(loader, effect, workers)
        return (
            repeat_batches(loader, real, effect) if effect.what.cached else real(loader)
        )

    return iterate


def _find_twin(loader: Any, effect: Effect, workers: int) -> Any:
    """Return a loader like this one that is an effect's own, with so many workers."""
    twin = effect.twins.get(loader)
    if twin is None:
        twin = effect.twins[loader] = copy.copy(loader)
        vars(twin)["_iterator"] = None
    own = {"_iterator": vars(twin)["_iterator"], "num_workers": workers}
    vars(twin).update({**vars(loader), **own})
    return twin


def _wrap_backward(real: Callable[..., Any]) -> Callable[..., Any]:
    labelled = _wrap_with_label(BACKWARD, real)

    @functools.wraps(real)
    def run_backward(*arguments: Any, **options: Any) -> Any:
        effect = find_effect()
        if effect is None:
            return real(*arguments, **options)
        with lending(effect):
            return labelled(*arguments, **options)

    return run_backward


def _wrap_with_label(label: str, real: Callable[..., Any]) -> Callable[..., Any]:
    """Write into a trace what PyTorch does not label itself."""

    @functools.wraps(real)
    def labelled(*arguments: Any, **options: Any) -> Any:
        effect = find_effect()
        if effect is None or not effect.what.marked:
            return real(*arguments, **options)
        from torch.autograd.profiler import record_function

        with record_function(label):
            return real(*arguments, **options)

    return labelled


def _wrap_step(real: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(real)
    def step(optimizer: Any, *arguments: Any, **options: Any) -> Any:
        return take_step(real, optimizer, *arguments, **options)

    return step


def take_step(
    real: Callable[..., Any], optimizer: Any, *arguments: Any, **options: Any
) -> Any:
    """Take an optimizer's step as the intervention at work wants it."""
    effect = find_effect()
    how = None if effect is None else effect.what.step
    if how == "skip":
        return _call_closure(*arguments, **options)
    # Only for this call: the optimizer may be the reader's, too.
    before = [
        (group, {name: group[name] for name in ("foreach", "fused") if name in group})
        for group in optimizer.param_groups
        if how in group
    ]
    for group, kept in before:
        group.update({name: name == how for name in kept})
    try:
        return real(optimizer, *arguments, **options)
    finally:
        for group, kept in before:
            group.update(kept)


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
            effect = find_effect()
            if effect is None or not effect.what.alone:
                return real(module, *arguments, **options)
            with module.no_sync():
                return real(module, *arguments, **options)

        return forward

    def left_out(real: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(real)

        @functools.wraps(real)
        def exchange(*arguments: Any, **options: Any) -> Any:
            effect = find_effect()
            if effect is None or not effect.what.alone:
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
        effect = find_effect()
        make = functools.partial(real, tensor, *arguments, **options)
        if effect is None or not effect.what.on_device or tensor.requires_grad:
            return make()
        key = name, tensor.shape, tensor.dtype, tensor.device, str((arguments, options))
        return effect.answer(key, make, lambda moved: moved.device != tensor.device)

    return copy


def _wrap_read(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    """Give the number that the same call of an earlier step read, without a wait."""

    @functools.wraps(real)
    def read(tensor: Any) -> Any:
        effect = find_effect()
        if effect is None or not effect.what.unread or tensor.device.type == "cpu":
            return real(tensor)
        key = name, tensor.shape, tensor.dtype
        return effect.answer(key, functools.partial(real, tensor))

    return read
