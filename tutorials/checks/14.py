"""Checks of chapter 14's exercises: what a hook keeps, and a short training."""

import functools
import inspect
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn

from kit.ranks import RankError

_STEPS = 60

# 1. Keep the rest


def keep_the_rest(keep_the_rest):
    """Whatever a hook leaves out, all of it is sent in the end."""
    torch.manual_seed(0)
    names = ["sends the two largest entries", "sends every third time"]
    send = {
        names[0]: keep_the_rest(_send_largest),
        names[1]: keep_the_rest(_make_rare()),
    }
    lost = {name: torch.zeros(10) for name in names}
    for step in range(40):
        for name in names:  # in turn: each keeps a rest of its own
            gradient = torch.randn(10) if step < 20 else torch.zeros(10)
            before = gradient.clone()
            lost[name] += gradient - send[name](gradient)
            assert torch.equal(gradient, before), (
                f"a hook that {name}, call {step + 1}: it changes the gradient."
            )
    for name in names:
        most = lost[name].abs().max()
        assert most < 1e-4, (
            f"a hook that {name}: after 20 gradients and 20 zeros the sum of what was "
            f"sent is off by {most:.3g}; nothing may be lost."
        )
    return "what is left out comes later: nothing is lost."


def _send_largest(gradient):
    places = gradient.abs().topk(2).indices
    return torch.zeros_like(gradient).index_copy(0, places, gradient[places])


def _make_rare():
    calls = []

    def hook(gradient):
        calls.append(1)
        return gradient.clone() if len(calls) % 3 == 0 else torch.zeros_like(gradient)

    return hook


# 2. Half the bytes


def half(half, ranks):
    """Half of DDP's bytes, equal ranks, and the loss that DDP reaches without it."""

    @functools.wraps(half)
    def train_with_hook():
        return _train(half)

    try:
        plain = ranks.run(_train)
        found = ranks.run(train_with_hook)
    except RankError as error:
        raise AssertionError(str(error).splitlines()[0]) from error
    first, second = (weights for weights, _, _ in found)
    assert torch.allclose(first, second, rtol=1e-3, atol=1e-4, equal_nan=True), (
        "the two ranks end with different weights: what the future holds must be the "
        "same on all ranks."
    )
    usual = 4 * len(first) * _STEPS
    share = max(sent for _, sent, _ in found) / usual
    assert 0 < share <= 0.505, (  # a scale for each bucket is no fault
        f"in {_STEPS} steps a rank hands {share:.1%} of {usual:,} bytes to "
        "dist.all_reduce and dist.all_gather; up to 50% are right."
    )
    loss, right = found[0][2], plain[0][2]
    assert abs(loss / right - 1) <= 0.02, (
        f"after {_STEPS} steps the loss is {loss:.4f}, and without the hook "
        f"{right:.4f}. Are gradients lost, or added up without taking the mean?"
    )
    return f"it sends {share:.0%} of the bytes, and the loss is the same."


def _train(half=None):
    """Return the weights after some steps, the bytes sent in them, and the loss.

    After the first step DDP lays out its buckets anew, so the hook comes after it.
    """
    net = nn.parallel.DistributedDataParallel(_make_net(), bucket_cap_mb=0.005)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    sent = []
    with (
        mock.patch.object(dist, "all_reduce", _count_bytes(dist.all_reduce, sent)),
        mock.patch.object(dist, "all_gather", _count_bytes(dist.all_gather, sent)),
    ):
        for step in range(_STEPS + 1):
            if step == 1 and half is not None:
                net.register_comm_hook(*half(dist.group.WORLD))
            optimizer.zero_grad()
            _find_loss(net, dist.get_rank(), step, 16).backward()
            optimizer.step()
    with torch.no_grad():
        losses = [_find_loss(net.module, rank, _STEPS + 1, 2000) for rank in (0, 1)]
    weights = nn.utils.parameters_to_vector(net.parameters()).detach()
    return weights, sum(sent), sum(losses).item() / 2


def _count_bytes(function, sent):
    @functools.wraps(function)
    def counted(*args, **options):
        named = inspect.signature(function).bind(*args, **options).arguments
        sent.append(named["tensor"].nbytes)
        return function(*args, **options)

    return counted


def _make_net():
    torch.manual_seed(1)
    first, second, third = (nn.Linear(32, 32, bias=False) for _ in range(3))
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), third)


def _find_loss(net, rank, step, images):
    """Return the loss of a batch, which is another one on each rank."""
    generator = torch.Generator().manual_seed(1000 * rank + step)
    x = torch.randn(images, 32, generator=generator)
    x[:, 16 * rank : 16 * rank + 16] *= 0.5
    return (net(x) - x.roll(1, dims=1).abs()).square().mean()
