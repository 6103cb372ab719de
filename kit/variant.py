"""Who lives: one experiment with its knobs, and the lives that it has led."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar

from kit import state
from kit.experiment import (
    Experiment,
    ExperimentError,
    describe,
    parse_yield,
    referred_objects,
    source_of,
)
from kit.hints import find_hint, name_dead_worker, split_error
from kit.life import BLOCK_SECONDS, Life
from kit.progress import Progress, Stopped

_RENEWED = "torch.compile was reset between runs: each of them compiles something anew."


@dataclass(eq=False)
class Variant:
    """One experiment with one set of knobs, and the lives that it has led.

    `rests` says whether nothing goes on between its steps, so that it can live beside
    another one that rests; None where that is not known yet.
    """

    #: Where it lives decides how its lives are led.
    kind_of_life: ClassVar[type[Life]] = Life
    experiment: Experiment
    knobs: Mapping[str, object]
    label: str = ""
    may_idle: bool = False
    lives: list[Life] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    conditions: dict[str, float] = field(default_factory=dict)
    outcome: str = "complete"
    is_inner: bool = False
    rests: bool | None = None
    block_seconds: float = BLOCK_SECONDS
    #: How many steps a block has, and how long a step takes, as far as is known.
    steps: int = 1
    step_seconds: float = 0.0
    start_seconds: float = 0.0
    #: How many blocks it took at most to come to a slow one.
    stretch: int = 0
    has_lived: bool = False
    ended_children: list[str] = field(default_factory=list)
    started: str = field(
        default_factory=lambda: datetime.now().astimezone().isoformat("T", "seconds")
    )

    @property
    def call(self) -> str:
        """The call as a reader would write it."""
        return describe(self.experiment.name, self.knobs)

    @functools.cached_property
    def source(self) -> str:
        """The source of the experiment."""
        return source_of(self.experiment.own)

    @functools.cached_property
    def shared(self) -> state.Shared:
        """What it closes over and has state."""
        try:
            return state.Shared(referred_objects(self.experiment.own, self.knobs))
        except ValueError as error:
            raise ExperimentError(f"{self.call} {error}") from None

    @property
    def block_cost(self) -> float:
        """What a block costs, with its share of the steps dropped after switches."""
        return max(self.block_seconds, self.step_seconds) + self.step_seconds / 2

    def lead(
        self, turn: int, progress: Progress, seed: int = 0, beside: Life | None = None
    ) -> Life:
        """Make a life, which is not yet started; `beside` is one that goes on."""
        if beside is None and state.renew_dynamo() and _RENEWED not in self.notes:
            self.notes.append(_RENEWED)
        who = {"variant": self, "progress": progress, "partner": beside}
        return self.kind_of_life(turn, seed=seed, **who)

    def parse(self, value: object, step: int) -> tuple[float, dict[str, Any]]:
        """Return how many items a step has yielded, and its metrics, not read yet.

        Reading them would wait for the device.
        """
        try:
            items, row = parse_yield(value, least=0 if self.may_idle else 1)
        except ValueError as error:
            raise ExperimentError(
                f"{self.call} yielded {error} (step {step}).\n"
                'Yield items, as in `yield len(images)`, or `yield n, {"loss": loss}`.'
            ) from None
        read = {k: v.detach().clone() for k, v in row.items() if hasattr(v, "detach")}
        return items, {**row, **read}

    def explain(self, error: BaseException, at: str, progress: Progress) -> Exception:
        """Make the error that says where the experiment itself has raised one."""
        if progress.abandoned:  # it came of ending the experiment's processes
            return Stopped()
        kind, worker, said = split_error(named := name_dead_worker(error))
        where = f"{at}, {worker}" if worker else at
        lines = [f"{self.call} raised {kind} in {where}: {said}"]
        lines.append(find_hint(named) or "The traceback shows the line.")
        if try_it := self._say_how_to_try(at):
            lines.append(f"Try it without the kit: {try_it}.")
        return ExperimentError("\n".join(lines))

    def _say_how_to_try(self, at: str) -> str:
        """Return what runs to the same place without the kit, if that can be said."""
        if self.experiment.is_script:
            return f"python {self.call}"
        own = getattr(self.experiment.own, "__name__", "")
        if not own.isidentifier():  # a lambda, or an object
            return ""
        call = describe(own, self.knobs)
        steps = at.removeprefix("step ")
        return (
            f"list(zip(range({steps}), {call}))" if steps.isdigit() else f"next({call})"
        )

    def close(self) -> None:
        """Put back what is shared."""
        with contextlib.suppress(ValueError):  # it was told when it happened
            self.shared.put_back()
