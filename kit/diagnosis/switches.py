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

#: After a change, so many steps are dropped at least.
_DROPPED = 2
#: Who reads numbers there needs them as they are.
_NEEDS_NUMBERS = ("torch.amp", "torch.cuda.amp", "torch.optim")


class Switch:
    """Changes one thing in a run while `is_on`.

    `install` enters what the change needs, before set-up. `obstacle` says why it cannot
    be used, "" where it can: it is asked when the run has been profiled. `dropped` is
    how many steps after a change are not timed. `first_seconds` is how much longer the
    first steps with it took than others, such as to compile. Where a step takes more
    seconds than its `patience`, no more are made to see that it loses.
    """

    dropped = _DROPPED
    obstacle = ""
    first_seconds = 0.0
    patience = 5.0

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
        return max(_DROPPED, self.loaders.ready + 1)

    def install(self, work: Work) -> AbstractContextManager[None]:
        """Hand out iterators that can give kept batches."""
        return self.loaders.install(work)

    def prime(self) -> None:
        """Keep batches, and copies of them."""
        self.loaders.begin_keeping(copies_first=True)

    def turn(self, on: bool) -> None:
        """Give kept batches, or real ones again."""
        super().turn(on)
        self.loaders.end_keeping()
        if on:
            self.loaders.prepare()
        self.loaders.gives_kept = on

    def begin_block(self) -> None:
        """Keep the batches of an unchanged block; prepare those of one without."""
        if self.is_on:
            self.loaders.prepare()
        else:
            self.loaders.begin_keeping(copies_first=False)

    def end_block(self) -> None:
        """Keep no more batches."""
        self.loaders.end_keeping()

    def end(self) -> None:
        """Let the batches go."""
        self.loaders.forget()


class NoUpdate(Switch):
    """Lets `optimizer.step()` find no parameters."""

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self._emptied: dict[int, list[tuple[dict[str, Any], Any]]] = {}

    @contextlib.contextmanager
    def install(self, work: Work) -> Generator[None, None, None]:
        """Empty the groups of parameters before an update, and refill them."""
        from torch.optim import optimizer as hooks

        def empty(optimizer: Any, arguments: Any, named: Any) -> None:
            if not work.is_here():
                return
            given = [*arguments[1:], *named.values()]
            if any(callable(each) for each in given):
                self.obstacle = "its step() calls a closure"
            elif self.is_on:
                groups = optimizer.param_groups
                full = [(group, group["params"]) for group in groups]
                self._emptied[id(optimizer)] = full
                for group in groups:
                    group["params"] = []

        def refill(optimizer: Any, *_: Any) -> None:
            self._refill(id(optimizer))

        before = hooks.register_optimizer_step_pre_hook(empty)
        after = hooks.register_optimizer_step_post_hook(refill)
        try:
            with before, after:
                yield
        finally:
            self._refill_all()

    def turn(self, on: bool) -> None:
        """Leave updates out, or make them again."""
        super().turn(on)
        self._refill_all()

    def _refill_all(self) -> None:
        for optimizer in [*self._emptied]:  # of a step that raised
            self._refill(optimizer)

    def _refill(self, optimizer: int) -> None:
        for group, parameters in self._emptied.pop(optimizer, []):
            group["params"] = parameters


class Remembering(Switch):
    """Answers a call with what the same one of an earlier step got.

    Answers are kept from the first block of a trial on, until its end. `has_answered`
    says whether anything was left out at all.
    """

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self.has_answered = False
        self._remembers = False
        self._answers: dict[Any, tuple[Any, int]] = {}

    def prime(self) -> None:
        """Begin to keep answers."""
        self._remembers = True

    def end(self) -> None:
        """Let them go."""
        self._remembers = False
        self._answers.clear()

    def answer(
        self, key: Any, make: Callable[[], Any], keeps: Callable[[Any], bool]
    ) -> Any:
        """Return what the same call of an earlier step got, if that was kept.

        A tensor that was changed meanwhile is no answer any more.
        """
        if not self._remembers:
            return make()
        self.work.calls[key] += 1
        place = key, self.work.calls[key]
        if self.is_on and place in self._answers:
            value, version = self._answers[place]
            if version == getattr(value, "_version", 0):
                self.has_answered = True
                return value
            self.obstacle = "the loop changes copies in place"
        value = make()
        if keeps(value):
            self._answers[place] = value, getattr(value, "_version", 0)
        return value


def _name(options: tuple[Any, ...], named: dict[str, Any]) -> str:
    """Write the arguments of a copy, tensors by what they say about its target."""
    import torch

    def write(each: Any) -> str:
        is_tensor = isinstance(each, torch.Tensor)
        return str((each.device, each.dtype)) if is_tensor else str(each)

    return str([*map(write, options), *(f"{k}={write(v)}" for k, v in named.items())])


class BatchesOnDevice(Remembering):
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
            key = "to", tensor.shape, tensor.dtype, source, _name(options, named)
            return self.answer(key, make, lambda moved: _is_loaded(source, moved))

        return wrapped(work, *((torch.Tensor, name, move) for name in ("to", "cuda")))


def _is_loaded(source: Any, moved: Any) -> bool:
    """Return whether something was copied to a device, not within it or back."""
    return bool(source.type == "cpu" and moved.device != source)


class NumbersUnread(Remembering):
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
            key = real.__name__, tensor.shape, tensor.dtype, _name(options, named)
            return self.answer(key, make, lambda _: True)

        def move(
            real: Callable[..., Any], tensor: Any, *options: Any, **named: Any
        ) -> Any:
            target = [*options, *named.values()][:1]
            is_device = bool(target) and isinstance(target[0], (str, torch.device))
            if not is_device or str(target[0]) != "cpu":
                return real(tensor, *options, **named)
            return read(real, tensor, *options, **named)

        def wait(real: Callable[..., Any], *options: Any, **named: Any) -> Any:
            if not self.is_on:
                return real(*options, **named)
            self.has_answered = True
            return None

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
