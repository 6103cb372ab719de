"""Plausible wrong answers to the exercises of chapter 12: checks refuse them."""


def _every_parameter(net, ranks):
    size = sum(parameter.nbytes for parameter in net.parameters())
    return 2 * (ranks - 1) / ranks * size


def _all_of_the_state(net, ranks):
    size = sum(tensor.nbytes for tensor in net.state_dict().values())
    return 2 * (ranks - 1) / ranks * size


def _four_bytes_each(net, ranks):
    learned = [p for p in net.parameters() if p.requires_grad]
    return 2 * (ranks - 1) / ranks * 4 * sum(p.numel() for p in learned)


def _gradients_only(net, ranks):
    return sum(p.nbytes for p in net.parameters() if p.requires_grad)


def _to_every_other_rank(net, ranks):
    size = sum(p.nbytes for p in net.parameters() if p.requires_grad)
    return (ranks - 1) * size


def _forgets_the_epoch(loader, start):
    while True:
        yield from loader


def _sets_the_first_epoch_only(loader, start):
    loader.sampler.set_epoch(start)
    while True:
        yield from loader


def _begins_at_zero(loader, start):
    epoch = 0
    while True:
        loader.sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


def _sets_it_too_late(loader, start):
    epoch = start
    while True:
        yield from loader
        loader.sampler.set_epoch(epoch)
        epoch += 1


def _ends(loader, start):
    loader.sampler.set_epoch(start)
    yield from loader


def _mean(losses, add_up, ranks):
    return losses.mean()


def _forgets_that_ddp_divides(losses, add_up, ranks):
    return losses.sum() / add_up(len(losses))


def _own_part_only(losses, add_up, ranks):
    return losses.sum() * ranks / (ranks * max(1, len(losses)))


def _stays_away_without_images(losses, add_up, ranks):
    if not len(losses):
        return losses.sum()
    return losses.sum() * ranks / add_up(len(losses))


def _adds_up_the_loss(losses, add_up, ranks):
    return losses.sum() * ranks / add_up(losses.sum())


WRONG = {
    "bytes_sent": [
        _every_parameter,
        _all_of_the_state,
        _four_bytes_each,
        _gradients_only,
        _to_every_other_rank,
    ],
    "epochs_from": [
        _forgets_the_epoch,
        _sets_the_first_epoch_only,
        _begins_at_zero,
        _sets_it_too_late,
        _ends,
    ],
    "local_loss": [_mean, _forgets_that_ddp_divides, _own_part_only, _adds_up_the_loss],
}
#: More of them, each of which takes long: `make test-all`.
MORE = {"local_loss": [_stays_away_without_images]}
