"""Train on shards: python 05_read_shards.py --url s3://bucket/shards --steps 200"""

import argparse
import io
import os
import random
import tarfile
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
    """The samples of shards, each once an epoch among the workers of all ranks."""

    def __init__(self, urls, unpack, in_flight=4, room=1000, **options):
        self.urls, self.unpack, self.options = sorted(urls), unpack, options
        self.in_flight, self.room = in_flight, room
        self.rank = int(os.environ.get("RANK", 0))
        self.ranks = int(os.environ.get("WORLD_SIZE", 1))
        self.epoch = torch.zeros(1, dtype=torch.int64).share_memory_()  # workers see it

    def choose(self):
        worker = get_worker_info()
        number, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        order = random.Random(self.epoch.item()).sample(self.urls, k=len(self.urls))
        return order[self.rank * workers + number :: self.ranks * workers]

    def fetch(self, urls):
        store, _ = fsspec.url_to_fs(self.urls[0], **self.options)  # in this process
        waiting = deque()
        with ThreadPoolExecutor(self.in_flight) as threads:
            for url in urls:
                waiting.append(threads.submit(store.cat_file, url))
                if len(waiting) == self.in_flight:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

    def __iter__(self):
        urls, buffer = self.choose(), []
        draw = random.Random(f"{self.epoch.item()} {urls}")
        for data in self.fetch(urls):
            for sample in self.unpack(data):
                buffer.append(sample)
                if len(buffer) > self.room:
                    yield buffer.pop(draw.randrange(len(buffer)))
        draw.shuffle(buffer)
        yield from buffer


def unpack(data):
    """Yield the samples of a tar file; write this for your own shards."""
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for member in tar:
            pixels = torch.frombuffer(
                bytearray(tar.extractfile(member).read()), dtype=torch.uint8
            )
            yield pixels / 255, int(member.name.split(".")[1])  # 00012.2: label 2


def make_shards(folder):
    for shard in range(16):
        with tarfile.open(f"{folder}/{shard:05}.tar", "w") as tar:
            for number in range(64):
                member = tarfile.TarInfo(f"{64 * shard + number:05}.{number % 10}")
                member.size = 3072
                tar.addfile(member, io.BytesIO(os.urandom(member.size)))


def main(url, steps, workers):
    store, folder = fsspec.url_to_fs(url)
    urls = [store.unstrip_protocol(path) for path in store.find(folder)]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    shards = Shards(urls, unpack)
    loader = DataLoader(shards, 64, num_workers=workers, persistent_workers=workers > 0)
    net = torch.nn.Linear(3072, 10).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    done = 0
    while done < steps:
        begin, samples = perf_counter(), 0
        for images, labels in islice(loader, steps - done):
            loss = F.cross_entropy(net(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            samples += len(images)
            done += 1
        speed = samples / (perf_counter() - begin)
        print(f"epoch {shards.epoch.item()}: {samples} samples, {speed:.0f} a second")
        shards.epoch += 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="a folder of tar files; without, some are made")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.url is None:
            make_shards(folder)
        main(options.url or folder, options.steps, options.workers)
