"""Checks of chapter 16's exercises: calls counted, films kept alive, two steps made."""

import copy
import tempfile
import warnings
import weakref
from contextlib import contextmanager

import torch
from torch import nn
from torch.distributed import rpc

from kit.teaching import expect

# 1. Halve the messages


class _Server:
    """A parameter server that notes what it is asked."""

    def __init__(self):
        self.weights = torch.tensor([1.0, -2.0])
        self.calls = []

    def get(self):
        self._note("get")
        return self.weights.clone()

    def put(self, gradient):
        self._note("put")
        self.weights = self.weights - 0.1 * gradient

    def put_and_get(self, gradient):
        self._note("put_and_get")
        self.weights = self.weights - 0.1 * gradient
        return self.weights.clone()

    def _note(self, call):
        assert len(self.calls) < 20, (
            "it makes 20 calls for 3 steps or fewer, and goes on."
        )
        self.calls.append(call)


def messages(work):
    """The same gradients, and one call more than there are steps."""

    def follow(steps):
        server = _Server()
        found = []

        def compute(weights):
            found.append(weights.tolist())
            return 2 * weights

        work(server, compute, steps)
        return [*found, server.weights.tolist()], server.calls

    expect(
        lambda steps: follow(steps)[0],
        [
            ((1,), [[1.0, -2.0], [0.8, -1.6]]),
            ((3,), [[1.0, -2.0], [0.8, -1.6], [0.64, -1.28], [0.512, -1.024]]),
        ],
        hint="These are the weights at which gradients were computed, and the last.",
    )
    for steps in (2, 3):
        calls = follow(steps)[1]
        assert len(calls) == steps + 1, (
            f"{steps} steps take {len(calls)} calls ({', '.join(calls)}); {steps + 1} "
            "are right."
        )
    return "as many steps, and nearly half of the calls."


# 2. Find the leak


class _Film:
    """A film on a worker; in this check it is its own reference."""

    alive, fetched = weakref.WeakSet(), []

    def __init__(self, number):
        self.number = number
        _Film.alive.add(self)

    def score(self):
        return (self.number * 7) % 10

    def rpc_sync(self):
        return self

    def to_here(self):
        _Film.fetched.append(self.number)
        return self


def leak(trainer):
    """The same results with one film alive, and none fetched."""
    _Film.alive.clear()
    _Film.fetched.clear()
    mine = trainer(_Film)

    def play(number):
        mean = mine.play(number)
        alive = sorted(film.number for film in _Film.alive)
        return mean, mine.best.number, alive, list(_Film.fetched)

    expect(
        play,
        [
            ((0,), (0.0, 0, [0], [])),
            ((1,), (3.5, 1, [1], [])),
            ((2,), (11 / 3, 1, [1], [])),
            ((3,), (3.0, 1, [1], [])),
            ((4,), (4.0, 4, [4], [])),
        ],
        hint="After game 0, 1, …: the mean, the best film, the films that are alive, "
        "and those that were fetched.",
    )
    return "one film is alive, and none has traveled."


# 3. The missing gradient


def gradient(step):
    """Both sides make the step that one process would make, twice."""
    tokens, targets = torch.tensor([0, 2, 2]), torch.tensor([1.0, 0.0, 2.0])
    torch.manual_seed(0)
    table, weight = nn.Embedding(4, 3), torch.ones(3, requires_grad=True)
    twin, other = copy.deepcopy(table), torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([twin.weight, other], lr=0.1)
    # PyTorch insists on warnings about its own code: only recording keeps them quiet.
    with _group(), warnings.catch_warnings(record=True):
        far_table, far_rows = rpc.RRef(table), rpc.RRef(table.weight)
        for number in (1, 2):
            optimizer.zero_grad()
            (twin(tokens) @ other - targets).square().mean().backward()
            optimizer.step()
            step(far_table, far_rows, weight, tokens, targets)
            for name, found, right in (
                ("the table", table.weight, twin.weight),
                ("weight", weight, other),
            ):
                off = (found - right).abs().max().item()
                assert off < 1e-5, (
                    f"after step {number} {name} is off by up to {off:.3g} from what "
                    "one process has."
                )
        del far_table, far_rows
    return "the server's table and the weight here both make their step."


@contextmanager
def _group():
    """Be in a group for RPC: the notebook's, or one of this process alone."""
    try:
        rpc.get_worker_info()
        yield
        return
    except RuntimeError:
        pass
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{folder}/meet")
        rpc.init_rpc("check", rank=0, world_size=1, rpc_backend_options=options)
        try:
            yield
        finally:
            rpc.shutdown()
