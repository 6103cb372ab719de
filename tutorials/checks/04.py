"""Checks of chapter 04's exercises: each calls the reader's code and watches it."""

import gc
import itertools
import sys
import types
import weakref

import numpy as np
import torch
from torch.utils.data import DataLoader


def my_share(my_share):
    """Each item exactly once, whoever reads; no more read ahead than needed."""
    for ranks, workers in itertools.product((1, 2, 3), (None, 1, 2, 3)):
        found = []
        for rank, worker in itertools.product(range(ranks), range(workers or 1)):
            info = workers and types.SimpleNamespace(id=worker, num_workers=workers)
            share = list(my_share(iter(range(17)), info, rank=rank, ranks=ranks))
            assert len(set(share)) == len(share), f"one worker reads {share}"
            found += share
        who = f"ranks={ranks}, with {workers or 'no'} workers each"
        lost = sorted(set(range(17)) - set(found))
        assert not lost, f"{who}: of 17 items nobody reads {lost}"
        twice = sorted({item for item in found if found.count(item) > 1})
        assert not twice, f"{who}: of 17 items these are read more than once: {twice}"
    assert list(my_share(iter("abc"), None)) == list("abc"), (
        "without workers and ranks it should read all, in order"
    )
    first = types.SimpleNamespace(id=0, num_workers=2)
    taken = []

    def endless():
        for item in itertools.count():
            assert item < 1000, "it reads a stream to its end before it yields"
            taken.append(item)
            yield item

    few = list(itertools.islice(my_share(endless(), first), 3))
    assert len(few) == 3 and len(taken) <= 8, (
        f"for 3 items of an endless stream it took {len(taken)}"
    )
    return "every item once, whoever reads, and nothing is read ahead."


class _Samples(list):
    """A shard's samples, a list that can be watched."""


def _read_watched(size, reads, alive):
    """Return a `read` that notes each call, and what it handed out and is in use."""

    def read(shard):
        assert 0 <= shard < 5, f"there is no shard {shard!r}: they are 0 to 4"
        reads.append(shard)
        samples = _Samples(torch.tensor([shard, place]) for place in range(size))
        alive.add(samples)
        return samples

    _Samples.__hash__ = object.__hash__
    return read


def shards(Shards):  # noqa: N803
    """One read per shard and batch, samples in order, no shard kept."""
    reads, alive, size = [], weakref.WeakSet(), 4
    dataset = Shards(_read_watched(size, reads, alive), 5, size)
    assert len(dataset) == 20, f"5 shards of 4 samples: 20 in all, not {len(dataset)}"
    assert not reads, "it reads shards before any sample is asked for"
    assert dataset[6].tolist() == [1, 2], "sample 6 is number 2 of shard 1"
    wanted = [13, 2, 12, 3, 2, 15]
    reads.clear()
    found = [sample.tolist() for sample in dataset.__getitems__(wanted)]
    expected = [list(divmod(index, size)) for index in wanted]
    assert found == expected, (
        f"for the indices {wanted} it returns {found}, not {expected}"
    )
    assert len(reads) <= 2, (
        f"these six samples lie in 2 shards, and it read {len(reads)}: {reads}"
    )
    del found
    gc.collect()
    assert not alive, (
        f"afterwards it keeps {len(alive)} shards: over an epoch that is all of them"
    )
    reads.clear()
    batches = list(DataLoader(dataset, batch_size=10))
    assert torch.equal(batches[1][:, 0], torch.arange(10, 20) // size), (
        "a DataLoader gets other samples from it"
    )
    assert len(reads) == 6, (
        f"a DataLoader's 2 batches need 3 shards each, and it read {len(reads)}"
    )
    return "each shard is opened once per batch."


def packed(Packed):  # noqa: N803
    """The same strings, no object per string, and little more than their bytes."""
    strings = [
        "circle/0001.jpg",
        "",
        "größe/ß.jpg",
        "a\0b\0",
        "日本/写真.jpg",
        "x" * 999,
    ]
    dataset = Packed(list(strings))
    assert len(dataset) == len(strings), (
        f"{len(strings)} names make a length of {len(dataset)}"
    )
    for index, string in enumerate(strings):
        assert dataset[index] == string, (
            f"name {index} is {string[:20]!r}, and it returns {dataset[index]!r:.40}"
        )
    many = [f"{number}.jpg" for number in range(2000)] + ["y" * 5000]
    before = sys.getrefcount(many[1000])
    large = Packed(list(many))
    assert large[1500] == "1500.jpg", f"name 1500 is 1500.jpg, not {large[1500]!r}"
    assert sys.getrefcount(many[1000]) == before, "it keeps the strings themselves"
    objects, size = _weigh(large)
    assert objects < 200, (
        f"2001 names make at least {objects} Python objects, and each of them counts"
    )
    need = sum(len(string.encode()) for string in many) + 16 * len(many)
    assert size < 1.5 * need + 4096, (
        f"it keeps {size:,} bytes, where the names and their offsets need {need:,}: "
        "is each one padded to the longest?"
    )
    return "a list of names that no reader can make grow."


def _weigh(thing):
    """Count the Python objects that a thing consists of, and its bytes in arrays."""
    seen, todo, size = {}, [thing], 0
    while todo:
        one = todo.pop()
        shared = (type, types.ModuleType, types.FunctionType, types.CodeType)
        if id(one) in seen or isinstance(one, shared):
            continue
        seen[id(one)] = one
        if isinstance(one, (torch.Tensor, np.ndarray)):
            size += one.nbytes
            if one.dtype is np.dtype(object):
                todo += list(one.flat)
        elif isinstance(one, (str, bytes, bytearray, memoryview)):
            size += len(one)
        else:
            size += one.buffer_info()[1] * one.itemsize if _is_array(one) else 0
            todo += gc.get_referents(one)
    return len(seen), size


def _is_array(thing):
    return hasattr(thing, "buffer_info") and hasattr(thing, "itemsize")
