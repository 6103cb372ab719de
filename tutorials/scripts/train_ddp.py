"""Train LeNet on letters with DistributedDataParallel: chapter 12's loop as a script.

Alone, or with two processes on this machine:

    python train_ddp.py
    torchrun --standalone --nproc-per-node=2 train_ddp.py

On two machines: this line on both of them, with the address of the first one.

    torchrun --nnodes=2 --nproc-per-node=2 --rdzv-id=lenet --rdzv-backend=c10d \
        --rdzv-endpoint=192.0.2.1:29400 train_ddp.py

The batch is that of all processes together, so the accuracy does not depend on how many
there are. Each needs a GPU of its own; where there are too few, all train on the CPU.

With --folder=FOLDER, which all machines must see, it notes each step in journal.jsonl,
saves while training goes on, and when started again goes on with the batch that follows
the newest checkpoint, with as many processes as there are then (chapter 17).
"""

import argparse
import contextlib
import datetime
import faulthandler
import gc
import json
import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset

from kit.data import glyphs


def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=256, help="of all processes")
    parser.add_argument("--learning-rate", type=float, default=0.2)
    parser.add_argument("--images", type=int, default=60_000, help="to train on")
    parser.add_argument("--accumulate", type=int, default=1, help="parts of a batch")
    parser.add_argument("--folder", type=Path, help="for checkpoints and the journal")
    parser.add_argument("--save-every", type=int, default=100, help="steps")
    parser.add_argument("--timeout", type=int, default=600, help="in seconds")
    return parser.parse_args()


def join_group(seconds):
    """Join the other processes; return the device that this one trains on."""
    if hasattr(signal, "SIGUSR1"):
        faulthandler.register(signal.SIGUSR1)  # kill -USR1 PID: where does it hang?
    device, backend = torch.device("cpu"), "gloo"
    if torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", 1)):
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(device)
        backend = "cpu:gloo,cuda:nccl"  # checkpoints are agreed on by way of gloo
    if dist.is_torchelastic_launched():
        # torchrun tells each who it is
        dist.init_process_group(backend, timeout=datetime.timedelta(seconds=seconds))
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


class Checkpoints:
    """Save in the background; a folder gets its name when all is in it."""

    def __init__(self, folder, net, optimizer):
        self.folder, self.parts, self.running = folder, (net, optimizer), None
        # Messages of a thread must not get among those of training.
        self.group = dist.new_group(backend="gloo") if folder else None

    def _read(self):
        weights, state = get_state_dict(*self.parts)
        return {"model_state_dict": weights, "optim_state_dict": state}

    def save(self, step):
        """Copy everything, and write it while training goes on."""
        self.finish()
        where = {"checkpoint_id": self.folder / f"part-{step}"}
        writing = dcp.async_save(self._read(), **where, process_group=self.group)
        self.running = step, writing

    def finish(self, wait=True):
        """Name what was written; rank 0's writing is done when that of all is."""
        if self.running and (wait or self.running[1].done()):
            step, writing = self.running
            writing.result()
            if dist.get_rank() == 0:
                part = self.folder / f"part-{step}"
                part.replace(self.folder / f"step-{step:08}")
            self.running = None

    def load(self):
        """Go back to the newest checkpoint; return how many steps it has seen."""
        newest = max(self.folder.glob("step-*"), default=None) if self.folder else None
        if newest is None:
            return 0
        dcp.load(found := self._read(), checkpoint_id=newest)
        set_state_dict(*self.parts, **found)
        return int(newest.name.partition("-")[2])


def read_batches(images, epoch, first, size):
    """Yield this rank's part of each batch of an epoch, from the first wanted on."""
    sampler = DistributedSampler(images)
    sampler.set_epoch(epoch)
    mine = list(sampler)
    parts = [mine[at : at + size] for at in range(first * size, len(mine), size)]
    yield from DataLoader(images, batch_sampler=parts)


def make_step(parallel, optimizer, inputs, labels, parts):
    """Train on a batch in parts; only the last one's gradients travel."""
    optimizer.zero_grad()
    total, pairs = 0.0, [*zip(inputs.chunk(parts), labels.chunk(parts), strict=True)]
    for number, (x, y) in enumerate(pairs, 1):
        last = number == len(pairs)
        with contextlib.nullcontext() if last else parallel.no_sync():
            loss = F.cross_entropy(parallel(x), y) * len(x) / len(inputs)
            loss.backward()
        total += loss.detach()
    optimizer.step()
    return total


def note(folder, step, loss):
    """Add up the loss of all ranks; rank 0 writes it down."""
    dist.all_reduce(loss)
    ranks = dist.get_world_size()
    row = {"time": time.time(), "step": step, "loss": loss.item() / ranks}
    if dist.get_rank() == 0:
        with open(folder / "journal.jsonl", "a") as journal:
            journal.write(json.dumps(row | {"ranks": ranks, "pid": os.getpid()}) + "\n")


def train(arguments, device):
    torch.manual_seed(0)  # all begin with the same weights
    net = make_lenet().to(device)
    parallel = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=arguments.learning_rate)
    checkpoints = Checkpoints(arguments.folder, net, optimizer)

    images, test = glyphs(), glyphs(train=False)
    images = Subset(images, range(min(arguments.images, len(images))))
    rank, ranks = dist.get_rank(), dist.get_world_size()
    size = arguments.batch_size // ranks
    whole = -(-len(DistributedSampler(images)) // size)  # batches of an epoch
    done = step = checkpoints.load()

    for epoch in range(done // whole, arguments.epochs):
        for inputs, labels in read_batches(images, epoch, step % whole, size):
            torch.manual_seed(1 + step * ranks + rank)  # what a rank draws is its own
            batch = inputs.to(device), labels.to(device)
            loss = make_step(parallel, optimizer, *batch, arguments.accumulate)
            step += 1
            if arguments.folder:
                note(arguments.folder, step - 1, loss)
                checkpoints.finish(wait=False)
                if step % arguments.save_every == 0:
                    checkpoints.save(step)
        accuracy = evaluate(net, test, device)
        if rank == 0:
            print(f"epoch {epoch + 1}: accuracy {accuracy:.4f}", flush=True)
    checkpoints.finish()


def main():
    arguments = read_arguments()
    train(arguments, join_group(arguments.timeout))
    gc.collect()  # what DDP keeps of the group must go before the group does
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
