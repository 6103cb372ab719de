"""Bound a training step: python 18_bound_your_step.py --tflops 989 --gbs 3350

Take --tflops (dense, of your number format) and --gbs from the card's data sheet;
without them, a large product and a long vector measure this machine.
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


class Traffic(TorchDispatchMode):
    calls = bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if not func.is_view:
            found = [x for x in tree_leaves([args, kwargs, out]) if torch.is_tensor(x)]
            self.calls += 1
            self.bytes += sum(x.nbytes for x in found)
        return out


def time_call(call, number):
    call()  # warm-up
    start = perf_counter()
    for _ in range(number):
        call()
    if device.type != "cpu":
        torch.accelerator.synchronize()  # the last calls may still be in the queue
    return (perf_counter() - start) / number


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


def main(steps, tflops, gbs):
    size, numbers = (512, 2**25) if device.type == "cpu" else (8192, 2**28)
    a, x = torch.randn(size, size, device=device), torch.ones(numbers, device=device)
    product = min(time_call(lambda: a @ a, 5) for _ in range(10))
    pass_over = min(time_call(lambda: x.mul_(1.0), 3) for _ in range(5))
    tflops = tflops or 2 * size**3 / product / 1e12
    gbs = gbs or 2 * x.nbytes / pass_over / 1e9
    step = make_step()
    seconds = time_call(step, steps)
    with Traffic() as traffic, FlopCounterMode(display=False) as counter:
        step()
    flops = counter.get_total_flops()
    bounds = {
        f"{flops:,} FLOP at {tflops:.3g} TFLOP/s": flops / tflops / 1e12,
        f"{traffic.bytes:,} bytes at {gbs:.3g} GB/s": traffic.bytes / gbs / 1e9,
    }
    if device.type != "cpu":
        bounds[f"{traffic.calls} launches"] = traffic.calls * LAUNCH
    for name, least in bounds.items():
        print(f"{name}: at least {1e3 * least:.3f} ms")
    print(f"a step takes {1e3 * seconds:.3f} ms, ", end="")
    print(f"{seconds / max(bounds.values()):.1f} times the largest bound")
    print(f"share of that peak: {flops / seconds / tflops / 1e12:.0%}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--tflops", type=float, help="measured here if left out")
    parser.add_argument("--gbs", type=float, help="measured here if left out")
    options = parser.parse_args()
    main(options.steps, options.tflops, options.gbs)
