"""Clusters of ipyparallel, the kit's own or a reader's: how to make and reach them."""

from __future__ import annotations

import asyncio
import textwrap
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from kit import clock, figures
from kit.errors import ExperimentError

#: How to restart the engines of a reader's cluster.
RESTART = "cluster.restart_engines_sync()"
_SECONDS_BETWEEN_LOOKS = 0.05
_LONGEST_TEXT = 200
#: An engine is registered at its first heartbeat: they come more often than usual.
_BEATS = ["--HeartMonitor.period=500", "--HeartMonitor.max_heartmonitor_misses=60"]


def make_cluster(folder: str) -> Any:
    """Return an ipyparallel Cluster that no other machine can reach."""
    from ipyparallel import Cluster
    from ipyparallel.cluster.launcher import LocalEngineLauncher, LocalEngineSetLauncher

    class RankLauncher(LocalEngineLauncher):
        def find_args(self) -> list[str]:
            return [*super().find_args(), f"--IPEngine.id={self.identifier}"]

    class RanksLauncher(LocalEngineSetLauncher):
        launcher_class = RankLauncher

    here = {"controller_ip": "127.0.0.1", "controller_location": "127.0.0.1"}
    alone = {"load_profile": False, "profile_dir": folder, "cluster_id": ""}
    quiet = {"log_level": 50, "shutdown_atexit": False, "delay": 0.0}
    return Cluster(
        engines=RanksLauncher, controller_args=_BEATS, **here, **alone, **quiet
    )


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine to its end, in a thread: a notebook's own loop runs here."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


def is_running(cluster: Any) -> bool:
    """Return whether something is an ipyparallel Cluster that was started."""
    controller = getattr(cluster, "controller", None)
    return getattr(controller, "state", "after") != "after"


def connect(cluster: Any, seconds: float) -> Any:
    """Return a client of a cluster that runs.

    Raises ExperimentError where its controller cannot be reached within so many
    seconds.
    """
    connecting = cluster.connect_client(timeout=seconds)
    try:
        return run(asyncio.wait_for(connecting, 2 * seconds))
    except Exception as error:
        raise ExperimentError(
            f"The controller of {figures.format_value(cluster)} cannot be reached: "
            f"{describe_error(error)}.\n"
            "See whether it still runs, and whether it listens where this machine can "
            'reach it: ipyparallel.Cluster(controller_ip="*").'
        ) from None


def wait_for_engines(client: Any, cluster: Any, wanted: int, patience: float) -> int:
    """Wait until so many engines are there; return how many are.

    It is over at once where no more can come, else when none has come for so many
    seconds.
    """
    count = len(client.ids)
    deadline = clock.CLOCK.wall() + patience
    while count < wanted and clock.CLOCK.wall() < deadline:
        if count >= _count_started(cluster):
            break
        time.sleep(_SECONDS_BETWEEN_LOOKS)
        if len(client.ids) > count:
            deadline = clock.CLOCK.wall() + patience
        count = len(client.ids)
    return count


def _count_started(cluster: Any) -> int:
    """Return how many engines a cluster has started, less those known to have ended."""
    count = 0
    for engine_set in cluster.engines.values():
        launchers = getattr(engine_set, "launchers", None)
        if launchers is None:  # a job of a batch system
            count += engine_set.n
        else:
            count += sum(not _has_ended(each) for each in launchers.values())
    return count


def _has_ended(launcher: Any) -> bool:
    """Return whether an engine is known to have ended: one of this machine."""
    process = getattr(launcher, "process", None)
    return process is not None and not process.is_running()


def explain_too_few(count: int, wanted: int) -> ExperimentError:
    """Return the error for a reader's cluster that has too few engines."""
    more = f"Start more with cluster.start_engines_sync({wanted - count})"
    if count > 0:
        more += f", or call start_ranks({count}, cluster=cluster)"
    return ExperimentError(
        f"Each rank needs an engine: {wanted} wanted, this cluster has {count}.\n"
        f"{more}.\n"
        "Engines that wait in a queue need time: "
        f"cluster.connect_client_sync().wait_for_engines({wanted})."
    )


def describe_error(error: BaseException) -> str:
    """Return kind and message of an error on one line, also of one from an engine.

    >>> describe_error(ValueError("no such file"))
    'ValueError: no such file'
    """
    from ipyparallel.error import RemoteError

    kind = type(error).__name__
    message = str(error)
    if isinstance(error, RemoteError):
        kind = error.ename
        message = error.evalue
    message = textwrap.shorten(message, _LONGEST_TEXT, placeholder="…")
    return f"{kind}: {message}" if message else kind
