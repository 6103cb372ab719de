"""What runs on a rank: the call, and a thread that notes where it stands.

The notes go to the store, which the kernel keeps: they outlive the rank. The same
thread looks there whether the call is to stop.
"""

from __future__ import annotations

import contextlib
import datetime
import faulthandler
import functools
import json
import os
import re
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Generator
from pathlib import Path
from types import FrameType
from typing import Any

from kit.experiment import ExperimentError, inner_function
from kit.machine import find_cores
from kit.ranks.outcomes import Outcome, Place, find_place
from kit.ranks.worlds import Seat, Worlds

#: Keys in the store: of a process in a call, and of a call.
NOTE, STOP = "note/{}/{}", "stop/{}"
#: The signal at which a process writes where its threads are.
LAST_WORD = "SIGUSR2"
_SECONDS_BETWEEN_LOOKS = 0.25
#: Functions that may end the process before the next look.
_LAST = ("_exit", "kill", "abort")
#: What gloo, NCCL and the store say where another rank is missing or does otherwise.
_VICTIM = re.compile(
    r"/gloo/|NCCL|wait timeout after|monitoredBarrier|Connection reset"
)


class Rank:
    """This process as a rank: its worlds, its line to the kernel, the current call."""

    def __init__(self, seat: Seat) -> None:
        import torch
        import torch.distributed as dist
        from IPython import get_ipython

        self.seat = seat
        host, port = seat.address
        self.store = dist.TCPStore(
            host,
            port,
            is_master=False,
            wait_for_workers=False,
            timeout=datetime.timedelta(seconds=seat.timeout_seconds),
        )
        if seat.device != "cpu":
            torch.cuda.set_device(seat.device)
        self.names: dict[str, Any] = get_ipython().user_ns
        self.names.update(torch=torch, dist=dist, device=torch.device(seat.device))
        self.worlds = Worlds(seat)
        self._name_world()

    @contextlib.contextmanager
    def within(self, members: tuple[int, ...]) -> Generator[None, None, None]:
        """Let some ranks be the whole world, and `rank` and `world_size` say so."""
        with self.worlds.within(members):
            self._name_world()
            yield
        if self.worlds.is_intact:
            self._name_world()

    def _name_world(self) -> None:
        import torch.distributed as dist

        self.names.update(rank=dist.get_rank(), world_size=dist.get_world_size())


_here: Rank | None = None


def introduce(paths: list[str], neighbours: dict[str, int]) -> dict[str, Any]:
    """Get ready to be a rank; return what the kernel asks of each process.

    `paths` is where the kernel finds modules, `neighbours` how many ranks there are on
    each machine. They share its cores, unless PyTorch was loaded here before.
    """
    host = socket.gethostname()
    known = {*sys.path}
    sys.path += [p for p in paths if p not in known and os.path.exists(p)]
    if "torch" not in sys.modules:
        os.environ["OMP_NUM_THREADS"] = str(share_cores(neighbours[host]))
    import torch.distributed  # with all that `join` needs: there others wait

    # Where the process is ended, by C++ code or by us, the log tells where it was.
    faulthandler.enable(file=2)
    faulthandler.register(getattr(signal, LAST_WORD), file=2)
    return {
        "pid": os.getpid(),
        "host": host,
        "devices": torch.cuda.device_count(),
        "threads": torch.get_num_threads(),
        "main_thread": threading.main_thread().ident,
    }


def share_cores(ranks: int) -> int:
    """Return how many threads each of so many ranks on this machine may use."""
    cores, _ = find_cores(Path("/"))
    return max(1, (cores or 1) // ranks)


def join(seat: Seat) -> None:
    """Take a seat among the ranks; groups that were there before are destroyed."""
    global _here
    if _here is not None:
        _here.worlds.close()
    _here = Rank(seat)


def leave() -> None:
    """Give up the seat: the process itself goes on."""
    global _here
    if _here is not None:
        _here.worlds.close()
    _here = None


def here() -> Rank:
    """Return this process as a rank."""
    assert _here is not None
    return _here


def perform(number: int, members: tuple[int, ...], payload: bytes) -> Outcome:
    """Run a pickled call as one of some ranks, and say how it ended."""
    import cloudpickle

    me = here()
    if not me.worlds.is_intact:
        said = "its process groups were destroyed; now there are new ones: run it again"
        return Outcome("raised", error=said, intact=False)
    call = _Call(me, number)
    try:
        with call.watched(), me.within(members):
            function, arguments, options = cloudpickle.loads(payload)
            call.note(_first_line(function))
            lend(function, me.names)
            with call.interruptible():
                value = function(*arguments, **options)
            outcome = Outcome("returned", _pack(value, function))
    except BaseException as error:
        outcome = _describe(error, call)
        traceback.clear_frames(error.__traceback__)
    if not me.worlds.is_intact:
        return Outcome(**{**vars(outcome), "intact": False})
    return outcome


class _Call:
    """One call on this rank: what is noted of it, and how it is made to stop."""

    def __init__(self, here: Rank, number: int) -> None:
        self.stopped = False
        self._here = here
        self._note_key = NOTE.format(os.getpid(), number)
        self._stop_key = STOP.format(number)
        self._interruptible = False
        self._ended = threading.Event()

    def note(self, place: Place | None) -> None:
        """Leave word of where the call stands."""
        if place is not None:
            with contextlib.suppress(RuntimeError):  # the kernel has gone: so shall we
                note = json.dumps(list(vars(place).values()))
                self._here.store.set(self._note_key, note)

    @contextlib.contextmanager
    def watched(self) -> Generator[None, None, None]:
        """Note where the call stands, four times a second and before its last words."""
        real = {name: getattr(os, name) for name in _LAST}
        for name, function in real.items():
            setattr(os, name, self._noting(function))
        handler = signal.signal(signal.SIGINT, self._interrupt)
        watcher = threading.Thread(target=self._watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            self._ended.set()
            watcher.join()
            signal.signal(signal.SIGINT, handler)
            for name, function in real.items():
                setattr(os, name, function)

    @contextlib.contextmanager
    def interruptible(self) -> Generator[None, None, None]:
        """Let an interrupt end what runs inside, and nothing else."""
        self._interruptible = True
        try:
            yield
        finally:
            self._interruptible = False

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._interruptible and self.stopped:
            raise KeyboardInterrupt

    def _noting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        owner = os.getpid()  # a worker that was forked from here may end as it likes

        @functools.wraps(function)
        def note_and_call(*arguments: Any) -> Any:
            if os.getpid() == owner and threading.current_thread() is main:
                self.note(find_place(traceback.extract_stack()[:-1]))
            return function(*arguments)

        main = threading.main_thread()
        return note_and_call

    def _watch(self) -> None:
        while not self._ended.wait(_SECONDS_BETWEEN_LOOKS):
            if not self.stopped:
                self.note(_stand())
            with contextlib.suppress(RuntimeError):
                self.stopped = self._here.store.check([self._stop_key])
            if self.stopped:
                signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
                self._here.worlds.cut()


def _stand() -> Place | None:
    """Return where the main thread stands in the reader's code, if it is there."""
    frame = sys._current_frames()[threading.main_thread().ident or 0]
    stack = traceback.extract_stack(frame)
    return find_place(stack) if any(e.name == "perform" for e in stack) else None


def _first_line(function: object) -> Place | None:
    inner = inner_function(function)
    if inner is None:
        return None
    code = inner.__code__
    return Place(code.co_filename, code.co_firstlineno, code.co_name)


def lend(function: object, names: dict[str, Any]) -> None:
    """Let a function of a cell find names of this rank that did not come with it."""
    inner = inner_function(function)
    module = sys.modules.get(getattr(inner, "__module__", None) or "")
    if inner is not None and inner.__globals__ is not getattr(module, "__dict__", None):
        for name, value in names.items():
            inner.__globals__.setdefault(name, value)


def _pack(value: object, function: object) -> bytes:
    import cloudpickle

    try:
        return cloudpickle.dumps(value)
    except Exception as error:
        name = getattr(function, "__name__", "the function")
        raise TypeError(
            f"what {name} returned cannot be sent to the notebook ({error})"
        ) from None


def _describe(error: BaseException, call: _Call) -> Outcome:
    """Make an outcome of what ended a call."""
    if call.stopped:
        return Outcome("stopped")
    frames = traceback.extract_tb(error.__traceback__)
    said = " ".join(str(error).split())
    kind = type(error).__name__
    if isinstance(error, ExperimentError):
        text = said
    elif isinstance(error, SystemExit):
        text = f"it called sys.exit({error.code!r})"
    else:
        text = f"{kind}: {said}" if said else kind
    return Outcome(
        "raised",
        error=text,
        victim=_is_victim(error),
        place=find_place(frames),
        traceback="".join(traceback.format_exception(error)),
    )


def _is_victim(error: BaseException | None) -> bool:
    """Return whether an error, or one before it, came out of a collective."""
    import torch.distributed as dist

    while error is not None:
        if isinstance(error, dist.DistError):
            return True
        if isinstance(error, RuntimeError) and _VICTIM.search(str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False
