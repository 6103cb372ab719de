"""Train LeNet on letters with DistributedDataParallel: chapter 12's loop as a script.

Alone, or with two processes on this machine:

    python train_ddp.py
    torchrun --standalone --nproc-per-node=2 train_ddp.py

On two machines: this line on both of them, with the address of the first one.

    torchrun --nnodes=2 --nproc-per-node=2 --rdzv-id=lenet --rdzv-backend=c10d \
        --rdzv-endpoint=192.0.2.1:29400 train_ddp.py

The batch is that of all processes together, so the accuracy does not depend on how many
there are. Each needs a GPU of its own; where there are too few, all train on the CPU.
"""

import argparse
import gc
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset

from kit.data import glyphs


def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=256, help="of all processes")
    parser.add_argument("--learning-rate", type=float, default=0.2)
    parser.add_argument("--images", type=int, default=60_000, help="to train on")
    return parser.parse_args()


def join_group():
    """Join the other processes; return the device that this one trains on."""
    device, backend = torch.device("cpu"), "gloo"
    if torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", 1)):
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(device)
        backend = "nccl"
    if dist.is_torchelastic_launched():
        dist.init_process_group(backend)  # torchrun tells each process who it is
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    return device


def make_lenet():
    return nn.Sequential(
        *(nn.Conv2d(1, 20, kernel_size=3), nn.ReLU(), nn.AvgPool2d(2)),
        *(nn.Conv2d(20, 50, kernel_size=5), nn.ReLU(), nn.AvgPool2d(2)),
        *(nn.Flatten(), nn.Linear(800, 128), nn.ReLU(), nn.Linear(128, 10)),
    )


@torch.no_grad()
def evaluate(net, images, device):
    """Return the accuracy; each rank looks at its part, and no image counts twice."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mine = Subset(images, range(rank, len(images), ranks))
    counts = torch.zeros(2, device=device)
    for inputs, labels in DataLoader(mine, batch_size=1000):
        hits = net(inputs.to(device)).argmax(dim=1) == labels.to(device)
        counts += torch.stack([hits.sum(), torch.tensor(len(hits), device=device)])
    dist.all_reduce(counts)
    right, seen = counts.tolist()
    return right / seen


def train(arguments, device):
    torch.manual_seed(0)
    net = make_lenet().to(device)
    parallel = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=arguments.learning_rate)

    images, test = glyphs(), glyphs(train=False)
    images = Subset(images, range(min(arguments.images, len(images))))
    sampler = DistributedSampler(images)
    batch_size = arguments.batch_size // dist.get_world_size()
    loader = DataLoader(images, batch_size, sampler=sampler)

    for epoch in range(arguments.epochs):
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            loss = F.cross_entropy(parallel(inputs.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        accuracy = evaluate(net, test, device)
        if dist.get_rank() == 0:
            print(f"epoch {epoch + 1}: accuracy {accuracy:.4f}", flush=True)


def main():
    train(read_arguments(), join_group())
    gc.collect()  # what DDP keeps of the group must go before the group does
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
