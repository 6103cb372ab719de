"""One call on some ranks: what is printed meanwhile, and how it ends."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from types import TracebackType
from typing import TYPE_CHECKING, Any

from kit import clock
from kit.experiment import ExperimentError
from kit.progress import Progress
from kit.ranks.failures import describe_death, explain_failure, explain_interrupt
from kit.ranks.outcomes import Outcome, Place
from kit.ranks.rank import NOTE, STOP, perform

if TYPE_CHECKING:
    from kit.ranks.team import Team

_SECONDS_BETWEEN_LOOKS = 0.05
#: Others may fail on their own account, or a culprit be heard of after its victims.
_SECONDS_FOR_OTHERS = 1.0
#: A rank that has not stopped after this time is ended.
_SECONDS_TO_STOP = 1.5
_SECONDS_FOR_OUTPUT = 1.0
_STREAMS = ("stdout", "stderr")


class Call:
    """A function that runs on some ranks, as `Team.start` returns it.

    Iterate over it to follow it: each step lasts at most 50 ms, and prints the lines
    that ranks have printed. At the end `values` is what each rank returned, in order,
    or RankError is raised. As a context manager it ends the call whatever happens. What
    it breaks is mended before the next one: an error is told at once.
    """

    def __init__(
        self,
        team: Team,
        number: int,
        progress: Progress,
        members: Sequence[int],
        name: str,
        payload: bytes,
    ) -> None:
        self.name = name
        #: How long each step of an iteration waits at most for a rank's call to end.
        self.patience = _SECONDS_BETWEEN_LOOKS
        self.members = tuple(members)
        self.values: list[Any] = []
        self._progress = progress
        self._team, self._number = team, number
        self._outcomes: dict[int, Outcome] = {}
        self._ended: list[int] = []
        self._replies = {
            rank: team.engines.view(rank).apply_async(
                perform, number, self.members, payload
            )
            for rank in self.members
        }
        self._printed = {(rank, name): 0 for rank in members for name in _STREAMS}

    def __iter__(self) -> Iterator[None]:
        ended_at = failed_at = None
        while self._running:
            self._collect(self.patience)
            self.hear()
            yield
            now = clock.CLOCK.wall()
            if self._outcomes and ended_at is None:
                ended_at = now
            if self._has_failed and failed_at is None:
                failed_at = now
            if failed_at is not None and now - failed_at > _SECONDS_FOR_OTHERS:
                break
            if ended_at is not None and now - ended_at > self._team.timeout_seconds:
                break
        self.end()
        self.hear(last=True)
        if self._has_failed:
            raise explain_failure(
                self.name, self._outcomes, self._team.timeout_seconds, self._ended
            )
        self.values = [self._load(rank) for rank in self.members]

    def __enter__(self) -> Call:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        whole = False
        try:
            self.end()
            whole = all(outcome.intact for outcome in self._outcomes.values())
            whole = whole and not self._has_failed
            if isinstance(error, KeyboardInterrupt):
                said = explain_interrupt(self.name, self._outcomes, self._ended)
                raise KeyboardInterrupt(said) from None
        finally:
            self._team.release(whole)

    def end(self) -> None:
        """End the call on all ranks at once; what does not stop is ended."""
        deadline = clock.CLOCK.wall() + _SECONDS_TO_STOP
        if self._running:
            self._team.store.set(STOP.format(self._number), "now")
        while self._running and clock.CLOCK.wall() < deadline:
            self._collect(_SECONDS_BETWEEN_LOOKS)
        late = self._running
        if late:
            self._team.engines.end(late)
            for rank in late:
                place, said = self._describe_death(rank).place, "it did not answer"
                self._outcomes[rank] = Outcome(
                    "stopped", error=said, place=place, intact=False
                )
        self._ended = [r for r in self._team.engines.have_ended() if r in self.members]

    @property
    def _running(self) -> list[int]:
        return [rank for rank in self.members if rank not in self._outcomes]

    @property
    def _has_failed(self) -> bool:
        return any(outcome.kind != "returned" for outcome in self._outcomes.values())

    def _collect(self, seconds: float) -> None:
        """Wait until a rank's call has ended, and take down how."""
        waiting = [self._replies[rank] for rank in self._running]
        wait(waiting, timeout=seconds, return_when=FIRST_COMPLETED)
        done = [rank for rank in self._running if self._replies[rank].done()]
        ended = self._team.engines.have_ended()
        for rank in self._running:
            reply = self._replies[rank]
            if rank in done and reply.exception() is None:
                outcome = reply.result()
                if outcome.kind == "stopped":
                    place = self._find_note(rank)
                    outcome = dataclasses.replace(outcome, place=place)
                self._outcomes[rank] = outcome
            elif rank in ended:
                self._outcomes[rank] = self._describe_death(rank)
            elif rank in done:  # ipyparallel could not do it
                said = f"{type(reply.exception()).__name__}: {reply.exception()}"
                self._outcomes[rank] = Outcome("raised", error=said)

    def _describe_death(self, rank: int) -> Outcome:
        code, log = self._team.engines.last_words(rank)
        main_thread = self._team.facts[rank]["main_thread"]
        return describe_death(code, log, main_thread, self._find_note(rank))

    def _find_note(self, rank: int) -> Place | None:
        """Return where a rank was seen last."""
        key = NOTE.format(self._team.facts[rank]["pid"], self._number)
        if not self._team.store.check([key]):
            return None
        return Place(*json.loads(self._team.store.get(key)))

    def hear(self, last: bool = False) -> None:
        """Print new lines, with the rank before each."""
        deadline = clock.CLOCK.wall() + _SECONDS_FOR_OUTPUT if last else 0
        for rank, reply in self._replies.items():
            if last:  # that of a rank that has died may never be complete
                reply.wait_for_output(max(0, deadline - clock.CLOCK.wall()))
            for name in _STREAMS:
                self._print(rank, name, getattr(reply, name) or "", last)

    def _print(self, rank: int, name: str, text: str, last: bool) -> None:
        lines = text.split("\n")
        if not last or not lines[-1]:
            lines.pop()  # more of it may come
        done = self._printed[rank, name]
        if len(lines) > done:
            stream = getattr(sys, name)
            stream.write("".join(f"[{rank}] {line}\n" for line in lines[done:]))
            stream.flush()
            self._printed[rank, name] = len(lines)

    def _load(self, rank: int) -> Any:
        import cloudpickle

        try:
            return cloudpickle.loads(self._outcomes[rank].value)
        except Exception as error:
            raise ExperimentError(
                f"What {self.name} returned on rank {rank} cannot be read here: "
                f"{error}.\nReturn numbers, tensors, or lists and dicts of them."
            ) from None
