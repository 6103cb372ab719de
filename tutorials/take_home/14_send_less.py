"""Train on several devices over a slow link: send less, or less often.

    torchrun --standalone --nproc-per-node=2 14_send_less.py --hook bf16 --accumulate 4

With --every 8 each rank trains alone, and every 8 updates all average their weights.
"""

import argparse
import os
from contextlib import nullcontext
from time import perf_counter

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.utils import parameters_to_vector, vector_to_parameters

sent = []  # the bytes of each tensor that this rank gives to an all-reduce
library_all_reduce = dist.all_reduce


def all_reduce(tensor, *args, **options):
    sent.append(tensor.nbytes)
    return library_all_reduce(tensor, *args, **options)


def bf16(state, bucket):  # PyTorch refuses the hook itself where it lacks CUDA
    return default_hooks.bf16_compress_hook(state, bucket)


def average_weights(net):
    weights = parameters_to_vector(net.parameters()).detach()
    dist.all_reduce(weights)
    vector_to_parameters(weights / dist.get_world_size(), net.parameters())


def main(hook, accumulate, every, steps):
    on_gpus = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    device = f"cuda:{os.environ['LOCAL_RANK']}" if on_gpus else "cpu"
    dist.init_process_group("nccl" if on_gpus else "gloo")
    dist.all_reduce = all_reduce  # the hooks call it, too
    torch.manual_seed(0)
    teacher = nn.Linear(784, 10).to(device)  # knows the labels
    net = nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 10)).to(device)
    ddp = nn.parallel.DistributedDataParallel(net)
    hooks = {"none": default_hooks.allreduce_hook, "bf16": bf16}
    hooks["powersgd"] = powerSGD_hook.powerSGD_hook
    state = powerSGD_hook.PowerSGDState(None, 2, start_powerSGD_iter=2)
    ddp.register_comm_hook(state if hook == "powersgd" else None, hooks[hook])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    torch.manual_seed(1 + dist.get_rank())  # each rank draws its own batches
    for update in range(8 + steps):
        if update == 8:  # all before is warm-up
            sent.clear()
            start = perf_counter()
        for part in range(accumulate):
            inputs = torch.randn(32, 784, device=device)
            labels = teacher(inputs).argmax(1)
            sync = every == 1 and part == accumulate - 1
            with nullcontext() if sync else ddp.no_sync():
                loss = F.cross_entropy(ddp(inputs), labels)
                (loss / accumulate).backward()
        optimizer.step()
        optimizer.zero_grad()
        if every > 1 and (update + 1) % every == 0:
            average_weights(net)
    loss = loss.item()  # waits for the device
    seconds = (perf_counter() - start) / steps
    if dist.get_rank() == 0:
        print(f"hook {hook}, accumulate {accumulate}, every {every}:", end=" ")
        print(f"loss {loss:.3f} on the last batch; per update", end=" ")
        print(f"{sum(sent) / steps / 1e6:.3f} MB, {seconds:.4f} s")
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hook", choices=["none", "bf16", "powersgd"], default="none")
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--steps", type=int, default=50)
    main(**vars(parser.parse_args()))
