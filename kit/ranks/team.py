"""What the ranks of one start share: engines, a store, groups, one call at a time."""

from __future__ import annotations

import collections
import datetime
import re
import socket
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from typing import Any

from kit.experiment import ExperimentError
from kit.progress import Progress
from kit.ranks.call import Call
from kit.ranks.engines import Engines
from kit.ranks.rank import introduce, join
from kit.ranks.session import Session
from kit.ranks.worlds import Seat

#: A process that does not answer in this time is ended.
_SECONDS_TO_ANSWER = 10
#: PyTorch may have to be read from a slow disk.
_SECONDS_TO_LOAD = 60
_ATTEMPTS = 3
_PX = re.compile(r"^\s*%%?px\b", re.MULTILINE)


class Team:
    """All ranks of one `start_ranks`, and what its views share.

    `facts` is what each process says of itself. The store is kept by this process, so
    it outlives every rank: there they meet to make their groups, note where they stand,
    and are told to stop.
    """

    def __init__(self, engines: Engines, timeout_seconds: float) -> None:
        self.engines = engines
        self.timeout_seconds = timeout_seconds
        self.facts: list[dict[str, Any]] = []
        self.devices: list[str] = []
        self.store: Any = None
        self._address = ("", 0)
        self._generation = self._calls = 0
        self._is_whole = False
        self._call: Call | None = None
        self._session: Session | None = None
        self._why_closed = ""
        self._px: Any = None
        self._forget: Callable[[], object] = lambda: None

    @property
    def is_alone(self) -> bool:
        """Whether all ranks are on this machine."""
        return {fact["host"] for fact in self.facts} == {socket.gethostname()}

    def check_open(self) -> None:
        """Raise ExperimentError where the ranks were closed."""
        if self._why_closed:
            raise ExperimentError(
                f"These ranks are closed: {self._why_closed}.\n"
                "Start new ones: ranks = kit.start_ranks(2)."
            )

    def mend(self) -> None:
        """Replace ranks whose process has ended, and make all groups anew."""
        self._is_whole = False
        self.facts = self._introduce()
        if self.store is None:
            self._open_store()
        self._generation += 1
        self.devices = _share_devices(self.facts)
        replies = []
        for rank, device in enumerate(self.devices):
            seat = Seat(
                number=rank,
                pids=tuple(fact["pid"] for fact in self.facts),
                address=self._address,
                generation=self._generation,
                timeout_seconds=self.timeout_seconds,
                device=device,
                alone=self.is_alone,
            )
            replies.append(self.engines.view(rank).apply_async(join, seat))
        wait(replies, timeout=self.timeout_seconds + _SECONDS_TO_ANSWER)
        errors = [_find_error(reply) for reply in replies]
        if any(errors):
            raise ExperimentError(
                f"The ranks did not find each other: {next(filter(None, errors))}.\n"
                "Run the cell again; if that does not help, start new ranks."
            )
        self._activate_px()
        self._is_whole = True

    def _introduce(self) -> list[dict[str, Any]]:
        """Ask all processes who they are; replace those that ended or are stuck."""
        for _ in range(_ATTEMPTS):
            ended = self.engines.have_ended()
            if ended:
                self.engines.replace(ended)
            hosts = self._ask(_SECONDS_TO_ANSWER, socket.gethostname)
            if hosts is None:
                continue
            neighbours = dict(collections.Counter(hosts))
            facts = self._ask(_SECONDS_TO_LOAD, introduce, sys.path, neighbours)
            if facts is not None:
                return facts
        raise ExperimentError(
            f"The ranks were not ready after {_ATTEMPTS} attempts: processes ended, or "
            "did not answer.\nSee whether memory is full; then start fewer ranks."
        )

    def _ask(self, seconds: float, function: Any, *args: object) -> list[Any] | None:
        """Return what each process answers; None where some ended, or were ended."""
        if self.engines.have_ended():
            return None
        replies = [
            self.engines.view(rank).apply_async(function, *args)
            for rank in range(len(self.engines.ids))
        ]
        wait(replies, timeout=seconds)
        silent = [rank for rank, reply in enumerate(replies) if not reply.done()]
        if silent:
            self.engines.end(silent)
        if self.engines.have_ended():
            return None
        errors = [_find_error(reply) for reply in replies]
        if any(errors):
            raise ExperimentError(
                f"The engines cannot be ranks: {next(filter(None, errors))}.\n"
                "They need this kit and PyTorch, in versions alike."
            )
        return [reply.get() for reply in replies]

    @property
    def host(self) -> str:
        """The address at which to listen: any, where some ranks are elsewhere."""
        return "127.0.0.1" if self.is_alone else ""

    def _open_store(self) -> None:
        """Open the store on a port that the system chooses."""
        import torch.distributed as dist

        listener = socket.create_server((self.host, 0))
        name = self.host or socket.gethostname()
        self._address = (name, listener.getsockname()[1])
        self.store = dist.TCPStore(
            *self._address,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
            timeout=datetime.timedelta(seconds=self.timeout_seconds),
        )

    def _activate_px(self) -> None:
        """Let `%%px` cells run on the ranks."""
        from IPython import get_ipython

        shell = get_ipython()
        if shell is None:
            return
        if self._px is None:
            self._px = self.engines.view(range(len(self.engines.ids)))
            self._px.block = True
            self._px.activate()
            shell.events.register("pre_run_cell", self._before_cell)
            self._forget = lambda: shell.events.unregister(
                "pre_run_cell", self._before_cell
            )
        self._px.targets = self.engines.ids

    def _before_cell(self, info: Any) -> None:
        """Get the ranks ready where a cell is about to run on them by itself."""
        if _PX.search(info.raw_cell or "") and self._call is None:
            with Progress("%%px runs on the ranks") as progress:
                self._get_ready(progress)

    def _get_ready(self, progress: Progress) -> None:
        if not self._is_whole or self.engines.have_ended():
            progress.doing = "getting the ranks ready"
            self.mend()

    def start(
        self,
        progress: Progress,
        members: Sequence[int],
        function: Any,
        arguments: Sequence[object],
        options: dict[str, object],
    ) -> Call:
        """Start a call on some ranks."""
        self.check_open()
        name = f"{getattr(function, '__name__', type(function).__name__)}()"
        if self._call is not None:
            raise ExperimentError(
                f"{name} cannot start: {self._call.name} still runs on these ranks.\n"
                "Wait until it has ended."
            )
        from kit.ranks.packing import pack

        payload = pack(name, (function, arguments, options))
        self._get_ready(progress)
        self._calls += 1
        self._call = Call(self, self._calls, progress, members, name, payload)
        return self._call

    def join_session(self, progress: Progress, name: str) -> Session:
        """Return the session that is open, else a new one for what is named."""
        if self._session is None or not self._session.is_open:
            self._session = Session(self, progress, name)
        return self._session

    def release(self, whole: bool) -> None:
        """Note that the call has ended, and whether it left the groups whole."""
        self._call = None
        self._is_whole = self._is_whole and whole

    def close(self, why: str = "close() was called") -> None:
        """Close the ranks, once."""
        if not self._why_closed:
            self._why_closed = why
            self._forget()
            self.engines.close()
            self.store = None


def _find_error(reply: Any) -> str:
    """Return what went wrong, in one line; nothing where all went well."""
    if not reply.done():
        return "one did not answer in time"
    error = reply.exception()
    if error is None:
        return ""
    kind = getattr(error, "ename", type(error).__name__)
    return f"{kind}: {getattr(error, 'evalue', error)}"


def _share_devices(facts: Sequence[dict[str, Any]]) -> list[str]:
    """Return each rank's device: a GPU of its own where all have one, else the CPU."""
    taken: collections.Counter[str] = collections.Counter()
    devices = []
    for fact in facts:
        index = taken[fact["host"]]
        taken[fact["host"]] += 1
        devices.append(f"cuda:{index}" if index < fact["devices"] else "cpu")
    return ["cpu"] * len(devices) if "cpu" in devices else devices
