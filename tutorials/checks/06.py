"""Checks of chapter 06's exercises."""

import torch
from torch import nn
from torch.nn.functional import batch_norm

from kit.teaching import expect


def largest_batch(largest_batch):
    """Find the largest whole batch on the line, or 0."""
    sizes = [2, 8, 32, 64]
    on_line = [300e6 + 2.5e6 * size for size in sizes]
    cases = [
        ((sizes[:2], on_line[:2], 804e6), 201),
        ((sizes, on_line, 801e6), 200),
        ((sizes[::-1], on_line[::-1], 304e6), 1),
        ((sizes, on_line, 301e6), 0),
        ((sizes, on_line, 100e6), 0),
    ]
    expect(largest_batch, cases, hint="One image takes 302.5 MB here, and two 305 MB.")
    scatter = (1.01, 0.99, 1.01, 0.99)
    amounts = [factor * amount for factor, amount in zip(scatter, on_line, strict=True)]
    hint = "Near enough is right here: do all measurements count?"
    expect(largest_batch, [((sizes, amounts, 800e6), 200)], rel=0.15, hint=hint)
    return "it finds the last batch that fits, also from many measurements."


def follow(follow):
    """Raise both groups' rates in equal steps."""

    def list_rates(k, steps):
        groups = [{"params": [nn.Parameter(torch.ones(1))], "lr": 0.1}]
        groups += [{"params": [nn.Parameter(torch.ones(1))], "lr": 0.02}]
        optimizer = torch.optim.SGD(groups)
        scheduler = follow(optimizer, k, steps)
        rates = []
        for _ in range(6):
            rates.append([group["lr"] for group in optimizer.param_groups])
            optimizer.step()
            scheduler.step()
        return rates

    rising = [[0.1, 0.02], [0.2, 0.04], [0.3, 0.06], [0.4, 0.08]]
    at_once = [[0.1, 0.02], *[[0.4, 0.08]] * 5]
    cases = [((4, 3), [*rising, rising[-1], rising[-1]]), ((4, 1), at_once)]
    expect(list_rates, cases, hint="These are k, steps, and the rates of six steps.")
    return "each group starts where it was, and ends k times as high."


def ghost_norm(ghost_norm):
    """Compute the outputs and gradients of devices with n images each."""
    torch.manual_seed(0)
    for images, n in ((8, 2), (10, 4), (5, 16)):
        x = torch.randn(images, 3, 4, 5) * torch.arange(1, images + 1).view(-1, 1, 1, 1)
        x.requires_grad_()
        weights = torch.randn_like(x)
        found = ghost_norm(x, n)
        parts = [batch_norm(part, None, None, training=True) for part in x.split(n)]
        right = torch.cat(parts)
        case = f"{images} images in groups of {n}"
        assert found.shape == x.shape, f"{case}: the shape is {tuple(found.shape)}"
        off = (found - right).abs().max()
        assert off < 1e-3, f"{case}: outputs are off by up to {off:.2g}"
        (gradient,) = torch.autograd.grad((found * weights).sum(), x)
        (right_gradient,) = torch.autograd.grad((right * weights).sum(), x)
        off = (gradient - right_gradient).abs().max()
        assert off < 1e-3, f"{case}: gradients are off by up to {off:.2g}"
    return "it is what so many devices compute, gradients included."
