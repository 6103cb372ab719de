"""The processes behind the ranks: ipyparallel engines, started here or elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any

from kit import clock
from kit.experiment import ExperimentError
from kit.ranks.rank import LAST_WORD, leave, share_cores

_SECONDS_TO_START, _SECONDS_TO_END = 60, 2
_SECONDS_BETWEEN_LOOKS = 0.02
_SECONDS_FOR_LAST_WORD = 0.2
#: An engine is registered at its first heartbeat: they come more often than usual.
#: Whether one lives is seen from its process, not from missed beats.
_BEATS = (
    "--HeartMonitor.period=500",
    "--HeartMonitor.max_heartmonitor_misses=600",
)


class Engines:
    """Engines of a cluster that the reader made; one for each rank, in order.

    `client` is an ipyparallel Client, connected.
    """

    def __init__(self, client: Any, count: int, *, close_client: bool) -> None:
        self.client = client
        self.ids = list(client.ids[:count])
        self._close_client = close_client

    def view(self, ranks: int | Sequence[int]) -> Any:
        """Return ipyparallel's view of one rank, or of some."""
        one = isinstance(ranks, int)
        targets = self.ids[ranks] if one else [self.ids[rank] for rank in ranks]
        return self.client.direct_view(targets)

    def have_ended(self) -> list[int]:
        """Return the ranks whose process has ended."""
        alive = set(self.client.ids)
        return [rank for rank, number in enumerate(self.ids) if number not in alive]

    def end(self, ranks: Sequence[int]) -> None:
        """End the processes of some ranks at once, after a last word of theirs."""
        for name in (LAST_WORD, "SIGKILL"):
            for number in {self.ids[rank] for rank in ranks} & set(self.client.ids):
                with contextlib.suppress(KeyError):  # it has ended meanwhile
                    self.client.send_signal(name, number, block=False)
            threading.Event().wait(_SECONDS_FOR_LAST_WORD)
        _expect(lambda: set(ranks) <= set(self.have_ended()), "To end")

    def replace(self, ranks: Sequence[int]) -> None:
        """Start new processes for ranks whose own have ended."""
        cluster = self.client.cluster
        if cluster is None:
            raise ExperimentError(
                f"{name_ranks(ranks)} cannot be replaced: start_ranks(cluster=…) was "
                "given a Client, and only a Cluster starts engines.\n"
                "Start engines yourself, then the ranks again."
            )
        before = set(self.client.ids)
        wait_for_coroutine(cluster.start_engines(len(ranks)))
        _expect(lambda: len(set(self.client.ids) - before) >= len(ranks), "To start")
        new = sorted(set(self.client.ids) - before)
        for rank, number in zip(ranks, new, strict=False):
            self.ids[rank] = number

    def last_words(self, rank: int) -> tuple[int | None, str]:
        """Return the exit code of a rank's process and its log, if they are known."""
        return None, ""

    def close(self) -> None:
        """Leave the engines: the reader's go on."""
        with contextlib.suppress(Exception):  # they may have ended
            everyone = self.view(range(len(self.ids)))
            everyone.apply_async(leave).get(timeout=_SECONDS_TO_END)
        if self._close_client:
            self.client.close()


class LocalEngines(Engines):
    """Engines on this machine, which no other can reach, and which end with us."""

    def __init__(self, count: int) -> None:
        from ipyparallel import Cluster
        from traitlets.config import Config

        self._folder = tempfile.mkdtemp(prefix="kit-ranks-")
        self._environment = {
            "IPYTHONDIR": self._folder,
            "OMP_NUM_THREADS": str(share_cores(count)),
            "GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0",
        }
        command = [sys.executable, "-m", "kit.ranks.process"]
        ours = [str(os.getpid()), self._folder]
        config = Config()
        config.ControllerLauncher.controller_cmd = [*command, "controller", *ours]
        config.EngineLauncher.engine_cmd = [*command, "engine", *ours]
        config.LocalProcessLauncher.stop_seconds_until_kill = _SECONDS_TO_END
        # They start beside the controller, and read from a file how to connect to it.
        config.Cluster.send_engines_connection_env = False
        log = logging.getLogger(__name__)
        log.addHandler(logging.NullHandler())
        log.propagate = False
        self._cluster = Cluster(
            config=config,
            load_profile=False,
            profile_dir=self._folder,
            cluster_id="",
            log=log,
            shutdown_atexit=False,
            delay=0.0,
            controller_ip="127.0.0.1",
            controller_location="127.0.0.1",
            controller_args=[*_BEATS],
        )
        self._launchers: dict[int, Any] = {}
        self.client: Any = None
        self.ids = [-1] * count

    def start(self) -> None:
        """Start controller and engines, and wait until they have found each other."""
        everyone = range(len(self.ids))
        wait_for_coroutine(self._cluster.start_controller())
        wait_for_coroutine(self._start(everyone))
        self.client = wait_for_coroutine(self._cluster.connect_client())
        self._register(everyone, set())

    def replace(self, ranks: Sequence[int]) -> None:
        """Start new processes for ranks whose own have ended."""
        with contextlib.suppress(
            TimeoutError
        ):  # then they get other numbers, no matter
            wait_until(
                lambda: not {self.ids[r] for r in ranks} & set(self.client.ids), 3
            )
        before = set(self.client.ids)
        wait_for_coroutine(self._start(ranks))
        self._register(ranks, before)

    def _register(self, ranks: Sequence[int], before: set[int]) -> None:
        """Wait until new engines have numbers, which none `before` had; note them."""
        import_module("torch.distributed")  # needed next, and they take their time

        def are_registered() -> bool:
            self._check(ranks)
            return len(set(self.client.ids) - before) >= len(ranks)

        _expect(are_registered, "To start")
        new = sorted(set(self.client.ids) - before)
        pids = self.client.direct_view(new).apply_sync(os.getpid)
        numbers = dict(zip(pids, new, strict=True))
        for rank in ranks:
            self.ids[rank] = numbers[self._launchers[rank].pid]

    async def _start(self, ranks: Sequence[int]) -> None:
        for rank in ranks:
            name = str(rank)
            if name in self._cluster.engines:
                await self._cluster.stop_engines(name)
            await self._cluster.start_engines(
                1,
                engine_set_id=name,
                engine_args=[
                    f"--IPEngine.id={rank}",
                    "--IPEngine.max_heartbeat_misses=0",
                    "--IPEngine.out_stream_factory=kit.ranks.process.Output",
                    "--log-level=ERROR",
                ],
                environment=dict(self._environment),
            )
            (self._launchers[rank],) = self._cluster.engines[name].launchers.values()

    def _check(self, ranks: Sequence[int]) -> None:
        for rank in ranks:
            if not self._launchers[rank].process.is_running():
                log = " ".join(self.last_words(rank)[1].split())
                raise ExperimentError(
                    f"The process of rank {rank} ended before it was ready.\n"
                    f"It said: {log[-300:]}"
                )

    def have_ended(self) -> list[int]:
        """Return the ranks whose process has ended."""
        ended = super().have_ended()
        return [
            rank
            for rank, launcher in self._launchers.items()
            if rank in ended or not launcher.process.is_running()
        ]

    def last_words(self, rank: int) -> tuple[int | None, str]:
        """Return the exit code of a rank's process that has ended, and its log."""
        import psutil

        launcher = self._launchers[rank]
        code = None
        with contextlib.suppress(TimeoutError, psutil.TimeoutExpired):
            wait_for_coroutine(launcher.join(timeout=_SECONDS_TO_END))
            code = launcher.process.wait(0)
        return code, launcher.get_output()

    def close(self) -> None:
        """End all processes and remove their folder."""
        import psutil

        engines, helpers = [], []
        for launcher in self._launchers.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                helpers += launcher.process.children(recursive=True)
                engines.append(launcher.process)
        if self.client is not None:
            self.client.close()
        for engine in engines:  # all at once: ipyparallel waits for one by one
            with contextlib.suppress(psutil.NoSuchProcess):
                engine.terminate()
        _, stuck = psutil.wait_procs(engines, timeout=_SECONDS_TO_END)
        for engine in stuck:
            with contextlib.suppress(psutil.NoSuchProcess):
                engine.kill()
        wait_for_coroutine(self._cluster.stop_engines())
        for helper in helpers:  # each would tell the controller first
            with contextlib.suppress(psutil.NoSuchProcess):
                helper.kill()
        wait_for_coroutine(self._cluster.stop_controller())
        shutil.rmtree(self._folder, ignore_errors=True)


def wait_until(
    condition: Callable[[], bool], seconds: float = _SECONDS_TO_START
) -> None:
    """Wait until something is so; raise TimeoutError where it takes too long."""
    deadline = clock.CLOCK.wall() + seconds
    while not condition():
        if clock.CLOCK.wall() > deadline:
            raise TimeoutError(f"nothing came of it in {seconds:.0f} s")
        threading.Event().wait(_SECONDS_BETWEEN_LOOKS)


def _expect(condition: Callable[[], bool], what: str) -> None:
    """Wait until engines have done something; else say what they did not do."""
    try:
        wait_until(condition)
    except TimeoutError:
        raise ExperimentError(
            f"{what} took processes of ranks more than {_SECONDS_TO_START} s.\n"
            "Try again when the machine is less busy; an engine's log may tell why."
        ) from None


def wait_for_coroutine(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine to its end, in a thread: a notebook's own loop runs here."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


def name_ranks(ranks: Sequence[int]) -> str:
    """Return ranks as words.

    >>> name_ranks([1]), name_ranks([0, 1, 2, 5])
    ('rank 1', 'ranks 0–2, 5')
    """
    parts: list[list[int]] = []
    for rank in ranks:
        if parts and rank == parts[-1][-1] + 1:
            parts[-1].append(rank)
        else:
            parts.append([rank])
    words = [f"{p[0]}–{p[-1]}" if len(p) > 2 else ", ".join(map(str, p)) for p in parts]
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(words)}"
