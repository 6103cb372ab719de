"""Checks of chapter 05's exercises: each calls the reader's code and watches it."""

import itertools


def my_shards(my_shards):
    """Each shard once, in fair parts, in another order in each epoch."""
    for count, ranks, workers in [(8, 1, 1), (8, 2, 2), (13, 3, 2), (3, 2, 4)]:
        names = [f"shards/{n}" for n in range(count)]
        case = f"{count} shards, {ranks} ranks with {workers} workers each"
        everyone = list(itertools.product(range(ranks), range(workers)))
        orders = []
        for epoch in range(4):
            given = list(names)
            parts = [my_shards(given, epoch, r, ranks, w, workers) for r, w in everyone]
            assert given == names, f"{case}: it changes the list that it was given"
            read = [name for part in parts for name in part]
            assert sorted(read) == sorted(names), (
                f"{case}, epoch {epoch}: of {count} shards {len(set(read))} are read, "
                f"with {len(read)} reads"
            )
            sizes = [len(part) for part in parts]
            assert max(sizes) - min(sizes) <= 1, (
                f"{case}: the parts have {sizes} shards"
            )
            orders.append(tuple(read))
            again = [my_shards(names, epoch, r, ranks, w, workers) for r, w in everyone]
            assert again == parts, f"{case}: the same epoch, asked twice, differs"
        assert count < 8 or len(set(orders)) == 4, (
            f"{case}: some epochs have the same order"
        )
    return "each shard is read once, in fair parts, and every epoch has its order."


def two_points(predict_seconds):
    """The line through two measurements, in requests and in bytes."""
    for latency, bandwidth in [(0.1, 20e6), (0.02, 1e9), (0.5, 1e5)]:
        for first, second in [((8, 480_000), (1, 480_000)), ((1, 1e4), (1, 1e7))]:
            points = [
                (requests, size, requests * latency + size / bandwidth)
                for requests, size in (first, second)
            ]
            for requests, size in [(64, 4e6), (1, 1e8), (1000, 1e3)]:
                found = predict_seconds(points, requests, size)
                wanted = requests * latency + size / bandwidth
                assert abs(found / wanted - 1) < 1e-6, (
                    f"{latency:g} s and {bandwidth:g} bytes a second, {requests} "
                    f"requests, {size:,.0f} bytes: it says {found:.4g} s, and "
                    f"{wanted:.4g} s is right"
                )
    return "requests and bytes are told apart, and each is priced."


def find_twice(find_twice):
    """Bytes that were fetched more than once, and nothing else."""
    cases = {
        "one read of a whole object": ([("GET", "/a", "")], set()),
        "a HEAD, then a GET": ([("HEAD", "/a", ""), ("GET", "/a", "")], set()),
        "two whole reads": ([("GET", "/a", ""), ("GET", "/a", "")], {"/a"}),
        "neighbours": ([("GET", "/a", "0-99"), ("GET", "/a", "100-199")], set()),
        "one byte twice": ([("GET", "/a", "0-100"), ("GET", "/a", "100-199")], {"/a"}),
        "to the end": ([("GET", "/a", "500-"), ("GET", "/a", "0-600")], {"/a"}),
        "below the rest": ([("GET", "/a", "500-"), ("GET", "/a", "0-499")], set()),
        "a part, then all": ([("GET", "/a", "9-9"), ("GET", "/a", "")], {"/a"}),
        "the same range of two objects": (
            [("GET", "/a", "0-9"), ("GET", "/b", "0-9")],
            set(),
        ),
        "a long one over two short ones": (
            [("GET", "/b", "0-9"), ("GET", "/b", "90-99"), ("GET", "/b", "5-95")],
            {"/b"},
        ),
        "inside a longer one, after a third": (
            [("GET", "/a", "0-99"), ("GET", "/a", "200-299"), ("GET", "/a", "20-29")],
            {"/a"},
        ),
    }
    for case, (log, wanted) in cases.items():
        found = find_twice(list(log))
        assert set(found) == wanted, f"{case}: it says {found}, and {wanted} is right"
    return "overlaps are waste, neighbours and HEADs are not."
