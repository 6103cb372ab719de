"""What a failed call is told as: the culprit, not the victims, and where each stood."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from traceback import FrameSummary

from kit.experiment import ExperimentError
from kit.ranks.engines import name_ranks
from kit.ranks.outcomes import Outcome, Place, find_place

_MOST_LINES_OF_RANKS = 5
_LONGEST_ERROR = 200
#: What gloo says before it ends a process that was sent more than it expects.
_MISMATCH = re.compile(r"op\.preamble\.length <= op\.nbytes\. (\d+) vs (\d+)")
#: What gloo, the store and NCCL say where another rank did not come in time.
_TIMEOUT = re.compile(r"time[d ]*out", re.IGNORECASE)
#: What they say where another rank has gone.
_LOST = re.compile(r"connection (closed|reset)", re.IGNORECASE)
#: What PyTorch says before it ends a process that waits in NCCL.
_WATCHDOG = "Watchdog caught collective operation timeout"
_STACK = re.compile(r'File "(.+)", line (\d+) in (.+)')


class RankError(ExperimentError):
    """A call failed on one or more ranks, or the ranks did not agree.

    `ranks` are the culprits, none where the ranks did not agree; `traceback` is that of
    the culprit that was heard of first, where it raised an error.
    """

    def __init__(
        self, message: str, ranks: Sequence[int] = (), traceback: str = ""
    ) -> None:
        super().__init__(message)
        self.ranks = tuple(ranks)
        self.traceback = traceback


def explain_failure(
    name: str, outcomes: Mapping[int, Outcome], seconds: float, ended: Sequence[int]
) -> RankError:
    """Return the error for a call that failed, given how it ended on each rank.

    `seconds` is the process group's timeout; `ended` are the ranks whose process has to
    be replaced.
    """
    culprits = _find_culprits(outcomes)
    if culprits:
        first = outcomes[culprits[0]]
        alike = [rank for rank in culprits if outcomes[rank].error == first.error]
        lines = [f"{name} failed on {name_ranks(sorted(alike))}: {_cut(first.error)}"]
        lines += [f"  {first.place.describe()}"] if first.place else []
        others = {r: o for r, o in outcomes.items() if r not in alike}
    else:
        others = dict(outcomes)
        gloo = [o.error for o in outcomes.values() if o.kind == "died" and o.error]
        why = gloo[0] if gloo else f"they waited {seconds:g} s for each other"
        lines = [f"{name}: the ranks do not agree; {why}."]
    lines += describe_places(others)
    if not culprits:
        advice = "Each rank must make the same collective calls, with the same shapes."
        if not gloo:
            advice += " Where one may take longer: start_ranks(…, timeout=…)."
        lines.append(advice)
    lines.append(tell_usable(ended))
    traceback = outcomes[culprits[0]].traceback if culprits else ""
    return RankError("\n".join(lines), sorted(culprits), traceback)


def _find_culprits(outcomes: Mapping[int, Outcome]) -> list[int]:
    """Return who failed on their own account, in the order in which they were heard."""
    failed = [r for r, o in outcomes.items() if o.kind in ("raised", "died")]
    culprits = [rank for rank in failed if not outcomes[rank].victim]
    if culprits or any(
        outcomes[rank].kind == "died" or _TIMEOUT.search(outcomes[rank].error)
        for rank in failed
    ):
        return culprits
    # That a process on another machine has ended is seen late: it does not answer.
    silent = [r for r, o in outcomes.items() if o.kind == "stopped" and o.error]
    if silent and any(_LOST.search(outcomes[rank].error) for rank in failed):
        return silent
    # Nobody died and nobody waited in vain: a collective itself refused what it got.
    return failed


def explain_interrupt(
    name: str, outcomes: Mapping[int, Outcome], ended: Sequence[int]
) -> str:
    """Return what an interrupt of a call says: where each rank stood."""
    places = describe_places(outcomes)
    return "\n".join([f"{name} was interrupted.", *places, tell_usable(ended)])


def describe_places(outcomes: Mapping[int, Outcome]) -> list[str]:
    """Return a line for all ranks that stood at the same place, at most five lines."""
    alike: dict[str, list[int]] = {}
    for rank, outcome in sorted(outcomes.items()):
        alike.setdefault(_describe(outcome), []).append(rank)
    lines = [f"  {name_ranks(ranks)}: {text}" for text, ranks in alike.items()]
    if len(lines) > _MOST_LINES_OF_RANKS:
        shown = _MOST_LINES_OF_RANKS - 1
        others = sum(map(len, [*alike.values()][shown:]))
        lines[shown:] = [f"  and {others} others elsewhere"]
    return lines


def tell_usable(ended: Sequence[int]) -> str:
    """Say that the ranks can be used again, and which of them are empty now.

    >>> tell_usable([1])
    'The ranks can be used again; rank 1 starts anew, empty: what was there is gone.'
    """
    usable = "The ranks can be used again"
    if not ended:
        return f"{usable}."
    verb = "start" if len(ended) > 1 else "starts"
    return f"{usable}; {name_ranks(ended)} {verb} anew, empty: what was there is gone."


def describe_death(
    code: int | None, log: str, main_thread: int, note: Place | None
) -> Outcome:
    """Return the outcome of a rank whose process has ended.

    `code` is its exit code and `log` what it wrote, `note` where it was seen last.
    """
    place = _find_in_log(log, main_thread) or note
    mismatch = _MISMATCH.search(log)
    if mismatch:
        came, expected = mismatch.groups()
        said = f"{came} bytes came where {expected} were expected"
        return Outcome("died", error=said, victim=True, place=place, intact=False)
    if _WATCHDOG in log:
        return Outcome("died", victim=True, place=place, intact=False)
    if code is None:
        said = "its process has ended"
    elif code >= 0:
        said = f"its process ended itself, with exit code {code}"
    else:
        said = f"its process was ended by {_name_signal(-code)}"
        if code == -9:
            said += ", as the system does where memory is full"
    return Outcome("died", error=said, place=place, intact=False)


def _name_signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # some have no name
        return f"signal {number}"


def _describe(outcome: Outcome) -> str:
    if outcome.kind == "returned":
        return "had returned"
    where = outcome.place.describe() if outcome.place else "not in the function"
    if outcome.kind == "stopped" or outcome.victim:
        return where
    return f"{_cut(outcome.error)}; {where}"


def _find_in_log(log: str, main_thread: int) -> Place | None:
    """Return where the main thread stood, as faulthandler wrote it: innermost first."""
    _, found, rest = log.rpartition(f"hread 0x{main_thread:016x}")
    stack, _, _ = rest.partition("\n\n")
    frames = [
        FrameSummary(file, int(line), function, lookup_line=False, line="")
        for file, line, function in _STACK.findall(stack if found else "")
    ]
    return find_place(reversed(frames))


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_ERROR else text[: _LONGEST_ERROR - 1] + "…"
