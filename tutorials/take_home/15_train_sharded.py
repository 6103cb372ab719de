"""Train a network whose weights, gradients and optimizer state are divided (FSDP).

    torchrun --standalone --nproc-per-node=2 15_train_sharded.py --steps 20

A second run goes on from the checkpoint, on any number of devices.
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def make_block(width):
    wide = 4 * width
    return nn.Sequential(nn.Linear(width, wide), nn.GELU(), nn.Linear(wide, width))


def main(steps, width, folder):
    on_gpus = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    device = torch.device("cuda" if on_gpus else "cpu")
    if on_gpus:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpus else "gloo")
    torch.manual_seed(dist.get_rank())  # each rank has its own rows and batches

    with torch.device("meta"):  # shapes only: no device ever holds the whole network
        net = nn.Sequential(*[make_block(width) for _ in range(4)])
    mesh = dist.init_device_mesh(device.type, (dist.get_world_size(),))
    policy = MixedPrecisionPolicy(torch.bfloat16, reduce_dtype=torch.float32)
    for part in [*net, net]:  # each block is gathered by itself; the whole comes last
        fully_shard(part, mesh=mesh, mp_policy=policy)
    net.to_empty(device=device)
    for parameter in net.parameters():  # your initialization
        nn.init.normal_(parameter.to_local(), std=width**-0.5 / 2)
    optimizer = torch.optim.AdamW(net.parameters())  # after sharding: for the parts

    done = torch.zeros((), dtype=torch.int64)
    if Path(folder, ".metadata").exists():
        weights, state = get_state_dict(net, optimizer)
        dcp.load(
            {"net": weights, "optimizer": state, "done": done}, checkpoint_id=folder
        )
        set_state_dict(net, optimizer, model_state_dict=weights, optim_state_dict=state)
    for _ in range(steps):
        x = torch.randn(32, width, device=device)  # your batch
        loss = nn.functional.mse_loss(net(x), x.abs())
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # of all ranks' parts
        optimizer.step()
    done += steps
    weights, state = get_state_dict(net, optimizer)
    dcp.save({"net": weights, "optimizer": state, "done": done}, checkpoint_id=folder)

    norm = norm.full_tensor()  # a collective: every rank calls it
    if dist.get_rank() == 0:
        mine = sum(p.to_local().numel() for p in net.parameters())
        whole = sum(p.numel() for p in net.parameters())
        print(f"rank 0 holds {mine:,} of {whole:,} weights")
        print(f"step {done}: loss {loss:.3f}, gradient norm {norm:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--folder", default="checkpoint")
    main(**vars(parser.parse_args()))
