"""Checks of chapter 12's exercises; the last one runs on two ranks."""

import functools
from itertools import islice

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

from kit.ranks import RankError
from kit.teaching import expect

# 1. What travels


def bytes_sent(bytes_sent):
    """The bytes of all gradients, times what a ring sends of each."""
    frozen = nn.Sequential(nn.Linear(8, 8).requires_grad_(False), nn.Linear(8, 2))
    tied = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
    tied[1].weight = tied[0].weight
    nets = {
        "a convolution": nn.Conv2d(1, 4, 3),
        "batch norm": nn.BatchNorm2d(4),
        "a layer that does not learn, and one that does": frozen,
        "two layers with one weight": tied,
        "a layer in bfloat16": nn.Linear(8, 4).bfloat16(),
    }
    expect(
        lambda name, ranks: bytes_sent(nets[name], ranks),
        [
            (("a convolution", 1), 0),
            (("a convolution", 2), 160),
            (("batch norm", 8), 56),
            (("a layer that does not learn, and one that does", 2), 72),
            (("two layers with one weight", 2), 256),
            (("a layer in bfloat16", 3), 96),
        ],
        hint="Is each weight that learns counted once, and in its own format?",
    )
    return "the bytes are those that DDP's buckets hold, times 2 (n - 1) / n."


# 2. Interrupted and resumed


class _Loader(DataLoader):
    """A loader that ends an answer which asks an exhausted one for ever."""

    asked = 0

    def __iter__(self):
        self.batches = super().__iter__()
        return self

    def __next__(self):
        self.asked += 1
        assert self.asked < 100, "it asks for batches forever, and yields none."
        return next(self.batches)


def epochs_from(epochs_from):
    """The batches of a run that was never interrupted, from any epoch, on any rank."""
    for rank, start in ((0, 0), (1, 2)):
        loader = _make_loader(rank)
        right = []
        for epoch in range(start, start + 3):
            loader.sampler.set_epoch(epoch)
            right.append([batch.tolist() for batch in loader])
        batches = epochs_from(_make_loader(rank), start)
        for number, wanted in enumerate(right, start):
            found = [batch.tolist() for batch in islice(batches, len(wanted))]
            assert found == wanted, (
                f"rank {rank}, from epoch {start} on: in epoch {number} it yields "
                f"{found}; a run that was not interrupted has {wanted}."
            )
    return "every epoch has the order that it would have had."


def _make_loader(rank):
    numbers = list(range(12))
    sampler = DistributedSampler(numbers, num_replicas=2, rank=rank)
    return _Loader(numbers, batch_size=2, sampler=sampler)


# 3. Uneven parts


def local_loss(local_loss, ranks):
    """The mean over ranks of its gradients is that of the mean over all images."""

    @functools.wraps(local_loss)
    def find_gradient(parts):
        weights = torch.tensor([0.5, -0.3], requires_grad=True)
        losses = _find_losses(parts[dist.get_rank()], weights)
        local_loss(losses, _add_up, len(parts)).backward()
        return weights.grad

    for sizes in ((4, 4), (3, 1), (5, 0)):
        images = torch.linspace(-1, 2, 2 * sum(sizes)).reshape(-1, 2)
        weights = torch.tensor([0.5, -0.3], requires_grad=True)
        _find_losses(images, weights).mean().backward()
        found = sum(_run(ranks, find_gradient, images.split(sizes))) / len(sizes)
        assert torch.allclose(found, weights.grad, rtol=1e-3, atol=1e-5), (
            f"with {sizes} images on two ranks, the mean of the ranks' gradients is "
            f"{found}; {weights.grad} is right."
        )
    return "uneven parts of a batch have the gradient of the whole batch."


def _find_losses(images, weights):
    return (images @ weights - 1).square()


def _add_up(number):
    total = torch.as_tensor(number, dtype=torch.float32).detach().clone()
    dist.all_reduce(total)
    return total


def _run(ranks, function, *arguments):
    """Call it on all ranks; say in a sentence what a rank has raised."""
    try:
        return ranks.run(function, *arguments)
    except RankError as error:
        raise AssertionError(str(error).splitlines()[0]) from error
