"""The processes behind the ranks: engines that ipyparallel starts, restarts, watches.

A small process of the kit's own watches this one: so engines end with a kernel that is
killed, even one that is stuck.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Coroutine, Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from signal import Signals
from traceback import FrameSummary
from typing import Any

import psutil
from IPython import get_ipython

from kit import clock
from kit.errors import ExperimentError
from kit.ranks import rank as there
from kit.ranks.rank import Outcome

_SECONDS_TO_START = 60
_SECONDS_TO_END = 10
_SECONDS_BETWEEN_LOOKS = 0.2
#: Where threads stand is written so soon.
_SECONDS_TO_WRITE = 0.2
#: An engine is registered at its first heartbeat: they come more often than usual.
_BEATS = ["--HeartMonitor.period=500", "--HeartMonitor.max_heartmonitor_misses=60"]
#: Waits until this process has ended; then it ends what was started for the folder.
_WATCH = """
import sys
sys.stdin.read()
from {} import end_all_of
end_all_of({!r})
"""
_PX = re.compile(r"^\s*%%?px\b", re.MULTILINE)
_STACK = re.compile(r'File "(.+)", line (\d+) in (.+)')


class Engines:
    """One engine for each rank, in order, and the world that some of them make.

    `facts` is what each says of itself. Where `are_broken`, all start anew before the
    next call.
    """

    def __init__(self, count: int, timeout_seconds: float) -> None:
        self.ranks = tuple(range(count))
        self.timeout_seconds = timeout_seconds
        self.facts: dict[int, dict[str, Any]] = {}
        self.are_broken = False
        #: What is answered to who uses them when they are closed.
        self._refusal = ""
        #: How many worlds there were, and who is in the one that there is.
        self._worlds = 0
        self._shown: tuple[int, ...] = ()
        self._client: Any = None
        self._folder = tempfile.mkdtemp(prefix="kit-ranks-")
        self._cluster = make_cluster(self._folder)
        command = [sys.executable, "-c", _WATCH.format(__name__, self._folder)]
        self._watcher = subprocess.Popen(
            command, stdin=subprocess.PIPE, start_new_session=True
        )

    def start(self) -> None:
        """Start the engines, and let them make a world.

        Raises ExperimentError where engines or their answers are missing.
        """
        _run(self._cluster.start_cluster(len(self.ranks)))
        self._client = _run(self._cluster.connect_client(timeout=_SECONDS_TO_START))
        self._meet()
        if shell := get_ipython():
            shell.events.register("pre_run_cell", self._before_cell)

    def _meet(self) -> None:
        """Wait until all engines are there, and make each a rank."""
        wanted = len(self.ranks)
        count = self._wait_for_engines(wanted)
        if count < wanted:
            raise ExperimentError(
                f"{count} of {wanted} processes started; the others have ended, or "
                f"take longer than {_SECONDS_TO_START} s.\n"
                "Free memory, or start fewer, and run the cell again."
            )
        self._ids = sorted(self._client.ids)[:wanted]
        paths = [*sys.path]
        counts = self._ask(self.ranks, there.introduce, wanted, paths, self._folder)
        self._gpus = min(counts)
        self.are_broken = False
        self._shown = ()
        self.show(self.ranks)
        if get_ipython() is not None:
            self._client.activate(self._ids)  # for `%%px` cells, from this one on

    def _wait_for_engines(self, wanted: int) -> int:
        """Wait until so many engines are there, or have ended; return how many are."""
        deadline = clock.CLOCK.wall() + _SECONDS_TO_START
        while len(self._client.ids) < wanted and clock.CLOCK.wall() < deadline:
            launchers = self._cluster.engine_set.launchers.values()
            if sum(each.process.is_running() for each in launchers) < wanted:
                break
            time.sleep(_SECONDS_BETWEEN_LOOKS / 4)
        return len(self._client.ids)

    def _before_cell(self, info: Any) -> None:
        """Get all ranks ready where a cell is about to run on them by itself."""
        if _PX.search(info.raw_cell or ""):
            self.show(self.ranks)

    def _view(self, rank: int) -> Any:
        return self._client.direct_view(self._ids[rank])

    def send(self, rank: int, function: Any, *arguments: object) -> Any:
        """Call a function on a rank; return ipyparallel's reply, which is a future."""
        return self._view(rank).apply_async(function, rank, *arguments)

    def _ask(self, ranks: Iterable[int], function: Any, *arguments: Any) -> list[Any]:
        """Let some ranks do the same; return their answers in order.

        Raises ExperimentError where one fails or does not answer in time.
        """
        replies = {rank: self.send(rank, function, *arguments) for rank in ranks}
        seconds = _SECONDS_TO_START + self.timeout_seconds
        wait(replies.values(), seconds, FIRST_EXCEPTION)
        for rank, reply in replies.items():
            if not reply.done() or reply.exception() is not None:
                self.are_broken = True
                why = f"no answer within {seconds:g} s"
                if reply.done():
                    why = str(reply.exception())
                raise ExperimentError(
                    f"Rank {rank} cannot take part: {why}.\n"
                    "It needs this kit, PyTorch, and memory. Provide them, and run the "
                    "cell again."
                )
        return [reply.get(timeout=0) for reply in replies.values()]

    def show(self, members: tuple[int, ...]) -> None:
        """Let some ranks be the whole world; all start anew where one has ended.

        Raises ExperimentError where they are closed.
        """
        if self._refusal:
            raise ExperimentError(self._refusal)
        if not self.are_broken and (dead := self.find_dead()):
            sys.stderr.write(f"{name_ranks(dead)} ended: all ranks start anew.\n")
            self.are_broken = True
        if self.are_broken:
            self._restart()
        if self._shown != members:
            self._join(members)

    def _join(self, members: tuple[int, ...]) -> None:
        """Let some ranks make a world."""
        self._worlds += 1
        self._shown = ()
        path = f"{self._folder}/world-{self._worlds}"
        where = self._gpus, path, self.timeout_seconds
        facts = self._ask(members, there.join, members, *where)
        self.facts |= zip(members, facts, strict=True)
        self._shown = members

    def _restart(self) -> None:
        """End all engines that are left, and start new ones."""
        self.signal("SIGKILL", self.ranks)
        for _ in range(int(_SECONDS_TO_END / _SECONDS_BETWEEN_LOOKS)):
            if len(self.find_dead()) < len(self.ranks):
                time.sleep(_SECONDS_BETWEEN_LOOKS)
        _run(self._cluster.restart_engines())
        self._meet()

    def find_dead(self) -> list[int]:
        """Return the ranks whose process has ended."""
        alive = {*self._client.ids}
        return [rank for rank in self.ranks if self._ids[rank] not in alive]

    def signal(self, name: str, ranks: Iterable[int]) -> None:
        """Send a signal to the processes of some ranks, if they have not ended."""
        for rank in ranks:
            with suppress(Exception):
                self._client.send_signal(name, self._ids[rank], block=False)

    def end_all(self) -> None:
        """End all engines; new ones start before the next call."""
        self.are_broken = True
        self.signal("SIGKILL", self.ranks)

    def find_places(self, ranks: list[int]) -> dict[int, FrameSummary | None]:
        """Return where ranks stand, by asking each to write its stack."""
        self.signal("SIGUSR2", ranks)
        if ranks:
            time.sleep(_SECONDS_TO_WRITE)
        return {rank: self._read_place(rank) for rank in ranks}

    def _read_place(self, rank: int) -> FrameSummary | None:
        """Return where a rank stood when faulthandler wrote its threads."""
        stacks = ""
        with suppress(OSError):
            stacks = Path(self._folder, f"stacks-{rank}").read_text()
        thread = self.facts[rank]["main_thread"]
        _, _, rest = stacks.rpartition(f"hread 0x{thread:016x}")
        lines = _STACK.findall(rest.partition("\n\n")[0])
        frames = [FrameSummary(f, int(n), g, lookup_line=False) for f, n, g in lines]
        return there.find_place(reversed(frames))

    def find_death(self, rank: int) -> Outcome:
        """Return how a rank ended whose process is there no more."""
        code = self._read_exit_code(rank)
        how = "its process has ended"
        if code is not None and code >= 0:
            how = f"its process ended with exit code {code}"
        elif code is not None:
            how = f"its process was killed by {Signals(-code).name}"
            if code == -Signals.SIGKILL:
                how += ", as the system does when memory is full"
        return Outcome("died", error=how, place=self._read_place(rank))

    def _read_exit_code(self, rank: int) -> int | None:
        """Return the exit code of an ended engine, of a signal its negative."""
        for launcher in self._cluster.engine_set.launchers.values():
            if launcher.pid == self.facts[rank]["process"]:
                with suppress(Exception):
                    _run(launcher.join(timeout=_SECONDS_TO_END))
                    return launcher.process.wait(0)
        return None

    def close(self, why: str) -> None:
        """End the engines."""
        if self._refusal:
            return
        advice = "Start new ones: ranks = kit.start_ranks(2)."
        self._refusal = f"These ranks are closed: {why}.\n{advice}"
        if shell := get_ipython():
            with suppress(ValueError):  # they did not start
                shell.events.unregister("pre_run_cell", self._before_cell)
        end_all_of(self._folder)
        self._watcher.kill()
        self._watcher.wait()
        if self._client is not None:
            self._client.close()


def end_all_of(folder: str) -> None:
    """End what ipyparallel has started for a folder, by its mark; remove the folder."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("IPP_PROFILE_DIR") == folder:
                process.kill()
    shutil.rmtree(folder, ignore_errors=True)


def name_ranks(ranks: Iterable[int]) -> str:
    """Return ranks as words.

    >>> name_ranks([1]), name_ranks([0, 1, 2])
    ('rank 1', 'ranks 0, 1, 2')
    """
    names = [str(rank) for rank in ranks]
    return f"rank{'s' * (len(names) > 1)} {', '.join(names)}"


# ipyparallel


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


def _run(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine to its end, in a thread: a notebook's own loop runs here."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()
