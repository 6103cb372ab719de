"""`start_ranks`: processes that a notebook calls as one, also with `on=ranks`."""

from __future__ import annotations

import functools
import math
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kit import figures
from kit.errors import ExperimentError, RankError, naming
from kit.machine import find_cores
from kit.measuring.experiment import RANKS, Experiment
from kit.measuring.records import Stretch
from kit.measuring.run import Driver, Variant
from kit.measuring.settings import Shared
from kit.mode import is_quick
from kit.ranks import rank as there
from kit.ranks.call import Call
from kit.ranks.engines import Engines, name_ranks

#: So many ranks may share a core.
_MOST_PER_CORE = 4
#: Stretches are longer than elsewhere: each is a call.
_STRETCH_SECONDS = 0.1
#: Of a complete run, so many seconds are timed at once.
_PART_SECONDS = 0.25
_EQUAL_STEPS = (
    "All ranks must make the same number of steps: give each the same amount of data, "
    "or let it yield 0."
)
_engines: Engines | None = None


class Ranks:
    """Processes with a process group, kept alive; or, by a slice, a part of them.

    `len(ranks)` is their number. `ranks[:1]` is a view: the same processes, and for
    what runs on it they are the whole world, with ranks from 0; what was made with a
    group of the world before is then of no use. A context manager that closes them;
    they also end with the process that started them.
    """

    def __init__(
        self, engines: Engines, members: tuple[int, ...], *, is_view: bool = False
    ) -> None:
        self._engines = engines
        self._members = members
        self._is_view = is_view

    def run(
        self, function: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> list[Any]:
        """Call a function on every rank; return what each returned, in order.

        The function and its arguments are copied to the ranks, with the functions and
        values of the notebook that it uses; names that the notebook lacks are those of
        `%%px` cells. What it prints appears line by line, after the rank's number.
        Raises RankError where a rank fails or the ranks do not agree; after that, and
        after an interrupt, all start anew, and what was there is gone.
        """
        name = f"{getattr(function, '__name__', type(function).__name__)}()"
        call = Call(self._engines, self._members, name)
        return call.run(function, *args, **kwargs)

    def prepare(
        self, experiment: Experiment, knobs: Mapping[str, object]
    ) -> RanksVariant:
        """Make a variant of an experiment: what `on=ranks` does."""
        made = RanksVariant(self, experiment, knobs)
        made.notes.append(f"On {name_ranks(self._members)}: {self._describe()}.")
        return made

    def close(self) -> None:
        """End the processes; closing a view ends nothing."""
        if not self._is_view:
            self._engines.close("close() was called")

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._members)

    def __getitem__(self, which: int | slice) -> Ranks:
        chosen: Any = self._members[which]
        members = tuple(sorted(chosen)) if isinstance(which, slice) else (chosen,)
        if not members:
            raise ExperimentError(
                f"ranks[{which.start}:{which.stop}] is empty: there are {len(self)}.\n"
                "Take one or more, as in ranks[:1]."
            )
        return Ranks(self._engines, members, is_view=True)

    def __repr__(self) -> str:
        return f"<{name_ranks(self._members)} on {self._describe()}>"

    def _describe(self) -> str:
        """Say what each of them has, as in "cpu, 1 thread each"."""
        facts = [self._engines.facts[rank] for rank in self._members]
        devices = ", ".join(dict.fromkeys(fact["device"] for fact in facts))
        many = "/".join(sorted({str(fact["threads"]) for fact in facts}))
        threads = "thread" if many == "1" else "threads"
        return f"{devices}, {many} {threads} each"

    def _repr_html_(self) -> str:
        names = "device", "threads", "process"
        facts = {rank: self._engines.facts[rank] for rank in self._members}
        rows = [(rank, *(fact[name] for name in names)) for rank, fact in facts.items()]
        title = _count(len(self), "rank")
        return figures.html_table(["rank", *names], rows, title=title)


def start_ranks(n: int, *, timeout: float = 25.0) -> Ranks:
    """Start n processes with a process group, and keep them for many calls.

    Each has a GPU of its own where there are enough, else the CPU and its share of the
    cores. Starting takes some seconds. There is one set at a time: a second start
    closes the first. `timeout` is how long, in seconds, ranks wait for each other
    before that is an error. Raises ExperimentError for what cannot be started, and on
    Windows; warns where ranks share cores.

    >>> with start_ranks(2) as ranks:
    ...     ranks.run(lambda x: x + dist.get_rank(), 10)
    [10, 11]
    """
    global _engines
    with naming("start_ranks()"):
        _check(n, timeout)
        if _engines is not None:
            again = "start_ranks() was called again, and only one set can be open"
            _engines.close(again)
        _engines = Engines(n, timeout)
        try:
            _engines.start()
        except BaseException:
            _engines.close("they did not start")
            raise
    return Ranks(_engines, _engines.ranks)


def _check(n: Any, timeout: Any) -> None:
    """Refuse what cannot be started; warn where ranks share cores."""
    if sys.platform == "win32":
        raise ExperimentError(
            "Ranks need Linux or macOS; Windows lacks the signals that stop them.\n"
            "Use WSL 2: https://learn.microsoft.com/windows/wsl/install."
        )
    # Not this_machine(): it would load PyTorch first.
    cores = find_cores() or 1
    most = _MOST_PER_CORE * cores
    if n not in range(1, most + 1) or isinstance(n, (bool, float)):
        raise ExperimentError(
            f"n={figures.format_value(n)} is not a number of processes for "
            f"{_count(cores, 'core')}.\n"
            f"Use a whole number from 1 to {most}: start_ranks(2)."
        )
    if not (isinstance(timeout, (int, float)) and 1 <= timeout <= 86_400):
        raise ExperimentError(
            f"timeout={figures.format_value(timeout)} is not a valid time to wait.\n"
            "Pass seconds, from 1 to 86,400 (a day)."
        )
    if n > cores:
        warnings.warn(
            f"{_count(n, 'rank')} share {_count(cores, 'core')}, so they wait for each "
            "other's turn: their results are right, but their speed means little.",
            stacklevel=3,
        )


def _count(number: int, what: str) -> str:
    """Return a number of things as words: "1 rank", "2 ranks"."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


# What `on=ranks` does


class RanksDriver(Driver):
    """Drives one run on ranks: all begin at once and make equal steps."""

    variant: RanksVariant
    _has_begun = False

    def prepare(self) -> None:
        """Let the ranks make a run, each its own."""
        self._ask(there.begin_run, *self.variant.sent)
        self._has_begun = True

    def open(self, *, watch_memory: bool = False) -> Stretch:
        """Start all; the memory of ranks is not watched."""
        return super().open()

    def start(self, seed: int) -> Stretch | None:
        """Start all generators, and run them to their first yield."""
        self.has_ended = False
        self._steps_since_start = 0
        firsts = self._ask(there.start_run, seed)
        without = [rank for rank, first in firsts.items() if first is None]
        if 0 < len(without) < len(firsts):
            raise self._refuse(f"{name_ranks(without)} ended before a first `yield`")
        return None if without else self._join([*firsts.values()])

    def time(self, steps: int, seconds: float = 0.0) -> Stretch:
        """Time so many steps on all ranks, and more until so much time is over."""
        stretch = super().time(steps)
        least = 0.0 if is_quick() else max(seconds, _STRETCH_SECONDS)
        while stretch.seconds < least:
            # Batches that were ready may have made the first steps very fast.
            missing = (least - stretch.seconds) / (stretch.seconds / stretch.steps)
            stretch.extend(super().time(max(1, min(int(missing), stretch.steps))))
        return stretch

    def has_queue(self) -> bool:
        """Return whether the ranks have GPUs."""
        facts = self.variant.engines.facts
        return any(facts[rank]["device"] != "cpu" for rank in self.variant.members)

    def advance(self, steps: float, seconds: float = 0.0) -> Stretch:
        """Time so many steps on all ranks, or those up to the end of all.

        What all have handled is summed, and the slowest one's time counts: while a rank
        waits for a core, others go on. Metrics are those of the first rank.
        """
        whole = Stretch()
        part = 1
        while whole.steps < steps and not self.has_ended:
            count = part if steps == math.inf else int(steps)
            stretch = self._advance_all(count)
            whole.extend(stretch)
            if stretch.steps:
                fitting = count * _PART_SECONDS / max(stretch.seconds, 1e-9)
                part = max(1, int(min(10 * count, fitting)))
        return whole

    def _advance_all(self, count: int) -> Stretch:
        """Let all ranks make so many steps at once, fewer where they end."""
        work = functools.partial(there.time_steps, count=count)
        timed = self._ask(there.use_driver, work)
        answers = [*timed.values()]
        if len({(each.stretch.steps, each.has_ended) for each in answers}) > 1:
            steps = [f"rank {rank} {each.steps_done}" for rank, each in timed.items()]
            raise self._refuse(
                f"ranks made different numbers of steps: {', '.join(steps)}"
            )
        self.has_ended = answers[0].has_ended
        self.tail_seconds = max(each.tail_seconds for each in answers)
        self._steps_done = answers[0].steps_done
        stretch = self._join([each.stretch for each in answers])
        self._steps_since_start += stretch.steps
        if stretch.steps and not stretch.items:
            raise ExperimentError(
                f"{self.variant.call} handled no items on any rank in {stretch.steps} "
                "steps.\nEach rank yields how many items it handled; a rank can "
                "yield 0, but not all of them."
            )
        return stretch

    def _join(self, stretches: Sequence[Stretch]) -> Stretch:
        """Return one stretch of those of all ranks."""
        first = stretches[0]
        return Stretch(
            max(each.seconds for each in stretches),
            math.fsum(each.items for each in stretches),
            first.steps,
            first.excluded_seconds,
            first.metrics,
        )

    def _refuse(self, what: str) -> RankError:
        """Return the error for ranks that do not make equal steps."""
        return RankError(f"{self.variant.experiment.name}(): {what}.\n{_EQUAL_STEPS}")

    def on_each(self, function: Callable[[Driver], Any]) -> list[Any]:
        """Call a function with the run's driver on each rank; return the answers."""
        return [*self._ask(there.use_driver, function).values()]

    def close(self, because: BaseException | None = None) -> None:
        """Close all generators, unless a failure has done so."""
        self.read_memory()
        if not self._has_begun or self.variant.engines.are_broken:
            return
        self._has_begun = False
        hasty = KeyboardInterrupt() if isinstance(because, KeyboardInterrupt) else None
        for notes in self._ask(there.close_run, hasty).values():
            for note in notes:
                self.variant.note(note)

    def note_company(self) -> None:
        """Change nothing: it always runs alone."""

    def find_children(self) -> dict[int, str]:
        """Return none: what ranks start is not this process's."""
        return {}

    def _ask(self, function: Callable[..., Any], *arguments: object) -> dict[int, Any]:
        """Let all ranks do the same; return their answers in order."""
        answers = self.variant.ask(function, *arguments)
        return dict(zip(self.variant.members, answers, strict=True))


class RanksVariant(Variant):
    """One experiment with one set of knobs on some ranks.

    Its runs come one after the other.
    """

    driver = RanksDriver

    def __init__(
        self, ranks: Ranks, experiment: Experiment, knobs: Mapping[str, object]
    ) -> None:
        if RANKS in knobs:
            raise ExperimentError(
                f"{experiment.name} has a knob {RANKS!r}, the name for how many it "
                "runs on.\nRename it; inside, dist.get_world_size() gives the number."
            )
        super().__init__(experiment, {RANKS: len(ranks), **knobs})
        self.engines = ranks._engines
        self.members = ranks._members
        self.runs_alone = True
        self.sent = (experiment, dict(knobs))
        # What it closes over is sent with each run.
        self.shared = Shared(None, {})

    def ask(self, function: Callable[..., Any], *arguments: object) -> list[Any]:
        """Call a function on each rank; return what each returned."""
        call = Call(self.engines, self.members, f"{self.experiment.name}()")
        return call.run(function, *arguments)
