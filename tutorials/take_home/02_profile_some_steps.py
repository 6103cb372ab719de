"""Profile some steps of a training: python 02_profile_some_steps.py --steps 200"""

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.profiler import profile, record_function, schedule
from torch.utils.data import DataLoader, TensorDataset

device = "cuda" if torch.cuda.is_available() else "cpu"
WARMUP, ACTIVE = 2, 3
LABELS = "load", "forward", "backward", "update"


def write_profile(profiler):
    """Print a table and the labels' times, and write a trace for Perfetto."""
    sort_by = "device_time_total" if device == "cuda" else "self_cpu_time_total"
    rows = profiler.key_averages()
    print(rows.table(sort_by=sort_by, row_limit=3, max_name_column_width=30))
    for row in rows:
        if row.key in LABELS and row.cpu_time_total > 0:
            print(f"{row.key}: {row.cpu_time_total / ACTIVE / 1000:.2f} ms per step")
    Path("runs").mkdir(exist_ok=True)
    profiler.export_chrome_trace(f"runs/step{profiler.step_num}.json")
    print(f"trace: runs/step{profiler.step_num}.json")


def endless(loader):
    while True:
        yield from loader


def main(steps):
    images = torch.randn(4096, 256)
    data = TensorDataset(images, images[:, :10].argmax(1))
    batches = endless(DataLoader(data, batch_size=64, shuffle=True))
    net = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10)).to(device)
    optimizer = torch.optim.AdamW(net.parameters())
    wait = max(0, min(100, steps - WARMUP - ACTIVE))  # in a short run, the last steps
    plan = schedule(wait=wait, warmup=WARMUP, active=ACTIVE, repeat=1)
    with profile(schedule=plan, on_trace_ready=write_profile) as profiler:
        for _ in range(steps):
            with record_function("load"):
                images, labels = (tensor.to(device) for tensor in next(batches))
            with record_function("forward"):
                loss = nn.functional.cross_entropy(net(images), labels)
            with record_function("backward"):
                loss.backward()
            with record_function("update"):
                optimizer.step()
                optimizer.zero_grad()
            profiler.step()  # at the end of each step
    print(f"loss after {steps} steps: {loss.item():.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    main(parser.parse_args().steps)
