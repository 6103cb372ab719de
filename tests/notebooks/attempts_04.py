"""Plausible wrong answers to the exercises of chapter 04: checks refuse them."""

import itertools

import numpy as np
from torch.utils.data import Dataset


def _everyone_reads_all(items, worker, rank=0, ranks=1):
    yield from items


def _ranks_are_forgotten(items, worker, rank=0, ranks=1):
    first, step = (worker.id, worker.num_workers) if worker else (0, 1)
    yield from itertools.islice(items, first, None, step)


def _ranks_and_workers_collide(items, worker, rank=0, ranks=1):
    place, workers = (worker.id, worker.num_workers) if worker else (0, 1)
    yield from itertools.islice(items, place + rank, None, workers * ranks)


def _the_rest_is_lost(items, worker, rank=0, ranks=1):
    place, workers = (worker.id, worker.num_workers) if worker else (0, 1)
    items, all_workers = list(itertools.islice(items, 100)), workers * ranks
    size = len(items) // all_workers
    start = (rank * workers + place) * size
    yield from items[start : start + size]


def _all_is_read_first(items, worker, rank=0, ranks=1):
    place, workers = (worker.id, worker.num_workers) if worker else (0, 1)
    items = list(items)
    yield from items[rank * workers + place :: workers * ranks]


class _Base(Dataset):
    def __init__(self, read, shards, size):
        self.read, self.shards, self.size = read, shards, size

    def __len__(self):
        return self.shards * self.size

    def __getitem__(self, index):
        return self.read(index // self.size)[index % self.size]


class _OneByOne(_Base):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


class _InTheOrderOfShards(_Base):
    def __getitems__(self, indices):
        found = []
        for shard in sorted({index // self.size for index in indices}):
            samples = self.read(shard)
            found += [
                samples[i % self.size] for i in indices if i // self.size == shard
            ]
        return found


class _KeepsAllShards(_Base):
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


class _Names:
    def __init__(self, names):
        self.names = names

    def __len__(self):
        return len(self.names)

    def __getitem__(self, index):
        return self.names[index]


class _Encoded(_Names):
    def __init__(self, names):
        self.names = [name.encode() for name in names]

    def __getitem__(self, index):
        return self.names[index].decode()


class _ArrayOfObjects(_Names):
    def __init__(self, names):
        self.names = np.array([name[::-1] for name in names], dtype=object)

    def __getitem__(self, index):
        return self.names[index][::-1]


class _Padded(_Names):
    def __init__(self, names):
        self.names = np.array([f"{name}|" for name in names])

    def __getitem__(self, index):
        return str(self.names[index])[:-1]


class _OffsetsInLetters(_Names):
    def __init__(self, names):
        self.bytes = np.frombuffer("".join(names).encode(), dtype=np.uint8)
        self.ends = np.cumsum([len(name) for name in names])

    def __len__(self):
        return len(self.ends)

    def __getitem__(self, index):
        start = self.ends[index - 1] if index else 0
        return self.bytes[start : self.ends[index]].tobytes().decode(errors="replace")


WRONG = {
    "my_share": [
        _everyone_reads_all,
        _ranks_are_forgotten,
        _ranks_and_workers_collide,
        _the_rest_is_lost,
        _all_is_read_first,
    ],
    "shards": [_OneByOne, _InTheOrderOfShards, _KeepsAllShards],
    "packed": [_Names, _Encoded, _ArrayOfObjects, _Padded, _OffsetsInLetters],
}
