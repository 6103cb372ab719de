"""What leaves a cause out of a run, or applies a repair, between two of its steps.

A switch is installed before set-up and only flips a flag afterwards, so that both sides
of a trial pay for its wrappers.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any

from kit.diagnosis.batches import Loaders
from kit.diagnosis.wrapping import Work, wrapped

#: After a change, so many steps are dropped; more than the most are drained instead.
_DROPPED, _MOST_DROPPED = 2, 12
#: Who reads numbers there needs them as they are.
_NEEDS_NUMBERS = ("torch.amp", "torch.cuda.amp", "torch.optim")


class Switch:
    """Changes one thing in a run while `is_on`.

    `install` enters what the change needs, before set-up. `obstacle` says why it cannot
    be used, "" where it can: it is asked when the run has been profiled. `dropped` is
    how many steps after a change are not timed. `changes_numbers` says whether steps
    compute something else, by more than rounding, while it is on.
    """

    dropped = _DROPPED
    obstacle = ""
    changes_numbers = False

    def __init__(self, work: Work) -> None:
        self.work = work
        self.is_on = False

    def install(self, work: Work) -> AbstractContextManager[None]:
        """Enter what the change needs."""
        return contextlib.nullcontext()

    def turn(self, on: bool) -> None:
        """Begin to leave out what it is for, or end that."""
        self.is_on = on

    def begin_block(self) -> None:
        """Prepare a block, outside of its time."""

    def end_block(self) -> None:
        """Note that a block has ended, outside of its time."""

    def prime(self) -> None:
        """Prepare the steps before the first block, which are not timed."""

    def end(self) -> None:
        """Let go of what a trial has needed."""


class BatchesInMemory(Switch):
    """Gives the loop batches that are in memory already."""

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self.loaders = Loaders(work)

    @property
    def obstacle(self) -> str:  # type: ignore[override]
        """Why batches cannot be given again."""
        return self.loaders.obstacle

    @property
    def dropped(self) -> int:  # type: ignore[override]
        """How many steps it takes until workers hold as much ready as they do."""
        dropped = self.loaders.ready + 1
        return dropped if dropped <= _MOST_DROPPED else _DROPPED

    def install(self, work: Work) -> AbstractContextManager[None]:
        """Hand out iterators that can give kept batches."""
        return self.loaders.install(work)

    def prime(self) -> None:
        """Keep batches, and copies of them."""
        self.loaders.begin_keeping(copies_first=True)

    def end(self) -> None:
        """Let the batches go."""
        self.loaders.forget()

    def turn(self, on: bool) -> None:
        """Give kept batches, or real ones again."""
        super().turn(on)
        self.loaders.end_keeping()
        self.loaders.gives_kept = on
        if not on and self.loaders.ready + 1 > _MOST_DROPPED:
            self.loaders.drain()

    def begin_block(self) -> None:
        """Keep the batches of an unchanged block; copy them for one without loading."""
        if self.is_on:
            self.loaders.prepare()
        elif not self.loaders.are_changed:
            self.loaders.begin_keeping(copies_first=False)

    def end_block(self) -> None:
        """Keep no more batches."""
        self.loaders.end_keeping()


class NoUpdate(Switch):
    """Lets `optimizer.step()` find no parameters."""

    _emptied: list[tuple[Any, Any]]

    @contextlib.contextmanager
    def install(self, work: Work) -> Generator[None, None, None]:
        """Empty the groups of parameters before an update, and refill them."""
        from torch.optim import optimizer as hooks

        self._emptied = []

        def empty(optimizer: Any, arguments: Any, named: Any) -> None:
            if not work.is_here():
                return
            given = [*arguments[1:], *named.values()]
            if any(callable(each) for each in given):
                self.obstacle = "its step() calls a closure"
            elif self.is_on:
                self._emptied.append((optimizer, optimizer.param_groups))
                optimizer.param_groups = []

        def refill(optimizer: Any, *_: Any) -> None:
            if self._emptied and self._emptied[-1][0] is optimizer:
                optimizer.param_groups = self._emptied.pop()[1]

        before = hooks.register_optimizer_step_pre_hook(empty)
        after = hooks.register_optimizer_step_post_hook(refill)
        try:
            with before, after:
                yield
        finally:
            for optimizer, groups in reversed(self._emptied):  # of a step that raised
                optimizer.param_groups = groups


class _Remembering(Switch):
    """Answers a call with what the same one of an earlier step got."""

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self._answers: dict[Any, Any] = {}

    def answer(
        self, key: Any, make: Callable[[], Any], keeps: Callable[[Any], bool]
    ) -> Any:
        """Return what the same call of an earlier step got, if that was kept.

        What set-up's calls get is not kept.
        """
        if not self.work.has_begun:
            return make()
        self.work.calls[key] += 1
        place = key, self.work.calls[key]
        if self.is_on and place in self._answers:
            return self._answers[place]
        value = make()
        if keeps(value):
            self._answers[place] = value
        return value


class BatchesOnDevice(_Remembering):
    """Gives what the same copy of an earlier step gave, which is on the device."""

    def install(self, work: Work) -> AbstractContextManager[None]:
        """Wrap what copies tensors to a device."""
        import torch

        def move(
            real: Callable[..., Any], tensor: Any, *options: Any, **named: Any
        ) -> Any:
            make = functools.partial(real, tensor, *options, **named)
            if tensor.requires_grad or torch.compiler.is_compiling():
                return make()
            source = tensor.device
            key = "to", tensor.shape, tensor.dtype, source, str((options, named))
            return self.answer(key, make, lambda moved: _is_loaded(source, moved))

        return wrapped(work, *((torch.Tensor, name, move) for name in ("to", "cuda")))


def _is_loaded(source: Any, moved: Any) -> bool:
    """Return whether something was copied to a device, not within it or back."""
    return bool(source.type == "cpu" and moved.device != source)


class NumbersUnread(_Remembering):
    """Gives the number that the same call of an earlier step read, without a wait.

    Whole numbers are read: they may be indices, or say how many there are.
    """

    def install(self, work: Work) -> AbstractContextManager[None]:
        """Wrap what reads numbers from a device, or waits for it."""
        import torch

        def read(
            real: Callable[..., Any], tensor: Any, *options: Any, **named: Any
        ) -> Any:
            make = functools.partial(real, tensor, *options, **named)
            is_number = tensor.is_floating_point()
            if tensor.device.type == "cpu" or not is_number or _needs_numbers():
                return make()
            key = real.__name__, tensor.shape, tensor.dtype, str((options, named))
            return self.answer(key, make, lambda _: True)

        def move(
            real: Callable[..., Any], tensor: Any, *options: Any, **named: Any
        ) -> Any:
            target = [*options, *named.values()][:1]
            if not target or str(target[0]) != "cpu":
                return real(tensor, *options, **named)
            return read(real, tensor, *options, **named)

        def wait(real: Callable[..., Any], *options: Any, **named: Any) -> Any:
            return None if self.is_on else real(*options, **named)

        names = ("item", "tolist", "__float__", "cpu", "numpy")
        entries = [(torch.Tensor, name, read) for name in names]
        entries.append((torch.Tensor, "to", move))
        for module in (torch.cuda, torch.mps, torch.accelerator):
            entries.append((module, "synchronize", wait))
        return wrapped(work, *entries)


def _needs_numbers() -> bool:
    """Return whether PyTorch's own code reads, or a compiler follows the code."""
    import torch

    frame: FrameType | None = sys._getframe(1)
    while frame and frame.f_globals.get("__name__", "").startswith("kit."):
        frame = frame.f_back
    caller = frame.f_globals.get("__name__", "") if frame else ""
    return caller.startswith(_NEEDS_NUMBERS) or torch.compiler.is_compiling()
