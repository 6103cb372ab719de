"""Compare what the finders of kit.tuning advise with an exhaustive search.

    python bench/finders.py batch [--seconds 8] [--megabytes 200]
    python bench/finders.py loader [--seconds 20]

Nothing else may run meanwhile: the finders measure real time and memory.
"""

import argparse
import multiprocessing
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

import kit
from kit.tuning import find_batch_size, tune_loader

# Batch sizes

BATCH_ROW = "{:14} {:>8} {:>8} {:>6} {:>8}"


def fit(model, shape, find_loss, batch_size):
    device = kit.device()
    model = model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    while True:
        loss = find_loss(model(torch.rand(batch_size, *shape, device=device)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield batch_size


def convolutions(*, batch_size=8):
    """Use memory in proportion to the batch."""
    layers = [nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU()]
    yield from fit(nn.Sequential(*layers), (3, 64, 64), torch.mean, batch_size)


def all_pairs(*, batch_size=8):
    """Use memory with the square of the batch: each row is compared with each."""

    def contrast(rows):
        similar = rows @ rows.T
        return F.cross_entropy(similar, torch.arange(len(rows), device=rows.device))

    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64))
    yield from fit(model, (32,), contrast, batch_size)


def lstm(*, batch_size=8):
    """Use much memory for the model itself."""
    model = nn.LSTM(256, 512, num_layers=2, batch_first=True)
    yield from fit(model, (32, 256), lambda made: made[0].mean(), batch_size)


MODELS = [convolutions, all_pairs, lstm]


def find(model, budget, seconds):
    """Return the largest size that the finder finds, and how many it tries."""
    found = find_batch_size(model, memory=budget, seconds=seconds)
    return found.largest, len(found.trials) + len(found.too_large)


def find_peak(model, size):
    """Return the bytes that a size takes, without those of libraries."""
    for batch_size in (2, size):
        trial = kit.measure(model, batch_size=batch_size, seconds=0.01, repeats=1)
    return trial.peak_memory_bytes


def call_apart(function, *given):
    """Call a function in a process of its own; None where memory has ended it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["kit.tuning", "torch"])
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        try:
            return pool.submit(function, *given).result()
        except (BrokenProcessPool, MemoryError, torch.OutOfMemoryError):
            return None


def search_exhaustively(model, budget):
    """Return the largest size that fits: doubled, then bisected to 3 %."""

    def fits(size):
        peak = call_apart(find_peak, model, size)
        return peak is not None and peak <= budget

    largest, too_large = 0, 8
    while fits(too_large):
        largest, too_large = too_large, 2 * too_large
    while too_large - largest > max(1, 0.03 * largest):
        middle = (largest + too_large) // 2
        if fits(middle):
            largest = middle
        else:
            too_large = middle
    return largest


def compare_batch_sizes(seconds, budget):
    print(BATCH_ROW.format("model", "found", "fits", "tried", "seconds"))
    for model in MODELS:
        begun = time.perf_counter()
        found, tried = call_apart(find, model, budget, seconds) or ("ended", "–")
        took = f"{time.perf_counter() - begun:.0f}"
        fits = search_exhaustively(model, budget)
        print(BATCH_ROW.format(model.__name__, found, fits, tried, took), flush=True)


# Numbers of workers

LOADER_ROW = "{:14} {:>8} {:>6} {:>8} {:>8}"
WORKERS = [0, 1, 2, 3, 4]


class Samples(Dataset):
    """Many samples, each of which is made by a function."""

    def __init__(self, make):
        self.make = make

    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        return self.make()


def no_work():
    return torch.zeros(64)


def decoding():
    return torch.fft.fft2(torch.rand(128, 128)).real.flatten()[:64].clone()


def slow_storage():
    time.sleep(0.002)
    return torch.zeros(64)


def large_tensors():
    return torch.zeros(512, 512)


def step(batch):
    weight = torch.ones(768, 768)
    return weight @ weight


def compare_workers(make, seconds):
    """Return a row: what is advised, what is best, and what the difference costs."""

    def make_loader(*, num_workers):
        return DataLoader(Samples(make), 16, num_workers=num_workers)

    def train(*, num_workers):
        for batch in make_loader(num_workers=num_workers):
            step(batch)
            yield len(batch)

    begun = time.perf_counter()
    asked = {"num_workers": WORKERS, "seconds": seconds}
    advised = tune_loader(make_loader, step=step, **asked).num_workers
    took = f"{time.perf_counter() - begun:.0f}"
    trials = kit.compare(train, **asked).trials
    rates = {trial.knobs["num_workers"]: trial.items_per_second for trial in trials}
    best = max(rates, key=rates.get)
    regret = f"{rates[best] / rates[advised] - 1:.0%}"
    return LOADER_ROW.format(make.__name__, advised, best, regret, took)


def compare_pipelines(seconds):
    warnings.filterwarnings("ignore", "This DataLoader will create")
    print(LOADER_ROW.format("pipeline", "advised", "best", "regret", "seconds"))
    for make in (no_work, decoding, slow_storage, large_tensors):
        print(compare_workers(make, seconds), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("finder", choices=["batch", "loader"])
    parser.add_argument("--seconds", type=float, help="of a finder: 8, or 20")
    parser.add_argument("--megabytes", type=float, default=200.0, help="for a batch")
    asked = parser.parse_args()
    if asked.finder == "batch":
        compare_batch_sizes(asked.seconds or 8.0, 1e6 * asked.megabytes)
    else:
        compare_pipelines(asked.seconds or 20.0)


if __name__ == "__main__":
    main()
