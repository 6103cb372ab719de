"""A compiled loop stays compiled however often it is measured."""

import torch
from torch import nn

import kit


def test_compiled_code_does_not_fall_back_to_eager_in_the_ninth_run(clock):
    """An optimizer is another one in each run, so each run compiles anew."""
    compiled_runs = []

    def note_run(graph, inputs):
        compiled_runs[-1] = True
        return graph

    def train(*, n=1):
        weight = nn.Parameter(torch.ones(2))
        weight.grad = torch.ones(2)
        optimizer = torch.optim.SGD([weight], 0.1)
        compiled = torch.compile(lambda: optimizer.step(), backend=note_run)
        compiled_runs.append(False)
        while True:
            compiled()
            clock.work(0.01)
            yield 1

    torch.compiler.reset()
    kit.compare(train, n=[1, 2], seconds=0.1)
    torch.compiler.reset()
    assert len(compiled_runs) > 12
    assert all(compiled_runs)
