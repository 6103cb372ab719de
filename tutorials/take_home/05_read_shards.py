"""Train on shards: python 05_read_shards.py --url s3://bucket/shards --steps 200"""

import argparse
import io
import os
import random
import tempfile
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from time import perf_counter

import fsspec
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Shards(IterableDataset):
    """Yield the samples of shards, which are divided among the workers of all ranks."""

    def __init__(self, urls, unpack, in_flight=4, room=1000, **options):
        self.urls = sorted(urls)
        self.unpack = unpack
        self.in_flight = in_flight
        self.room = room
        self.options = options
        self.rank = int(os.environ.get("RANK", 0))
        self.ranks = int(os.environ.get("WORLD_SIZE", 1))
        self.epoch = torch.tensor(0).share_memory_()  # so that workers see it change

    def choose(self):
        worker = get_worker_info()
        workers = worker.num_workers if worker else 1
        number = self.rank + self.ranks * (worker.id if worker else 0)
        order = random.Random(self.epoch.item()).sample(self.urls, k=len(self.urls))
        return order[number :: self.ranks * workers]

    def fetch(self, urls):
        store, _ = fsspec.url_to_fs(self.urls[0], **self.options)
        waiting = deque()
        with ThreadPoolExecutor(self.in_flight) as threads:
            for url in urls:
                waiting.append(threads.submit(store.cat_file, url))
                if len(waiting) == self.in_flight:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

    def __iter__(self):
        draw = random.Random(self.epoch.item())
        buffer = []
        for data in self.fetch(self.choose()):
            for sample in self.unpack(data):
                buffer.append(sample)
                if len(buffer) > self.room:
                    yield buffer.pop(draw.randrange(len(buffer)))
        draw.shuffle(buffer)
        yield from buffer


def unpack(data):
    """Yield the samples of a shard; write this for your own format."""
    images, labels = torch.load(io.BytesIO(data))
    yield from zip(images, labels, strict=True)


def make_shards(folder):
    for shard in range(16):
        samples = torch.rand(64, 3072), torch.arange(64) % 10
        torch.save(samples, f"{folder}/{shard:05}.pt")


def main(url, steps):
    store, folder = fsspec.url_to_fs(url)
    shards = Shards(map(store.unstrip_protocol, store.find(folder)), unpack)
    assert len(shards.urls) >= shards.ranks, "each rank needs a shard"
    loader = DataLoader(shards, 64, num_workers=2, persistent_workers=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    net = torch.nn.Linear(3072, 10).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    step = 0
    while step < steps:
        begin = perf_counter()
        samples = 0
        for images, labels in islice(loader, steps - step):
            loss = F.cross_entropy(net(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            samples += len(images)
            step += 1
        speed = samples / (perf_counter() - begin)
        print(f"epoch {shards.epoch.item()}: {samples} samples, {speed:,.0f} a second")
        shards.epoch += 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="a folder of shards; without, some are made")
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.url is None:
            make_shards(folder)
        main(options.url or folder, options.steps)
