"""Checks of chapter 14's exercises: bytes, what is kept, and a short training."""

import inspect
import math
import threading

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector, vector_to_parameters

_STEPS = 60

# 1. Count the bytes


def bytes_per_step(bytes_per_step):
    """What a rank sends per batch, for several sizes and numbers of ranks."""
    for parameters, ranks in ((203_530, 2), (1_000_000, 8), (7_000_000_000, 64)):
        whole = 4 * parameters * 2 * (ranks - 1) / ranks
        entries = int(0.01 * parameters)
        wanted = {
            "plain": whole,
            "16 bits": whole / 2,
            "no_sync, 4": whole / 4,
            "local SGD, 8": whole / 8,
            "top 1 %": (4 + 4) * entries * (ranks - 1),
        }
        for method, number in wanted.items():
            found = bytes_per_step(method, parameters, ranks)
            given = f"{method}, {parameters:,} parameters, {ranks} ranks"
            assert isinstance(found, int | float), (
                f"{given}: it returns {found!r:.60}, not a number"
            )
            assert math.isclose(found, number, rel_tol=0.01), (
                f"{given}: it returns {found:,.0f}; a rank sends {number:,.0f} bytes"
            )
    return "it counts what a rank sends, also where it grows with the ranks."


# 2. Keep the rest


def keep_the_rest(keep_the_rest):
    """Whatever a hook leaves out, all of it is sent in the end."""
    generator = torch.Generator().manual_seed(0)
    makers = {"sends the two largest entries": lambda: _send_largest}
    makers["sends every third time"] = _make_rare
    makers["sends one half, then the other"] = _make_by_halves
    senders = {told: keep_the_rest(make()) for told, make in makers.items()}
    given = {told: torch.zeros(10) for told in makers}
    sent = {told: torch.zeros(10) for told in makers}
    for step in range(40):
        for told, send in senders.items():  # by turns: each has its own rest
            assert callable(send), (
                f"keep_the_rest(hook) returns {send!r:.60}, not a function"
            )
            gradient = torch.randn(10, generator=generator)
            gradient *= 0 if step >= 20 else 1
            before = gradient.clone()
            found = send(gradient)
            where = f"a hook that {told}, call {step + 1}"
            assert isinstance(found, torch.Tensor) and found.shape == before.shape, (
                f"{where}: it returns {_describe(found)}, not one of shape (10,)"
            )
            assert torch.equal(gradient, before), f"{where}: it changes the gradient"
            given[told] += before
            sent[told] += found
    for told in makers:
        lost = (given[told] - sent[told]).abs().max().item()
        assert lost < 1e-4, (
            f"a hook that {told}: after 20 gradients, and zeros until all should have "
            f"come out, the sum of what was sent is off by {lost:.3g}"
        )
    return "what is left out comes later: nothing is lost."


def _send_largest(gradient):
    places = gradient.abs().topk(2).indices
    return torch.zeros_like(gradient).index_copy(0, places, gradient[places])


def _make_rare():
    calls = []

    def hook(gradient):
        calls.append(1)
        return gradient.clone() if len(calls) % 3 == 0 else torch.zeros_like(gradient)

    return hook


def _make_by_halves():
    calls = []

    def hook(gradient):
        calls.append(1)
        sent = gradient.clone()
        sent[:5] *= len(calls) % 2
        sent[5:] *= 1 - len(calls) % 2
        return sent

    return hook


# 3. Half the bytes


def half(half):
    """Half of DDP's bytes, equal ranks, and the loss that DDP reaches without it."""
    usual, its_own = _train_pair(None), _train_pair(half)
    for rank, weights in enumerate(its_own.weights):
        lost = weights.isnan().any()  # the loss says that
        assert lost or torch.allclose(weights, its_own.weights[0], 1e-3, 1e-4), (
            f"ranks 0 and {rank} end with different weights: what the future holds "
            "must be the same on all ranks"
        )
    share = max(its_own.sent) / max(usual.sent)
    assert share <= 0.505, (  # a scale beside each bucket is no fault
        f"in {_STEPS} steps a rank sends {max(its_own.sent):,} bytes, which is "
        f"{share:.0%} of the {max(usual.sent):,} without it"
    )
    worse = its_own.loss / usual.loss - 1
    assert abs(worse) <= 0.02, (
        f"after {_STEPS} steps the loss is {its_own.loss:.4f}, and without it "
        f"{usual.loss:.4f}: {worse:+.1%}. Are gradients lost, or added up without "
        "taking the mean?"
    )
    return f"it sends {share:.0%} of the bytes, and the loss is the same."


def _train_pair(half):
    """Train on a group of two threads; return the group with its counts."""
    assert not dist.is_initialized(), (
        "this process belongs to a process group; run the check in the notebook"
    )
    dist.Backend.register_backend("two_threads", lambda *_: _Pair(), devices=["cpu"])
    world = {"store": dist.HashStore(), "rank": 0, "world_size": 2}
    dist.init_process_group("two_threads", **world)
    pair = dist.group.WORLD
    try:
        pair.weights = pair.run(lambda: _train(half, pair))
    finally:
        dist.destroy_process_group()
    net = _make_net()
    vector_to_parameters(pair.weights[0], net.parameters())
    with torch.no_grad():
        losses = [_loss(net, rank, _STEPS + 1, 2000).item() for rank in range(2)]
    pair.loss = sum(losses) / 2
    return pair


def _train(half, group):
    """Train for a step with DDP as it comes, and then with the hook."""
    # After the first step DDP lays out its buckets anew: here it makes two, of two
    # sizes. The hook comes after that.
    net = DistributedDataParallel(_make_net(), bucket_cap_mb=0.005)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(_STEPS + 1):
        if step == 1:
            group.sent[group.rank()] = 0
            if half is not None:
                net.register_comm_hook(*_make_hook(half, group))
        optimizer.zero_grad()
        _loss(net, group.rank(), step, 16).backward()
        optimizer.step()
    return parameters_to_vector(net.parameters()).detach()


def _make_net():
    generator = torch.Generator().manual_seed(1)
    layers = [nn.Linear(32, 32, bias=False) for _ in range(3)]
    for layer in layers:
        nn.init.normal_(layer.weight, std=0.25, generator=generator)
    return nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])


def _loss(net, rank, step, images):
    """Return the loss of a batch, which is another one on each rank."""
    generator = torch.Generator().manual_seed(1000 * rank + step)
    x = torch.randn(images, 32, generator=generator)
    x[:, 16 * rank : 16 * rank + 16] *= 0.5
    return (net(x) - x.roll(1, dims=1).abs()).square().mean()


def _make_hook(half, group):
    """Return the reader's state and hook; the hook's future is looked at."""
    made = half(group)
    assert isinstance(made, tuple | list) and len(made) == 2 and callable(made[1]), (
        f"half(group) returns {made!r:.60}, not a state and a hook"
    )
    state, hook = made
    assert "bucket" in inspect.signature(hook).parameters, (
        "register_comm_hook wants a hook whose second argument is called bucket"
    )

    def watched(state, bucket):
        shape = bucket.buffer().shape
        future = hook(state, bucket)
        assert callable(getattr(future, "then", None)), (
            f"the hook returns {future!r:.60}, not a torch.futures.Future, such as "
            "work.get_future()"
        )
        assert future.done(), (
            "the hook's future has no value yet, though all exchanges are over"
        )
        value = future.value()
        assert isinstance(value, torch.Tensor) and value.shape == shape, (
            f"the hook's future holds {_describe(value)}, not one tensor of the "
            f"bucket's shape, {tuple(shape)}"
        )
        return future

    return state, watched


def _describe(value):
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return f"{value!r:.60}"


class _Pair(dist.ProcessGroup):
    """Two ranks: threads that take turns, so that a run can be repeated exactly.

    A thread goes on until it needs what the other one has not brought yet.
    """

    def __init__(self):
        super().__init__(0, 2)
        self.sent = [0, 0]
        self._brought = [[], []]
        self._turns = [threading.Semaphore(0), threading.Semaphore(0)]
        self._over = set()
        self._thread = threading.local()

    def getBackendName(self):  # noqa: N802
        return "two_threads"

    def rank(self):
        return getattr(self._thread, "rank", 0)

    def run(self, act):
        """Call act() on both ranks; return both results, or raise the first error."""
        results, errors = [None, None], []

        def live(rank):
            self._thread.rank = rank
            self._turns[rank].acquire()
            try:
                results[rank] = act()
            except BaseException as error:  # the other one must get its turn
                errors.append(error)
            self._over.add(rank)
            self._turns[1 - rank].release()

        threads = [threading.Thread(target=live, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        self._turns[0].release()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]  # what follows in the other rank is a consequence
        return results

    def allreduce(self, tensors, opts=None):
        tensors = _as_list(tensors)
        add = _choose_operation(opts)
        for tensor in tensors:
            tensor.copy_(add(*self._exchange("all_reduce", tensor, tensor.nbytes)))
        return _Work(tensors)

    def allgather(self, outputs, inputs, opts=None):
        for output, mine in zip(outputs, inputs, strict=True):
            both = self._exchange("all_gather", mine, mine.nbytes)
            for place, tensor in zip(output, both, strict=True):
                place.copy_(tensor)
        return _Work(outputs)

    def broadcast(self, tensors, opts=None):
        tensors, root = _as_list(tensors), opts.rootRank if opts else 0
        for tensor in tensors:
            size = tensor.nbytes if self.rank() == root else 0
            tensor.copy_(self._exchange("broadcast", tensor, size)[root])
        return _Work(tensors)

    def barrier(self, opts=None):
        self._exchange("barrier", torch.zeros(()), 0)
        return _Work([])

    def _refuse(self, *_):
        raise AssertionError(
            "the check's group carries all_reduce, all_gather and broadcast, and "
            "nothing else"
        )

    # Which of these a function of torch.distributed calls depends on the version.
    reduce = gather = scatter = send = recv = recv_anysource = _refuse
    reduce_scatter = alltoall = alltoall_base = allreduce_coalesced = _refuse
    _allgather_base = _reduce_scatter_base = allgather_coalesced = _refuse
    all_gather_single = reduce_scatter_single = all_to_all_single = _refuse

    def _exchange(self, name, tensor, size):
        """Bring a tensor; return both ranks' tensors. Counts what this rank sends."""
        me, other = self.rank(), 1 - self.rank()
        self.sent[me] += size
        self._brought[me].append((name, tensor.detach().clone()))
        count = len(self._brought[me])
        if len(self._brought[other]) < count and other not in self._over:
            self._turns[other].release()
            self._turns[me].acquire()
        assert len(self._brought[other]) >= count, (
            f"rank {me} waits in {name}, and rank {other} does not come: both must "
            "exchange equally often"
        )
        names, tensors = zip(*(told[count - 1] for told in self._brought), strict=True)
        assert len(set(names)) == 1 and tensors[0].shape == tensors[1].shape, (
            f"the ranks meet with {names[0]} of {_describe(tensors[0])}, and "
            f"{names[1]} of {_describe(tensors[1])}"
        )
        return tensors


class _Work(dist.Work):
    """An exchange that is over."""

    def __init__(self, result):
        super().__init__()
        self._future = torch.futures.Future()
        self._future.set_result(result)

    def wait(self, timeout=None):
        return True

    def is_completed(self):
        return True

    def get_future(self):
        return self._future


def _as_list(tensors):
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def _choose_operation(opts):
    operation = dist.ReduceOp.SUM if opts is None else opts.reduceOp
    known = {
        dist.ReduceOp.SUM: torch.add,
        dist.ReduceOp.AVG: lambda a, b: (a + b) / 2,
        dist.ReduceOp.MAX: torch.maximum,
        dist.ReduceOp.MIN: torch.minimum,
    }
    for kind, function in known.items():
        if operation == kind:
            return function
    raise AssertionError("the check's group takes SUM, AVG, MAX or MIN")
