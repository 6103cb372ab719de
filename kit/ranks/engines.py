"""The processes behind the ranks: engines that ipyparallel starts, restarts, watches.

A small process of the kit's own watches this one: so engines end with a kernel that is
killed, even one that is stuck.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from signal import SIGABRT, Signals
from traceback import FrameSummary
from typing import Any

import psutil
from IPython import get_ipython

from kit.errors import ExperimentError
from kit.progress import Progress, take_turn
from kit.ranks.rank import Outcome, find_host, find_place, introduce, join, leave

_SECONDS_TO_START, _SECONDS_TO_END, _SECONDS_BETWEEN_LOOKS = 60, 10, 0.2
#: An engine is registered at its first heartbeat: they come more often than usual.
_BEATS = ["--HeartMonitor.period=500", "--HeartMonitor.max_heartmonitor_misses=60"]
#: Waits until this process has ended; then it ends what was started for the folder.
_WATCH = """
import os, time
while os.getppid() == {}:
    time.sleep(0.2)
from {} import end_all_of
end_all_of({!r})
"""
_PX = re.compile(r"^\s*%%?px\b", re.MULTILINE)
_STACK = re.compile(r'File "(.+)", line (\d+) in (.+)')


class Engines:
    """One engine for each rank, in order, and the world that some of them make.

    `facts` is what each says of itself. `epoch` counts failures: what was kept on a
    rank before one is there no more. `cluster` is a reader's own, None for a new one.
    """

    def __init__(self, count: int, cluster: Any, timeout_seconds: float) -> None:
        self.ranks, self.timeout_seconds = tuple(range(count)), timeout_seconds
        self.facts: dict[int, dict[str, Any]] = {}
        self.why_closed, self.epoch, self.are_broken = "", 0, False
        self._shown: tuple[int, ...] = ()
        self._worlds, self._client, self._readers = 0, None, cluster
        above = cluster.profile_dir if cluster else None
        self._folder = tempfile.mkdtemp(prefix="kit-ranks-", dir=above)
        self._cluster = cluster or _make_cluster(self._folder)
        code = _WATCH.format(os.getpid(), __name__, self._folder)
        command = [sys.executable, "-c", code]
        self._watcher = subprocess.Popen(command, start_new_session=True)

    def start(self) -> None:
        """Start the engines, or take those that run, and let them make a world."""
        if not self._readers:
            _run(self._cluster.start_cluster(len(self.ranks)))
        self._client = _run(self._cluster.connect_client())
        self._meet()
        if shell := get_ipython():
            shell.events.register("pre_run_cell", self._before_cell)

    def _meet(self) -> None:
        """Wait until all engines are there, and make each a rank."""
        wanted, seconds = len(self.ranks), _SECONDS_TO_START
        self._client.wait_for_engines(wanted, timeout=seconds, interactive=False)
        self._ids = sorted(self._client.ids)[:wanted]
        hosts = self._ask(self.ranks, find_host)
        gpus = self._ask(self.ranks, introduce, hosts, sys.path, self._folder)
        self._machines = [*zip(hosts, gpus, strict=True)]
        self.are_broken, self._shown = False, ()
        self.show(self.ranks)
        if shell := get_ipython():
            self._client.activate(self._ids)  # for `%%px` cells, from this one on
            self._first_cell = shell.execution_count

    def _before_cell(self, info: Any) -> None:
        """Get all ranks ready where a cell is about to run on them by itself."""
        if _PX.search(info.raw_cell or ""):
            with Progress("%%px runs on the ranks") as progress, take_turn(progress):
                self.show(self.ranks)

    def send(self, rank: int, function: Any, *arguments: object) -> Any:
        """Call a function on a rank; return ipyparallel's reply, which is a future."""
        view = self._client.direct_view(self._ids[rank])
        return view.apply_async(function, rank, *arguments)

    def _ask(self, ranks: Iterable[int], function: Any, *arguments: Any) -> list[Any]:
        replies = [self.send(rank, function, *arguments) for rank in ranks]
        wait(replies, _SECONDS_TO_START + self.timeout_seconds)
        try:
            return [reply.get(timeout=0) for reply in replies]
        except Exception as error:
            self.are_broken = True
            raise ExperimentError(
                f"The processes cannot be ranks: {error}.\nThey need this kit and "
                "PyTorch, in versions alike, and memory. Run the cell again."
            ) from None

    def show(self, members: tuple[int, ...]) -> None:
        """Let some ranks be the whole world; all start anew where one has ended."""
        if self.why_closed:
            raise ExperimentError(
                f"These ranks are closed: {self.why_closed}.\n"
                "Start new ones: ranks = kit.start_ranks(2)."
            )
        if not self.are_broken and not {*self._ids} <= {*self._client.ids}:
            self.are_broken, ended = True, name_ranks(self.find_dead())
            sys.stderr.write(f"{ended} ended. {self.break_up()}\n")
        if self.are_broken:
            self._restart()
        if self._shown != members:
            self._worlds, self._shown = self._worlds + 1, ()
            path = f"{self._folder}/world-{self._worlds}"
            where = self._machines, path, self.timeout_seconds
            facts = self._ask(members, join, members, *where)
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

    def break_up(self) -> str:
        """Use no more what is on the ranks, which have left their world; say so.

        Where they are broken, all start anew before the next call.
        """
        self.epoch, self._shown = self.epoch + 1, ()
        if not self.are_broken:
            return "The ranks can be used again."
        self.signal("SIGKILL", self.ranks)
        said = "The ranks can be used again; all start anew, empty"
        raw = shell.history_manager.input_hist_raw if (shell := get_ipython()) else []
        cells = [number for number, cell in enumerate(raw) if _PX.search(cell)]
        again = [f"In[{number}]" for number in cells if number >= self._first_cell]
        if not again:
            return f"{said}: what was there is gone."
        return f"{said}. Run {', '.join(again)} again, which made what was there."

    def find_place(self, rank: int) -> tuple[FrameSummary | None, str]:
        """Return where a rank stood that was asked, or that C++ code has ended.

        With it all that faulthandler wrote: threads, the innermost line first.
        """
        fact = self.facts[rank]
        stacks = Path(self._folder, f"stacks-{fact['process']}").read_text()
        _, _, rest = stacks.rpartition(f"hread 0x{fact['main_thread']:016x}")
        found = _STACK.findall(rest.partition("\n\n")[0])
        frames = [FrameSummary(f, int(n), g, lookup_line=False) for f, n, g in found]
        return find_place(reversed(frames)), stacks

    def find_death(self, rank: int) -> Outcome:
        """Return how a rank ended whose process is there no more."""
        (place, stacks), said = self.find_place(rank), "its process has ended"
        code, launchers = None, getattr(self._cluster.engine_set, "launchers", {})
        for launcher in launchers.values():
            if launcher.pid == self.facts[rank]["process"]:
                with suppress(TimeoutError, psutil.TimeoutExpired):
                    _run(launcher.join(timeout=_SECONDS_TO_END))
                    code = launcher.process.wait(0)
        if code is not None and code >= 0:
            said = f"its process ended itself, with exit code {code}"
        elif code is not None:
            said = f"its process was ended by {Signals(-code).name}"
            said += ", as the system does where memory is full" if code == -9 else ""
        # So gloo ends who is sent more than it expects, and NCCL who waits too long.
        is_victim = code == -SIGABRT and "torch/distributed/" in stacks
        return Outcome("died", b"", said, is_victim, place)

    def close(self, why: str) -> None:
        """End the engines; those of a reader's cluster only leave their world."""
        if self.why_closed:
            return
        self.why_closed = why
        if shell := get_ipython():
            with suppress(ValueError):  # they did not start
                shell.events.unregister("pre_run_cell", self._before_cell)
        if self._readers and self._client is not None:
            wait([self.send(rank, leave) for rank in self.ranks], _SECONDS_TO_END)
        end_all_of(self._folder)
        self._watcher.kill()
        self._watcher.wait()
        if self._client is not None:
            self._client.close()


def _make_cluster(folder: str) -> Any:
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
    names = [*map(str, ranks)]
    return f"rank{'s' * (len(names) > 1)} {', '.join(names)}"
