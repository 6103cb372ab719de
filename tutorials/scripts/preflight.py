"""Look at all machines before a long job: arithmetic, disk, clock and link of each.

    torchrun --nnodes=2 ... preflight.py FOLDER

FOLDER is where the job will save. Rank 0 prints a line for each rank, the slowest one
in everything, and what the link carries at several sizes. It takes a few seconds.
"""

import gc
import os
import sys
import tempfile
import time
import timeit

import pandas
import torch
import torch.distributed as dist
from train_ddp import join_group


def take_time(action):
    """Return the shortest of four times, in seconds; all ranks begin together."""
    return min(timeit.repeat(action, setup=dist.barrier, repeat=4, number=1))


def write(folder):
    """Write 32 MB that really lie on the disk when this ends."""
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(os.urandom(32_000_000))
        file.flush()
        os.fsync(file.fileno())


def look(device, folder):
    """Return what this rank can do: a dict of rates, higher is better."""
    found = {}
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.ones(1024, 1024, dtype=dtype, device=device)
        seconds = take_time(lambda x=x: (x @ x).sum().item())
        found[f"{dtype} GFLOP/s".removeprefix("torch.")] = 2 * 1024**3 / seconds / 1e9
    found["disk MB/s"] = 32 / take_time(lambda: write(folder))
    return found


def measure_link(device, size):
    """Return how many MB a rank sends per second in an all-reduce of so many bytes."""
    x, ranks = torch.zeros(size // 4, device=device), dist.get_world_size()
    seconds = take_time(lambda: (dist.all_reduce(x), x[0].item()))
    return 2 * (ranks - 1) / ranks * size / seconds / 1e6


def main():
    """Gather from all ranks what they found; rank 0 prints it."""
    device = join_group(60)
    mine, found = look(device, sys.argv[1]), [None] * dist.get_world_size()
    links = {size: measure_link(device, size) for size in (1_000, 100_000, 10_000_000)}
    dist.barrier()
    dist.all_gather_object(found, mine | {"clock, s": time.time()})
    if dist.get_rank() == 0:
        table = pandas.DataFrame(found).rename_axis("rank").T
        table.loc["clock, s"] -= table.loc["clock, s", 0]  # after that of rank 0
        print(table.assign(slowest=table.idxmin(axis=1)).round(2).to_string())
        for size, rate in links.items():
            print(f"all-reduce of {size:,} bytes: {rate:.1f} MB/s")
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
