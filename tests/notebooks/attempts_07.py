"""Plausible wrong answers to the exercises of chapter 07: checks refuse them."""

import torch
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint


def _split(inputs, targets, parts):
    return zip(inputs.tensor_split(parts), targets.tensor_split(parts), strict=True)


def _loss(model, x, y, reduction="mean"):
    return cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction=reduction)


def _mean_of_means(model, inputs, targets, parts):
    for x, y in _split(inputs, targets, parts):
        (_loss(model, x, y) / parts).backward()


def _by_texts(model, inputs, targets, parts):
    for x, y in _split(inputs, targets, parts):
        if (y >= 0).any():
            (_loss(model, x, y) * len(x) / len(inputs)).backward()


def _all_at_once(model, inputs, targets, parts):
    _loss(model, inputs, targets).backward()


def _by_places(model, inputs, targets, parts):
    for x, y in _split(inputs, targets, parts):
        (_loss(model, x, y, "sum") / targets.numel()).backward()


def _forgets_what_was_there(model, inputs, targets, parts):
    model.zero_grad()
    for x, y in _split(inputs, targets, parts):
        (_loss(model, x, y, "sum") / (targets >= 0).sum()).backward()


def _plain_loop(blocks, x):
    for block in blocks:
        x = block(x)
    return x


def _one_segment(blocks, x):
    return checkpoint(_plain_loop, blocks, x, use_reentrant=False)


def _old_form(blocks, x):
    for block in blocks:
        x = checkpoint(block, x, use_reentrant=True)
    return x


def _other_dropout(blocks, x):
    for block in blocks:
        x = checkpoint(block, x, use_reentrant=False, preserve_rng_state=False)
    return x


def _no_gradient(blocks, x):
    with torch.no_grad():
        return _plain_loop(blocks, x)


def _in_order(lengths, tokens):
    batches = [[]]
    for index in range(len(lengths)):
        some = [*batches[-1], index]
        if len(some) * max(lengths[i] for i in some) > tokens:
            batches.append([])
        batches[-1].append(index)
    return [batch for batch in batches if batch]


def _sorted(lengths, tokens):
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    return [[order[i] for i in b] for b in _in_order(sorted(lengths), tokens)]


def _one_by_one(lengths, tokens):
    return [[index] for index in range(len(lengths))]


def _padding_is_free(lengths, tokens):
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    batches, used = [[]], 0
    for index in order:
        if batches[-1] and used + lengths[index] > tokens:
            batches.append([])
            used = 0
        batches[-1].append(index)
        used += lengths[index]
    return batches[::2] + batches[1::2]


def _drops_the_rest(lengths, tokens):
    size = tokens // max(lengths)
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    return [order[i : i + size] for i in range(0, len(order) - size, size)]


def _keeps_gradients(model, make_optimizer):
    for p in (p for p in model.parameters() if p.requires_grad):
        optimizer = make_optimizer([p])
        p.register_post_accumulate_grad_hook(lambda _, step=optimizer.step: step())


def _forgets_the_state(model, make_optimizer):
    def update(p):
        make_optimizer([p]).step()
        p.grad = None

    for p in (p for p in model.parameters() if p.requires_grad):
        p.register_post_accumulate_grad_hook(update)


def _does_nothing(model, make_optimizer):
    return make_optimizer([p for p in model.parameters() if p.requires_grad])


def _too_early(model, make_optimizer):
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
    "accumulate_tokens": [
        _mean_of_means,
        _by_texts,
        _all_at_once,
        _by_places,
        _forgets_what_was_there,
    ],
    "run_checkpointed": [
        _plain_loop,
        _one_segment,
        _old_form,
        _other_dropout,
        _no_gradient,
    ],
    "make_batches": [
        _in_order,
        _sorted,
        _one_by_one,
        _padding_is_free,
        _drops_the_rest,
    ],
    "update_in_backward": [
        _keeps_gradients,
        _forgets_the_state,
        _does_nothing,
        _too_early,
    ],
}
