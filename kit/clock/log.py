"""What is kept about a variant while it runs: its starts and its blocks."""

from __future__ import annotations

import operator
import os
from dataclasses import dataclass, field


@dataclass
class Block:
    """One timed stretch of steps; seconds are run time, `wall_seconds` wall time.

    `device_seconds` is the time by an accelerator's own clock, None where unknown.
    `ended` says that the generator ended. `rank_seconds` is each rank's wall time where
    there are several.
    """

    seconds: float = 0.0
    wall_seconds: float = 0.0
    items: float = 0.0
    steps: int = 0
    excluded_seconds: float = 0.0
    #: (step within the block, metrics)
    metrics: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    device_seconds: float | None = 0.0
    ended: bool = False
    rank_seconds: list[float] = field(default_factory=list)
    setup: int = 0
    round: int = 0

    def extend(self, other: Block) -> None:
        """Add a stretch that follows.

        >>> block = Block(1.0, 1.0, items=8, steps=2)
        >>> block.extend(Block(0.5, 0.5, items=4, steps=1))
        >>> block.seconds, block.items, block.steps
        (1.5, 12, 3)
        """
        self.metrics += [
            (self.steps + step, metrics) for step, metrics in other.metrics
        ]
        self.seconds += other.seconds
        self.wall_seconds += other.wall_seconds
        self.items += other.items
        self.steps += other.steps
        self.excluded_seconds += other.excluded_seconds
        known = self.device_seconds is not None and other.device_seconds is not None
        self.device_seconds = (
            self.device_seconds + other.device_seconds  # type: ignore[operator]
            if known
            else None
        )
        self.ended = other.ended
        earlier = self.rank_seconds or [0.0] * len(other.rank_seconds)
        self.rank_seconds = list(map(operator.add, earlier, other.rank_seconds))


@dataclass
class Start:
    """One start: which set-up it was, how long it took, what memory it added."""

    setup: int
    seconds: float
    memory_bytes: int | None = None


@dataclass
class Log:
    """What is kept about a variant over all of its starts."""

    starts: list[Start] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    unsettled_starts: int = 0
    stopped: bool = False
    disturbed: bool = False
    ended_children: list[str] = field(default_factory=list)


def smoke() -> bool:
    """Return whether KIT_SMOKE=1 asks for the shortest run that touches everything."""
    return os.environ.get("KIT_SMOKE") == "1"
