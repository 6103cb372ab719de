"""What leaves a cause out of a run, between two of its steps.

A switch is installed before set-up and only flips a flag afterwards, so that both sides
of a trial pay for its wrappers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from typing import Any

from kit.diagnosis.batches import Loaders
from kit.diagnosis.wrapping import Work, wrapped

#: After a change, so many steps are dropped at least.
_DROPPED = 2


class Switch:
    """Changes one thing in a run while `is_on`.

    `install` enters what the change needs, before set-up. `obstacle` says why it cannot
    be used, "" where it can. `dropped` is how many steps after a change are not timed.
    """

    dropped = _DROPPED
    obstacle = ""

    def __init__(self) -> None:
        self.is_on = False

    def install(self, work: Work) -> AbstractContextManager[None]:
        """Enter what the change needs."""
        return contextlib.nullcontext()

    def prime(self) -> None:
        """Prepare the steps before the first block, which are not timed."""

    def turn(self, on: bool) -> None:
        """Begin to leave out what it is for, or end that."""
        self.is_on = on

    def begin_block(self) -> None:
        """Prepare a block, outside of its time."""

    def end_block(self) -> None:
        """Note that a block has ended, outside of its time."""

    def end(self) -> None:
        """Let go of what a trial has needed."""


class BatchesInMemory(Switch):
    """Gives the loop batches that are in memory already."""

    def __init__(self, loaders: Loaders) -> None:
        super().__init__()
        self.loaders = loaders

    @property
    def obstacle(self) -> str:  # type: ignore[override]
        """Why batches cannot be given again."""
        return self.loaders.obstacle

    @property
    def dropped(self) -> int:  # type: ignore[override]
        """How many steps it takes until workers hold as much ready as they do."""
        return max(_DROPPED, self.loaders.ready + 1)

    def prime(self) -> None:
        """Keep the next batches."""
        self._keep_anew()

    def turn(self, on: bool) -> None:
        """Give kept batches, or real ones again."""
        super().turn(on)
        self.loaders.keeps = False
        self.loaders.replays = on

    def begin_block(self) -> None:
        """Keep the batches of an unchanged block; give them in one without loading."""
        if not self.is_on:
            self._keep_anew()
        for record in self.loaders.used:
            record.replayed = 0

    def end_block(self) -> None:
        """Keep no more batches, and note whether the loop has changed some."""
        self.loaders.keeps = False
        for record in self.loaders.used:
            record.check()

    def end(self) -> None:
        """Let the batches go."""
        for record in self.loaders.used:
            record.forget()

    def _keep_anew(self) -> None:
        self.end()
        self.loaders.keeps = True


class NoUpdate(Switch):
    """Makes no update where `optimizer.step()` is called; its hooks are called."""

    _left_out = 0

    @contextlib.contextmanager
    def install(self, work: Work) -> Generator[None, None, None]:
        """Wrap what updates, of each class of optimizers."""
        from torch.optim import Optimizer

        self._only_hooks = Optimizer.profile_hook_step(lambda optimizer: None)
        with contextlib.ExitStack() as stack:
            covered = set()

            def cover(kind: type) -> None:
                for owner in kind.__mro__:
                    own = vars(owner).get("step")
                    # The first optimizer of a class makes PyTorch add its hooks.
                    if owner not in covered and getattr(own, "hooked", False):
                        covered.add(owner)
                        stack.enter_context(wrapped((owner, "step", self._step)))

            def cover_new(
                real: Callable[..., Any], optimizer: Any, *given: Any, **named: Any
            ) -> None:
                real(optimizer, *given, **named)
                cover(type(optimizer))

            for kind in _list_subclasses(Optimizer):
                cover(kind)
            stack.enter_context(wrapped((Optimizer, "__init__", cover_new)))
            yield

    def _step(
        self, real: Callable[..., Any], optimizer: Any, *given: Any, **named: Any
    ) -> Any:
        if any(map(callable, (*given, *named.values()))):
            self.obstacle = "its step() calls a closure"
        elif _is_one_of_several():
            self.obstacle = "its ranks would no longer have the same parameters"
        if self.is_on and not self.obstacle:
            self._left_out += 1
            return self._only_hooks(optimizer)
        return real(optimizer, *given, **named)

    def end(self) -> None:
        """Say so where no update was left out.

        A scheduler that was made before the run keeps the `step` of then.
        """
        if not self._left_out and not self.obstacle:
            self.obstacle = "its step() is called in another way"


def _list_subclasses(kind: type) -> Iterator[type]:
    for each in kind.__subclasses__():
        yield each
        yield from _list_subclasses(each)


def _is_one_of_several() -> bool:
    """Return whether other ranks train the same parameters."""
    import torch.distributed as dist

    is_group = dist.is_available() and dist.is_initialized()
    return is_group and dist.get_world_size() > 1
