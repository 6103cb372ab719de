"""What is changed in one life of an experiment, and what is kept for it meanwhile."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


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
class Life:
    """An intervention at work in one generator, and what it has kept for it.

    `begun` is set when set-up is over; `calls` counts, in each step, equal calls that
    may be answered with something kept.
    """

    what: Intervention
    pid: int = field(default_factory=os.getpid)
    begun: bool = False
    calls: Counter[Any] = field(default_factory=Counter)
    kept: dict[Any, Any] = field(default_factory=dict)
    undo: list[Callable[[], object]] = field(default_factory=list)

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


class Now:
    """The life that is at work; forked workers inherit it."""

    life: Life | None = None
