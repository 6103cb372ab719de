"""Checks of chapter 01's exercises: each calls the reader's code and watches it."""

import weakref

import numpy as np
import torch
from torch import nn


def shares(shares):
    """Whether two descriptions have a number in common."""
    x, array = torch.zeros(4, 6), np.zeros(8, dtype=np.float32)
    cases = [
        ("x and x.view(24)", x, x.view(24), True),
        ("x and x.T", x, x.T, True),
        ("x and x.clone()", x, x.clone(), False),
        ("x and x[[0, 1]]", x, x[[0, 1]], False),
        ("x[:2] and x[1:]", x[:2], x[1:], True),
        ("x[:2] and x[2:]", x[:2], x[2:], False),
        ("x[:, ::2] and x[:, 1::2]", x[:, ::2], x[:, 1::2], False),
        ("an array and torch.from_numpy of it", array, torch.from_numpy(array), True),
        ("an array and torch.tensor of it", array, torch.tensor(array), False),
        ("x.numpy() and x[3]", x.numpy(), x[3], True),
        ("two tensors", torch.zeros(3), torch.zeros(3), False),
    ]
    for case, a, b, wanted in cases:
        for first, second in ((a, b), (b, a)):
            before = [torch.as_tensor(each).clone() for each in (first, second)]
            found = shares(first, second)
            assert found == wanted, f"{case}: it says {found}"
            after = [torch.as_tensor(each) for each in (first, second)]
            is_kept = all(map(torch.equal, before, after))
            assert is_kept, f"{case}: it left other numbers behind"
    return "views, slices and arrays are told apart, number by number."


class _Token:
    """Lives as long as the graph that holds it."""


class _Watch(torch.autograd.Function):
    """Passes numbers on, and leaves a token in the graph."""

    @staticmethod
    def forward(context, x, tokens):
        context.token = _Token()
        tokens.append(weakref.ref(context.token))
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        return gradient, None


class _Watched(nn.Module):
    """A linear layer that knows which of its graphs are alive."""

    def __init__(self):
        super().__init__()
        self.layer, self.tokens = nn.Linear(3, 3), []

    def forward(self, x):
        return _Watch.apply(self.layer(x), self.tokens)


def _leaky(network, batches):
    """Return average and best output as the leaky trainer has them."""
    average, best = 0.0, None
    for x in batches:
        output = network(x)
        loss = output.square().mean()
        loss.backward()
        average = 0.9 * average + 0.1 * loss.item()
        if best is None or loss.item() < best[0]:
            best = loss.item(), output.detach()
    return average, best


def no_leak(make_trainer):
    """The same results, and no graph that outlives its step."""
    torch.manual_seed(0)
    batches = torch.randn(6, 5, 3)
    batches[2] /= 10
    network, twin = _Watched(), _Watched()
    twin.load_state_dict(network.state_dict())
    average, (least, output) = _leaky(twin, batches)
    trainer = make_trainer(network)
    for x in batches:
        found = trainer.step(x)
    found = float(torch.as_tensor(found).detach())
    assert abs(found - average) < 1e-5, (
        f"the average is {found:.4f}, and of the trainer above {average:.4f}"
    )
    assert trainer.best is not None, "it has no `best`"
    loss, best = trainer.best
    assert abs(float(loss) - least) < 1e-5, (
        f"the smallest loss is {float(loss):.4f}, and it should be {least:.4f}"
    )
    assert torch.equal(best.detach(), output), "`best` is not the output with that loss"
    trained = [p.grad is not None for p in network.parameters()]
    assert all(trained), "after its steps the network has no gradients"
    assert _gradient(network) == _gradient(twin), "its gradients are others"
    del found, loss, best
    alive = sum(token() is not None for token in network.tokens)
    assert alive == 0, (
        f"after {len(batches)} steps the graphs of {alive} are still held"
    )
    return "the same results, and no graph outlives its step."


def _gradient(network):
    return [p.grad.tolist() for p in network.parameters()]


class _Counting(torch.autograd.Function):
    """Passes numbers on, and counts when a gradient passes back."""

    @staticmethod
    def forward(context, x, counts):
        context.counts = counts
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        context.counts.append(1)
        return gradient, None


class _Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.back, self.calls = nn.Linear(4, 6), [], 0

    def forward(self, noise):
        self.calls += 1
        return _Counting.apply(self.layer(noise).tanh(), self.back)


def detached(discriminator_step):
    """The same gradients in the discriminator, and none computed in the generator."""
    torch.manual_seed(0)
    generator, discriminator = _Generator(), nn.Linear(6, 1)
    real, noise = torch.randn(5, 6), torch.randn(5, 4)
    softplus = nn.functional.softplus
    wanted = softplus(-discriminator(real)).mean()
    wanted = wanted + softplus(discriminator(generator(noise).detach())).mean()
    gradients = torch.autograd.grad(wanted, [*discriminator.parameters()])
    generator.calls = 0
    for parameter in generator.parameters():
        parameter.grad = torch.full_like(parameter, 3)
    loss = discriminator_step(generator, discriminator, real, noise)
    assert abs(loss - wanted.item()) < 1e-6, f"the loss is {loss}, not {wanted.item()}"
    assert generator.calls == 1, f"the generator was called {generator.calls} times"
    for parameter, gradient in zip(discriminator.parameters(), gradients, strict=True):
        assert parameter.grad is not None, "the discriminator has no gradients"
        assert torch.allclose(parameter.grad, gradient, atol=1e-6), (
            "the discriminator's gradients are others"
        )
    assert not generator.back, "gradients still go back through the generator"
    needed = [parameter.requires_grad for parameter in generator.parameters()]
    assert all(needed), "afterwards the generator cannot be trained any more"
    for parameter in generator.parameters():
        kept = parameter.grad is None or not parameter.grad.count_nonzero()
        same = parameter.grad is not None and bool((parameter.grad == 3).all())
        assert kept or same, "the generator's gradients are neither as before nor zero"
    return "the discriminator learns, and nothing goes back through the generator."


def knee(predict_knee):
    """Where the straight line has twice its value at zero."""
    for fixed, each in [(1e-6, 1e-10), (2e-6, 1e-9), (5e-3, 1e-3), (1.0, 0.5)]:
        for sizes in [(1, 10_000), (100, 200), (10, 1_000_000)]:
            seconds = [fixed + each * n for n in sizes]
            found, wanted = predict_knee(sizes, seconds), fixed / each
            points = zip(sizes, seconds, strict=True)
            case = ", ".join(f"{time:.3g} s for {size}" for size, time in points)
            assert abs(found / wanted - 1) < 1e-3, (
                f"{case}: it says {found:.6g}. At {wanted:.6g} it takes twice as long "
                "as at size zero"
            )
    return "the size at which arithmetic costs as much as the call."
