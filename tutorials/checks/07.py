"""Checks of chapter 07's exercises."""

import copy
import functools

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.functional import cross_entropy


def accumulate_tokens(accumulate_tokens):
    """Add the gradient of the whole batch, whatever counts in which part."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(11, 6), nn.Tanh(), nn.Linear(6, 11))
    sizes = []
    model.register_forward_pre_hook(lambda model, inputs: sizes.append(len(inputs[0])))
    for texts, parts in [(8, 1), (10, 4), (7, 7)]:
        inputs = torch.randint(11, (texts, 9))
        targets = torch.randint(11, (texts, 9))
        targets[0] = -100
        targets[1, 3:] = -100
        loss = cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        model.zero_grad()
        loss.backward()
        before = [p.grad.clone() for p in model.parameters()]
        sizes.clear()
        accumulate_tokens(model, inputs, targets, parts)
        case = f"{texts} texts in {parts} parts"
        assert len(sizes) == parts and sum(sizes) == texts, (
            f"{case}: it takes {sizes} texts"
        )
        assert max(sizes) <= min(sizes) + 1, f"{case}: it takes {sizes} texts"
        for p, gradient in zip(model.parameters(), before, strict=True):
            added = p.grad - gradient
            assert torch.allclose(added, gradient, rtol=1e-3, atol=1e-6), (
                f"{case}: it adds a gradient of length {added.norm():.3g}; that of the "
                f"whole batch, in which {(targets >= 0).sum()} targets count, has "
                f"{gradient.norm():.3g}"
            )
    return "the gradient of the whole batch, however it is split."


class _Block(nn.Module):
    """A block with dropout that notes when it runs."""

    def __init__(self, number, order):
        super().__init__()
        layers = nn.Linear(8, 64), nn.GELU(), nn.Dropout(0.3), nn.Linear(64, 8)
        self.layers = nn.Sequential(*layers)
        self.number = number
        self.order = order

    def forward(self, x):
        self.order.append(self.number)
        return self.layers(x)


def run_checkpointed(run_checkpointed):
    """Run each block twice, save little, and draw the plain loop's dropout."""
    torch.manual_seed(0)
    _compare_with_plain_loop(run_checkpointed, torch.randn(16, 8, requires_grad=True))
    _compare_with_plain_loop(run_checkpointed, torch.randn(16, 8))
    return "each block keeps its input only, and runs once more."


def _compare_with_plain_loop(run_checkpointed, x):
    order = []
    saved = []

    def note(tensor):
        saved.append(tensor)
        return tensor

    blocks = nn.ModuleList(_Block(number, order) for number in range(3))
    torch.manual_seed(1)
    plain = x
    for block in blocks:
        plain = block(plain)
    gradients = torch.autograd.grad(plain.square().sum(), [*blocks.parameters()])
    order.clear()
    torch.manual_seed(1)
    with saved_tensors_hooks(note, lambda tensor: tensor):
        found = run_checkpointed(blocks, x)
    case = f"where x.requires_grad is {x.requires_grad}"
    assert torch.equal(found, plain), f"{case}, the result is not the plain loop's"
    assert found.requires_grad, f"{case}, the result has no gradient"
    assert len(saved) <= 6, f"{case}, {len(saved)} tensors are saved for backward"
    found.square().sum().backward()
    right = [0, 1, 2, 2, 1, 0]
    assert order == right, f"{case}, blocks run in the order {order}; {right} is right"
    for p, gradient in zip(blocks.parameters(), gradients, strict=True):
        assert torch.allclose(p.grad, gradient, rtol=1e-4, atol=1e-6), (
            f"{case}, the gradients are not the plain loop's"
        )


def update_in_backward(update_in_backward):
    """Update as usual, and never hold two gradients."""
    sgd = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)
    adam = functools.partial(torch.optim.Adam, lr=0.05)
    _compare_with_usual_update(update_in_backward, sgd)
    _compare_with_usual_update(update_in_backward, adam)
    return "the usual updates, and one gradient at a time."


def _compare_with_usual_update(update_in_backward, make_optimizer):
    torch.manual_seed(0)
    first, frozen, again = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)
    again.weight = first.weight
    frozen.requires_grad_(False)
    usual = nn.Sequential(first, nn.Tanh(), frozen, nn.Tanh(), again)
    early = copy.deepcopy(usual)
    optimizer = make_optimizer([p for p in usual.parameters() if p.requires_grad])
    update_in_backward(early, make_optimizer)
    learned = [p for p in early.parameters() if p.requires_grad]
    counts = []

    def count_gradients(_):
        counts.append(sum(p.grad is not None for p in learned))

    for p in learned:
        p.register_post_accumulate_grad_hook(count_gradients)
    for step in range(1, 4):
        x = torch.randn(4, 6)
        usual(x).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        early(x).square().sum().backward()
        for p, right in zip(early.parameters(), usual.parameters(), strict=True):
            assert torch.allclose(p, right, rtol=1e-4, atol=1e-6), (
                f"after step {step} of {type(optimizer).__name__} a parameter is "
                f"{p.flatten()[0]:.4g}; {right.flatten()[0]:.4g} is right"
            )
    assert max(counts) <= 1, f"{max(counts)} gradients are there at once"
    count_gradients(None)
    assert counts[-1] == 0, f"after backward {counts[-1]} gradients are left"
