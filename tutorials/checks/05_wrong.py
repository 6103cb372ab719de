"""Plausible wrong answers to the exercises of chapter 05: the checks refuse them."""

import random


def forgets_the_workers(shards, epoch, rank, ranks, worker, workers):
    order = random.Random(epoch).sample(shards, k=len(shards))
    return order[rank::ranks]


def draws_for_itself(shards, epoch, rank, ranks, worker, workers):
    order = random.Random(f"{epoch} {rank} {worker}").sample(shards, k=len(shards))
    return order[rank * workers + worker :: ranks * workers]


def always_in_order(shards, epoch, rank, ranks, worker, workers):
    return shards[rank * workers + worker :: ranks * workers]


def only_bytes(points, requests, size):
    (_, first, before), (_, second, after) = points
    return size * (before + after) / (first + second)


def only_requests(points, requests, size):
    (first, _, before), (second, _, after) = points
    return requests * (before + after) / (first + second)


def a_line_through_the_bytes(points, requests, size):
    (_, first, before), (_, second, after) = points
    slope = (after - before) / (second - first) if second != first else 0
    return before + slope * (size - first)


def counts_names(log):
    names = [path for method, path, _ in log if method == "GET"]
    return {name for name in names if names.count(name) > 1}


def counts_equal_requests(log):
    return {request[1] for request in log if log.count(request) > 1}


def looks_at_neighbours_only(log):
    twice, ends = set(), {}
    for method, path, wanted in log:
        begin, _, end = (wanted or "0-").partition("-")
        if method == "GET":
            if int(begin) <= ends.get(path, -1):
                twice.add(path)
            ends[path] = float(end or "inf")
    return twice


WRONG = {
    "my_shards": [forgets_the_workers, draws_for_itself, always_in_order],
    "two_points": [only_bytes, only_requests, a_line_through_the_bytes],
    "find_twice": [counts_names, counts_equal_requests, looks_at_neighbours_only],
}
