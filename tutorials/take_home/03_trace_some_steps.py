"""Record three steps and ask the trace: python 03_trace_some_steps.py --steps 20"""

import argparse
import gzip
import json

import torch
from torch import nn
from torch.profiler import profile, schedule
from torch.utils.data import DataLoader


def read_events(path):
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    return [event for event in events if event["ph"] == "X"]  # with begin and length


def measure(events):  # for how many µs at least one of them ran; the end of the last
    busy, last = 0, 0
    for event in sorted(events, key=lambda event: event["ts"]):
        busy += max(0, event["ts"] + event["dur"] - max(event["ts"], last))
        last = max(last, event["ts"] + event["dur"])
    return busy, last


def describe(profiler):
    profiler.export_chrome_trace("trace.json.gz")
    events = read_events("trace.json.gz")
    labels = [e for e in events if e["cat"] == "user_annotation"]
    steps, end = measure(e for e in labels if e["name"].startswith("ProfilerStep#"))
    loads, _ = measure(e for e in labels if e["name"].startswith("enumerate(Data"))
    print(f"Python: {steps / 3000:.1f} ms a step, {loads / steps:.0%} in the loader")
    kernels = [e for e in events if e["cat"] == "kernel"]
    if not kernels:
        return print("no kernels: nothing ran on a GPU")
    busy, last = measure(kernels)
    share = busy / (last - min(e["ts"] for e in kernels))
    print(f"GPU: a kernel runs {share:.0%} of the time, from the first to the last")
    print(f"{len(kernels) / 3:.0f} kernels a step, {busy / len(kernels):.1f} µs each")
    waits = [e for e in events if "Synchronize" in e["name"] and e["ts"] < end]
    print(f"waits for the GPU: {len(waits) / 3:.0f} a step")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20, help="before the recording")
    steps = parser.parse_args().steps
    device = "cuda" if torch.cuda.is_available() else "cpu"
    data = [(torch.randn(256), i % 10) for i in range(64 * (steps + 4))]
    net = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10)).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    plan = schedule(wait=steps, warmup=1, active=3, repeat=1)
    with profile(schedule=plan, on_trace_ready=describe) as profiler:
        for rows, labels in DataLoader(data, batch_size=64):
            loss = nn.functional.cross_entropy(net(rows.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            profiler.step()
