"""Train on several devices at once, a part of each batch on each.

torchrun --standalone --nproc-per-node=2 11_data_parallel.py --steps 200
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=200)
steps = parser.parse_args().steps

on_gpus = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
device = torch.device("cpu")
if on_gpus:
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if on_gpus else "gloo")  # address, rank: torchrun's
rank, n = dist.get_rank(), dist.get_world_size()

torch.manual_seed(0)  # the same weights and the same batches on all ranks
net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1)).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
for _ in range(steps):
    inputs = torch.randn(256, 64)  # put your own batch here
    targets = inputs.abs().mean(1, keepdim=True)
    mine = torch.arange(len(inputs)).tensor_split(n)[rank]
    outputs = net(inputs[mine].to(device))
    loss = F.mse_loss(outputs, targets[mine].to(device), reduction="sum") / len(inputs)
    optimizer.zero_grad()
    loss.backward()
    for param in net.parameters():
        dist.all_reduce(param.grad)
    optimizer.step()
loss = loss.detach()
dist.all_reduce(loss)  # the sum of the parts is the loss of the whole batch
if rank == 0:
    print(f"{n} ranks on {device.type}, loss of step {steps}: {loss.item():.5f}")
dist.destroy_process_group()
