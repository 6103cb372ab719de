"""Checks of chapter 06's exercises: a line, a schedule, ghosts, and signal in noise."""

import math

import torch
from torch import nn

# 1. Within a budget


def largest_batch(largest_batch):
    """The largest whole batch on the line, whatever the budget; 0 where none fits."""
    for fixed, each in ((300e6, 2.5e6), (50e6, 40e6), (2e9, 1e5), (0.0, 3e6)):
        for sizes in ((2, 32), (16, 4), (1, 2, 8, 64)):
            amounts = [fixed + each * size for size in sizes]
            for most in (1, 2, 7, 100, 1000):
                for over in (0.25, 0.75):
                    _check_size(largest_batch, sizes, amounts, most, over, fixed, each)
            if fixed:
                found = largest_batch(list(sizes), amounts, fixed + each / 2)
                assert found == 0, (
                    f"not even one image fits into {fixed + each / 2:,.0f} bytes: "
                    f"{_given(sizes, amounts)}; it returns {found!r:.60}, not 0"
                )
                assert largest_batch(list(sizes), amounts, fixed / 2) == 0, (
                    f"a budget of {fixed / 2:,.0f} bytes is less than the fixed part: "
                    f"{_given(sizes, amounts)}; not even one image fits"
                )
    sizes, scatter = [2, 8, 32, 64], (1.01, 0.99, 1.01, 0.99)
    amounts = [s * (300e6 + 2.5e6 * b) for s, b in zip(scatter, sizes, strict=True)]
    found = largest_batch(sizes, amounts, 800e6)
    assert isinstance(found, int) and 180 <= found <= 230, (
        "measurements that scatter by one per cent around 300 MB + 2.5 MB per image "
        f"({_given(sizes, amounts)}), and 800 MB: it returns {found!r:.60}, "
        "and 200 is right, 180 to 230 near enough. Do all measurements count?"
    )
    return "it finds the last batch that fits, also from many measurements."


def _check_size(largest_batch, sizes, amounts, most, over, fixed, each):
    budget = fixed + each * (most + over)
    found = largest_batch(list(sizes), amounts, budget)
    assert isinstance(found, int) and not isinstance(found, bool), (
        f"it returns {found!r:.60}, not a whole number"
    )
    assert found == most, (
        f"{_given(sizes, amounts)}, budget={budget:,.0f}: it returns {found}; with "
        f"{most} images it is {fixed + each * most:,.0f} bytes, with {most + 1} "
        f"{fixed + each * (most + 1):,.0f}"
    )


def _given(sizes, amounts):
    return f"sizes={list(sizes)}, amounts={[f'{amount:,.0f}' for amount in amounts]}"


# 2. Follow the batch


def follow(follow):
    """The rates of both groups, before each step of a short training."""
    for k, steps, rates in ((8, 5, (0.1, 0.02)), (4, 1, (0.05, 0.05)), (1, 3, (1, 2))):
        groups = [
            {"params": [nn.Parameter(torch.ones(1))], "lr": rate} for rate in rates
        ]
        optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
        scheduler = follow(optimizer, k, steps)
        assert callable(getattr(scheduler, "step", None)), (
            f"it returns {scheduler!r:.60}, which has no step()"
        )
        for done in range(steps + 4):
            used = [group["lr"] for group in optimizer.param_groups]
            factor = 1 + (k - 1) * min(1, done / steps)
            for number, (rate, lr) in enumerate(zip(rates, used, strict=True)):
                assert math.isclose(lr, factor * rate, rel_tol=1e-6), (
                    f"k={k}, steps={steps}, a group that began with {rate}: after "
                    f"{done} calls of step() its rate is {float(lr):.6g}, not "
                    f"{factor * rate:.6g} (parameter group {number})"
                )
            for group in groups:
                group["params"][0].grad = torch.ones(1)
            optimizer.step()
            scheduler.step()
        momenta = {group["momentum"] for group in optimizer.param_groups}
        assert momenta == {0.9}, f"the momentum was 0.9 and is {momenta} now"
    return "each group starts where it was, and ends k times as high."


# 3. Ghosts


def ghost_norm(ghost_norm):
    """Outputs and gradients as devices with n images each would compute them."""
    generator = torch.Generator().manual_seed(0)
    for images, n in ((8, 2), (8, 4), (10, 4), (6, 6), (5, 16), (12, 3)):
        x = 3 + 2 * torch.randn(images, 3, 4, 5, generator=generator)
        x = x * torch.linspace(0.5, 2, images)[:, None, None, None]
        weights = torch.randn(x.shape, generator=generator)
        mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
        found = ghost_norm(mine, n)
        parts = [nn.BatchNorm2d(3)(part) for part in theirs.split(n)]
        wanted = torch.cat(parts)
        who = f"{images} images in groups of {n}"
        assert isinstance(found, torch.Tensor) and found.shape == x.shape, (
            f"{who}: it returns {_describe(found)}, not a tensor of the shape of x, "
            f"{tuple(x.shape)}"
        )
        _compare_rows(found.detach(), wanted.detach(), n, who, "output")
        assert found.requires_grad, (
            f"{who}: the output knows nothing of x, so there is no gradient"
        )
        (found * weights).sum().backward()
        (wanted * weights).sum().backward()
        assert mine.grad is not None, f"{who}: no gradient reaches x"
        _compare_rows(mine.grad, theirs.grad, n, who, "gradient")
        assert torch.equal(mine.detach(), x), f"{who}: x itself was changed"
    return "it is what so many devices compute, gradients included."


def _compare_rows(found, wanted, n, who, what):
    for image, (a, b) in enumerate(zip(found, wanted, strict=True)):
        assert torch.allclose(a, b, rtol=1e-3, atol=1e-4), (
            f"{who}: the {what} of image {image}, which is in group {image // n}, is "
            f"off by up to {(a - b).abs().max():.3g}"
        )


def _describe(value):
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return f"{value!r:.60}"


# 4. Signal and noise

_MOST_IMAGES = 100_000


def noise_scale(noise_scale):
    """Within a factor of 1.15 of a known truth, with no more images than allowed."""
    for seed, truth in enumerate((2.0, 50.0, 400.0)):
        task = _Task(truth, seed)
        found = noise_scale(task.gradient)
        number = float(found) if hasattr(found, "__float__") else math.nan
        assert task.images <= _MOST_IMAGES, (
            f"it drew {task.images:,} images, and {_MOST_IMAGES:,} are allowed"
        )
        assert task.images, "it never called gradient(n)"
        assert 1 / 1.15 <= number / truth <= 1.15, (
            f"a task whose noise scale is {truth:g}: it returns {found!r:.60}. "
            f"(It called gradient {task.calls:,} times, with {min(task.sizes)} to "
            f"{max(task.sizes)} images.)"
        )
    return "it tells signal from noise, for little noise and for much."


class _Task:
    """A gradient whose noise is known: tr(Σ) / |G|² is `scale`."""

    def __init__(self, scale, seed):
        self._generator = torch.Generator().manual_seed(seed)
        self._signal = torch.randn(400, generator=self._generator)
        spread = torch.rand(400, generator=self._generator) + 0.1
        trace = scale * self._signal.square().sum()
        self._deviation = spread * (trace / spread.square().sum()).sqrt()
        self.images, self.calls, self.sizes = 0, 0, set()

    def gradient(self, n):
        assert isinstance(n, int) and n >= 1, (
            f"gradient({n!r:.40}): a batch has a whole number of images, 1 or more"
        )
        self.images += n
        self.calls += 1
        self.sizes.add(n)
        noise = torch.randn(400, generator=self._generator) * self._deviation
        return self._signal + noise / n**0.5
