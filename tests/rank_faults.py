"""Faults of functions that run on ranks, and what they must not leave behind."""

import contextlib
import linecache
import os
import threading

import psutil
import torch
import torch.distributed as dist
from helpers import wait_until
from torch import nn
from torch.nn.parallel import DistributedDataParallel

#: Rank 1 does something while rank 0 waits for it. The lines are 3, 4 and 5 of a cell.
ONE = "if dist.get_rank() == 1:\n    {}\ndist.barrier()"
#: What the culprit does, by what that is; then whether its line is known: the system
#: tells it only of errors and of crashes.
CULPRITS = {
    "raises": ("raise ValueError('no such file')", True),
    "sys.exit": ("sys.exit('enough')", True),
    "os._exit": ("os._exit(12)", False),
    "killed": ("os.kill(os.getpid(), signal.SIGKILL)", False),
    "crashes": ("ctypes.string_at(0)", True),
}
FEWER = "dist.barrier()\nif dist.get_rank() == 0:\n    dist.barrier()"
SHAPES = "import torch\nsize = 4 + dist.get_rank()\ndist.all_reduce(torch.ones(size))"
#: What ranks do that do not agree; then the line where each is found, if in `work`.
DISAGREEMENTS = {
    "hangs": (ONE.format("time.sleep(600)"), (5, 4)),
    "spins": ("if dist.get_rank() == 1:\n    while True: pass", (None, 4)),
    "cannot be stopped": (ONE.format("sum(range(10**12))"), (5, 4)),
    "a barrier too few": (FEWER, (5, None)),
    "other shapes": (SHAPES, (5, 5)),
}


def define(body, number=3):
    """Run a cell that defines `work`, as a notebook does; return the function."""
    lines = ["import ctypes, os, signal, sys, time", "def work():"]
    lines += [f"    {line}" for line in body.splitlines()]
    source, name = "\n".join(lines), f"<ipython-input-{number}-cell>"
    linecache.cache[name] = len(source), None, source.splitlines(True), name
    names = {"__name__": "__main__", "dist": dist}
    exec(compile(source, name, "exec"), names)
    return names["work"]


def train_in_parallel(*, width=512, batch_size=8):
    """Train with DDP, where gradients are much and computing is little."""
    layers = [nn.Linear(width, width) for _ in range(6)]
    model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    while True:
        loss = model(torch.randn(batch_size, width)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield batch_size


def list_processes():
    return [psutil.Process(), *psutil.Process().children(recursive=True)]


def list_listening():
    """Addresses at which this process and its children listen."""
    found = []
    for each in list_processes():
        with contextlib.suppress(psutil.NoSuchProcess):
            found += each.net_connections("inet")
    return [c.laddr.ip for c in found if c.status == psutil.CONN_LISTEN]


def footprint():
    """What there is: processes, listening ports, threads, files in shared memory."""
    counts = len(list_processes()), len(list_listening()), threading.active_count()
    return counts, {*os.listdir("/dev/shm")} if os.path.isdir("/dev/shm") else set()


def wait_for_no_more_than(before):
    """Wait until nothing is left over; ended processes take a moment to vanish."""
    seen, left = [], footprint()[1] - before[1]

    def is_no_more():
        counts, files = footprint()
        left.intersection_update(files)  # other programs have files there, too
        seen[:] = [*counts, len(left)]
        return all(n <= most for n, most in zip(seen, (*before[0], 0), strict=True))

    with contextlib.suppress(AssertionError):
        wait_until(is_no_more)
    assert is_no_more(), f"left over: {seen}, where there were {before[0]}"
