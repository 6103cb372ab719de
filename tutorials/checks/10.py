"""Checks of chapter 10's exercises: each calls the reader's code and watches it."""

import contextlib
import copy

import torch
from torch import nn

_BF16 = torch.bfloat16


def clip_and_step(clip_and_step):
    """The true gradients' norm is clipped, once unscaled, and overflows are skipped."""
    for factor, low, high in [(2.0**10, 0.05, 50.0), (2.0**15, 0.5, 5.0)]:
        for max_norm in (low, high):
            torch.manual_seed(0)
            ours, usual = _twins()
            case = f"scale {factor:.0f}, max_norm={max_norm}"
            scaler = _scaler(factor)
            optimizer = _sgd(ours)
            for step in range(3):
                x = torch.randn(16, 6)
                optimizer.zero_grad()
                with _scaler_errors(f"{case}, step {step + 1}"):
                    clip_and_step(scaler, optimizer, _loss(ours, x), max_norm)
                _step_in_float32(usual, [x], max_norm)
                _compare(
                    ours,
                    usual,
                    f"{case}, step {step + 1}",
                    "Are all gradients unscaled, once, and then clipped together?",
                )
            _check_scale(scaler, factor, case)
    torch.manual_seed(0)
    ours, _ = _twins()
    scaler, optimizer = _scaler(2.0**10), _sgd(ours)
    before = copy.deepcopy(ours.state_dict())
    optimizer.zero_grad()
    clip_and_step(scaler, optimizer, _loss(ours, torch.randn(4, 6)) * torch.inf, 1.0)
    _check_skipped(ours, before, scaler, 2.0**10, "an infinite loss")
    clip_and_step(scaler, optimizer, _zeroed(optimizer, ours), 1.0)
    assert _moved(ours, before), (
        "after an overflow the next good step changes nothing: is the scaler updated "
        "at every step?"
    )
    return "the true norm is clipped, once, and overflows are skipped."


def accumulate(accumulate):
    """One update by the sum of all parts, and none where one overflows."""
    for parts in (1, 2, 5):
        torch.manual_seed(parts)
        ours, usual = _twins()
        scaler, optimizer = _scaler(2.0**12), _sgd(ours)
        for p in ours.parameters():
            p.grad = torch.full_like(p, 1e6)  # of an earlier batch
        for step in range(2):
            xs = [torch.randn(3 + i, 6) for i in range(parts)]
            watch = _Watch(ours, xs)
            case = f"{parts} parts, step {step + 1}"
            with _scaler_errors(case):
                accumulate(scaler, optimizer, watch.losses())
            assert watch.drawn == parts, (
                f"{case}: it took {watch.drawn} losses of {parts}"
            )
            assert watch.most <= 1, (
                f"{case}: {watch.most} graphs lived at once; go backward through each "
                "loss before you take the next"
            )
            _step_in_float32(usual, xs)
            _compare(ours, usual, case, "Is it one update, by the sum of all parts?")
        _check_scale(scaler, 2.0**12, f"{parts} parts")
    for bad in range(3):
        torch.manual_seed(0)
        ours, _ = _twins()
        scaler, optimizer = _scaler(2.0**12), _sgd(ours)
        before = copy.deepcopy(ours.state_dict())
        losses = (
            _loss(ours, torch.randn(4, 6)) * (torch.inf if part == bad else 1.0)
            for part in range(3)
        )
        accumulate(scaler, optimizer, losses)
        case = f"part {bad + 1} of 3 overflows"
        _check_skipped(ours, before, scaler, 2.0**12, case)
        accumulate(scaler, optimizer, iter([_loss(ours, torch.randn(4, 6))]))
        assert all(p.isfinite().all() for p in ours.parameters()), (
            f"{case}: the next batch made parameters infinite: whose gradients were "
            "still there?"
        )
        assert _moved(ours, before), f"{case}: the next good batch changes nothing"
    return "one update for the batch, and none where a part overflows."


@contextlib.contextmanager
def _scaler_errors(case):
    """Explain what the scaler refuses: a second unscale_, a missing update."""
    try:
        yield
    except (RuntimeError, AssertionError) as error:
        raise AssertionError(
            f"{case}: {str(error) or 'the scaler refuses'} For each batch it wants, in "
            "this order: scale and backward, unscale_ if at all, step, update"
        ) from error


def _twins():
    ours = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    return ours, copy.deepcopy(ours)


def _loss(net, x):
    return net(x).square().sum()


def _zeroed(optimizer, net):
    optimizer.zero_grad()
    return _loss(net, torch.randn(4, 6))


def _sgd(net):
    return torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)


def _scaler(factor):
    return torch.amp.GradScaler("cpu", init_scale=factor)


def _step_in_float32(net, xs, max_norm=None):
    """Take the step that a training without a scaler would take."""
    if not hasattr(net, "optimizer"):
        object.__setattr__(net, "optimizer", _sgd(net))
    net.optimizer.zero_grad()
    for x in xs:
        _loss(net, x).backward()
    if max_norm is not None:
        nn.utils.clip_grad_norm_(net.parameters(), max_norm)
    net.optimizer.step()


def _compare(ours, usual, case, hint):
    for (name, p), q in zip(ours.named_parameters(), usual.parameters(), strict=True):
        assert p.isfinite().all(), f"{case}: {name} is no longer finite"
        assert torch.allclose(p, q, rtol=1e-4, atol=1e-6), (
            f"{case}: {name} is not what a step without a scaler makes it; it is off "
            f"by {(p - q).abs().max():.2g}. {hint}"
        )


def _check_scale(scaler, factor, case):
    assert scaler.get_scale() == factor, (
        f"{case}: the scale has become {scaler.get_scale():.0f} although nothing "
        "overflowed"
    )


def _check_skipped(net, before, scaler, factor, case):
    assert not _moved(net, before), f"{case}, and the parameters have changed"
    found = scaler.get_scale()
    assert found == factor / 2, (
        f"{case}: the scale went from {factor:.0f} to {found:.0f}; it should be halved "
        "once. Is the scaler updated once?"
    )


def _moved(net, before):
    return any(not torch.equal(p, before[k]) for k, p in net.state_dict().items())


class _Watch:
    """Hands out losses one by one, and counts how many graphs live at once."""

    def __init__(self, net, xs):
        self.net, self.xs, self.drawn, self.open, self.most = net, xs, 0, 0, 0

    def losses(self):
        for x in self.xs:
            self.drawn += 1
            self.open += 1
            self.most = max(self.most, self.open)
            loss = _loss(self.net, x)
            loss.register_hook(self._close)
            yield loss

    def _close(self, _):
        self.open -= 1


class _Odd(nn.Module):
    """A part with two inputs, a matrix product, and a sum that needs 32 bits."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x, y):
        return (self.layer(x) + y).exp().cumsum(1).log()


def keep_float32(keep_float32):
    """Outputs, gradients and formats of 32 bits, under autocast on both sides."""
    for name, make, inputs in [
        ("a linear layer", lambda: nn.Linear(16, 16), 1),
        ("a module with two inputs", _Odd, 2),
    ]:
        torch.manual_seed(0)
        module = make()
        twin, state = copy.deepcopy(module), list(module.state_dict())
        kept = keep_float32(module)
        assert callable(kept), f"{name}: it returns {kept!r:.60}, not a module"
        for given in (_BF16, torch.float32):
            xs = [torch.randn(4, 16).to(given) for _ in range(inputs)]
            mine, wanted = ([x.clone().requires_grad_() for x in xs] for _ in range(2))
            case = f"{name}, inputs in {str(given)[6:]}"
            with _no_mismatch(case), torch.autocast("cpu", _BF16):
                found = kept(*mine)
                after = nn.functional.linear(torch.ones(1, 2), torch.ones(1, 2))
            assert after.dtype == _BF16, f"{case}: after the call autocast is off"
            assert found.dtype == torch.float32, (
                f"{case}: what comes out is {found.dtype}"
            )
            exact = twin(*[x.float() for x in wanted])
            assert torch.equal(found, exact), (
                f"{case}: the result is off by {(found - exact).abs().max():.2g} from "
                "that of 32 bits: does autocast still lower what is inside?"
            )
            module.zero_grad()
            twin.zero_grad()
            assert found.requires_grad, f"{case}: the result has no gradient"
            found.sum().backward()
            exact.sum().backward()
            for p, q in zip(module.parameters(), twin.parameters(), strict=True):
                assert p.grad is not None, f"{case}: the module gets no gradient"
                assert p.grad.dtype == torch.float32 and torch.equal(p.grad, q.grad), (
                    f"{case}: the gradients are not those of 32 bits"
                )
            for x, y in zip(mine, wanted, strict=True):
                assert x.grad is not None, f"{case}: an input gets no gradient"
                assert torch.equal(x.grad, y.grad), (
                    f"{case}: an input's gradient is off"
                )
        kinds = {p.dtype for p in module.parameters()}
        assert list(module.state_dict()) == state and kinds == {torch.float32}, (
            f"{name}: the module itself has changed"
        )
        x = [torch.randn(4, 16) for _ in range(inputs)]
        with torch.autocast("cpu", _BF16):
            lowered = module.layer(x[0]) if inputs == 2 else module(*x)
        assert lowered.dtype == _BF16, (
            f"{name}: called by itself, the module should still be lowered"
        )
    return "32 bits inside and out, and autocast around it."


@contextlib.contextmanager
def _no_mismatch(case):
    try:
        yield
    except RuntimeError as error:
        raise AssertionError(
            f"{case}: {str(error).splitlines()[0][:120]}: which format do the inputs "
            "have when autocast is off?"
        ) from error


class _Products(torch.overrides.TorchFunctionMode):
    """Notes how many outputs each linear product has."""

    def __init__(self):
        super().__init__()
        self.sizes = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        names = ("linear", "matmul", "mm", "addmm", "__matmul__", "einsum", "bmm")
        if getattr(function, "__name__", "") in names:
            self.sizes.append(result.shape[-1])
        return result


def pad_outputs(pad_outputs):
    """The product is padded, the outputs are not, and training changes neither."""
    for words, multiple, bias in [(50, 8, True), (257, 64, False), (64, 8, True)]:
        torch.manual_seed(0)
        linear = nn.Linear(12, words, bias=bias)
        plain = copy.deepcopy(linear)
        padded = pad_outputs(linear, multiple)
        case = f"{words} outputs, multiple={multiple}"
        assert isinstance(padded, nn.Module), (
            f"{case}: it returns {padded!r:.60}, not a module"
        )
        least = -(-words // multiple) * multiple
        sizes = {p.shape[0] for p in padded.parameters() if p.ndim == 2}
        assert sizes == {least}, (
            f"{case}: the module's parameters have weights of {sorted(sizes)} outputs; "
            f"it should own one of {least}"
        )
        optimizers = [
            torch.optim.SGD(net.parameters(), lr=0.1) for net in (padded, plain)
        ]
        for step in range(3):
            x, labels = torch.randn(5, 3, 12), torch.randint(words, (5, 3))
            with _Products() as seen:
                found = padded(x)
            now = f"{case}, step {step + 1}"
            wanted = plain(x)
            assert found.shape == wanted.shape, (
                f"{now}: the outputs have the shape {tuple(found.shape)}, those of "
                f"linear {tuple(wanted.shape)}"
            )
            assert seen.sizes and all(size == least for size in seen.sizes), (
                f"{now}: the products have {seen.sizes} outputs; {least} are wanted"
            )
            assert torch.allclose(found, wanted, rtol=1e-4, atol=1e-5), (
                f"{now}: the outputs are off by {(found - wanted).abs().max():.2g}"
            )
            for net, outputs, optimizer in zip(
                (padded, plain), (found, wanted), optimizers, strict=True
            ):
                net.zero_grad()
                nn.functional.cross_entropy(
                    outputs.flatten(0, 1), labels.flatten()
                ).backward()
                optimizer.step()
    return "whole tiles inside, and the same outputs."
