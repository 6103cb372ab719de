"""What is changed in one life of an experiment, and what is kept for it meanwhile."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

_KEY = "kit.diagnosis.effect"


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
class Effect:
    """An intervention at work in one generator, and what it has kept for it.

    `begun` is set when set-up is over, `over` at the end; `calls` counts, in each step,
    equal calls that may be answered with something kept. `twins` are loaders that stand
    in for those that the reader may use meanwhile.
    """

    what: Intervention
    pid: int = field(default_factory=os.getpid)
    begun: bool = False
    over: bool = False
    calls: Counter[Any] = field(default_factory=Counter)
    kept: dict[Any, Any] = field(default_factory=dict)
    twins: Any = field(default_factory=weakref.WeakKeyDictionary)
    undo: list[Callable[[], object]] = field(default_factory=list)

    def end(self) -> None:
        """Change nothing any more, in no thread; put back what was changed."""
        self.over = True
        self.twins.clear()
        for put_back in self.undo:
            put_back()

    def answer(
        self,
        key: Any,
        make: Callable[[], Any],
        keeps: Callable[[Any], bool] = lambda value: True,
    ) -> Any:
        """Return what the same call of an earlier step got; set-up gets its own.

        `keeps` says whether a value may be kept.
        """
        self.calls[key] += 1
        place = key, self.calls[key]
        if self.begun and place in self.kept:
            return self.kept[place]
        value = make()
        if keeps(value):
            self.kept[place] = value
        return value


class _Now(threading.local):
    """The effect that is at work in a thread; forked workers inherit it."""

    effect: Effect | None = None


NOW = _Now()


def find_effect() -> Effect | None:
    """Return the effect at work in this thread; None where the reader's own code runs.

    Each thread has its own, so that cells may run beside a panel.
    """
    import torch

    effect = NOW.effect
    # torch.compile cannot look into PyTorch's own threads, and needs not.
    if effect is None and not torch.compiler.is_compiling():
        effect = torch._C._is_key_in_tls(_KEY) and torch._C._get_obj_in_tls(_KEY)
    return None if not effect or effect.over else effect


@contextlib.contextmanager
def lending(effect: Effect) -> Generator[None, None, None]:
    """Let PyTorch's own threads that go backward from here know of an effect, too."""
    import torch

    torch._C._stash_obj_in_tls(_KEY, effect)
    try:
        yield
    finally:
        torch._C._stash_obj_in_tls(_KEY, None if NOW.effect else effect)
