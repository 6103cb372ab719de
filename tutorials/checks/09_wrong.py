"""Plausible wrong answers to the exercises of chapter 09: the checks refuse them."""

import math

import torch


def nearest(x, dtype):
    return x.to(dtype)


def too_coarse_below(x, dtype):
    """Forgets that subnormal numbers all have the same gap."""
    gap = torch.finfo(dtype).eps * 2.0 ** (torch.frexp(x)[1] - 1)
    return ((x / gap + torch.rand_like(x)).floor() * gap).to(dtype)


def one_draw(x, dtype):
    info = torch.finfo(dtype)
    power = torch.frexp(x.abs().clamp(min=info.smallest_normal))[1] - 1
    gap = info.eps * 2.0**power
    return ((x / gap + torch.rand(())).floor() * gap).to(dtype)


def no_masters(parameters, make_optimizer):
    return make_optimizer(list(parameters)).step


def make_masters(parameters, make_optimizer):
    low = list(parameters)
    high = [p.detach().float() for p in low]
    return low, high, make_optimizer(high)


def bring_gradients(low, high):
    for p, q in zip(low, high, strict=True):
        q.grad = None if p.grad is None else p.grad.float()


def new_tensors(parameters, make_optimizer):
    low, high, optimizer = make_masters(parameters, make_optimizer)

    def step():
        bring_gradients(low, high)
        optimizer.step()
        for p, q in zip(low, high, strict=True):
            p.data = q.to(p.dtype)

    return step


def never_back(parameters, make_optimizer):
    low, high, optimizer = make_masters(parameters, make_optimizer)

    def step():
        bring_gradients(low, high)
        optimizer.step()

    return step


def find_largest(gradients):
    largest = max(g.abs().max().item() for g in gradients)
    if not math.isfinite(largest):
        raise ValueError("not finite")
    return largest


def not_a_power(gradients, dtype):
    largest = find_largest(gradients)
    return torch.finfo(dtype).max / largest if largest else 1.0


def rounded_up(gradients, dtype):
    largest = find_largest(gradients)
    if not largest:
        return 1.0
    return 2.0 ** math.ceil(math.log2(torch.finfo(dtype).max / largest))


def never_below_one(gradients, dtype):
    largest = find_largest(gradients)
    power = math.floor(math.log2(torch.finfo(dtype).max / largest)) if largest else 0
    return 2.0 ** max(0, power)


def just_add(weight, lost, update):
    weight += update


def wrong_sign(weight, lost, update):
    step = update - lost
    new = weight + step
    lost.copy_(step - (new - weight))
    weight.copy_(new)


def wide(weight, lost, update):
    exact = weight.float() + lost.float() + update.float()
    weight.copy_(exact)
    lost.copy_(exact - weight.float())


WRONG = {
    "round_stochastically": [nearest, too_coarse_below, one_draw],
    "master": [no_masters, new_tensors, never_back],
    "find_scale": [not_a_power, rounded_up, never_below_one],
    "add_compensated": [just_add, wrong_sign, wide],
}
