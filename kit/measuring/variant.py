"""What is compared: an experiment with its knobs, and what is known of it so far."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar, Protocol, runtime_checkable

from kit.errors import ExperimentError
from kit.machine import this_machine
from kit.measuring.experiment import Experiment, describe
from kit.measuring.shared import Shared
from kit.measuring.source import referred_objects, source_of
from kit.records import FIRST, Run, Trial

#: A block lasts at least this long, in seconds.
BLOCK_SECONDS = 0.020


def _now() -> str:
    return datetime.now().astimezone().isoformat("T", "seconds")


@dataclass(eq=False)
class Variant:
    """An experiment with one set of knobs, its runs, and what they have shown.

    `idle_between_steps` says whether nothing of it goes on between its steps, so that
    it can be interleaved with another such variant; None before its first run.
    """

    #: What drives its runs elsewhere than in this process: a class like `run.Driver`.
    driver: ClassVar[type | None] = None

    experiment: Experiment
    knobs: Mapping[str, object]
    label: str = ""
    #: Whether its values are neither first nor last of a list; quick mode skips it.
    is_inner: bool = False
    #: Whether a step may handle no items.
    may_be_empty: bool = False
    runs: list[Run] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    conditions: dict[str, float] = field(default_factory=dict)
    outcome: str = "finished"
    started: str = field(default_factory=_now)
    has_started: bool = False
    ended_children: list[str] = field(default_factory=list)

    # What its runs have shown, for those that follow
    idle_between_steps: bool | None = None
    block_seconds: float = BLOCK_SECONDS
    steps_per_block: int = 1
    step_seconds: float = 0.0
    #: What set-up, warm-up and close cost.
    start_seconds: float = 0.0
    #: How many blocks it took at most to come to a slow one.
    blocks_to_a_slow_one: int = 0

    @property
    def call(self) -> str:
        """The call as a reader would write it."""
        return describe(self.experiment.name, self.knobs)

    @functools.cached_property
    def source(self) -> str:
        """The source of the experiment."""
        return source_of(self.experiment.own)

    @functools.cached_property
    def shared(self) -> Shared:
        """What it closes over and has state."""
        try:
            return Shared(referred_objects(self.experiment.own, self.knobs))
        except ValueError as error:
            raise ExperimentError(f"{self.call} {error}") from None

    @property
    def rounds(self) -> set[int]:
        """The rounds in which it was measured with another variant."""
        return {run.round for run in self.runs} - {FIRST}

    @property
    def block_cost(self) -> float:
        """What a block costs, with its share of steps that change-overs drop."""
        return max(self.block_seconds, self.step_seconds) + self.step_seconds / 2

    def close(self) -> None:
        """Put back what is shared, if a run has looked at it."""
        if "shared" in vars(self):
            with contextlib.suppress(ValueError):  # it was told when it happened
                self.shared.put_back()


@runtime_checkable
class Place(Protocol):
    """Where experiments can run: `kit.start_ranks` returns one."""

    def prepare(self, experiment: Experiment, knobs: Mapping[str, object]) -> Variant:
        """Make a variant that runs there."""

    def __len__(self) -> int:
        """Return how many processes the place has."""


def make_trial(variant: Variant, *, complete_runs: bool) -> Trial:
    """Make a Trial of a variant's runs so far."""
    notes = list(variant.notes)
    if variant.shared.names:
        names = ", ".join(variant.shared.names)
        notes.append(f"Shared and put back at each start: {names}.")
    if variant.ended_children:
        children = ", ".join(variant.ended_children)
        notes.append(f"Processes still alive after the end were ended: {children}.")
    outcome = variant.outcome
    settled = [run.settled for run in variant.runs]
    if outcome == "finished" and 2 * sum(settled) < len(settled):
        outcome = "not settled"
    return Trial(
        experiment=variant.experiment.name,
        title=variant.experiment.title,
        knobs=dict(variant.knobs),
        runs=list(variant.runs),
        machine=this_machine(),
        source=variant.source,
        started=variant.started,
        outcome=outcome,
        complete_runs=complete_runs,
        notes=notes,
        conditions=dict(variant.conditions),
    )
