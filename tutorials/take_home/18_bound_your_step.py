"""Bound a training step: python 18_bound_your_step.py --tflops 989 --gbs 3350

Both figures are on a card's data sheet; take the dense TFLOP/s of your number format.
Without them, they are those of an H100 for float32 as TF32.
"""

import argparse
from time import perf_counter

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

LAUNCH = 4e-6  # seconds of the driver for a kernel
device = torch.accelerator.current_accelerator(True) or torch.device("cpu")


class Traffic(TorchDispatchMode):  # sees each operation
    calls = bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if not func.is_view:  # a view moves nothing
            values = tree_leaves([args, kwargs, out])
            self.calls += 1
            self.bytes += sum(x.nbytes for x in values if torch.is_tensor(x))
        return out


def make_step():  # put your model and a batch here
    net = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024))
    net = net.to(device)
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)
    inputs = torch.randn(256, 1024, device=device)

    def step():
        optimizer.zero_grad()
        (net(inputs) - inputs).square().mean().backward()
        optimizer.step()

    return step


def wait():  # until the device has done all that is in its queue
    if device.type != "cpu":
        torch.accelerator.synchronize()


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--tflops", type=float, default=495)
parser.add_argument("--gbs", type=float, default=3350)
options = parser.parse_args()
step = make_step()
step()  # warm-up
wait()
start = perf_counter()
for _ in range(options.steps):
    step()
wait()
seconds = (perf_counter() - start) / options.steps

with Traffic() as traffic, FlopCounterMode(display=False) as counter:
    step()
flops = counter.get_total_flops()
peak, bandwidth = 1e12 * options.tflops, 1e9 * options.gbs
bounds = {
    f"{flops:,} FLOP at {options.tflops:.3g} TFLOP/s": flops / peak,
    f"{traffic.bytes:,} bytes at {options.gbs:,.4g} GB/s": traffic.bytes / bandwidth,
    f"{traffic.calls} launches, on a GPU": traffic.calls * LAUNCH,
}
for name, least in bounds.items():
    print(f"{name}: at least {1e3 * least:.3f} ms")
times = seconds / max(bounds.values())
print(f"here a step takes {1e3 * seconds:.3f} ms, {times:.1f} times the largest bound")
