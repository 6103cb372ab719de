"""Price a call on this device: python 01_price_of_a_call.py [--steps N]"""

import argparse
from time import perf_counter

import torch

CALLS = {
    "x + x": lambda x: x + x,
    "x + 1": lambda x: x + 1,
    "x.add_(x)": lambda x: x.add_(x),
    "x.item()": lambda x: x.item(),
}


def wait_for(device):
    if device.type != "cpu":
        torch.accelerator.synchronize()


def find_microseconds(call, x, steps):
    for _ in range(steps):  # warm-up
        call(x)
    wait_for(x.device)
    start = perf_counter()
    for _ in range(steps):
        call(x)
    wait_for(x.device)  # the last calls may still be in the queue
    return 1e6 * (perf_counter() - start) / steps


def find_knee(call, price, device, steps):
    """Return the first size, of powers of two, at which a call costs twice as much."""
    for power in range(6, 27):
        x = torch.zeros(2**power, device=device)
        times = [find_microseconds(call, x, steps) for _ in range(3)]
        if min(times) > 2 * price:
            break
    return 2**power


def main(steps):
    found = torch.accelerator.current_accelerator(check_available=True)
    device = found or torch.device("cpu")
    x = torch.zeros(1, device=device)
    prices = {}
    for line, call in CALLS.items():
        prices[line] = min(find_microseconds(call, x, steps) for _ in range(3))
        print(f"{line:10} {prices[line]:8.2f} µs a call on {device}")
    knee = find_knee(CALLS["x + x"], prices["x + x"], device, max(1, steps // 10))
    print(f"Above about {knee:,} numbers, they cost more than the call x + x.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000, help="timed calls of a line")
    main(parser.parse_args().steps)
