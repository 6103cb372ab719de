"""A process group that holds messages back until a link would have delivered them."""

from __future__ import annotations

import math
import threading
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd.profiler import record_function

from kit import clock
from kit.costs import Link


class LinkGroup(dist.ProcessGroup):
    """The ranks of another group, joined by a link with a latency and a bandwidth.

    `sent_bytes` is what this rank has sent so far. In a profile, a message lasts until
    the link has delivered it.
    """

    def __init__(self, inner: dist.ProcessGroup, link: Link | None) -> None:
        super().__init__(inner.rank(), inner.size())
        self.link = link
        self.sent_bytes = 0
        self._inner = inner
        self._free_at = 0.0  # when the link will have delivered all that it was given
        self._carrying = threading.Lock()

    def getBackendName(self) -> str:  # noqa: N802 (PyTorch's name)
        """Return the name that PyTorch knows this kind of group by."""
        return "simulated_link"

    def allreduce(self, tensors: Any, opts: Any = None) -> dist.Work:
        """Add up over all ranks: round a ring, in 2 (n - 1) steps."""
        tensors = _as_list(tensors)
        work = self._inner.allreduce(tensors, opts or dist.AllreduceOptions())
        steps = 2 * (self.size() - 1)
        part = _count_bytes(tensors) / self.size()
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
        with record_function(f"gloo:{name}") as event:
            told = event._call_end_callbacks_on_future(done)
        # A thread for each message: a hook may wait for the next inside of this one's.
        threading.Thread(
            target=self._carry, args=(work, seconds, done, result), daemon=True
        ).start()
        return _Held(told)

    def _carry(
        self,
        work: dist.Work,
        seconds: float,
        done: torch.futures.Future[Any],
        result: Any,
    ) -> None:
        """Wait for a message, then for as long as the link takes to carry it."""
        try:
            work.wait()  # until then, the other ranks may not have come
            with self._carrying:
                begun = max(clock.CLOCK.wall(), self._free_at)
                self._free_at = begun + seconds
            time.sleep(max(0.0, begun + seconds - clock.CLOCK.wall()))
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
