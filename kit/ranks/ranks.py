"""`start_ranks` and `Ranks`: several processes that a notebook calls as one."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kit import figures
from kit.experiment import Experiment, ExperimentError
from kit.machine import find_cores
from kit.progress import Progress, take_turn
from kit.ranks.call import Call, name_ranks
from kit.ranks.engines import Engines
from kit.ranks.lives import RanksVariant

_MOST_PER_CORE = 4
_engines: Engines | None = None


class Ranks:
    """Processes with a process group, kept alive; or, by a slice, a part of them.

    `len(ranks)` is their number. `ranks[:1]` is a view: the same processes, and for
    what runs on it they are the whole world, with ranks from 0; what was made with a
    group of the world before is then of no use. A context manager that closes them;
    they also end with the process that started them.
    """

    def __init__(self, engines: Engines, members: tuple[int, ...]) -> None:
        self._engines, self._members = engines, members

    def run(
        self, function: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> list[Any]:
        """Call a function on every rank; return what each returned, in order.

        The function and its arguments are copied to the ranks, with the functions and
        values of the notebook that it uses; names that the notebook lacks are those of
        `%%px` cells. What it prints appears line by line, after the rank's number.
        Raises RankError where a rank fails or the ranks do not agree; after that, and
        after an interrupt, they can be used again. Where one has died, or did not stop,
        all start anew, and the error says which `%%px` cells to run again.
        """
        name = f"{getattr(function, '__name__', type(function).__name__)}()"
        progress = Progress(f"{name} runs on {name_ranks(self._members)}")
        progress.doing = "measuring"  # as Progress calls what needs no name
        with progress, take_turn(progress):
            call = Call(self._engines, progress, self._members, name)
            return call.run(function, *args, **kwargs)

    def prepare(
        self, experiment: Experiment, knobs: Mapping[str, object]
    ) -> RanksVariant:
        """Make a variant of an experiment: what `on=ranks` does."""
        self._engines.check_open()
        note = f"On {name_ranks(self._members)}: {self._describe()}."
        return RanksVariant(self._engines, self._members, experiment, knobs, note)

    def close(self) -> None:
        """End the processes; closing a view ends nothing."""
        if self._members == self._engines.ranks:
            self._engines.close("close() was called")

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._members)

    def __getitem__(self, which: int | slice) -> Ranks:
        if isinstance(which, slice):
            members = tuple(sorted(self._members[which]))
        else:
            members = (self._members[which],)
        if not members:
            raise ExperimentError(
                f"ranks[{which.start}:{which.stop}] is empty: there are {len(self)}.\n"
                "Take one or more, as in ranks[:1]."
            )
        return Ranks(self._engines, members)

    def __repr__(self) -> str:
        return f"<{name_ranks(self._members)} on {self._describe()}>"

    def _describe(self) -> str:
        """Say what each of them has, as in "cpu, 1 thread each"."""
        facts = [self._engines.facts[rank] for rank in self._members]
        devices = ", ".join(dict.fromkeys(fact["device"] for fact in facts))
        many = "/".join(sorted({str(fact["threads"]) for fact in facts}))
        return f"{devices}, {many} thread{'s' * (many != '1')} each"

    def _repr_html_(self) -> str:
        names = "device", "threads", "process"
        facts = {rank: self._engines.facts[rank] for rank in self._members}
        rows = [(rank, *(fact[name] for name in names)) for rank, fact in facts.items()]
        title = f"{len(self)} rank{'s' * (len(self) > 1)}"
        return figures.html_table(["rank", *names], rows, title=title)


def start_ranks(n: int, *, timeout: float = 25.0, cluster: Any = None) -> Ranks:
    """Start n processes with a process group, and keep them for many calls.

    Each has a GPU of its own where there are enough, else the CPU and its share of the
    cores. Starting takes some seconds. There is one set at a time: a second start
    closes the first. `timeout` is how long, in seconds, ranks wait for each other
    before that is an error. `cluster` is an ipyparallel Cluster that runs already, for
    engines on other machines. Raises ExperimentError where n is no number of
    ranks for this machine, and warns where they have to share cores.

    >>> with start_ranks(2) as ranks:
    ...     ranks.run(lambda x: x + dist.get_rank(), 10)
    [10, 11]
    """
    global _engines
    _check(n, timeout, cluster)
    if _engines is not None:
        again = "start_ranks() was called again, and there is one set at a time"
        _engines.close(again)
    with Progress(f"starting {n} rank{'s' * (n > 1)}") as progress:
        progress.doing = "starting processes"
        _engines = Engines(n, cluster, timeout)
        try:
            _engines.start()
        except BaseException:
            _engines.close("they did not start")
            raise
    return Ranks(_engines, _engines.ranks)


def _check(n: Any, timeout: Any, cluster: Any) -> None:
    """Refuse what cannot be started; warn where ranks share cores."""
    # Not this_machine(): it would load PyTorch first.
    cores = find_cores(Path("/"))[0] or 1
    if n not in range(1, _MOST_PER_CORE * cores + 1) or isinstance(n, (bool, float)):
        raise ExperimentError(
            f"start_ranks(): n={figures.format_value(n)} is no number of processes for "
            f"{cores} core{'s' * (cores > 1)}.\n"
            f"Use a whole number from 1 to {_MOST_PER_CORE * cores}: start_ranks(2)."
        )
    if not (isinstance(timeout, (int, float)) and 1 <= timeout <= 86_400):
        raise ExperimentError(
            f"start_ranks(): timeout={figures.format_value(timeout)} is not a time to "
            "wait.\nUse seconds, from 1 to a day."
        )
    if cluster is not None and not getattr(cluster, "controller", None):
        raise ExperimentError(
            f"start_ranks(): cluster={figures.format_value(cluster)} is no ipyparallel "
            "Cluster that runs.\n"
            f"Start one: ipyparallel.Cluster(n={n}).start_cluster_sync()."
        )
    if n > cores and cluster is None:
        warnings.warn(
            f"{n} ranks share {cores} core{'s' * (cores > 1)}, so they wait for each "
            "other's turn: what they compute is right, how fast they are says little.",
            stacklevel=3,
        )
