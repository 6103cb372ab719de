"""Checks of chapter 05's exercises."""

import itertools

from kit.teaching import expect


def my_shards(my_shards):
    """Read each shard once, in fair parts, in another order in each epoch."""
    for count, ranks, workers in [(8, 2, 2), (13, 3, 2), (9, 2, 4)]:
        names = [f"shards/{number}" for number in range(count)]
        everyone = [*itertools.product(range(ranks), range(workers))]
        orders = []
        for epoch in range(2):
            parts = [
                my_shards(names, epoch, rank, ranks, worker, workers)
                for rank, worker in everyone
            ]
            orders.append([name for part in parts for name in part])
            case = f"{count} shards, {ranks} ranks with {workers} workers each"
            assert sorted(orders[-1]) == sorted(names), (
                f"{case}: of all shards they read {sorted(orders[-1])}"
            )
            sizes = [len(part) for part in parts]
            assert max(sizes) <= min(sizes) + 1, f"{case}: they read {sizes} shards"
        assert orders[0] != orders[1], f"{case}: two epochs have the same order"
        assert names[:2] == ["shards/0", "shards/1"], "it changes the list it is given"
    return "each shard is read once, in fair parts, and every epoch has its order."


def two_points(predict_seconds):
    """Price requests and bytes from two measurements."""
    cases = []
    for latency, bandwidth in [(0.1, 20e6), (0.02, 1e9), (0.5, 1e5)]:
        for measured in [[(8, 480_000), (1, 480_000)], [(1, 1e4), (1, 1e7)]]:
            points = [(n, size, n * latency + size / bandwidth) for n, size in measured]
            for requests, size in [(64, 4e6), (1000, 1e3)]:
                right = requests * latency + size / bandwidth
                cases.append(((points, requests, size), right))
    hint = "Each point is an equation in the price of a request and that of a byte."
    expect(predict_seconds, cases, hint=hint)
    return "requests and bytes are told apart, and each is priced."


def find_twice(find_twice):
    """Find the paths of which a byte was fetched more than once."""
    head = ("HEAD", "/a", "")
    whole = ("GET", "/a", "")
    first = ("GET", "/a", "0-99")
    second = ("GET", "/a", "100-199")
    inside = ("GET", "/a", "20-29")
    rest = ("GET", "/a", "100-")
    last = ("GET", "/a", "199-200")
    other = ("GET", "/b", "0-99")
    cases = [
        ((head, whole), set()),
        ((whole, whole), {"/a"}),
        ((first, second), set()),
        ((first, other), set()),
        ((first, whole), {"/a"}),
        ((first, second, last), {"/a"}),
        ((first, second, inside), {"/a"}),
        ((rest, first), set()),
        ((rest, first, last), {"/a"}),
    ]
    hint = "Both ends of a range count."
    expect(lambda *log: set(find_twice([*log])), cases, hint=hint)
    return "overlaps are waste, neighbours and HEADs are not."
