"""Train with DistributedDataParallel, on one device or on several.

    torchrun --standalone --nproc-per-node=2 12_train_ddp.py --checkpoint mine.pt

Started again, it goes on after the last epoch that the checkpoint has seen.
"""

import argparse
import os
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--steps", type=int, help="in each epoch; if not given, all")
parser.add_argument("--batch-size", type=int, default=256, help="of all processes")
parser.add_argument("--checkpoint", type=Path, default=Path("checkpoint.pt"))
arguments = parser.parse_args()

on_gpus = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
device = torch.device("cpu")
if on_gpus:  # a GPU for each process of this machine
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if on_gpus else "gloo")
rank = dist.get_rank()
ranks = dist.get_world_size()

torch.manual_seed(0)  # the same data and the same first weights on all ranks
inputs = torch.randn(9216, 64)  # your data set
labels = inputs[:, :10].argmax(1)
training = TensorDataset(inputs[:8192], labels[:8192])
net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

sampler = DistributedSampler(training, drop_last=True)  # a part for each rank
loader = DataLoader(
    training, arguments.batch_size // ranks, sampler=sampler, drop_last=True
)
first = 0
if arguments.checkpoint.exists():  # all ranks load it, each onto its own device
    saved = torch.load(arguments.checkpoint, map_location=device)
    net.load_state_dict(saved["net"])
    optimizer.load_state_dict(saved["optimizer"])
    first = saved["epoch"] + 1
torch.manual_seed(1 + first * ranks + rank)  # dropout differs between ranks
model = DistributedDataParallel(net)
for epoch in range(first, arguments.epochs):
    sampler.set_epoch(epoch)  # a new order in each epoch
    losses = []
    for x, y in islice(loader, arguments.steps):
        loss = F.cross_entropy(model(x.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()  # afterwards all ranks have the mean gradient
        optimizer.step()
        losses.append(loss.detach())
    mean = torch.stack(losses).mean() / ranks
    dist.all_reduce(mean)  # for the print: the mean over all ranks
    if rank == 0:  # only one process prints and saves
        print(f"epoch {epoch}: loss {mean.item():.3f}")
        saved = {"net": net.state_dict(), "optimizer": optimizer.state_dict()}
        part = arguments.checkpoint.with_suffix(".part")
        torch.save(saved | {"epoch": epoch}, part)
        part.replace(arguments.checkpoint)  # whole or not at all

net.eval()
mine = slice(8192 + rank, None, ranks)  # each rank tests its part, without repeats
hits = (net(inputs[mine].to(device)).argmax(1).cpu() == labels[mine]).sum().to(device)
dist.all_reduce(hits)
if rank == 0:
    print(f"{ranks} processes: accuracy {hits.item() / 1024:.3f}")
dist.destroy_process_group()
