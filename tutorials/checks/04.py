"""Checks of chapter 04's exercises."""

import gc
import itertools
import tracemalloc
from types import SimpleNamespace

import torch

from kit.teaching import expect


def my_share(my_share):
    """Read each item exactly once, and no further ahead than needed."""
    assert list(my_share(iter("abc"), None)) == ["a", "b", "c"], (
        "without workers and ranks it should read all items, in order"
    )
    for ranks, workers in [(1, 2), (3, 1), (2, 3)]:
        found = []
        for rank, number in itertools.product(range(ranks), range(workers)):
            worker = SimpleNamespace(id=number, num_workers=workers)
            found += my_share(iter(range(17)), worker, rank=rank, ranks=ranks)
        assert sorted(found) == [*range(17)], (
            f"of the items 0 to 16, {ranks} ranks with {workers} workers each read "
            f"{sorted(found)}"
        )
    stream = iter(range(1000))
    worker = SimpleNamespace(id=0, num_workers=2)
    list(itertools.islice(my_share(stream, worker), 3))
    taken = next(stream, 1000)
    assert taken <= 8, f"for 3 items it takes {taken} of a stream that may be endless"
    return "every item once, whoever reads, and nothing is read ahead."


def shards(Shards):  # noqa: N803
    """Read each shard once for a batch, and keep none."""
    size = 4
    reads = []

    def read(shard):
        reads.append(shard)
        return [torch.tensor([shard, place]) for place in range(size)]

    dataset = Shards(read, 5, size)
    assert len(dataset) == 20, f"5 shards of 4 samples have a length of {len(dataset)}"
    wanted = [13, 2, 12, 3, 2, 15]
    for _ in range(2):
        reads.clear()
        found = [sample.tolist() for sample in dataset.__getitems__(wanted)]
        right = [[index // size, index % size] for index in wanted]
        assert found == right, f"for {wanted} it returns {found}; {right} is right"
        assert sorted(reads) == [0, 3], (
            f"for a batch from the shards 0 and 3 it reads the shards {sorted(reads)}"
        )
    found = dataset[6].tolist()
    assert found == [1, 2], f"for index 6 it returns {found}; [1, 2] is right"
    return "each shard is opened once per batch."


def packed(Packed):  # noqa: N803
    """Keep the same strings, with no Python object for each."""
    strings = ["circle/0001.jpg", "", "größe/ß.jpg", "a\0b\0", "日本/写真.jpg"]
    dataset = Packed(strings)
    assert len(dataset) == 5, f"5 names have a length of {len(dataset)}"
    cases = [((index,), string) for index, string in enumerate(strings)]
    expect(dataset.__getitem__, cases, hint="Do offsets count bytes?")
    tracemalloc.start()
    names = [f"{number}.jpg" for number in range(2000)] + ["y" * 5000]
    large = Packed(names)
    del names
    gc.collect()
    objects = len(tracemalloc.take_snapshot().traces)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert large[1500] == "1500.jpg", f"name 1500 is {large[1500]!r}"
    assert objects < 500, f"for 2001 names it keeps {objects} Python objects"
    assert size < 200_000, f"for names of 24 kB it keeps {size / 1000:.0f} kB"
    return "a list of names that no reader can make grow."
