"""Plausible wrong answers to the exercises of chapter 11: checks refuse them."""

import statistics

import torch


def _the_batch_is_divided(order, batch_size, rank, world_size):
    for batch in order.split(batch_size):
        yield batch.tensor_split(world_size)[rank], len(batch)


def _each_rank_has_a_range(order, batch_size, rank, world_size):
    for mine in order.tensor_split(world_size)[rank].split(batch_size):
        yield mine, len(mine) * world_size


def _every_nth_image(order, batch_size, rank, world_size):
    for mine in order[rank::world_size].split(batch_size):
        yield mine, min(batch_size * world_size, len(order))


def _the_last_batch_counts_as_full(order, batch_size, rank, world_size):
    for batch in order.split(batch_size * world_size):
        yield batch.tensor_split(world_size)[rank], batch_size * world_size


def _the_first_ranks_are_full(order, batch_size, rank, world_size):
    for batch in order.split(batch_size * world_size):
        yield batch[rank * batch_size : (rank + 1) * batch_size], len(batch)


def _the_rest_is_lost(order, batch_size, rank, world_size):
    together = batch_size * world_size
    for start in range(0, len(order) - together + 1, together):
        batch = order[start : start + together]
        yield batch.tensor_split(world_size)[rank], together


def _one_seed(run, rates, sizes):
    return {n: max(rates, key=lambda rate: run(n, rate, 0)) for n in sizes}


def _with(judge):
    def best_rates(run, rates, sizes):
        best = {}
        for size in sizes:
            told = {r: judge([run(size, r, seed) for seed in range(3)]) for r in rates}
            best[size] = max(told, key=told.get)
        return best

    best_rates.__name__ = f"_best_{judge.__name__}"
    return best_rates


def _nan_is_passed_over(run, rates, sizes):
    best = {}
    for size in sizes:
        told = {}
        for rate in rates:
            values = [run(size, rate, seed) for seed in range(3)]
            kept = [value for value in values if value == value]
            if kept:
                told[rate] = statistics.median(kept)
        best[size] = max(told, key=told.get)
    return best


def _one_rate_for_all_sizes(run, rates, sizes):
    found = _with(statistics.mean)(run, rates, sizes)
    return dict.fromkeys(sizes, found[sizes[0]])


def _through_the_root(tensors, dist):
    for tensor in tensors:
        dist.reduce(tensor, dst=0)
        dist.broadcast(tensor, src=0)


def _whole_tensors_in_turn(tensors, dist):
    for number, tensor in enumerate(tensors):
        owner = number % dist.get_world_size()
        dist.reduce(tensor, dst=owner)
        dist.broadcast(tensor, src=owner)


def _everyone_gathers_all(tensors, dist):
    for tensor in tensors:
        parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, tensor)
        tensor.copy_(sum(parts))


def _the_library_does_it(tensors, dist):
    for tensor in tensors:
        dist.all_reduce(tensor)


def _the_sum_stays_in_a_copy(tensors, dist):
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    for owner, part in enumerate(flat.tensor_split(dist.get_world_size())):
        dist.reduce(part, dst=owner)
        dist.broadcast(part, src=owner)


def _nobody_sends_it_back(tensors, dist):
    for tensor in tensors:
        for owner, part in enumerate(
            tensor.view(-1).tensor_split(dist.get_world_size())
        ):
            dist.reduce(part, dst=owner)


def _count_right(predict, images, labels):
    return (predict(images).argmax(1) == labels).sum()


def _everyone_looks_at_all(predict, images, labels, dist):
    return _count_right(predict, images, labels).item() / len(labels)


def _mean_of_the_parts(predict, images, labels, dist):
    n, me = dist.get_world_size(), dist.get_rank()
    images, labels = images.tensor_split(n)[me], labels.tensor_split(n)[me]
    share = _count_right(predict, images, labels) / max(len(labels), 1)
    dist.all_reduce(share)
    return share.item() / n


def _the_rest_is_not_looked_at(predict, images, labels, dist):
    n, me = dist.get_world_size(), dist.get_rank()
    size = len(labels) // n
    part = slice(me * size, (me + 1) * size)
    right = _count_right(predict, images[part], labels[part])
    dist.all_reduce(right)
    return right.item() / len(labels)


def _filled_up_to_equal_parts(predict, images, labels, dist):
    n, me = dist.get_world_size(), dist.get_rank()
    total = -(-len(labels) // n) * n
    mine = torch.arange(me, total, n) % len(labels)
    right = _count_right(predict, images[mine], labels[mine])
    dist.all_reduce(right)
    return right.item() / total


def _only_rank_0_knows(predict, images, labels, dist):
    n, me = dist.get_world_size(), dist.get_rank()
    images, mine = images.tensor_split(n)[me], labels.tensor_split(n)[me]
    right = _count_right(predict, images, mine)
    dist.reduce(right, dst=0)
    return right.item() / len(labels)


WRONG = {
    "grown": [
        _the_batch_is_divided,
        _each_rank_has_a_range,
        _every_nth_image,
        _the_last_batch_counts_as_full,
        _the_first_ranks_are_full,
        _the_rest_is_lost,
    ],
    "best_rates": [
        _one_seed,
        _with(statistics.mean),
        _with(max),
        _with(statistics.median),
        _nan_is_passed_over,
        _one_rate_for_all_sizes,
    ],
    "spread": [
        _through_the_root,
        _whole_tensors_in_turn,
        _everyone_gathers_all,
        _the_library_does_it,
        _the_sum_stays_in_a_copy,
        _nobody_sends_it_back,
    ],
    "accuracy_of_all": [
        _everyone_looks_at_all,
        _mean_of_the_parts,
        _the_rest_is_not_looked_at,
        _filled_up_to_equal_parts,
        _only_rank_0_knows,
    ],
}
