"""Look at all ranks before a long job: which one is slow, and what the link carries.

torchrun --standalone --nproc-per-node=2 17_preflight.py --folder=where_you_save
"""

import argparse
import os
import tempfile
import time

import torch
import torch.distributed as dist

SIZES = [1_000, 100_000, 10_000_000]  # bytes of an all-reduce
parser = argparse.ArgumentParser()
parser.add_argument("--folder", default=".", help="where the job will save")
parser.add_argument("--steps", type=int, default=4, help="the best of so many counts")
arguments = parser.parse_args()

on_gpus = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
device = torch.device("cpu")
if on_gpus:
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if on_gpus else "gloo")
rank = dist.get_rank()
ranks = dist.get_world_size()


def time_best(action):
    seconds = []
    for _ in range(arguments.steps):
        dist.barrier()  # all ranks start together
        start = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def multiply():
    (matrix @ matrix).sum().item()  # item waits for a GPU


def write():
    with tempfile.TemporaryFile(dir=arguments.folder) as file:
        file.write(noise)
        file.flush()
        os.fsync(file.fileno())  # until the bytes are on the disk


def exchange():
    dist.all_reduce(message)
    message[0].item()


width = 8192 if on_gpus else 1024
matrix = torch.ones(width, width, device=device)
if on_gpus:
    matrix = matrix.bfloat16()
noise = os.urandom(32_000_000)
mine = {
    "GFLOP/s": 2 * width**3 / time_best(multiply) / 1e9,
    "disk MB/s": len(noise) / time_best(write) / 1e6,
}
found = [None] * ranks
dist.all_gather_object(found, mine)
if rank == 0:
    for what in mine:
        rates = [each[what] for each in found]
        slowest = rates.index(min(rates))
        print(f"{what}: {min(rates):,.0f} to {max(rates):,.0f}, slowest rank {slowest}")
for size in SIZES:
    message = torch.zeros(size // 4, device=device)
    sent = 2 * (ranks - 1) / ranks * size
    speed = sent / time_best(exchange) / 1e6
    if rank == 0:
        print(f"all-reduce of {size:,} bytes: each rank sends {speed:,.1f} MB/s")
dist.destroy_process_group()
