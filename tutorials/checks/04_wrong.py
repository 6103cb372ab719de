"""Plausible wrong answers to the exercises of chapter 04: the checks refuse them."""

import itertools

import numpy as np
from torch.utils.data import Dataset


def ranks_are_forgotten(items, worker, rank=0, ranks=1):
    first, step = (worker.id, worker.num_workers) if worker else (0, 1)
    yield from itertools.islice(items, first, None, step)


def ranks_and_workers_collide(items, worker, rank=0, ranks=1):
    place, workers = (worker.id, worker.num_workers) if worker else (0, 1)
    yield from itertools.islice(items, place + rank, None, workers * ranks)


def all_is_read_first(items, worker, rank=0, ranks=1):
    place, workers = (worker.id, worker.num_workers) if worker else (0, 1)
    items = list(items)
    yield from items[rank * workers + place :: workers * ranks]


class Shards(Dataset):
    def __init__(self, read, shards, size):
        self.read, self.shards, self.size = read, shards, size

    def __len__(self):
        return self.shards * self.size

    def __getitem__(self, index):
        return self.read(index // self.size)[index % self.size]


class OneByOne(Shards):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


class InTheOrderOfShards(Shards):
    def __getitems__(self, indices):
        found = []
        for shard in sorted({index // self.size for index in indices}):
            samples = self.read(shard)
            mine = [index for index in indices if index // self.size == shard]
            found += [samples[index % self.size] for index in mine]
        return found


class KeepsAllShards(Shards):
    def __init__(self, read, shards, size):
        super().__init__(read, shards, size)
        self.kept = {}

    def __getitem__(self, index):
        shard, place = divmod(index, self.size)
        if shard not in self.kept:
            self.kept[shard] = self.read(shard)
        return self.kept[shard][place]

    def __getitems__(self, indices):
        return [self[index] for index in indices]


class KeepsTheList:
    def __init__(self, names):
        self.names = names

    def __len__(self):
        return len(self.names)

    def __getitem__(self, index):
        return self.names[index]


class Padded(KeepsTheList):
    def __init__(self, names):
        self.names = np.array([f"{name}|" for name in names])

    def __getitem__(self, index):
        return str(self.names[index])[:-1]


class OffsetsInLetters(KeepsTheList):
    def __init__(self, names):
        self.bytes = np.frombuffer("".join(names).encode(), dtype=np.uint8)
        self.ends = np.cumsum([len(name) for name in names])

    def __len__(self):
        return len(self.ends)

    def __getitem__(self, index):
        start = self.ends[index - 1] if index else 0
        return self.bytes[start : self.ends[index]].tobytes().decode(errors="replace")


WRONG = {
    "my_share": [ranks_are_forgotten, ranks_and_workers_collide, all_is_read_first],
    "shards": [OneByOne, InTheOrderOfShards, KeepsAllShards],
    "packed": [KeepsTheList, Padded, OffsetsInLetters],
}
