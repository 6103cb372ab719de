"""Plausible wrong answers to the exercises of chapter 12: the checks refuse them."""


def every_parameter(net, ranks):
    size = sum(parameter.nbytes for parameter in net.parameters())
    return 2 * (ranks - 1) / ranks * size


def gradients_only(net, ranks):
    return sum(p.nbytes for p in net.parameters() if p.requires_grad)


def four_bytes_each(net, ranks):
    learned = [p for p in net.parameters() if p.requires_grad]
    return 2 * (ranks - 1) / ranks * 4 * sum(p.numel() for p in learned)


def forgets_the_epoch(loader, start):
    while True:
        yield from loader


def begins_at_zero(loader, start):
    epoch = 0
    while True:
        loader.sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


def sets_it_too_late(loader, start):
    epoch = start
    while True:
        yield from loader
        loader.sampler.set_epoch(epoch)
        epoch += 1


def mean_of_its_own(losses, add_up, ranks):
    return losses.mean()


def forgets_that_ddp_divides(losses, add_up, ranks):
    return losses.sum() / add_up(len(losses))


WRONG = {
    "bytes_sent": [every_parameter, gradients_only, four_bytes_each],
    "epochs_from": [forgets_the_epoch, begins_at_zero, sets_it_too_late],
    "local_loss": [mean_of_its_own, forgets_that_ddp_divides],
}
