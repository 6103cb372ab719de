"""An experiment on ranks, driven from this process as if it lived here."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Generator, Mapping
from typing import Any

from kit.choices import RANKS
from kit.experiment import Experiment, ExperimentError
from kit.figures import format_value
from kit.life import Block, Life
from kit.progress import Progress, Stopped
from kit.ranks import rank as there
from kit.ranks.call import Call, RankError, name_ranks
from kit.ranks.engines import Engines
from kit.state import Shared
from kit.variant import Variant

#: Blocks are longer than elsewhere: each is a call.
_BLOCK_SECONDS = 0.1
#: A whole run is timed in stretches of about so long, between which it can be stopped.
_STRETCH_SECONDS = 0.25


class RanksLife(Life):
    """One life of an experiment on ranks: all begin at once and make equal steps."""

    def look_around(self) -> None:
        """Let the ranks make a life, each its own."""
        self.rests, self._stretch = False, 1
        variant = self.variant
        names = self._ask(there.begin_life, *variant.told, variant.has_lived)
        variant.shared.names, variant.has_lived = names[variant.members[0]], True
        self._epoch = variant.engines.epoch

    def start(self, seed: int) -> float | None:
        """Start all generators, and run them to their first yield."""
        try:
            times = self._ask(there.start_life, seed)
        except RankError as error:
            if error.ranks or not error.answers:
                raise
            late = [r for r in self.variant.members if r not in error.answers]
            told = f"{name_ranks(late)} came to no first `yield`, others did"
            raise self._unequal(told, error) from None
        without = [rank for rank, seconds in times.items() if seconds is None]
        if 0 < len(without) < len(times):
            raise self._unequal(f"{name_ranks(without)} ended before a first `yield`")
        return None if without else max(times.values())

    def time(self, count: int | None) -> Block:
        """Time so many steps on all ranks, or, where count is None, a stretch of them.

        What all have handled is summed, and the slowest one's wall time counts: while a
        rank waits for a core, others go on. Metrics are those of the first rank.
        """
        if self.progress.stopping:
            raise Stopped
        steps = self._stretch if count is None else count
        try:
            blocks = self._ask(there.time_steps, steps)
        except RankError as error:
            if error.ranks or not any(b.ended for b in error.answers.values()):
                raise
            raise self._unequal(self._tell_ends(error.answers), error) from None
        if len({(block.steps, block.ended) for block in blocks.values()}) > 1:
            raise self._unequal(self._tell_ends(blocks))
        first = next(iter(blocks.values()))
        walls = [block.wall_seconds for block in blocks.values()]
        items = math.fsum(block.items for block in blocks.values())
        if first.steps and not items:
            raise ExperimentError(
                f"{self.variant.call} handled no items on any rank in {first.steps} "
                "steps.\nEach rank yields how many items it handled; one may yield 0, "
                "all together must have some."
            )
        self._steps_done += first.steps
        if count is None and first.steps:
            per_step = max(max(walls) / first.steps, 1e-9)
            self._stretch = max(1, min(10 * steps, int(_STRETCH_SECONDS / per_step)))
        longest = {"seconds": max(walls), "wall_seconds": max(walls)}
        return dataclasses.replace(first, items=items, rank_seconds=walls, **longest)

    def _tell_ends(self, blocks: Mapping[int, Block]) -> str:
        """Say which ranks ended, after how many steps, and which did not."""
        ends = {rank: block.steps for rank, block in blocks.items() if block.ended}
        told = [
            f"rank {rank} ended after {self._steps_done + steps} steps"
            for rank, steps in ends.items()
        ]
        others = [rank for rank in self.variant.members if rank not in ends]
        told += [f"{name_ranks(others)} did not"] if others else []
        return ", ".join(told)

    def _unequal(self, told: str, error: RankError | None = None) -> RankError:
        """Return the error for ranks that do not make equal steps.

        `error` is what became of those that waited for others.
        """
        said = str(error).splitlines() if error else []
        lines = [
            f"{self.variant.experiment.name}(): {told}.",
            *(line for line in said if line.startswith("  ")),
            "All ranks make equal numbers of steps: give each as much data, or let it "
            "yield 0.",
            *said[-1:],
        ]
        return RankError("\n".join(lines))

    def close(self, because: BaseException | None = None) -> None:
        """Close all generators, unless a failure has done so."""
        self.read_memory()
        if self.variant is None or self._epoch != self.variant.engines.epoch:
            return
        hasty = KeyboardInterrupt() if isinstance(because, KeyboardInterrupt) else None
        for names in self._ask(there.close_life, hasty).values():
            self.variant.ended_children += names
        self.variant = self.progress = None

    def _ask(self, function: Callable[..., Any], *arguments: object) -> dict[int, Any]:
        """Let all ranks do the same; return their answers in order."""
        answers = self.variant.ask(self.progress, function, *arguments)
        return dict(zip(self.variant.members, answers, strict=True))


class RanksVariant(Variant):
    """One experiment with one set of knobs on some ranks.

    Its lives are led alone: nothing of it rests.
    """

    kind_of_life = RanksLife

    def __init__(
        self,
        engines: Engines,
        members: tuple[int, ...],
        experiment: Experiment,
        knobs: Mapping[str, object],
        note: str,
    ) -> None:
        if RANKS in knobs:
            raise ExperimentError(
                f"{experiment.name} has a knob {RANKS}={format_value(knobs[RANKS])}, "
                "the name of the knob that says on how many ranks it runs.\n"
                "Rename it; inside, dist.get_world_size() tells the number."
            )
        super().__init__(experiment, {RANKS: len(members), **knobs}, notes=[note])
        self.block_seconds = _BLOCK_SECONDS
        self.engines, self.members = engines, members
        self.shared = Shared([])  # what it closes over exists on the ranks
        self.told = experiment, dict(knobs)

    def ask(
        self, progress: Progress, function: Callable[..., Any], *arguments: object
    ) -> list[Any]:
        """Call a function on each rank; return what each returned."""
        call = Call(self.engines, progress, self.members, f"{self.experiment.name}()")
        return call.run(function, *arguments)

    @contextlib.contextmanager
    def during(
        self,
        progress: Progress,
        make: Callable[[], contextlib.AbstractContextManager[Any]],
        read: Callable[[Any], Any] = repr,
    ) -> Generator[list[Any], None, None]:
        """Enter a context on each rank; afterwards the list holds what `read` makes."""
        self.ask(progress, there.enter, make)
        epoch, found = self.engines.epoch, []
        try:
            yield found
        finally:
            if epoch == self.engines.epoch:  # else a failure has ended all contexts
                found += self.ask(progress, there.exit_latest, read)
