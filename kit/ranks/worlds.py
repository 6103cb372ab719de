"""The process groups of one rank: a world for each selection of ranks.

PyTorch has one default group, which `dist.all_reduce(x)` uses. Code that runs on a part
of the ranks must find that part as the whole world, while what other code has made with
all ranks (a DDP module, say) goes on living. So each selection of ranks has a default
group of its own, and the one whose code runs is shown to PyTorch.
"""

from __future__ import annotations

import contextlib
import datetime
import gc
import os
import socket
import sys
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Seat:
    """What a process must know to be a rank; `pids` are those of all ranks, in order.

    `generation` counts how often the groups were made anew: each has keys of its own
    in the store. `alone` says that all ranks are on one machine.
    """

    number: int
    pids: tuple[int, ...]
    address: tuple[str, int]
    generation: int
    timeout_seconds: float
    device: str
    alone: bool


@dataclass
class World:
    """A default group, and a count of the groups that code has made in it.

    PyTorch numbers them, and all members must count alike.
    """

    group: Any
    count: int


class Worlds:
    """The worlds that this rank belongs to; that of all ranks is made first."""

    def __init__(self, seat: Seat) -> None:
        import torch.distributed as dist

        self._seat = seat
        self._timeout = datetime.timedelta(seconds=seat.timeout_seconds)
        host, port = seat.address
        self._store = dist.TCPStore(
            host, port, is_master=False, wait_for_workers=False, timeout=self._timeout
        )
        self._made: dict[tuple[int, ...], World] = {}
        self.shown: World | None = None
        self._members: tuple[int, ...] = ()
        self._show(tuple(range(len(seat.pids))))

    @contextlib.contextmanager
    def within(self, members: tuple[int, ...]) -> Generator[None, None, None]:
        """Show PyTorch the world of these ranks, then again the one before."""
        before = self._members
        self._show(members)
        try:
            yield
        finally:
            if self.is_intact:
                self._show(before)

    @property
    def is_intact(self) -> bool:
        """Whether the default group is still the one that was made here."""
        import torch.distributed as dist

        return self.shown is not None and dist.group.WORLD is self.shown.group

    def _show(self, members: tuple[int, ...]) -> None:
        import torch.distributed as dist
        from torch.distributed import distributed_c10d as c10d

        if self.shown is not None:
            self.shown.count = c10d._world.group_count
        if members not in self._made:
            self._made[members] = self._make(members)
        world = self.shown = self._made[members]
        self._members = members
        dist.group.WORLD = world.group
        c10d._world.group_count = world.count

    def _make(self, members: tuple[int, ...]) -> World:
        import torch.distributed as dist
        from torch.distributed import distributed_c10d as c10d

        seat, before, hook = self._seat, dist.group.WORLD, sys.excepthook
        dist.group.WORLD = None
        # Names of groups must differ on one rank and agree on all: a number for each
        # selection, and room for the groups that code makes inside of it.
        c10d._world.group_count = 10_000 * sum(1 << member for member in members)
        try:
            dist.init_process_group(
                "gloo" if seat.device == "cpu" else "cpu:gloo,cuda:nccl",
                store=dist.PrefixStore(f"{seat.generation}/{members}", self._store),
                rank=members.index(seat.number),
                world_size=len(members),
                timeout=self._timeout,
            )
            return World(dist.group.WORLD, c10d._world.group_count)
        finally:
            dist.group.WORLD = before
            sys.excepthook = hook  # PyTorch would add one of its own each time

    def cut(self) -> None:
        """End what waits in a collective: nothing else reaches code in gloo.

        Connections between ranks are shut down, whichever group they belong to.
        """
        if self._seat.alone:
            cut_connections(set(self._seat.pids) - {os.getpid()})

    def close(self) -> None:
        """Destroy all groups; what still goes on in one ends with an error."""
        import torch.distributed as dist

        self.cut()
        self._made.clear()
        self.shown = None
        if dist.is_initialized():
            dist.destroy_process_group()
        gc.collect()  # a group that anything refers to keeps its port open


def cut_connections(peers: Iterable[int]) -> None:
    """Shut down the connections between this process and others on this machine."""
    import psutil

    ends = set()
    for pid in peers:
        with contextlib.suppress(psutil.Error):
            ends |= {c.laddr for c in psutil.Process(pid).net_connections("tcp")}
    for connection in psutil.Process().net_connections("tcp"):
        if connection.raddr and connection.raddr in ends:
            with (
                contextlib.suppress(OSError),
                socket.socket(fileno=os.dup(connection.fd)) as ours,
            ):
                ours.shutdown(socket.SHUT_RDWR)
