"""Checks of chapter 09's exercises: each calls the reader's code and watches it."""

import math

import torch


def round_stochastically(round_stochastically):
    """One of the two neighbours, right on average, exact numbers as they are."""
    torch.manual_seed(0)
    for dtype in (torch.bfloat16, torch.float16, torch.float8_e5m2):
        for size in (1.3, 700.0, 3e-3, 2.5 * torch.finfo(dtype).smallest_normal):
            x = size * torch.randn(400)
            _expect_neighbours(round_stochastically, x, dtype)
        below = torch.finfo(dtype).smallest_normal * torch.rand(400)
        _expect_neighbours(round_stochastically, below, dtype, kind="subnormal")
        for value in (1.0 + 0.3 * torch.finfo(dtype).eps, -0.7, 0.3, 1e-3):
            _expect_mean(round_stochastically, value, dtype)
        tiny = 0.25 * torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
        _expect_mean(round_stochastically, tiny, dtype)
    return "the neighbours only, and right on average."


def _expect_neighbours(round_stochastically, x, dtype, kind="normal"):
    case = f"{dtype}, {kind} numbers up to {x.abs().max():.2g}"
    before = x.clone()
    found = round_stochastically(x, dtype)
    assert isinstance(found, torch.Tensor) and found.dtype == dtype, (
        f"{case}: it returns {getattr(found, 'dtype', type(found).__name__)}"
    )
    assert torch.equal(x, before), f"{case}: it changes x itself"
    low, high = _neighbours(x, dtype)
    wide = found.double()
    inside = (wide == low) | (wide == high)
    assert inside.all(), (
        f"{case}: {x[~inside][0]:.6g} became {wide[~inside][0]:.6g}; its neighbours "
        f"are {low[~inside][0]:.6g} and {high[~inside][0]:.6g}"
    )
    exact = x.to(dtype).float()
    again = round_stochastically(exact, dtype).float()
    assert torch.equal(again, exact), (
        f"{case}: {exact[again != exact][0]:.6g} is a number of the format, and became "
        f"{again[again != exact][0]:.6g}"
    )


def _neighbours(x, dtype):
    """Return the nearest numbers of a format on both sides, in float64."""
    info = torch.finfo(dtype)
    powers = torch.frexp(x.double().abs().clamp(min=info.smallest_normal))[1] - 1
    gaps = info.eps * 2.0 ** powers.double()
    return (x.double() / gaps).floor() * gaps, (x.double() / gaps).ceil() * gaps


def _expect_mean(round_stochastically, value, dtype, count=40_000):
    x = torch.full((count,), value)
    low, high = (float(some) for some in _neighbours(x[:1], dtype))
    found = round_stochastically(x, dtype).double()
    part = (float(x[0]) - low) / (high - low)
    error = 5 * math.sqrt(part * (1 - part) / count) * (high - low)
    assert abs(found.mean() - float(x[0])) <= error, (
        f"{dtype}: {value:.6g}, rounded {count:,} times, is {found.mean():.6g} on "
        f"average. It should be {high:.6g} with a probability of {part:.2g}"
    )
    many = x[:1000].view(10, 100)
    assert round_stochastically(many, dtype).float().unique().numel() == 2, (
        f"{dtype}: a tensor of equal numbers is rounded to one value: draw a random "
        "number for each"
    )


def master(master):
    """Low parameters that follow a float32 training, in their own tensors."""
    adam, sgd = torch.optim.Adam, torch.optim.SGD
    cases = {
        "SGD": lambda p: sgd(p, lr=1e-3, momentum=0.9),
        "Adam": lambda p: adam(p, lr=2e-4),
    }
    for dtype in (torch.bfloat16, torch.float16):
        for name, make_optimizer in cases.items():
            _follow(master, dtype, name, make_optimizer)
    return "small updates arrive, and the parameters keep their format."


def _follow(master, dtype, name, make_optimizer):
    torch.manual_seed(0)
    case = f"{name}, {dtype}"
    low = [torch.nn.Parameter(torch.randn(7, 5).to(dtype)) for _ in range(3)]
    frozen = low[2].detach().clone()
    wanted = [p.detach().float().requires_grad_() for p in low[:2]]
    optimizer, step = make_optimizer(wanted), master(iter(low), make_optimizer)
    assert callable(step), f"{case}: it returns {step!r:.60}, not a function"
    places = [p.data_ptr() for p in low]
    for number in range(200):
        for p, exact in zip(low, wanted, strict=False):
            p.grad = (0.5 + 0.1 * torch.randn(7, 5)).to(dtype)
            exact.grad = p.grad.float()
        given = [p.grad.clone() for p in low[:2]]
        step()
        optimizer.step()
        for p, exact, gradient in zip(low, wanted, given, strict=False):
            assert p.dtype == dtype, f"{case}: a parameter has become {p.dtype}"
            right = exact.detach().to(dtype)
            wrong = p.detach() != right
            assert not wrong.any(), (
                f"{case}: after step {number + 1} a parameter is "
                f"{p.detach()[wrong][0]:.7g}; the float32 training, rounded, has "
                f"{right[wrong][0]:.7g}"
            )
            assert p.grad is None or torch.equal(p.grad, gradient), (
                f"{case}: step() has changed a gradient"
            )
    assert [p.data_ptr() for p in low] == places, (
        f"{case}: the parameters lie elsewhere now; a network would not see them"
    )
    assert torch.equal(low[2], frozen), f"{case}: a parameter without gradient changed"


def find_scale(find_scale):
    """A power of two that is large, and not too large."""
    for dtype in (torch.float16, torch.float8_e5m2, torch.float8_e4m3fn):
        most = torch.finfo(dtype).max
        for size in (1e-9, 3e-5, 0.7, most / 4, most, 1.01 * most, 1e6):
            some = [torch.zeros(3), torch.tensor([[1e-12, -size], [size / 3, 0.0]])]
            found = find_scale(some, dtype)
            case = f"{dtype}, largest gradient {some[1].abs().max():.7g}"
            assert isinstance(found, float) and found > 0, (
                f"{case}: it returns {found!r:.40}, not a float above 0"
            )
            assert math.frexp(found)[0] == 0.5, (
                f"{case}: {found:g} is not a power of two"
            )
            reach = some[1].double().abs().max().item() * found
            assert reach <= most, (
                f"{case}: times {found:g} it is {reach:g}, and {most:g} is the largest"
            )
            assert 2 * reach > most, f"{case}: {found:g} is not the largest: double it"
    found = find_scale([torch.zeros(4)], torch.float16)
    assert found == 1.0, f"all gradients zero: it returns {found!r:.40}, not 1.0"
    for bad in (math.inf, -math.inf, math.nan):
        try:
            found = find_scale([torch.ones(2), torch.tensor([bad])], torch.float16)
        except ValueError:
            continue
        raise AssertionError(f"a gradient is {bad}: it returns {found!r:.40}")
    return "as far up as the format goes."


def add_compensated(add_compensated):
    """Small updates arrive, with bfloat16 alone."""
    torch.manual_seed(0)
    for start, update, steps in [(1, 1e-3, 1000), (-2, 3e-4, 3000), (1, -1e-4, 2000)]:
        weight = torch.full((4,), float(start), dtype=torch.bfloat16)
        lost = torch.zeros_like(weight)
        small = torch.full_like(weight, update)
        places = weight.data_ptr(), lost.data_ptr()
        for _ in range(steps):
            add_compensated(weight, lost, small.clone())
        case = f"{steps} updates of {update:g} to {start}"
        assert weight.dtype == lost.dtype == torch.bfloat16
        assert (weight.data_ptr(), lost.data_ptr()) == places, (
            f"{case}: weight and lost lie elsewhere now: change them in place"
        )
        wanted = start + steps * small.double()[0].item()
        off = abs(weight.double()[0].item() - wanted)
        assert off < 0.02 * abs(steps * update) + 0.004 * abs(wanted), (
            f"{case}: the weight is {weight[0].item():.6g}, not {wanted:.6g}"
        )
    with _OnlyShort():
        short = [torch.ones(3, dtype=torch.bfloat16) for _ in range(3)]
        add_compensated(*short)
    return "what one update loses, a later one brings."


class _OnlyShort(torch.overrides.TorchFunctionMode):
    """Refuse results in a wider format than bfloat16."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        if isinstance(found, torch.Tensor) and found.is_floating_point():
            assert found.dtype == torch.bfloat16, (
                f"{getattr(function, '__name__', function)} made a {found.dtype}: the "
                "arithmetic should be in bfloat16 alone"
            )
        return found
