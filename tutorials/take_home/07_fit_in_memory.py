"""Fit a batch in memory: python 07_fit_in_memory.py [--parts N] [--checkpoint]"""

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--parts", type=int, default=4, help="parts of each batch")
parser.add_argument("--checkpoint", action="store_true", help="keep inputs of blocks")
arguments = parser.parse_args()
device = "cuda" if torch.cuda.is_available() else "cpu"


class Net(nn.Module):  # your network
    def __init__(self, width=128):
        super().__init__()
        block = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True)
        self.blocks = nn.TransformerEncoder(block, 6, enable_nested_tensor=False).layers
        self.table, self.head = nn.Embedding(64, width), nn.Linear(width, 64)

    def forward(self, x):
        x = self.table(x)
        for block in self.blocks:
            if arguments.checkpoint:
                x = checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x)
        return self.head(x)


def find_peak():  # of this process, on Linux
    status = Path("/proc/self/status")
    if not status.exists():
        return 0
    return 1024 * int(status.read_text().partition("VmHWM:")[2].split()[0])


net = Net().to(device)
optimizer = torch.optim.AdamW(net.parameters())
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=10)
parts = arguments.parts
data = torch.randint(64, (16 * arguments.steps, 64), device=device)  # your data
loader = data.split(16 // parts)
count = 0
before = find_peak()
for i, x in enumerate(loader):
    y = x.clone()  # targets; -100 for one that does not count
    loss = F.cross_entropy(net(x).flatten(0, 1), y.flatten(), reduction="sum")
    loss.backward()
    count += (y != -100).sum()
    if (i + 1) % parts == 0 or i + 1 == len(loader):
        for p in net.parameters():
            if p.grad is not None:
                p.grad /= count
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        count = 0
print(f"last part: loss {loss.item() / y.numel():.3f}")
peak = find_peak() - before
if device == "cuda":
    peak = torch.cuda.max_memory_allocated()
print(f"tensors of a GPU, or what the process grew by: at most {peak / 1e6:.0f} MB")
