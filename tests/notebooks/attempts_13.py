"""Plausible wrong answers to the exercises of chapter 13: checks refuse them."""

import itertools
from collections import namedtuple

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

Message = namedtuple(
    "Message", "sender receiver part parts adds", defaults=(0, 1, True)
)


def _round(n, first, adds, steps=None):
    """Let parts go round a ring: in the first step rank r sends part r + first."""
    return [
        [Message(r, (r + 1) % n, (r + first - s) % n, n, adds) for r in range(n)]
        for s in range(n - 1 if steps is None else steps)
    ]


def _cuts_the_ring(n):
    return _round(n, 0, adds=True), _round(n, 1, adds=False)


def _parts_in_the_wrong_place(n):
    return _round(n, -1, adds=True), _round(n, 1, adds=False)


def _stops_a_step_early(n):
    return _round(n, -1, True, max(0, n - 2)), _round(n, 0, False, max(0, n - 2))


def _adds_in_both(n):
    return _round(n, -1, adds=True), _round(n, 0, adds=True)


def _all_in_the_first(n):
    others = [(a, b) for a in range(n) for b in range(n) if a != b]
    return [[Message(a, b, p, n) for a, b in others for p in range(n)]], []


def _whole_tensors(n):
    gather = [Message(r, 0) for r in range(1, n)]
    return [gather], [[Message(0, r, adds=False) for r in range(1, n)]]


def _by_way_of_rank_0(n):
    parts = range(n)
    gather = [[Message(r, 0, p, n) for r in range(1, n) for p in parts]]
    scatter = [[Message(0, r, r, n, False) for r in range(1, n)]]
    return gather + scatter, _round(n, 0, adds=False)


def _one_plan(n):
    return _round(n, -1, adds=True) + _round(n, 0, adds=False)


def _received(plan, n, size):
    total = [0.0] * n
    for message in itertools.chain(*plan(n)):
        total[message.receiver] += size / message.parts
    return total


def _whole_tensor_each(plan, n, size):
    total = [0.0] * n
    for message in itertools.chain(*plan(n)):
        total[message.sender] += size
    return total


def _messages(plan, n, size):
    total = [0] * n
    for message in itertools.chain(*plan(n)):
        total[message.sender] += 1
    return total


def _what_is_added(plan, n, size):
    total = [0.0] * n
    for message in itertools.chain(*plan(n)):
        total[message.sender] += message.adds * size / message.parts
    return total


def _always_n_parts(plan, n, size):
    return [size / n * count for count in _messages(plan, n, size)]


def _of_a_ring(plan, n, size):
    return [2 * (n - 1) / n * size] * n


def _who_sends_only(plan, n, size):
    total = {}
    for message in itertools.chain(*plan(n)):
        total[message.sender] = total.get(message.sender, 0) + size / message.parts
    return list(total.values())


def _crossings(sizes, first, second):
    """Yield where the second one becomes quicker."""
    gaps = [b - a for a, b in zip(first, second, strict=True)]
    for (x, d), (y, e) in itertools.pairwise(zip(sizes, gaps, strict=True)):
        if d >= 0 > e:
            yield x + (y - x) * d / (d - e)


def _first_crossing(sizes, first, second):
    if second[-1] >= first[-1]:
        return None
    return next(_crossings(sizes, first, second), sizes[0])


def _size_after(sizes, first, second):
    quicker = [b < a for a, b in zip(first, second, strict=True)]
    count = len(list(itertools.takewhile(bool, reversed(quicker))))
    return sizes[-count] if count else None


def _in_the_middle(sizes, first, second):
    after = _size_after(sizes, first, second)
    if after in (None, sizes[0]):
        return after
    return (sizes[sizes.index(after) - 1] + after) / 2


def _other_way_round(sizes, first, second):
    if first[-1] >= second[-1]:
        return None
    return ([sizes[0], *_crossings(sizes, second, first)])[-1]


def _last_crossing_without_none(sizes, first, second):
    return ([sizes[0], *_crossings(sizes, first, second)])[-1]


def _on_a_logarithmic_axis(sizes, first, second):
    if second[-1] >= first[-1]:
        return None
    logs = [torch.tensor(float(size)).log().item() for size in sizes]
    return torch.tensor([logs[0], *_crossings(logs, first, second)][-1]).exp().item()


def _done(value):
    future = torch.futures.Future()
    future.set_result(value)
    return future


def _sum(group):
    def hook(state, bucket):
        small = bucket.buffer().bfloat16()
        dist.all_reduce(small, group=group)
        return _done(small.float())

    return None, hook


def _nothing_halved(group):
    return group, allreduce_hook


def _halved_on_arrival(group):
    def hook(state, bucket):
        mean = bucket.buffer() / group.size()
        dist.all_reduce(mean, group=group)
        return _done(mean.bfloat16().float())

    return None, hook


def _every_second_gradient(group):
    calls = {}

    def hook(state, bucket):
        calls[bucket.index()] = calls.get(bucket.index(), 0) + 1
        if calls[bucket.index()] % 2:
            return _done(torch.zeros_like(bucket.buffer()))
        return allreduce_hook(group, bucket)

    return None, hook


def _half_of_the_entries(group):
    def hook(state, bucket):
        mean = bucket.buffer() / group.size()
        mean[::2] = 0
        sent = mean[1::2].clone()
        dist.all_reduce(sent, group=group)
        mean[1::2] = sent
        return _done(mean)

    return None, hook


def _the_rest_stays_its_own(group):
    def hook(state, bucket):
        mean = bucket.buffer().clone()
        sent = mean[::2] / group.size()
        dist.all_reduce(sent, group=group)
        mean[::2] = sent
        return _done(mean)

    return None, hook


def _sends_nothing(group):
    return None, lambda state, bucket: _done(bucket.buffer())


def _no_future(group):
    def hook(state, bucket):
        small = bucket.buffer().bfloat16() / group.size()
        dist.all_reduce(small, group=group)
        return small.float()

    return None, hook


def _a_future_without_a_value(group):
    return None, lambda state, bucket: torch.futures.Future()


def _half_a_bucket(group):
    return None, lambda state, bucket: _done(bucket.buffer()[::2])


def _a_hook_only(group):
    return allreduce_hook


def _alone_on_rank_0(group):
    def hook(state, bucket):
        if group.rank() == 0:
            return allreduce_hook(group, bucket)
        return _done(bucket.buffer())

    return None, hook


WRONG = {
    "halves": [
        _cuts_the_ring,
        _parts_in_the_wrong_place,
        _stops_a_step_early,
        _adds_in_both,
        _all_in_the_first,
        _whole_tensors,
        _by_way_of_rank_0,
        _one_plan,
    ],
    "bytes_sent": [
        _received,
        _whole_tensor_each,
        _messages,
        _what_is_added,
        _always_n_parts,
        _of_a_ring,
        _who_sends_only,
    ],
    "crossover": [
        _first_crossing,
        _size_after,
        _in_the_middle,
        _other_way_round,
        _last_crossing_without_none,
        _on_a_logarithmic_axis,
    ],
    "half": [_sum, _nothing_halved],
}
#: More of them, each of which takes long: `make test-all`.
MORE = {
    "half": [
        _halved_on_arrival,
        _every_second_gradient,
        _half_of_the_entries,
        _the_rest_stays_its_own,
        _sends_nothing,
        _no_future,
        _a_future_without_a_value,
        _half_a_bucket,
        _a_hook_only,
        _alone_on_rank_0,
    ]
}
