"""What leaves a cause out of a run, or applies a repair, between two of its steps.

A switch is installed before set-up and only flips a flag afterwards, so that both sides
of a trial pay for its wrappers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from typing import Any

from kit.diagnosis.batches import Loaders, list_subclasses
from kit.diagnosis.wrapping import Work, wrapped

#: After a change, so many steps are dropped at least.
_DROPPED = 2


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
    """Makes no update where `optimizer.step()` is called; its hooks are called."""

    @contextlib.contextmanager
    def install(self, work: Work) -> Generator[None, None, None]:
        """Wrap what updates, of each class of optimizers."""
        from torch.optim import Optimizer

        def nothing(optimizer: Any) -> None:
            """Stand in for an update."""

        hooked = Optimizer.profile_hook_step(nothing)

        def step(
            real: Callable[..., Any], optimizer: Any, *given: Any, **named: Any
        ) -> Any:
            self._look(*given, *named.values())
            if self.is_on and not self.obstacle:
                return hooked(optimizer)
            return real(optimizer, *given, **named)

        with contextlib.ExitStack() as stack:
            covered = set()

            def cover(kind: type) -> None:
                for owner in kind.__mro__:
                    own = vars(owner).get("step")
                    # The first optimizer of a class makes PyTorch add its hooks.
                    if owner not in covered and getattr(own, "hooked", False):
                        covered.add(owner)
                        stack.enter_context(wrapped(work, (owner, "step", step)))

            def cover_new(
                real: Callable[..., Any], optimizer: Any, *given: Any, **named: Any
            ) -> None:
                real(optimizer, *given, **named)
                cover(type(optimizer))

            for kind in list_subclasses(Optimizer):
                cover(kind)
            stack.enter_context(wrapped(work, (Optimizer, "__init__", cover_new)))
            yield

    def _look(self, *given: object) -> None:
        """Note what forbids to leave an update out."""
        if any(map(callable, given)):
            self.obstacle = "its step() calls a closure"
        if _is_one_of_several():
            self.obstacle = "its ranks would no longer have the same parameters"


def _is_one_of_several() -> bool:
    """Return whether other ranks train the same parameters."""
    import torch.distributed as dist

    is_group = dist.is_available() and dist.is_initialized()
    return is_group and dist.get_world_size() > 1
