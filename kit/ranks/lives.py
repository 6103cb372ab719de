"""An experiment on ranks, driven from this process as if it lived here."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kit import clock
from kit.choices import RANKS
from kit.experiment import Experiment, ExperimentError
from kit.figures import format_value
from kit.life import Block, Life
from kit.progress import Progress, Stopped
from kit.ranks.engines import name_ranks
from kit.ranks.failures import RankError
from kit.ranks.session import Session
from kit.state import Shared
from kit.variant import Variant

if TYPE_CHECKING:
    from kit.ranks.team import Team

#: Blocks are longer than elsewhere: ranks do not begin at the very same time.
_BLOCK_SECONDS = 0.1
#: A whole run is timed in stretches of about so long, between which it can be stopped.
_STRETCH_SECONDS = 0.25
#: A rank that takes so much longer to its first yield may be a helper, which has none.
_LEAST_SECONDS_FOR_LATE_ONES = 1.0
_SECONDS_BETWEEN_LOOKS = 0.1
_numbers = itertools.count()


class RanksLife(Life):
    """One life of an experiment on ranks: all begin at once and make equal steps.

    A rank that comes to no first yield is a helper: it serves the others until they
    end, or has nothing to do. One that only takes longer is told what it has missed.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.rests = False
        self._number = next(_numbers)
        self._session: Session | None = None
        self._players = [*self.variant.members]
        self._late: list[int] = []
        self._missed: list[tuple[object, ...]] = []
        self._stretch = 1

    def look_around(self) -> None:
        """Let the ranks make a life, each its own."""
        variant = self.variant
        self._session = variant.join(self.progress)
        self._session.ask(self._players, "live", variant.number, self._number)

    def start(self, seed: int) -> float | None:
        """Start all generators, and run them to their first yield."""
        session, begun, variant = self._session, clock.CLOCK.wall(), self.variant
        assert session is not None
        session.send(self._players, "start", self._number, seed)
        times: dict[int, float | None] = {}
        while not times:
            times = session.gather(self._players, seconds=0.0)
        took = clock.CLOCK.wall() - begun
        expected = {*self._players} - {*times} - variant.helpers
        wait = max(_LEAST_SECONDS_FOR_LATE_ONES, took)
        times |= session.gather(sorted(expected), seconds=wait)
        self._late = [rank for rank in self._players if rank not in times]
        variant.helpers |= {*self._late}
        self._players = [r for r in self._players if times.get(r) is not None]
        known = [seconds for seconds in times.values() if seconds is not None]
        self._dismiss([rank for rank, seconds in times.items() if seconds is None])
        return max(known, default=None)

    def time(self, count: int | None) -> Block:
        """Time so many steps on all ranks, or, where count is None, a stretch of them.

        What all have handled is summed, and the slowest one's wall time counts: while a
        rank waits for a core, others go on. Metrics are those of the first rank.
        """
        if self.progress.stopping:
            raise Stopped
        try:
            blocks = self._ask("time", self._stretch if count is None else count)
        except RankError as error:
            answers = self._session.answers if self._session else {}
            if error.ranks or not any(block.ended for block in answers.values()):
                raise
            raise self._explain_uneven_ends(answers, error) from None
        if len({(block.steps, block.ended) for block in blocks.values()}) > 1:
            raise self._explain_uneven_ends(blocks)
        first = next(iter(blocks.values()))
        walls = [block.wall_seconds for block in blocks.values()]
        items = math.fsum(block.items for block in blocks.values())
        if first.steps and not items:
            raise ExperimentError(
                f"{self.variant.experiment.name}() handled no items on any rank in "
                f"{first.steps} steps.\nEach rank yields how many items it handled; "
                "one may yield 0, all together must have some."
            )
        self._steps_done += first.steps
        if count is None and not first.ended:
            per_step = max(max(walls) / first.steps, 1e-9)
            longest = 10 * self._stretch
            self._stretch = max(1, min(longest, int(_STRETCH_SECONDS / per_step)))
        return dataclasses.replace(
            first,
            seconds=max(walls),
            wall_seconds=max(walls),
            items=items,
            rank_seconds=walls,
        )

    def _explain_uneven_ends(
        self, blocks: Mapping[int, Block], error: RankError | None = None
    ) -> RankError:
        """Return the error for ranks that do not make equal steps.

        `error` is what became of those that waited for one that had ended.
        """
        told = [
            f"{name_ranks([rank])} ended after {self._steps_done + block.steps} steps"
            for rank, block in blocks.items()
            if block.ended
        ]
        others = [rank for rank in self._players if rank not in blocks]
        others += [rank for rank, block in blocks.items() if not block.ended]
        told += [f"{name_ranks(sorted(others))} did not"] if others else []
        places = [x for x in str(error).splitlines() if x.startswith("  ")]
        lines = [
            f"{self.variant.experiment.name}(): {', '.join(told)}.",
            *(places if error else []),
            "All ranks make equal numbers of steps: give each as much data, or let it "
            "yield 0.",
            *(str(error).splitlines()[-1:] if error else []),
        ]
        return RankError("\n".join(lines))

    def find_children(self) -> dict[int, str]:
        """Return no processes: those of the ranks end with them."""
        return {}

    def close(self, because: BaseException | None = None) -> None:
        """Close all generators, then wait for helpers to return."""
        session = self._session
        self.read_memory()
        if session is None or not session.is_open:
            return
        if isinstance(because, KeyboardInterrupt):
            session.abandon(because)
        self._dismiss(self._players)
        returned = session.gather(self._late, seconds=self.variant.team.timeout_seconds)
        if left := [rank for rank in self._late if rank not in returned]:
            error = ExperimentError(
                f"{self.variant.experiment.name}() came to no `yield` on "
                f"{name_ranks(left)}, and did not return when the others had ended.\n"
                "Let it `yield n` after each step, or return where it only helps."
            )
            session.abandon(error)
            raise error
        self._dismiss(self._late)
        self._session = self.variant = self.progress = None

    def _dismiss(self, ranks: Sequence[int]) -> None:
        """Close the generators of some ranks; note processes that had to be ended."""
        session = self._session
        assert session is not None
        for names in session.ask(ranks, "close", self._number).values():
            self.variant.ended_children += names

    def _ask(self, verb: str, *arguments: object) -> dict[int, Any]:
        """Let all ranks do the same; return their answers in order."""
        session = self._session
        assert session is not None
        command = verb, self._number, *arguments
        session.send(self._players, *command)
        answers: dict[int, Any] = {}
        if self._late:
            self._missed.append(command)
        while waiting := [rank for rank in self._players if rank not in answers]:
            seconds = _SECONDS_BETWEEN_LOOKS if self._late else None
            answers |= session.gather(waiting, seconds=seconds)
            self._look_for_late_ones()
        return dict(sorted(answers.items()))

    def _look_for_late_ones(self) -> None:
        """Tell ranks that came to a first yield after all what they have missed."""
        session = self._session
        if not self._late or session is None:
            return
        for rank, seconds in session.gather(self._late, seconds=0.0).items():
            self._late.remove(rank)
            if seconds is None:
                continue
            self.variant.helpers.discard(rank)
            for command in self._missed:
                session.send([rank], *command)
            for _ in self._missed[:-1]:
                session.gather([rank])
            self._players = sorted([*self._players, rank])


class RanksVariant(Variant):
    """One experiment with one set of knobs on some ranks of a team.

    Its lives are led alone: nothing of it rests.
    """

    kind_of_life = RanksLife

    def __init__(
        self,
        team: Team,
        members: Sequence[int],
        experiment: Experiment,
        knobs: Mapping[str, object],
        note: str,
    ) -> None:
        from kit.ranks.packing import pack

        if RANKS in knobs:
            raise ExperimentError(
                f"{experiment.name} has a knob {RANKS}={format_value(knobs[RANKS])}, "
                "the name of the knob that says on how many ranks it runs.\n"
                "Rename it; inside, dist.get_world_size() tells the number."
            )
        super().__init__(experiment, {RANKS: len(members), **knobs}, notes=[note])
        self.block_seconds = _BLOCK_SECONDS
        self.team, self.members = team, tuple(members)
        self.shared = Shared([])  # what it closes over exists on the ranks
        self.number = next(_numbers)
        #: Ranks that were still on their way to a first yield when others went on.
        self.helpers: set[int] = set()
        self._payload = pack(f"{experiment.name}()", (experiment, knobs))
        self._session: Session | None = None

    def join(self, progress: Progress) -> Session:
        """Return the session in which the ranks know this variant."""
        session = self._session
        if session is None or not session.is_open:
            session = self.team.join_session(progress, self.experiment.name)
            session.users.add(self)
            self._session = session
            command = "prepare", self.number, self.members, self._payload
            answers = session.ask(self.members, *command)
            self.shared.names = answers[self.members[0]]
        return session

    def ask(
        self, progress: Progress, function: Callable[..., Any], *arguments: object
    ) -> list[Any]:
        """Call a function on each rank; return what each returned."""
        answers = self.join(progress).ask(self.members, "call", function, *arguments)
        return [answers[rank] for rank in self.members]

    @contextlib.contextmanager
    def during(
        self,
        progress: Progress,
        make: Callable[[], contextlib.AbstractContextManager[Any]],
        read: Callable[[Any], Any] = repr,
    ) -> Generator[list[Any], None, None]:
        """Enter a context on each rank; afterwards the list holds what `read` makes."""
        session = self.join(progress)
        session.ask(self.members, "open", make)
        found: list[Any] = []
        try:
            yield found
        finally:
            if session.is_open:  # else all contexts were left with it
                answers = session.ask(self.members, "shut", read)
                found += [answers[rank] for rank in self.members]

    def close(self) -> None:
        """Put back what is shared; the ranks are free again when all variants are."""
        if self._session is not None:
            self._session.leave(self)
            self._session = None
