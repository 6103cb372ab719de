"""Plausible wrong answers to the exercises of chapter 11: the checks refuse them."""

import statistics


def each_rank_has_a_range(order, batch_size, rank, world_size):
    for mine in order.tensor_split(world_size)[rank].split(batch_size):
        yield mine, len(mine) * world_size


def the_last_batch_counts_as_full(order, batch_size, rank, world_size):
    for batch in order.split(batch_size * world_size):
        yield batch.tensor_split(world_size)[rank], batch_size * world_size


def the_rest_is_lost(order, batch_size, rank, world_size):
    together = batch_size * world_size
    for start in range(0, len(order) - together + 1, together):
        batch = order[start : start + together]
        yield batch.tensor_split(world_size)[rank], together


def one_seed(run, rates, sizes):
    return {n: max(rates, key=lambda rate: run(n, rate, 0)) for n in sizes}


def choose_by(judge, run, rates, sizes):
    best = {}
    for size in sizes:
        told = {rate: judge([run(size, rate, s) for s in range(3)]) for rate in rates}
        best[size] = max(told, key=told.get)
    return best


def best_mean(run, rates, sizes):
    return choose_by(statistics.mean, run, rates, sizes)


def nan_is_passed_over(run, rates, sizes):
    def judge(values):
        kept = [value for value in values if value == value]
        return statistics.median(kept) if kept else 0.0

    return choose_by(judge, run, rates, sizes)


def through_the_root(tensors, dist):
    for tensor in tensors:
        dist.reduce(tensor, dst=0)
        dist.broadcast(tensor, src=0)


def whole_tensors_in_turn(tensors, dist):
    for number, tensor in enumerate(tensors):
        owner = number % dist.get_world_size()
        dist.reduce(tensor, dst=owner)
        dist.broadcast(tensor, src=owner)


def nobody_sends_it_back(tensors, dist):
    for tensor in tensors:
        parts = tensor.view(-1).tensor_split(dist.get_world_size())
        for owner, part in enumerate(parts):
            dist.reduce(part, dst=owner)


def count_right(predict, images, labels):
    return (predict(images).argmax(1) == labels).sum()


def everyone_looks_at_all(predict, images, labels, dist):
    return count_right(predict, images, labels).item() / len(labels)


def mean_of_the_parts(predict, images, labels, dist):
    n, me = dist.get_world_size(), dist.get_rank()
    images, labels = images.tensor_split(n)[me], labels.tensor_split(n)[me]
    share = count_right(predict, images, labels) / max(len(labels), 1)
    dist.all_reduce(share)
    return share.item() / n


def only_rank_0_knows(predict, images, labels, dist):
    n, me = dist.get_world_size(), dist.get_rank()
    images, mine = images.tensor_split(n)[me], labels.tensor_split(n)[me]
    right = count_right(predict, images, mine)
    dist.reduce(right, dst=0)
    return right.item() / len(labels)


WRONG = {
    "grown": [each_rank_has_a_range, the_last_batch_counts_as_full, the_rest_is_lost],
    "best_rates": [one_seed, best_mean, nan_is_passed_over],
    "spread": [through_the_root, whole_tensors_in_turn, nobody_sends_it_back],
    "accuracy_of_all": [everyone_looks_at_all, mean_of_the_parts, only_rank_0_knows],
}
