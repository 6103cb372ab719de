"""Messages between ranks: what chapter 13's plans are made of, sent and received."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


def carry_out(step: list[Any], x: torch.Tensor, spare: torch.Tensor, rank: int) -> None:
    """Send and receive this rank's messages of one step, all at the same time.

    `x` is the tensor. What is to be added arrives in `spare`, and is added when all
    messages have arrived, so that nothing changes while it is being sent. What replaces
    a part arrives in its place: `tensor_split` returns views of `x`.

    `isend` and `irecv` only start a transfer; `wait` returns when it is complete. If
    all ranks of a ring called the blocking `send` before `recv`, they could wait
    forever: a deadlock.
    """
    works, sums = [], []
    for message in step:
        part = x.tensor_split(message.parts)[message.part]
        if message.sender == rank:
            works.append(dist.isend(part, message.receiver))
        if message.receiver == rank:
            into = spare[: len(part)] if message.adds else part
            works.append(dist.irecv(into, message.sender))
            if message.adds:
                sums.append((part, into))
    for work in works:
        work.wait()
    for part, into in sums:
        part += into
