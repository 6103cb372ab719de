"""Time the all-reduce of this job's ranks, and predict what gradients will take.

torchrun --standalone --nproc-per-node=2 13_time_all_reduce.py --parameters 25557032
"""

import argparse
import os
from time import perf_counter

import numpy
import torch
import torch.distributed as dist

SIZES = [1_000, 16_000, 256_000, 1_000_000, 4_000_000, 16_000_000, 64_000_000]
parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=20, help="all-reduces of each size")
parser.add_argument("--parameters", type=int, default=25_557_032, help="of a model")
arguments = parser.parse_args()

on_gpus = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
device = torch.device("cpu")
if on_gpus:
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if on_gpus else "gloo")
n = dist.get_world_size()


def wait_for_device():
    if on_gpus:
        torch.cuda.synchronize()


def time_all_reduce(size):
    x = torch.zeros(size // 4, device=device)
    seconds = torch.zeros(3 + arguments.steps)
    for step in range(len(seconds)):
        dist.barrier()  # all ranks start together
        wait_for_device()
        start = perf_counter()
        dist.all_reduce(x)
        wait_for_device()
        seconds[step] = perf_counter() - start
    return seconds[3:].median().item()  # the first three are the warm-up


times = [time_all_reduce(size) for size in SIZES]
floor = times[0]  # the smallest tensor: only latency
slope = numpy.polyfit(SIZES[3:], times[3:], 1)[0]  # gradients are large: from 1 MB on
if dist.get_rank() == 0:
    for size, seconds in zip(SIZES, times, strict=True):
        bus = 2 * (n - 1) / n * size / seconds / 1e9
        print(f"{size:10,} B {1e3 * seconds:8.2f} ms, predicted ", end="")
        print(f"{1e3 * (floor + slope * size):8.2f} ms, bus bandwidth {bus:.2f} GB/s")
    alpha, beta = floor / 2 / (n - 1), 2 * (n - 1) / n / slope  # those of a ring
    print(f"{n} ranks: α = {1e6 * alpha:.0f} µs, β = {beta / 1e9:.2f} GB/s")
    for bits in (32, 16):
        milliseconds = 1e3 * (floor + slope * arguments.parameters * bits / 8)
        print(f"{bits}-bit gradients: {milliseconds:.1f} ms, predicted")
dist.destroy_process_group()
