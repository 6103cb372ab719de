"""Learn which number is largest: python 08_train_fast.py [--steps N] [--plain]"""

import argparse
import shutil
from time import perf_counter

import torch
from torch import nn
from torch.nn import functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=400)
parser.add_argument("--plain", action="store_true", help="do not compile")
arguments = parser.parse_args()
device = "cuda" if torch.cuda.is_available() else "cpu"

plain = arguments.plain
if device == "cpu" and not (shutil.which("g++") or shutil.which("clang++")):
    print("There is no C++ compiler, so this is plain PyTorch.")
    plain = True

net = nn.Sequential(
    nn.Linear(64, 256), nn.LayerNorm(256), nn.GELU(), nn.Linear(256, 10)
).to(device)
torch.compiler.config.fail_on_recompile_limit_hit = True  # no silent way back
model = torch.compile(net, fullgraph=True, disable=plain)  # a break is an error
optimizer = torch.optim.AdamW(net.parameters(), fused=True)


def wait_for_device():
    if device == "cuda":
        torch.cuda.synchronize()


total = torch.zeros((), device=device)
start = perf_counter()
for step in range(1, arguments.steps + 1):
    inputs = torch.randn(256, 64, device=device)  # your batch
    labels = inputs[:, :10].argmax(1)
    loss = F.cross_entropy(model(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total += loss.detach()  # stays on the device, so Python waits for nothing
    if step == 1:
        wait_for_device()
        print(f"first step: {perf_counter() - start:.2f} s")
        start = perf_counter()
    if step % 100 == 0:
        print(f"steps up to {step}: mean loss {total.item() / 100:.2f}")  # waits
        total.zero_()
wait_for_device()
each = (perf_counter() - start) / max(1, arguments.steps - 1)
print(f"each later step: {1000 * each:.2f} ms")
