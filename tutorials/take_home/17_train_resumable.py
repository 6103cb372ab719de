"""Train on one machine or several; after a failure, go on from the newest checkpoint.

torchrun --standalone --nproc-per-node=2 17_train_resumable.py --folder=checkpoints
"""

import argparse
import os
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

SIZE = 256  # of a batch, of all ranks together
torch.manual_seed(0)
inputs = torch.randn(8192, 64)  # your data set
labels = inputs[:, :10].argmax(1)


def make_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 5120), nn.ReLU(), nn.Linear(5120, 10))


def log(text):
    if os.environ["RANK"] == "0":
        print(f"{time.time():.2f} {text}", flush=True)


def draw_batch(step, rank, ranks):
    epoch, place = divmod(step, len(inputs) // SIZE)
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(epoch))
    mine = order[SIZE * place : SIZE * (place + 1)][rank::ranks]
    return inputs[mine], labels[mine]


def save(path, parts):
    unfinished = path.with_suffix(".part")
    with unfinished.open("wb") as file:
        torch.save({name: part.state_dict() for name, part in parts.items()}, file)
        file.flush()
        os.fsync(file.fileno())  # on the disk before it gets its name
    unfinished.replace(path)


def load_newest(folder, parts):
    names = sorted(path.name for path in folder.glob("step-*.pt"))
    newest = [names[-1] if names else ""]
    dist.broadcast_object_list(newest)  # rank 0 decides: a shared folder may lag
    if newest == [""]:
        return 0
    saved = torch.load(folder / newest[0], map_location="cpu")
    for name, part in parts.items():
        part.load_state_dict(saved[name])
    return int(newest[0][5:13])


def train(arguments, device):
    rank = dist.get_rank()
    ranks = dist.get_world_size()
    net = make_net().to(device)
    optimizer = torch.optim.AdamW(net.parameters())
    parts = {"net": net, "optimizer": optimizer}  # and a scheduler, a GradScaler
    first = load_newest(arguments.folder, parts)
    model = DistributedDataParallel(net)
    for step in range(first, arguments.steps):
        x, y = draw_batch(step, rank, ranks)
        loss = F.cross_entropy(model(x.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % arguments.log_every == 0:
            mean = loss.detach() / ranks
            dist.all_reduce(mean)
            log(f"step {step} loss {mean.item():.5f} ranks {ranks}")
        done = step + 1
        if rank == 0 and (done % arguments.save_every == 0 or done == arguments.steps):
            save(arguments.folder / f"step-{done:08}.pt", parts)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, default="checkpoints", help="shared")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--save-every", type=int, default=100)
    parser.add_argument("--log-every", type=int, default=10)
    parser.add_argument("--timeout", type=int, default=600, help="seconds")
    arguments = parser.parse_args()
    log("imports done")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    on_gpus = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    device = torch.device("cpu")
    if on_gpus:  # a GPU for each process of this machine
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    timeout = timedelta(seconds=arguments.timeout)
    dist.init_process_group("nccl" if on_gpus else "gloo", timeout=timeout)
    train(arguments, device)
    dist.destroy_process_group()
