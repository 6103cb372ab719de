"""Plausible wrong answers to the exercises of chapter 14: the checks refuse them."""

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

SHARES = {"plain": 1, "16 bits": 1 / 2, "no_sync, 4": 1 / 4, "local SGD, 8": 1 / 8}


def as_if_reduced(method, parameters, ranks):
    whole = 4 * parameters * 2 * (ranks - 1) / ranks
    return whole * (SHARES | {"top 1 %": 0.02})[method]


def without_the_ring(method, parameters, ranks):
    return 4 * parameters * (SHARES | {"top 1 %": 0.02 * (ranks - 1)})[method]


def without_places(method, parameters, ranks):
    if method == "top 1 %":
        return 4 * int(0.01 * parameters) * (ranks - 1)
    return as_if_reduced(method, parameters, ranks)


def keeps_nothing(hook):
    return hook


def keeps_the_last_only(hook):
    kept = []

    def send(gradient):
        sent = hook(gradient + kept[-1] if kept else gradient)
        kept.append(gradient - sent)
        return sent

    return send


_SHARED = []


def shares_what_it_keeps(hook):
    def send(gradient):
        whole = gradient + _SHARED.pop() if _SHARED else gradient
        sent = hook(whole)
        _SHARED.append(whole - sent)
        return sent

    return send


def sum_without_mean(group):
    def hook(state, bucket):
        small = bucket.buffer().bfloat16()
        dist.all_reduce(small, group=group)
        future = torch.futures.Future()
        future.set_result(small.float())
        return future

    return None, hook


def nothing_halved(group):
    return group, allreduce_hook


WRONG = {
    "bytes_per_step": [as_if_reduced, without_the_ring, without_places],
    "keep_the_rest": [keeps_nothing, keeps_the_last_only, shares_what_it_keeps],
    "half": [sum_without_mean, nothing_halved],
}
