"""Checks of chapter 09's exercises."""

import math
from functools import partial

import torch
from torch.overrides import TorchFunctionMode

from kit.teaching import expect


def master(master):
    """Follow a float32 training in 16 bits, in the same tensors."""
    sgd = partial(torch.optim.SGD, lr=1e-3, momentum=0.9)
    adam = partial(torch.optim.Adam, lr=2e-4)
    for make_optimizer, dtype in [(sgd, torch.bfloat16), (adam, torch.float16)]:
        torch.manual_seed(0)
        low = torch.nn.Parameter(torch.randn(7, 5).to(dtype))
        unused = torch.nn.Parameter(torch.ones(3).to(dtype))
        exact = low.detach().float().requires_grad_()
        optimizer = make_optimizer([exact])
        step = master(iter([low, unused]), make_optimizer)
        place = low.data_ptr()
        for number in range(1, 101):
            low.grad = (0.5 + 0.1 * torch.randn(7, 5)).to(dtype)
            exact.grad = low.grad.float()
            step()
            optimizer.step()
            right = exact.detach().to(dtype)
            assert low.dtype == dtype, f"a parameter in {dtype} has become {low.dtype}"
            wrong = low.detach() != right
            assert not wrong.any(), (
                f"after step {number} a parameter in {dtype} is {low[wrong][0]:.7g}; "
                f"{right[wrong][0]:.7g} is right"
            )
        assert low.data_ptr() == place, "the parameters are not the same tensors now"
        assert torch.equal(unused, torch.ones_like(unused)), (
            "a parameter without a gradient changes"
        )
    return "small updates arrive, and the parameters keep their format."


def find_scale(find_scale):
    """Find the largest power of two that keeps all gradients finite."""

    def find_for_largest(largest, dtype):
        return find_scale(
            [torch.zeros(3), torch.tensor([-largest, largest / 3])], dtype
        )

    cases = [
        ((0.75, torch.float16), 2.0**16),
        ((65504.0, torch.float16), 1.0),
        ((66000.0, torch.float16), 0.5),
        ((3e-5, torch.float16), 2.0**31),
        ((1e-9, torch.float8_e5m2), 2.0**45),
        ((1e6, torch.float8_e4m3fn), 2.0**-12),
        ((0.0, torch.float16), 1.0),
    ]
    expect(
        find_for_largest, cases, hint="The first is the size of the largest gradient."
    )
    for bad in (math.inf, math.nan):
        try:
            found = find_for_largest(bad, torch.float16)
        except ValueError:
            continue
        raise AssertionError(f"for {bad} it returns {found}; a ValueError is right")
    return "as far up as the format goes."


class _BFloat16Only(TorchFunctionMode):
    """Refuse results in a wider format."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        if isinstance(found, torch.Tensor) and found.is_floating_point():
            assert found.dtype == torch.bfloat16, f"it computes in {found.dtype}"
        return found


def add_compensated(add_compensated):
    """Add small updates, in bfloat16 alone."""

    def add(start, update, times):
        weight, lost, update = torch.tensor([start, 0.0, update]).bfloat16().split(1)
        with _BFloat16Only():
            for _ in range(times):
                add_compensated(weight, lost, update.clone())
        return weight.item()

    cases = [((1.0, 1e-3, 1000), 2.0), ((-2.0, 3e-4, 3000), -1.1)]
    cases += [((1.0, -1e-4, 2000), 0.8)]
    hint = "These are the weight, the update, and how many times it is added."
    expect(add, cases, rel=0.02, hint=hint)
    return "what one update loses, a later one brings."
