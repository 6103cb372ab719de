"""Checks of chapter 16's exercises: calls counted, films kept alive, two steps made."""

import tempfile
import warnings
import weakref
from contextlib import contextmanager

import torch
from torch.distributed import rpc


class _Server:
    """A parameter server that notes what it is asked."""

    def __init__(self):
        self.weights, self.calls = torch.tensor([1.0, -2.0]), []

    def get(self):
        self.calls.append("get")
        return self.weights.clone()

    def put(self, gradient):
        self.calls.append("put")
        self.weights = self.weights - 0.1 * gradient

    def put_and_get(self, gradient):
        self.put(gradient)
        self.calls[-1] = "put_and_get"
        return self.weights.clone()


def messages(work):
    """The same gradients, and one call more than there are steps."""
    for steps in (1, 2, 5):
        server, asked, wanted = _Server(), [], torch.tensor([1.0, -2.0])

        def compute(weights, asked=asked):
            asked.append(weights.tolist())
            return 2 * weights

        work(server, compute, steps)
        assert len(asked) == steps, f"{steps} steps computed {len(asked)} gradients"
        for weights in asked:
            assert torch.allclose(torch.tensor(weights), wanted), (
                f"with {steps} steps, a gradient was computed at {weights} in place of "
                f"{wanted.tolist()}: are the weights those after the last step?"
            )
            wanted = wanted - 0.2 * wanted
        assert torch.allclose(server.weights, wanted), (
            f"after {steps} steps the server has {server.weights.tolist()}, and should "
            f"have {wanted.tolist()}: has it got every gradient, and each once?"
        )
        assert len(server.calls) == steps + 1, (
            f"{steps} steps took {len(server.calls)} calls ({server.calls}), "
            f"and {steps + 1} are enough"
        )
    return "as many steps, and nearly half of the calls."


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
    mine, scores = trainer(_Film), []
    for number in range(12):
        scores.append((number * 7) % 10)
        mean = mine.play(number)
        assert mean is not None and abs(mean - sum(scores) / len(scores)) < 1e-9, (
            f"after {len(scores)} games play() returns {mean}, and the mean of their "
            f"scores is {sum(scores) / len(scores)}"
        )
        best = getattr(getattr(mine, "best", None), "number", None)
        assert best == scores.index(max(scores)), (
            f"after {len(scores)} games the best film is that of game "
            f"{scores.index(max(scores))}, and `best` has {best}"
        )
        assert not _Film.fetched, (
            f"film {_Film.fetched[0]} was fetched: ask for its score"
        )
        alive = sorted(film.number for film in _Film.alive)
        assert alive == [best], f"after game {number} the films {alive} are still alive"
    return "one film is alive, and none has travelled."


@contextmanager
def _group():
    """Yield inside of a group for RPC: the notebook's, or one of this process alone."""
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


def gradient(step):
    """Both sides make the step that one process would make, twice."""
    tokens, targets = torch.tensor([0, 2, 2]), torch.tensor([1.0, 0.0, 2.0])
    torch.manual_seed(0)
    table, weight = torch.nn.Embedding(4, 3), torch.ones(3, requires_grad=True)
    rows, mine = table.weight.detach().clone(), torch.ones(3)
    # PyTorch insists on warnings about its own code: only recording keeps them quiet.
    with _group(), warnings.catch_warnings(record=True):
        far, far_rows = rpc.RRef(table), rpc.RRef(table.weight)
        for turn in ("first", "second"):
            rows.requires_grad_(), mine.requires_grad_()
            loss = (rows[tokens] @ mine - targets).square().mean()
            changes = torch.autograd.grad(loss, [rows, mine])
            rows, mine = (
                rows.detach() - 0.1 * changes[0],
                mine.detach() - 0.1 * changes[1],
            )
            step(far, far_rows, weight, tokens, targets)
            for name, got, want in (
                ("weight", weight, mine),
                ("the table", table.weight, rows),
            ):
                assert torch.allclose(got, want, atol=1e-5), (
                    f"in the {turn} step, {name} is off by up to "
                    f"{(got - want).abs().max().item():.3g} from what one process has"
                )
        del far, far_rows
    return "the server's table and the weight here both make their step."
