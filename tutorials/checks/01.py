"""Checks of chapter 01's exercises."""

import math
import weakref

import numpy as np
import torch
from torch import nn
from torch.nn.functional import softplus

from kit.teaching import expect


def shares(shares):
    """Tell whether two descriptions have a number in common."""
    x = torch.zeros(4, 6)
    array = np.zeros(8, dtype=np.float32)
    shared = {
        "x and x.T": (x, x.T),
        "x.numpy() and x[3]": (x.numpy(), x[3]),
        "x[:2] and x[1:]": (x[:2], x[1:]),
        "an array and torch.from_numpy of it": (array, torch.from_numpy(array)),
    }
    apart = {
        "x and x.clone()": (x, x.clone()),
        "x[:2] and x[2:]": (x[:2], x[2:]),
        "x[:, ::2] and x[:, 1::2]": (x[:, ::2], x[:, 1::2]),
        "an array and torch.tensor of it": (array, torch.tensor(array)),
    }
    pairs = shared | apart
    cases = [((name,), name in shared) for name in pairs]
    expect(lambda name: shares(*pairs[name]), cases, hint="Compare addresses.")
    return "views, slices and arrays are told apart, number by number."


class _Token:
    """Lives as long as the graph that holds it."""


def no_leak(make_trainer):
    """Give the leaky trainer's results, and hold no graph after its step."""
    torch.manual_seed(0)
    batches = torch.randn(6, 5, 3)
    batches[2] /= 10
    network = nn.Linear(3, 3)
    outputs = [network(x).detach() for x in batches]
    losses = [output.square().mean().item() for output in outputs]
    average = 0.0
    for loss in losses:
        average = 0.9 * average + 0.1 * loss
    tokens = weakref.WeakSet()

    def put_token_into_graph(network, inputs, output):
        token = _Token()
        tokens.add(token)
        if output.requires_grad:
            output.register_hook(lambda gradient, token=token: None)

    network.register_forward_hook(put_token_into_graph)
    trainer = make_trainer(network)
    for x in batches:
        found = torch.as_tensor(trainer.step(x)).item()
    assert math.isclose(found, average, rel_tol=1e-4), (
        f"after 6 batches it returns {found:.4f}; {average:.4f} is right"
    )
    assert network.weight.grad is not None, "the network has no gradients"
    best = trainer.best[1].detach()
    assert torch.allclose(best, outputs[losses.index(min(losses))]), (
        "the output in `best` is not the one with the smallest loss"
    )
    assert not tokens, f"after 6 steps the graphs of {len(tokens)} are still held"
    return "the same results, and no graph outlives its step."


def detached(discriminator_step):
    """Compute the discriminator's gradients, and none of the generator's."""
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(4, 6), nn.Tanh())
    discriminator = nn.Linear(6, 1)
    real = torch.randn(5, 6)
    noise = torch.randn(5, 4)
    fake = generator(noise).detach()
    right = softplus(-discriminator(real)).mean() + softplus(discriminator(fake)).mean()
    (gradient,) = torch.autograd.grad(right, discriminator.weight)
    computed = []
    for p in generator.parameters():
        p.register_hook(computed.append)
    loss = discriminator_step(generator, discriminator, real, noise)
    assert math.isclose(loss, right.item(), rel_tol=1e-4), (
        f"it returns {loss:.4f}; {right.item():.4f} is right"
    )
    found = discriminator.weight.grad
    assert found is not None, "the discriminator has no gradients"
    assert torch.allclose(found, gradient, atol=1e-6), (
        f"the discriminator's gradient has the length {found.norm():.4f}; "
        f"{gradient.norm():.4f} is right"
    )
    assert not computed, f"it computes {len(computed)} gradients of the generator"
    assert all(p.requires_grad for p in generator.parameters()), (
        "afterwards the generator cannot be trained any more"
    )
    return "the discriminator learns, and nothing goes back through the generator."
