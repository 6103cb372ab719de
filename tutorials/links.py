"""A link that this machine does not have: a process group that holds messages back.

Chapters 12 and 14 train over it. A message goes through the world's own group, and is
then held back for as long as the link would have carried it; so the link's time comes
on top of the real exchange. The link carries one message after the other: an all-reduce
and an all-gather as a ring does, a broadcast as a tree does.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from costs import Link
from torch._C._distributed_c10d import _create_work_from_future

#: PyTorch makes a group by the name of what carries its messages.
BACKEND = "simulated_link"
#: Links of both chapters: latency in seconds, bytes per second. "none" adds nothing.
LINKS = {
    "none": None,
    "100 Mbit/s": Link(25e-6, 1e8 / 8),
    "1 Gbit/s": Link(25e-6, 1e9 / 8),
    "10 Gbit/s": Link(25e-6, 1e10 / 8),
}


def simulate_link(link: Link | None = None) -> LinkGroup:
    """Return a process group whose messages take as long as over this link.

    Call it on every rank of the world, each with the same link; pass what it returns
    as `group=` to `dist.all_reduce` and others, or to DistributedDataParallel as
    `process_group=`. None adds nothing. `group.sent_bytes` counts what this rank has
    sent. Tensors are on the CPU.
    """
    if BACKEND not in dist.Backend.backend_list:
        dist.Backend.register_backend(BACKEND, _join_world, devices=["cpu"])
    group: LinkGroup = dist.new_group(backend=BACKEND)
    group.link = link
    return group


def _join_world(store: Any, rank: int, size: int, timeout: Any) -> LinkGroup:
    """Make a group as PyTorch asks for it: the world carries its messages."""
    return LinkGroup(dist.group.WORLD)


class LinkGroup(dist.ProcessGroup):
    """The ranks of another group, joined by a link with a latency and a bandwidth."""

    def __init__(self, inner: dist.ProcessGroup) -> None:
        super().__init__(inner.rank(), inner.size())
        self.link: Link | None = None
        self.sent_bytes = 0
        self._inner = inner
        self._free_at = 0.0  # when the link will have delivered all that it was given
        self._carrying = threading.Lock()

    def getBackendName(self) -> str:  # noqa: N802 (PyTorch's name)
        """Return the name that PyTorch knows this kind of group by."""
        return BACKEND

    def allreduce(self, tensors: Any, opts: Any) -> dist.Work:
        """Add up over all ranks: round a ring, in 2 (n - 1) steps."""
        work = self._inner.allreduce(tensors, opts)
        steps = 2 * (self.size() - 1)
        return self._hold(work, tensors, steps, _count_bytes(tensors) / self.size())

    def allgather(self, outputs: Any, inputs: Any, opts: Any) -> dist.Work:
        """Give every rank what each one has: round a ring, in n - 1 steps."""
        work = self._inner.allgather(outputs, inputs, opts)
        return self._hold(work, outputs, self.size() - 1, _count_bytes(inputs))

    def broadcast(self, tensors: Any, opts: Any) -> dist.Work:
        """Give every rank what one has: along a tree, in log2 n steps."""
        work = self._inner.broadcast(tensors, opts)
        steps = math.ceil(math.log2(self.size()))
        return self._hold(work, tensors, steps, _count_bytes(tensors))

    def _hold(
        self, work: dist.Work, result: Any, steps: int, step_bytes: float
    ) -> dist.Work:
        """Return work that ends when the link has carried so many steps, too."""
        self.sent_bytes += round(steps * step_bytes)
        latency, speed = self.link or (0.0, math.inf)
        seconds = steps * (latency + step_bytes / speed)
        done: torch.futures.Future[Any] = torch.futures.Future()
        # A thread for each message: a hook may wait for the next inside of this one's.
        carried = (work, seconds, done, result)
        threading.Thread(target=self._carry, args=carried, daemon=True).start()
        return _create_work_from_future(done)

    def _carry(self, work: dist.Work, seconds: float, done: Any, result: Any) -> None:
        """Wait for a message, then for as long as the link takes to carry it."""
        try:
            work.wait()  # until then, the other ranks may not have come
        except Exception as error:
            done.set_exception(error)
            return
        with self._carrying:
            begun = max(time.perf_counter(), self._free_at)
            self._free_at = begun + seconds
        time.sleep(max(0.0, begun + seconds - time.perf_counter()))
        done.set_result(result)


def _count_bytes(tensors: Sequence[torch.Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)
