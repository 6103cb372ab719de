"""One call on some ranks: what it prints, how it ends, and how a failure reads."""

from __future__ import annotations

import importlib
import io
import math
import os
import re
import sys
import types
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, wait
from dataclasses import dataclass, field
from pathlib import Path
from traceback import FrameSummary
from typing import Any

import cloudpickle
from IPython import get_ipython

from kit import clock
from kit.errors import ExperimentError, RankError
from kit.ranks.engines import Engines, name_ranks
from kit.ranks.rank import Outcome, perform, unpack

_SECONDS_BETWEEN_LOOKS = 0.05
#: After a failure, others may fail or end, too; what was printed arrives so soon.
_SECONDS_FOR_OTHERS = 1.0
_SECONDS_FOR_OUTPUT = 0.5
_LONGEST_TEXT = 200
#: What gloo, the store and NCCL say where another rank did not come in time.
_TIMEOUT = re.compile(r"time[d ]*out", re.IGNORECASE)
_ADVICE = (
    "The ranks wait for each other: each must make the same collective calls, equally "
    "often and with the same shapes. Where one may take longer: start_ranks(…, "
    "timeout=…)."
)
_ANEW = "All ranks restart at the next call; their state is lost."


@dataclass
class Call:
    """A function that is called on some ranks at once; `name` stands in messages."""

    engines: Engines
    members: tuple[int, ...]
    name: str
    _replies: dict[int, Any] = field(default_factory=dict)
    #: How it ended on the ranks, in the order in which that was seen.
    _outcomes: dict[int, Outcome] = field(default_factory=dict)
    _printed: Counter[tuple[int, str]] = field(default_factory=Counter)

    def run(
        self, function: Callable[..., Any], *args: Any, **options: Any
    ) -> list[Any]:
        """Run it, and return what each rank returned, in order.

        Raises RankError where a rank fails or the ranks do not agree. After that, and
        after an interrupt, all ranks start anew.
        """
        payload = self._pack((function, args, options))
        self.engines.show(self.members)
        try:
            for rank in self.members:
                self._replies[rank] = self.engines.send(rank, perform, payload)
            self._follow()
        except KeyboardInterrupt:
            self._stop()
            lines = [f"{self.name} was interrupted.", *self._list_places([]), _ANEW]
            raise KeyboardInterrupt("\n".join(lines)) from None
        if self._running or self._failed:
            self._stop()
            raise self._explain()
        self._print(last=True)
        return [cloudpickle.loads(self._outcomes[rank].value) for rank in self.members]

    @property
    def _running(self) -> list[int]:
        """The ranks that have not replied yet."""
        return [rank for rank in self._replies if rank not in self._outcomes]

    @property
    def _failed(self) -> list[int]:
        """The ranks on which it failed; first those that are there no more."""
        failed = [r for r, o in self._outcomes.items() if o.kind in ("raised", "died")]
        return sorted(failed, key=lambda rank: self._outcomes[rank].kind == "raised")

    def _pack(self, value: object) -> bytes:
        buffer = io.BytesIO()
        try:
            _Packer(buffer).dump(value)
        except Exception as error:
            raise ExperimentError(
                f"{self.name} cannot be sent to the ranks: {error}.\n"
                "Inside the function, create what cannot be sent, such as open files."
            ) from None
        return buffer.getvalue()

    def _follow(self) -> None:
        """Follow the call to its end, or until a rank fails or is late.

        Late is who has not returned so many seconds after another one has.
        """
        deadline = math.inf
        has_ended = False
        while self._running and clock.CLOCK.wall() < deadline:
            replies = [self._replies[rank] for rank in self._running]
            wait(replies, _SECONDS_BETWEEN_LOOKS, FIRST_COMPLETED)
            self._take_replies()
            self._print()
            if self._failed:
                deadline = min(deadline, clock.CLOCK.wall() + _SECONDS_FOR_OTHERS)
            elif self._outcomes and not has_ended:
                has_ended = True
                deadline = clock.CLOCK.wall() + self.engines.timeout_seconds

    def _take_replies(self) -> None:
        """Note how the call has ended on ranks that have replied by now."""
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

    def _stop(self) -> None:
        """See where ranks stand that have not ended, and end all of them."""
        running = self._running
        places = self.engines.find_places(running)
        for rank in running:
            self._outcomes[rank] = Outcome("stopped", place=places[rank])
        self._print(last=True)
        self.engines.end_all()

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

    # How a failure reads

    def _explain(self) -> RankError:
        """Return the error for a call that failed."""
        seconds = self.engines.timeout_seconds
        if not self._failed:
            first = f"{self.name}: ranks waited {seconds:g} s for each other."
            return RankError("\n".join([first, *self._list_places([]), _ADVICE, _ANEW]))
        culprit = self._outcomes[self._failed[0]]
        alike = [r for r in self._failed if self._outcomes[r].error == culprit.error]
        alike.sort()
        lines = [f"{self.name} failed on {name_ranks(alike)}: {_cut(culprit.error)}"]
        if culprit.place:
            lines.append(f"  {_describe(culprit.place)}")
        lines += self._list_places(alike)
        if _TIMEOUT.search(culprit.error):
            lines.append(_ADVICE)
        return RankError("\n".join([*lines, _ANEW]), alike, culprit.traceback)

    def _list_places(self, without: Iterable[int]) -> list[str]:
        """Return a line for all other ranks that stood at the same place."""
        alike: dict[str, list[int]] = {}
        for rank, outcome in sorted(self._outcomes.items()):
            where = _describe(outcome.place)
            if outcome.kind == "returned":
                where = "had returned"
            elif outcome.error:
                where = f"{_cut(outcome.error)}; {where}"
            if rank not in without:
                alike.setdefault(where, []).append(rank)
        return [f"  {name_ranks(ranks)}: {where}" for where, ranks in alike.items()]


def _describe(place: FrameSummary | None) -> str:
    """Return a place as a reader finds it: a cell's number or a file, and the line."""
    if place is None:
        return "at an unknown line"
    shell, file = get_ipython(), os.path.relpath(place.filename)
    if shell is not None and (named := shell.compile.format_code_name(place.filename)):
        file = " ".join(named)
    elif Path(file).parent.name.startswith("ipykernel_"):
        file = "a %%px cell"
    where = f"{file}, line {place.lineno}, in {place.name}"
    return f"{where}: {_cut(place.line)}" if place.line else where


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 1] + "…"


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
