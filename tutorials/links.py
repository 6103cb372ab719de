"""A link that this machine does not have: a process group that holds messages back.

Chapter 14 trains over it. A message goes through the world's own group, and is then
held back for as long as the link would have carried it; so the link's time comes on
top of the real exchange. The link carries one message after the other: an all-reduce
and an all-gather as a ring does, a broadcast as a tree does.
"""

from __future__ import annotations

import math
import threading
import time
from typing import Any

import torch
import torch.distributed as dist
from costs import Link
from torch.autograd.profiler import record_function

#: PyTorch makes a group by the name of what carries its messages.
BACKEND = "simulated_link"


def simulate_link(link: Link | None = None) -> LinkGroup:
    """Return a process group whose messages take as long as over this link.

    Call it on every rank of the world, each with the same link; pass what it returns
    as `group=` to `dist.all_reduce` and others, or to DistributedDataParallel as
    `process_group=`. None adds nothing. `group.sent_bytes` counts what this rank has
    sent. Tensors are on the CPU. Raises TypeError for what is no link.
    """
    if not (link is None or isinstance(link, Link)):
        raise TypeError(
            f"simulate_link(link={link!r}) is no link.\n"
            "Use one of costs.LINKS, a costs.Link of your own, or None."
        )
    if BACKEND not in dist.Backend.backend_list:
        dist.Backend.register_backend(BACKEND, _join, devices=["cpu"])
    group: LinkGroup = dist.new_group(backend=BACKEND)
    group.link = link
    return group


def _join(store: Any, rank: int, size: int, timeout: Any) -> LinkGroup:
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

    def allreduce(self, tensors: Any, opts: Any = None) -> dist.Work:
        """Add up over all ranks: round a ring, in 2 (n - 1) steps."""
        tensors = _as_list(tensors)
        work = self._inner.allreduce(tensors, opts or dist.AllreduceOptions())
        steps, part = 2 * (self.size() - 1), _count_bytes(tensors) / self.size()
        return self._hold("all_reduce", work, tensors, steps, part)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> dist.Work:
        """Give every rank what each one has: round a ring, in n - 1 steps."""
        work = self._inner.allgather(outputs, inputs, opts or dist.AllgatherOptions())
        sent = _count_bytes(inputs)
        return self._hold("all_gather", work, outputs, self.size() - 1, sent)

    def broadcast(self, tensors: Any, opts: Any = None) -> dist.Work:
        """Give every rank what one has: along a tree, in log2 n steps."""
        tensors = _as_list(tensors)
        work = self._inner.broadcast(tensors, opts or dist.BroadcastOptions())
        steps = math.ceil(math.log2(self.size()))
        return self._hold("broadcast", work, tensors, steps, _count_bytes(tensors))

    def barrier(self, opts: Any = None) -> dist.Work:
        """Wait for all ranks; what that sends is not counted."""
        return self._inner.barrier(opts or dist.BarrierOptions())

    def _refuse(self, *arguments: Any) -> dist.Work:
        raise NotImplementedError(
            "a simulated link carries all_reduce, all_gather and broadcast, and "
            "nothing else: use the world's own group for this call"
        )

    reduce = gather = scatter = send = recv = recv_anysource = _refuse
    reduce_scatter = alltoall = alltoall_base = _refuse
    _allgather_base = _reduce_scatter_base = _refuse

    def _hold(
        self, name: str, work: dist.Work, result: Any, steps: int, step_bytes: float
    ) -> dist.Work:
        """Return work that ends when the link has carried so many steps, too."""
        self.sent_bytes += round(steps * step_bytes)
        latency, speed = self.link or (0.0, math.inf)
        seconds = steps * (latency + step_bytes / speed)
        done: torch.futures.Future[Any] = torch.futures.Future()
        # In a profile, a message lasts until the link has delivered it.
        with record_function(f"gloo:{name}") as event:
            told = event._call_end_callbacks_on_future(done)
        # A thread for each message: a hook may wait for the next inside of this one's.
        carried = (work, seconds, done, result)
        threading.Thread(target=self._carry, args=carried, daemon=True).start()
        return _Held(told)

    def _carry(self, work: dist.Work, seconds: float, done: Any, result: Any) -> None:
        """Wait for a message, then for as long as the link takes to carry it."""
        try:
            work.wait()  # until then, the other ranks may not have come
            with self._carrying:
                begun = max(time.perf_counter(), self._free_at)
                self._free_at = begun + seconds
            time.sleep(max(0.0, begun + seconds - time.perf_counter()))
        except Exception as error:
            done.set_exception(error)
        else:
            done.set_result(result)


class _Held(dist.Work):
    """A message under way."""

    def __init__(self, done: torch.futures.Future[Any]) -> None:
        super().__init__()
        self._done = done

    def wait(self, timeout: Any = None) -> bool:
        self._done.wait()
        return True

    def get_future(self) -> torch.futures.Future[Any]:
        return self._done


def _as_list(tensors: Any) -> list[torch.Tensor]:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def _count_bytes(tensors: list[torch.Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)
