"""Checks of chapter 12's exercises: each calls the reader's code and watches it."""

import itertools
import threading

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def bytes_sent(bytes_sent):
    """The bytes of DDP's buckets, times what a ring sends of each."""
    for told, net in _make_nets().items():
        gradients = _watch_buckets(net)
        for ranks in (1, 2, 3, 8):
            wanted = 2 * (ranks - 1) / ranks * gradients
            found = bytes_sent(net, ranks)
            assert isinstance(found, int | float), (
                f"it returns {found!r:.60}, not a number of bytes"
            )
            assert abs(found - wanted) <= 1, (
                f"{told}, ranks={ranks}: DDP averages {gradients:,} bytes of "
                f"gradients, so a rank sends {wanted:,.0f}, and it says {found:,.0f}"
            )
    return "the bytes are those that DDP's buckets hold, times 2 (n - 1) / n."


def _make_nets():
    frozen = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))
    frozen[0].requires_grad_(False)
    tied = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    tied[2].weight = tied[0].weight
    return {
        "two convolutions": nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 2, 3)),
        "batch norm, whose buffers are no gradients": nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)
        ),
        "a layer that does not learn": frozen,
        "two layers with one weight": tied,
        "numbers of 16 bits": nn.Linear(8, 4).bfloat16(),
    }


def _watch_buckets(net):
    """Return the bytes in the buckets of one step, on a group of this process alone."""
    assert not dist.is_initialized(), (
        "this process belongs to a process group; run the check in the notebook"
    )
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        parallel, sizes = DistributedDataParallel(net), []

        def note(group, bucket):
            sizes.append(bucket.buffer().nbytes)
            return allreduce_hook(group, bucket)

        parallel.register_comm_hook(None, note)
        first = next(net.parameters())
        shape = (2, 1, 8, 8) if first.ndim == 4 else (2, 8)
        parallel(torch.ones(shape, dtype=first.dtype)).sum().backward()
    finally:
        dist.destroy_process_group()
        net.zero_grad()
    return sum(sizes)


def epochs_from(epochs_from):
    """The batches of a run that was never interrupted, from any epoch, on any rank."""
    for shuffle, rank in itertools.product((True, False), range(2)):
        whole = [_one_epoch(epoch, rank, shuffle) for epoch in range(5)]
        for start in (0, 2):
            found, loader = [], _make_loader(rank, shuffle)
            batches = epochs_from(loader, start)
            for epoch in whole[start:]:
                some = list(itertools.islice(batches, len(epoch)))
                assert len(some) == len(epoch), (
                    f"it ends after {len(found)} epochs, and should go on for ever"
                )
                found.append([batch.tolist() for batch in some])
            who = f"rank {rank} from epoch {start}"
            assert found[0] == whole[start], (
                f"{who}: its first batches are {found[0]}; a run that was not "
                f"interrupted has {whole[start]} in that epoch"
            )
            assert found[1] == whole[start + 1], (
                f"{who}: in the epoch after that its batches are {found[1]}, and a run "
                f"that was not interrupted has {whole[start + 1]}"
            )
            assert found == whole[start:], f"{who}: later epochs have another order"
    return "every epoch has the order that it would have had."


def _make_loader(rank, shuffle):
    samples = list(range(12))
    sampler = DistributedSampler(samples, num_replicas=2, rank=rank, shuffle=shuffle)
    return DataLoader(samples, batch_size=2, sampler=sampler)


def _one_epoch(epoch, rank, shuffle):
    loader = _make_loader(rank, shuffle)
    loader.sampler.set_epoch(epoch)
    return [batch.tolist() for batch in loader]


def local_loss(local_loss):
    """The mean over ranks of its gradients is that of the mean over all images."""
    for sizes in ((4, 4), (3, 1), (5, 0, 2)):
        images = torch.linspace(-1, 2, 2 * sum(sizes)).reshape(-1, 2)
        weights = torch.tensor([0.5, -0.3], requires_grad=True)
        _losses(images, weights).mean().backward()
        found = _run_ranks(local_loss, images.split(sizes), weights.detach())
        wanted = [round(x, 3) for x in weights.grad.tolist()]
        told = [round(x, 3) for x in found.tolist()]
        assert torch.allclose(found, weights.grad, rtol=1e-3, atol=1e-5), (
            f"with {' + '.join(map(str, sizes))} images on {len(sizes)} ranks, the mean"
            f" of the ranks' gradients is {told}; that of all images is {wanted}"
        )
    return "uneven parts of a batch have the gradient of the whole batch."


def _losses(images, weights):
    return (images @ weights - 1).square()


def _run_ranks(local_loss, parts, weights):
    """Run it in a thread for each rank; return the mean of the gradients."""
    ranks, slots = len(parts), [None] * len(parts)
    meeting, grads, errors = threading.Barrier(ranks, timeout=5), {}, []

    def act(rank):
        def add_up(value):
            slots[rank] = torch.as_tensor(value, dtype=torch.float32).detach().clone()
            meeting.wait()
            total = sum(slots)
            meeting.wait()  # nobody brings the next value before all have this sum
            return total

        own = weights.clone().requires_grad_()
        try:
            loss = local_loss(_losses(parts[rank], own), add_up, ranks)
            loss.backward()
            grads[rank] = torch.zeros(2) if own.grad is None else own.grad
        except Exception as error:
            errors.append(error)
            meeting.abort()

    threads = [threading.Thread(target=act, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    real = [e for e in errors if not isinstance(e, threading.BrokenBarrierError)]
    if real:
        raise real[0]
    assert not errors, (
        "a rank waits for the others in add_up(), and they do not come: every rank "
        "must call it as often, also one without images"
    )
    return sum(grads.values()) / ranks
