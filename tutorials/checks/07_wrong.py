"""Plausible wrong answers to the exercises of chapter 07: the checks refuse them."""

import torch
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint


def split(inputs, targets, parts):
    return zip(inputs.tensor_split(parts), targets.tensor_split(parts), strict=True)


def find_loss(model, x, y, reduction="mean"):
    return cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction=reduction)


def mean_of_means(model, inputs, targets, parts):
    for x, y in split(inputs, targets, parts):
        (find_loss(model, x, y) / parts).backward()


def all_at_once(model, inputs, targets, parts):
    find_loss(model, inputs, targets).backward()


def by_places(model, inputs, targets, parts):
    for x, y in split(inputs, targets, parts):
        (find_loss(model, x, y, "sum") / targets.numel()).backward()


def plain_loop(blocks, x):
    for block in blocks:
        x = block(x)
    return x


def one_segment(blocks, x):
    return checkpoint(plain_loop, blocks, x, use_reentrant=False)


def other_dropout(blocks, x):
    for block in blocks:
        x = checkpoint(block, x, use_reentrant=False, preserve_rng_state=False)
    return x


def in_order(lengths, tokens):
    batches = [[]]
    for index in range(len(lengths)):
        some = [*batches[-1], index]
        if len(some) * max(lengths[i] for i in some) > tokens:
            batches.append([])
        batches[-1].append(index)
    return [batch for batch in batches if batch]


def short_ones_first(lengths, tokens):
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    return [[order[i] for i in batch] for batch in in_order(sorted(lengths), tokens)]


def one_by_one(lengths, tokens):
    return [[index] for index in range(len(lengths))]


def keeps_gradients(model, make_optimizer):
    for p in (p for p in model.parameters() if p.requires_grad):
        optimizer = make_optimizer([p])
        p.register_post_accumulate_grad_hook(lambda _, step=optimizer.step: step())


def forgets_the_state(model, make_optimizer):
    def update(p):
        make_optimizer([p]).step()
        p.grad = None

    for p in (p for p in model.parameters() if p.requires_grad):
        p.register_post_accumulate_grad_hook(update)


def too_early(model, make_optimizer):
    """A gradient hook runs before the gradient is in `.grad`, once per use."""
    for p in (p for p in model.parameters() if p.requires_grad):
        optimizer = make_optimizer([p])

        def update(gradient, p=p, optimizer=optimizer):
            with torch.no_grad():
                p.grad = gradient.clone()
                optimizer.step()
                p.grad = None

        p.register_hook(update)


WRONG = {
    "accumulate_tokens": [mean_of_means, all_at_once, by_places],
    "run_checkpointed": [plain_loop, one_segment, other_dropout],
    "make_batches": [in_order, short_ones_first, one_by_one],
    "update_in_backward": [keeps_gradients, forgets_the_state, too_early],
}
