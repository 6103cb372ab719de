"""Checks of chapter 10's exercises: each calls the reader's code and watches it."""

import copy
import math
from collections import Counter

import torch
from torch import nn

_BF16 = torch.bfloat16
_SCALE = 2.0**10


# 1. and 2. With a scaler


def clip_and_step(clip_and_step):
    """The true gradients' norm is clipped, and a step that overflows is skipped."""

    def step(training, losses, max_norm=1.0):
        training.optimizer.zero_grad()
        clip_and_step(training.scaler, training.optimizer, next(losses), max_norm)

    for max_norm in (0.05, 50.0):
        mine, plain = _Training(), _Training()
        for number in range(1, 4):
            x = torch.randn(16, 6)
            step(mine, iter([mine.find_loss(x)]), max_norm)
            plain.step_plainly([x], max_norm)
            _compare(
                mine,
                plain,
                f"max_norm={max_norm}, step {number}",
                "Are all gradients unscaled, once, and then clipped together?",
            )
    _check_overflow(step, [math.inf])
    return "the true norm is clipped, once, and overflows are skipped."


def accumulate(accumulate):
    """One update by the sum of all parts, and none where one overflows."""

    def step(training, losses):
        accumulate(training.scaler, training.optimizer, losses)

    mine, plain = _Training(), _Training()
    for parameter in mine.net.parameters():
        parameter.grad = torch.full_like(parameter, 1e6)  # of an earlier batch
    for number in (1, 2):
        xs = [torch.randn(3, 6) for _ in range(4)]
        counts = Counter()
        step(mine, _count_graphs(mine, xs, counts))
        case = f"4 parts, step {number}"
        assert counts["most"] <= 1, (
            f"{case}: {counts['most']} graphs live at once; go backward through each "
            "loss before you take the next."
        )
        plain.step_plainly(xs)
        _compare(mine, plain, case, "Is it one update, by the sum of all parts?")
    for factors in ([math.inf, 1, 1], [1, math.inf, 1], [1, 1, math.inf]):
        _check_overflow(step, factors)
    return "one update for the batch, and none where a part overflows."


class _Training:
    def __init__(self):
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
        self.optimizer = torch.optim.SGD(self.net.parameters(), 0.01, momentum=0.9)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=_SCALE)

    def find_loss(self, x):
        return self.net(x).square().sum()

    def step_plainly(self, xs, max_norm=math.inf):
        """Take the step of a training without a scaler."""
        self.optimizer.zero_grad()
        for x in xs:
            self.find_loss(x).backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), max_norm)
        self.optimizer.step()

    def copy_weights(self):
        return nn.utils.parameters_to_vector(self.net.parameters()).detach().clone()


def _compare(mine, plain, case, hint):
    weights, wanted = mine.copy_weights(), plain.copy_weights()
    assert torch.allclose(weights, wanted, rtol=1e-4, atol=1e-6), (
        f"{case}: a weight is {(weights - wanted).abs().max():.2g} away from what a "
        f"step without a scaler makes of it. {hint}"
    )


def _check_overflow(step, factors):
    """A batch with an infinite loss changes the scale only; the next one trains."""
    training = _Training()
    before = training.copy_weights()
    case = f"losses times {factors}"
    step(training, (f * training.find_loss(torch.randn(4, 6)) for f in factors))
    assert torch.equal(training.copy_weights(), before), f"{case}: the weights change."
    scale = training.scaler.get_scale()
    assert scale == _SCALE / 2, (
        f"{case}: the scale goes from {_SCALE:.0f} to {scale:.0f}; it should be halved "
        "once."
    )
    step(training, iter([training.find_loss(torch.randn(4, 6))]))
    after = training.copy_weights()
    assert after.isfinite().all() and not torch.equal(after, before), (
        f"{case}: the good batch after it does not train. Is the scaler updated, and "
        "are old gradients gone?"
    )


def _count_graphs(training, xs, counts):
    """Yield the losses one by one, and count how many graphs live at once."""
    for x in xs:
        counts["live"] += 1
        counts["most"] = max(counts["most"], counts["live"])
        loss = training.find_loss(x)
        loss.register_hook(lambda _: counts.subtract(["live"]))
        yield loss


# 3. Keep 32 bits


class _Sums(nn.Module):
    """A product, and sums that need 32 bits."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x, y):
        return (self.layer(x) + y).exp().cumsum(1).log()


def keep_float32(keep_float32):
    """Outputs and gradients of 32 bits, under autocast that goes on."""
    torch.manual_seed(0)
    module = _Sums()
    twin = copy.deepcopy(module)
    kept = keep_float32(module)
    x, y = (torch.randn(4, 16, dtype=_BF16, requires_grad=True) for _ in range(2))
    with torch.autocast("cpu", _BF16):
        found = kept(x, y)
        after = torch.ones(1, 2) @ torch.ones(2, 1)
    assert after.dtype == _BF16, "after the call autocast is off; it should be on."
    assert found.dtype == torch.float32, (
        f"with inputs in bfloat16 it returns {found.dtype}; torch.float32 is right."
    )
    right = twin(x.detach().float(), y.detach().float())
    assert torch.equal(found, right), (
        f"the result is off by {(found - right).abs().max():.2g} from that of 32 bits. "
        "Does autocast still lower what is inside?"
    )
    found.sum().backward()
    right.sum().backward()
    assert x.grad is not None and y.grad is not None, "an input gets no gradient."
    for (name, p), q in zip(module.named_parameters(), twin.parameters(), strict=True):
        assert p.dtype == torch.float32, f"{name} is {p.dtype}: the module has changed."
        assert p.grad is not None and torch.equal(p.grad, q.grad), (
            f"the gradient of {name} is not that of 32 bits."
        )
    return "32 bits inside and out, and autocast around it."
