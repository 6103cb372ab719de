"""Checks of chapter 08's exercises: each calls the reader's code and watches it."""

import contextlib
import io

import torch
from torch import nn


def _count_graphs(function, calls, enough):
    """Return the results of these calls, and of how many graphs they were made.

    It ends when there are more than enough graphs.
    """
    graphs = []

    def note(graph, inputs):
        graphs.append(graph)
        return graph

    torch.compiler.reset()
    compiled, results = torch.compile(function, backend=note), []
    with contextlib.redirect_stdout(io.StringIO()):
        for call in calls:
            if len(graphs) <= enough:
                results.append(compiled(*call))
    torch.compiler.reset()
    return results, len(graphs)


def _broken(x, limit):
    """Return what the exercise's function returns."""
    mean = x.mean()
    x = x - mean if mean > limit else x * 2
    return x / x.norm()


def one_graph(mended):
    """The same results on both ways, and a single graph."""
    torch.manual_seed(0)
    numbers = torch.randn(6)
    for shift in (-3.0, 0.4, 0.6, 3.0):
        x = numbers - numbers.mean() + shift
        kept = x.clone()
        with contextlib.redirect_stdout(io.StringIO()):
            found = mended(x, 0.5)
        wanted = _broken(kept, 0.5)
        case = f"for numbers with the mean {shift} and the limit 0.5"
        assert torch.equal(x, kept), f"{case} it changes its input"
        assert isinstance(found, torch.Tensor), f"{case} it returns no tensor"
        assert found.shape == wanted.shape, f"{case} its result has another shape"
        assert torch.allclose(found, wanted, atol=1e-5), f"{case} its result is another"
    high, low = numbers - numbers.mean() + 3, numbers - numbers.mean() - 3
    results, graphs = _count_graphs(mended, [(high, 0.5), (low, 0.5)], enough=1)
    assert graphs == 1, f"the compiler makes {graphs} graphs of it, and should make one"
    for x, found in zip((high, low), results, strict=True):
        same = torch.allclose(found, _broken(x, 0.5), atol=1e-5)
        assert same, "compiled, it returns something else"
    return "one graph, and the same results on both ways."


def at_rest(make_module):
    """The same results for thirty steps, of at most two graphs, and again from zero."""
    torch.manual_seed(0)
    batches = [torch.randn(4) + 5 for _ in range(30)]
    wanted, average = [], torch.zeros(())
    for step, x in enumerate(batches, 1):
        average = 0.9 * average + 0.1 * x.mean()
        wanted.append(x - average / (1 - 0.9**step))
    module = make_module()
    assert isinstance(module, nn.Module), "it makes no nn.Module"
    plain = make_module()
    for step, (x, expected) in enumerate(zip(batches, wanted, strict=True), 1):
        same = torch.allclose(plain(x), expected, atol=1e-4)
        assert same, f"without the compiler, the result of step {step} is another"
    results, graphs = _count_graphs(module, [(x,) for x in batches], enough=2)
    assert graphs <= 2, (
        f"{len(results)} steps cost {graphs} graphs, and thirty should cost two at most"
    )
    for step, (found, expected) in enumerate(zip(results, wanted, strict=True), 1):
        same = torch.allclose(found, expected, atol=1e-4)
        assert same, f"compiled, the result of step {step} is another"
    return f"thirty steps of {graphs} graph{'s' * (graphs > 1)}, and the same results."


#: What compiling does for each of the five, and why.
_FIVE = {
    "chain": (True, "eight ways to memory and back become one"),
    "product": (False, "one operation stays one, and its library is fast already"),
    "loader": (False, "the step waits for data, however fast the model is"),
    "restless": (False, "after eight graphs plain Python runs it"),
    "normalise": (True, "many ways to memory and back become few"),
}


def five_loops(helps):
    """Every name has the right answer."""
    missing = [name for name in _FIVE if name not in helps]
    assert not missing, f"there is no answer yet for {', '.join(missing)}"
    others = [name for name in helps if name not in _FIVE]
    assert not others, f"these are none of the five: {', '.join(map(str, others))}"
    for name, (helped, reason) in _FIVE.items():
        given = helps[name]
        assert isinstance(given, bool), f"{name}: True or False, not {given!r}"
        assert given == helped, f"{name}: think again. Hint: {reason}"
    return "two of five: those that go to memory and back too often."
