"""What chapter 17 starts on each of its two machines, to measure the link.

For each line of input, "seconds Mbit/s": sleep where a device would compute, then add
up 7.5 MB of gradients over a link of that rate, and answer. The link is limited by
Linux's `tc`, or delayed by links.py if SIMULATED_LINK is set.
"""

import os
import shlex
import subprocess
import sys
import time

import torch
import torch.distributed as dist
from links import Link, simulate_link

LIMIT = "tc qdisc change dev eth0 root tbf rate {}mbit burst 128kb latency 100ms"


def main():
    """Answer until there is no more input."""
    dist.init_process_group("gloo")
    is_simulated = "SIMULATED_LINK" in os.environ
    group = simulate_link() if is_simulated else dist.group.WORLD
    gradients = torch.zeros(1_875_000)
    rate = None
    print("ready", flush=True)
    for line in sys.stdin:
        end = time.perf_counter() + float(line.split()[0])
        mbit = line.split()[1]
        if mbit != rate:  # while a device would compute
            rate = mbit
            if is_simulated:
                group.link = Link(0.0, float(mbit) * 1e6 / 8)
            else:
                subprocess.run(shlex.split(LIMIT.format(mbit)), check=True)
        time.sleep(max(0.0, end - time.perf_counter()))
        dist.all_reduce(gradients, group=group)
        print("done", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
