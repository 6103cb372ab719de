"""What is kept about a variant while it runs: its starts and its blocks."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Block:
    """One timed stretch of steps; seconds are run time, `wall_seconds` wall time.

    `device_seconds` is the time by an accelerator's own clock, None where unknown.
    """

    seconds: float
    wall_seconds: float
    items: float
    steps: int
    excluded_seconds: float = 0.0
    #: (step within the block, metrics)
    metrics: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    device_seconds: float | None = None
    setup: int = 0
    round: int = 0


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
