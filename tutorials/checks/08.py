"""Checks of chapter 08's exercises: they count graphs."""

import torch


def _compile(function, calls):
    """Return the results of some calls, compiled, and the number of graphs."""
    graphs = []

    def keep(graph, inputs):
        graphs.append(graph)
        return graph

    torch.compiler.reset()
    compiled = torch.compile(function, backend=keep)
    results = [compiled(*call) for call in calls]
    torch.compiler.reset()
    return results, len(graphs)


def one_graph(repaired):
    """Return the same on both ways, from a single graph."""
    numbers = torch.tensor([-1.0, 0.5, 3.0, -2.0])
    batches = [numbers + 5, numbers - 3, numbers + 0.3, numbers + 0.5]
    results, graphs = _compile(repaired, [(x, 0.5) for x in batches])
    for x, found in zip(batches, results, strict=True):
        right = x - x.mean() if x.mean() > 0.5 else x * 2
        right = right / right.norm()
        assert torch.allclose(found, right, atol=1e-5), (
            f"for {x.tolist()} and the limit 0.5 it returns {found.tolist()}; "
            f"{right.tolist()} is right"
        )
    assert graphs == 1, f"the compiler makes {graphs} graphs of it; 1 is right"
    return "one graph, and the same results on both ways."


def at_rest(make_module):
    """Return the same for thirty steps, from at most two graphs."""
    torch.manual_seed(0)
    batches = torch.randn(30, 4) + 5
    results, graphs = _compile(make_module(), [(x,) for x in batches])
    average = 0.0
    for step, (x, found) in enumerate(zip(batches, results, strict=True), 1):
        average = 0.9 * average + 0.1 * x.mean()
        right = x - average / (1 - 0.9**step)
        assert torch.allclose(found, right, atol=1e-4), (
            f"in step {step} it returns {found.tolist()}; {right.tolist()} is right"
        )
    assert graphs <= 2, f"30 steps need {graphs} graphs; two at most is right"
    return f"thirty steps of {graphs} graph{'s' * (graphs > 1)}, and the same results."
