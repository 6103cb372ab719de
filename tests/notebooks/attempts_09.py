"""Plausible wrong answers to the exercises of chapter 09: checks refuse them."""

import math

import torch


def _nearest(x, dtype):
    return x.to(dtype)


def _too_coarse_below(x, dtype):
    """Forgets that subnormal numbers all have the same gap."""
    gap = torch.finfo(dtype).eps * 2.0 ** (torch.frexp(x)[1] - 1)
    return ((x / gap + torch.rand_like(x)).floor() * gap).to(dtype)


def _noise_then_nearest(x, dtype):
    """Adds noise of a whole gap in each direction: more than two neighbours."""
    gap = torch.finfo(dtype).eps * x.abs()
    return (x + gap * (2 * torch.rand_like(x) - 1)).to(dtype)


def _a_coin(x, dtype):
    """Up or down with equal probability, wherever between them it is."""
    info = torch.finfo(dtype)
    power = torch.frexp(x.abs().clamp(min=info.smallest_normal))[1] - 1
    gap = info.eps * 2.0**power
    up = torch.rand_like(x) < 0.5
    return (torch.where(up, (x / gap).ceil(), (x / gap).floor()) * gap).to(dtype)


def _one_draw(x, dtype):
    info = torch.finfo(dtype)
    power = torch.frexp(x.abs().clamp(min=info.smallest_normal))[1] - 1
    gap = info.eps * 2.0**power
    return ((x / gap + torch.rand(())).floor() * gap).to(dtype)


def _no_masters(parameters, make_optimizer):
    return make_optimizer(list(parameters)).step


def _masters_forget(parameters, make_optimizer):
    """Rounds the masters as well, after each step."""
    low = list(parameters)
    high = [p.detach().float() for p in low]
    optimizer = make_optimizer(high)

    def step():
        for p, q in zip(low, high, strict=True):
            q.data.copy_(p.data)
            q.grad = None if p.grad is None else p.grad.float()
        optimizer.step()
        for p, q in zip(low, high, strict=True):
            p.data.copy_(q)

    return step


def _new_tensors(parameters, make_optimizer):
    low = list(parameters)
    high = [p.detach().float() for p in low]
    optimizer = make_optimizer(high)

    def step():
        for p, q in zip(low, high, strict=True):
            q.grad = None if p.grad is None else p.grad.float()
        optimizer.step()
        for p, q in zip(low, high, strict=True):
            p.data = q.to(p.dtype)

    return step


def _never_back(parameters, make_optimizer):
    low = list(parameters)
    high = [p.detach().float() for p in low]
    optimizer = make_optimizer(high)

    def step():
        for p, q in zip(low, high, strict=True):
            q.grad = None if p.grad is None else p.grad.float()
        optimizer.step()

    return step


def _not_a_power(gradients, dtype):
    largest = max(g.abs().max().item() for g in gradients)
    if not math.isfinite(largest):
        raise ValueError("not finite")
    return torch.finfo(dtype).max / largest if largest else 1.0


def _rounded_up(gradients, dtype):
    largest = max(g.abs().max().item() for g in gradients)
    if not math.isfinite(largest):
        raise ValueError("not finite")
    if not largest:
        return 1.0
    return 2.0 ** math.ceil(math.log2(torch.finfo(dtype).max / largest))


def _signed(gradients, dtype):
    largest = max(g.max().item() for g in gradients)
    if not math.isfinite(largest):
        raise ValueError("not finite")
    if largest <= 0:
        return 1.0
    return 2.0 ** math.floor(math.log2(torch.finfo(dtype).max / largest))


def _scales_what_is_infinite(gradients, dtype):
    scale = 2.0**40
    while any(((g * scale).abs() > torch.finfo(dtype).max).any() for g in gradients):
        scale /= 2
        if scale < 1e-30:
            break
    return scale if any(g.any() for g in gradients) else 1.0


def _never_below_one(gradients, dtype):
    largest = max(g.abs().max().item() for g in gradients)
    if not math.isfinite(largest):
        raise ValueError("not finite")
    power = math.floor(math.log2(torch.finfo(dtype).max / largest)) if largest else 0
    return 2.0 ** max(0, power)


def _just_add(weight, lost, update):
    weight += update


def _wrong_sign(weight, lost, update):
    step = update - lost
    new = weight + step
    lost.copy_(step - (new - weight))
    weight.copy_(new)


def _wide(weight, lost, update):
    exact = weight.float() + lost.float() + update.float()
    weight.copy_(exact)
    lost.copy_(exact - weight.float())


def _elsewhere(weight, lost, update):
    step = update + lost
    new = weight + step
    lost = step - (new - weight)
    weight = new


def _forgets_what_was_lost(weight, lost, update):
    new = weight + update
    lost.copy_(update - (new - weight))
    weight.copy_(new)


WRONG = {
    "round_stochastically": [
        _nearest,
        _too_coarse_below,
        _noise_then_nearest,
        _a_coin,
        _one_draw,
    ],
    "master": [_no_masters, _masters_forget, _new_tensors, _never_back],
    "find_scale": [
        _not_a_power,
        _rounded_up,
        _signed,
        _scales_what_is_infinite,
        _never_below_one,
    ],
    "add_compensated": [
        _just_add,
        _wrong_sign,
        _wide,
        _elsewhere,
        _forgets_what_was_lost,
    ],
}
