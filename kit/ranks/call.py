"""One call on some ranks: what it prints, how it ends, and how a failure reads."""

from __future__ import annotations

import importlib
import io
import math
import os
import re
import sys
import time
import types
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, wait
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from traceback import FrameSummary
from typing import Any

import cloudpickle
from IPython import get_ipython

from kit import clock
from kit.errors import ExperimentError, RankError
from kit.ranks.engines import Engines, name_ranks
from kit.ranks.rank import Outcome, leave, perform, unpack

_SECONDS_BETWEEN_LOOKS = 0.05
#: Where threads stand is written so soon, and what was printed arrives so soon.
_SECONDS_TO_WRITE = 0.2
_SECONDS_FOR_OUTPUT = 0.5
#: Others may fail on their own account, or be freed by the one that has failed; then
#: they are interrupted, and at last ended.
_SECONDS_FOR_OTHERS = 1.0
_SECONDS_TO_STOP = 1.0
_LONGEST_TEXT = 200
#: What gloo, the store and NCCL say where another rank did not come in time.
_TIMEOUT = re.compile(r"time[d ]*out", re.IGNORECASE)
_ADVICE = (
    "Each rank must make the same collective calls, with the same shapes. Where one "
    "may take longer: start_ranks(…, timeout=…)."
)


@dataclass
class Call:
    """A function that is called on some ranks at once; `name` stands in messages."""

    engines: Engines
    members: tuple[int, ...]
    name: str
    _replies: dict[int, Any] = field(default_factory=dict)
    _outcomes: dict[int, Outcome] = field(default_factory=dict)
    _printed: Counter[tuple[int, str]] = field(default_factory=Counter)

    def run(
        self, function: Callable[..., Any], *args: Any, **options: Any
    ) -> list[Any]:
        """Run it, and return what each rank returned, in order.

        Raises RankError where a rank fails or the ranks do not agree. After that and an
        interrupt nothing is left of it.
        """
        payload = self._pack((function, args, options))
        engines = self.engines
        engines.show(self.members)
        try:
            for rank in self.members:
                self._replies[rank] = engines.send(rank, perform, payload)
            self._follow(math.inf)
        except BaseException as error:
            usable = self._stop(0.0)
            if not isinstance(error, KeyboardInterrupt):
                raise
            places = _list_places(self._outcomes)
            lines = [f"{self.name} was interrupted.", *places, usable]
            raise KeyboardInterrupt("\n".join(lines)) from None
        if self._running or self._has_failed():
            usable = self._stop(_SECONDS_FOR_OTHERS)
            seconds = engines.timeout_seconds
            failure = explain_failure(self.name, self._outcomes, seconds, usable)
            failure.answers = self._read_answers()
            raise failure
        self._print(last=True)
        return [*self._read_answers().values()]

    @property
    def _running(self) -> list[int]:
        """The ranks that have not replied yet."""
        return [rank for rank in self._replies if rank not in self._outcomes]

    def _has_failed(self) -> bool:
        """Return whether it has ended on some rank without returning."""
        return any(outcome.kind != "returned" for outcome in self._outcomes.values())

    def _read_answers(self) -> dict[int, Any]:
        """Return what ranks have returned, in order."""
        answers = {}
        for rank in self.members:
            outcome = self._outcomes[rank]
            if outcome.kind == "returned":
                answers[rank] = cloudpickle.loads(outcome.value)
        return answers

    def _pack(self, value: object) -> bytes:
        buffer = io.BytesIO()
        try:
            _Packer(buffer).dump(value)
        except Exception as error:
            raise ExperimentError(
                f"{self.name} cannot be sent to the ranks: {error}.\n"
                "Make in the function itself what cannot be sent, such as open files."
            ) from None
        return buffer.getvalue()

    def _follow(self, seconds: float, is_ending: bool = False) -> None:
        """Follow the call for so many seconds, less where one fails or is late."""
        deadline = clock.CLOCK.wall() + seconds
        while self._running and clock.CLOCK.wall() < deadline:
            replies = [self._replies[rank] for rank in self._running]
            wait(replies, _SECONDS_BETWEEN_LOOKS, FIRST_COMPLETED)
            self._take_replies()
            self._print()
            if is_ending:
                continue
            if self._has_failed():
                return
            if self._outcomes:
                late = clock.CLOCK.wall() + self.engines.timeout_seconds
                deadline = min(deadline, late)

    def _take_replies(self) -> None:
        """Note how the call has ended on ranks that have replied by now.

        Only a reply shows that steps have ended: while a step hangs, Stop must see that
        it does, also where it prints.
        """
        replied = [rank for rank in self._running if self._replies[rank].done()]
        dead = self.engines.find_dead() if replied else []
        for rank in replied:
            error = self._replies[rank].exception()
            if error is None:
                self._outcomes[rank] = self._replies[rank].result()
            elif rank in dead:
                self._outcomes[rank] = self.engines.find_death(rank)
            else:
                self._outcomes[rank] = Outcome("raised", error=str(error))

    def _stop(self, patience: float) -> str:
        """End the call on all ranks; say what becomes of them.

        Each leaves the world when its call has ended: so others are freed that wait for
        it. Who does not end is interrupted; at last it is seen where it stands.
        """
        engines = self.engines
        engines.broken = {*engines.ranks}  # until it is over: an interrupt may come
        for rank in self.members:
            with suppress(Exception):  # it has ended
                engines.send(rank, leave)
        self._follow(patience, is_ending=True)
        engines.signal("SIGINT", self._running)
        self._follow(_SECONDS_TO_STOP, is_ending=True)
        stuck = self._running
        if stuck:
            engines.signal("SIGUSR2", stuck)
            time.sleep(_SECONDS_TO_WRITE)
        for rank in stuck:
            place, _ = engines.find_place(rank)
            self._outcomes[rank] = Outcome("stopped", place=place)
        self._print(last=True)
        ends = self._outcomes.items()
        died = [rank for rank, outcome in ends if outcome.kind == "died"]
        engines.broken = {*stuck, *died}
        return engines.break_up()

    def _print(self, last: bool = False) -> None:
        """Print new lines, with the rank before each."""
        deadline = clock.CLOCK.wall() + _SECONDS_FOR_OUTPUT
        for rank, reply in self._replies.items():
            if last:  # that of a rank that has died may never be complete
                reply.wait_for_output(max(0, deadline - clock.CLOCK.wall()))
            for name in ("stdout", "stderr"):
                lines = (getattr(reply, name) or "").split("\n")
                if not last or not lines[-1]:
                    lines.pop()  # more of it may come
                if new := lines[self._printed[rank, name] :]:
                    stream = getattr(sys, name)
                    stream.write("".join(f"[{rank}] {line}\n" for line in new))
                    stream.flush()
                    self._printed[rank, name] = len(lines)


class _Packer(cloudpickle.Pickler):  # type: ignore[misc]
    """Sends every module by its name, and code with its own.

    Also PyTorch's modules that are objects of their own, such as
    `torch.backends.cudnn`: a function of a cell that uses one could not be sent. And
    since version 3.1.3 cloudpickle forgets in which file or cell code stands, which
    errors have to say.
    """

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, types.ModuleType) and type(value) is not types.ModuleType:
            return importlib.import_module, (value.__name__,)
        if isinstance(value, types.CodeType):
            return unpack, (value.co_filename, *self.dispatch_table[type(value)](value))
        return super().reducer_override(value)


# How a failure reads


def explain_failure(
    name: str, outcomes: Mapping[int, Outcome], seconds: float, usable: str
) -> RankError:
    """Return the error for a call that failed, given how it ended on each rank.

    `seconds` is the process group's timeout; `usable` says what is left of the ranks.
    """
    failed = {r: o for r, o in outcomes.items() if o.kind in ("raised", "died")}
    culprits = [rank for rank, outcome in failed.items() if not outcome.victim]
    died = [rank for rank, outcome in failed.items() if outcome.kind == "died"]
    if not died and not any(_TIMEOUT.search(o.error) for o in failed.values()):
        culprits = culprits or [*failed]  # a collective itself refused what it got
    if not culprits:
        why = f"they waited {seconds:g} s for each other"
        if died:
            why = f"a collective ended {name_ranks(died)}, as where shapes differ"
        first = f"{name}: the ranks do not agree; {why}."
        places = _list_places(outcomes)
        message = "\n".join([first, *places, _ADVICE, usable])
        return RankError(message, places=places, usable=usable)
    culprit = outcomes[culprits[0]]
    alike = [rank for rank in sorted(culprits) if outcomes[rank].error == culprit.error]
    lines = [f"{name} failed on {name_ranks(alike)}: {_cut(culprit.error)}"]
    if culprit.place:
        lines.append(f"  {_describe(culprit.place)}")
    places = _list_places({r: o for r, o in outcomes.items() if r not in alike})
    message = "\n".join([*lines, *places, usable])
    return RankError(
        message, sorted(culprits), culprit.traceback, places=places, usable=usable
    )


def _list_places(outcomes: Mapping[int, Outcome]) -> list[str]:
    """Return a line for all ranks that stood at the same place."""
    alike: dict[str, list[int]] = {}
    for rank, outcome in sorted(outcomes.items()):
        where = _describe(outcome.place)
        if outcome.kind == "returned":
            where = "had returned"
        elif outcome.kind != "stopped" and not outcome.victim:
            where = f"{_cut(outcome.error)}; {where}"
        alike.setdefault(where, []).append(rank)
    return [f"  {name_ranks(ranks)}: {where}" for where, ranks in alike.items()]


def _describe(place: FrameSummary | None) -> str:
    """Return a place as a reader finds it: a cell's number or a file, and the line."""
    if place is None:
        return "at a line that is not known"
    shell, file = get_ipython(), os.path.relpath(place.filename)
    if shell is not None and (named := shell.compile.format_code_name(place.filename)):
        file = " ".join(named)
    elif Path(file).parent.name.startswith("ipykernel_"):
        file = "a %%px cell"
    where = f"{file}, line {place.lineno}, in {place.name}"
    return f"{where}: {_cut(place.line)}" if place.line else where


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 1] + "…"
