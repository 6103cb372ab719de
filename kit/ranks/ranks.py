"""`start_ranks` and `Ranks`: several processes that a notebook calls as one."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any

from kit import figures
from kit.experiment import Experiment, ExperimentError
from kit.machine import find_cores
from kit.progress import Progress, take_turn
from kit.ranks.engines import (
    Engines,
    LocalEngines,
    name_ranks,
    wait_for_coroutine,
    wait_until,
)
from kit.ranks.lives import RanksVariant
from kit.ranks.team import Team
from kit.system import find_memory

_MOST_PER_CORE = 4
_BYTES_PER_RANK = 300e6
_team: Team | None = None


class Ranks:
    """Processes with a process group, kept alive; or, by a slice, a part of them.

    `len(ranks)` is their number. `ranks[:1]` is a view: the same processes, and for
    what runs on it they are the whole world, with ranks from 0. A context manager that
    closes them; they also end with the process that started them.
    """

    def __init__(self, team: Team, members: tuple[int, ...]) -> None:
        self._team, self._members = team, members

    def run(
        self, function: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> list[Any]:
        """Call a function on every rank; return what each returned, in order.

        The function and its arguments are copied to the ranks, with the functions and
        values of the notebook that it uses; names that the notebook lacks are those of
        `%%px` cells. What it prints appears line by line, after the rank's number.
        Raises RankError where a rank fails or the ranks do not agree; after that, and
        after an interrupt, they can be used again.
        """
        name = getattr(function, "__name__", type(function).__name__)
        progress = Progress(f"{name}() runs on {name_ranks(self._members)}")
        with (
            progress,
            take_turn(progress),
            self._team.start(progress, self._members, function, args, kwargs) as call,
        ):
            progress.doing = "measuring"  # as Progress calls what needs no name
            for _ in call:
                progress.hear()
        return call.values

    def prepare(
        self, experiment: Experiment, knobs: Mapping[str, object]
    ) -> RanksVariant:
        """Make a variant of an experiment: what `on=ranks` does."""
        self._team.check_open()
        note = f"On {name_ranks(self._members)}: {self._describe()}."
        return RanksVariant(self._team, self._members, experiment, knobs, note)

    def close(self) -> None:
        """End the processes; closing a view ends nothing."""
        if len(self._members) == len(self._team.engines.ids):
            self._team.close()

    def __enter__(self) -> Ranks:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
        return Ranks(self._team, members)

    def __repr__(self) -> str:
        return f"<{name_ranks(self._members)} on {self._describe()}>"

    def _describe(self) -> str:
        """Say what each of them has, as in "cpu, 1 thread each"."""
        threads = {fact["threads"] for fact in self._facts}
        devices = ", ".join(dict.fromkeys(self._devices))
        many = "/".join(map(str, sorted(threads)))
        return f"{devices}, {many} thread{'s' * (many != '1')} each"

    def _repr_html_(self) -> str:
        rows = [
            (rank, device, fact["threads"], fact["pid"])
            for rank, device, fact in zip(
                self._members, self._devices, self._facts, strict=True
            )
        ]
        return figures.html_table(
            ["rank", "device", "threads", "process"],
            rows,
            title=_count(len(self), "rank"),
        )

    @property
    def _facts(self) -> list[dict[str, Any]]:
        return [self._team.facts[rank] for rank in self._members]

    @property
    def _devices(self) -> list[str]:
        return [self._team.devices[rank] for rank in self._members]


def start_ranks(n: int, *, cluster: Any = None, timeout: float = 25.0) -> Ranks:
    """Start n processes with a process group, and keep them for many calls.

    Each has a GPU of its own where there are enough, else the CPU and its share of the
    cores. Starting takes some seconds. There is one set at a time: a second start
    closes the first. `cluster` is an ipyparallel Cluster or Client that runs already,
    for engines on other machines. `timeout` is how long, in seconds, ranks wait for
    each other before that is an error. Raises ExperimentError where n is no number of
    ranks for this machine, and warns where they have to share cores.

    >>> with start_ranks(2) as ranks:
    ...     ranks.run(lambda x: x + dist.get_rank(), 10)
    [10, 11]
    """
    global _team
    _check(n, timeout, cluster)
    _check_installed()
    with Progress(f"starting {_count(n, 'rank')}") as progress:
        progress.doing = "starting processes"
        engines = LocalEngines(n) if cluster is None else _take_over(cluster, n)
        if _team is not None:
            _team.close(
                "start_ranks() was called again, and there is one set at a time"
            )
        team = Team(engines, timeout)
        try:
            if isinstance(engines, LocalEngines):
                engines.start()
            progress.hear()
            progress.doing = "loading PyTorch"
            team.mend()
        except BaseException:
            team.close()
            raise
    _team = team
    return Ranks(team, tuple(range(n)))


def _take_over(cluster: Any, n: int) -> Engines:
    """Return engines of a cluster that the reader has started."""
    from ipyparallel import Client, Cluster

    is_client = isinstance(cluster, Client)
    if not is_client and not (isinstance(cluster, Cluster) and cluster.controller):
        raise ExperimentError(
            f"start_ranks(): cluster={figures.format_value(cluster)} is no ipyparallel "
            "Cluster or Client that runs.\n"
            f"Start one: ipyparallel.Cluster(n={n}).start_cluster_sync()."
        )
    client = cluster if is_client else wait_for_coroutine(cluster.connect_client())
    try:
        wait_until(lambda: len(client.ids) >= n)
    except TimeoutError:
        raise ExperimentError(
            f"start_ranks(n={n}): the cluster has {len(client.ids)} engines.\n"
            "Start more of them, or fewer ranks."
        ) from None
    return Engines(client, n, close_client=not is_client)


def _check(n: int, timeout: float, cluster: Any) -> None:
    """Refuse what is no number of ranks, or too many; warn where they share cores."""
    if not isinstance(n, int) or isinstance(n, bool) or n < 1:
        raise ExperimentError(
            f"start_ranks(): n={figures.format_value(n)} is no number of processes.\n"
            "Use a whole number, 1 or more: start_ranks(2)."
        )
    is_number = isinstance(timeout, (int, float)) and not isinstance(timeout, bool)
    if not is_number or not 1 <= timeout <= 86_400:
        raise ExperimentError(
            f"start_ranks(): timeout={figures.format_value(timeout)} is not a time to "
            "wait.\nUse seconds, from 1 to a day."
        )
    if cluster is not None:
        return
    # Not this_machine(): it would load PyTorch first.
    cores, memory = find_cores(Path("/"))[0] or 1, find_memory(Path("/"))[0]
    if n > _MOST_PER_CORE * cores:
        raise ExperimentError(
            f"start_ranks(n={n}): {n} processes on {_count(cores, 'core')} would "
            f"mostly wait for a core.\nUse at most {_MOST_PER_CORE * cores}; with "
            f"{cores}, each has one of its own."
        )
    if memory is not None and n * _BYTES_PER_RANK > memory:
        needed, there = map(figures.format_bytes, (n * _BYTES_PER_RANK, memory))
        raise ExperimentError(
            f"start_ranks(n={n}): {n} processes with PyTorch need about {needed}, and "
            f"there are {there}.\nUse fewer."
        )
    if n > cores:
        warnings.warn(
            f"{n} ranks share {_count(cores, 'core')}, so they wait for each other's "
            "turn: what they compute is right, how fast they are says little.",
            stacklevel=3,
        )


def _check_installed() -> None:
    """Refuse where what starts the processes, and sends to them, is not installed."""
    try:
        for name in ("ipyparallel", "cloudpickle"):
            import_module(name)
    except ImportError as error:
        raise ExperimentError(
            f"start_ranks(): {error.name or name} is not installed, and ranks need it."
            f"\nInstall it with `{sys.executable} -m pip install ipyparallel "
            "cloudpickle`. Without it, run a script with torchrun."
        ) from None


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
