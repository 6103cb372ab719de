"""Checks of chapter 13's exercises: sums, bytes, a crossing, and a short training."""

import inspect
import math
import threading
from collections import namedtuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector, vector_to_parameters

# The chapter's: what is looked at is what a message has, not who made its class.
Message = namedtuple(
    "Message", "sender receiver part parts adds", defaults=(0, 1, True)
)
_STEPS = 60

# 1. Two halves


def halves(halves):
    """Part r's sum on rank r, then all sums everywhere, and no message too many."""
    for n in (1, 2, 3, 4, 7):
        both = halves(n)
        assert isinstance(both, tuple | list) and len(both) == 2, (
            f"n={n}: it returns {both!r:.60}, not two plans"
        )
        has = torch.eye(n, dtype=torch.int64)[:, None].repeat(1, n, 1)
        for half, plan in zip(("first", "second"), both, strict=True):
            _carry_out(plan, has, n, f"n={n}, in the {half} half")
            if half == "first" and n > 1:
                _check_scattered(has, n)
        for rank, part in _pairs(n):
            assert has[rank, part].eq(1).all(), (
                f"n={n}: after both halves rank {rank} has in part {part} "
                f"{_tell(has[rank, part])}; the sum has every rank once"
            )
    return "each half sends what it must, and the sums are where they belong."


def _carry_out(plan, has, n, when):
    """Change what the ranks have; look at each message, and count them.

    `has[rank, part, other]` says how often it holds what that other rank began with.
    What a step sends is what was there when the step began.
    """
    sent = [0] * n
    for step in plan:
        before, adds_at = has.clone(), {}
        for message in step:
            assert getattr(message, "_fields", ()) == Message._fields, (
                f"{when}: a step holds {message!r:.60}, which is no Message"
            )
            sender, receiver, part, parts, adds = message
            assert {sender, receiver} <= {*range(n)} and sender != receiver, (
                f"{when}: {message} is not from one of {n} ranks to another"
            )
            assert parts == n and part in range(n), (
                f"{when}: {message} is not one of {n} parts of the tensor"
            )
            place = receiver, part
            assert place not in adds_at or (adds and adds_at[place]), (
                f"{when}: two messages of one step reach part {part} of rank "
                f"{receiver}, and not both are added"
            )
            sent[sender] += 1
            adds_at[place] = adds
            has[place] = before[sender, part] + (has[place] if adds else 0)
    for rank, count in enumerate(sent):
        assert count < n, (
            f"{when}: rank {rank} sends {count} parts, and with {n} ranks none needs "
            f"to send more than {n - 1}"
        )


def _check_scattered(has, n):
    """Each rank has the sum of its own part, and no other sum."""
    for rank in range(n):
        finished = has[rank].eq(1).all(dim=1).nonzero().flatten().tolist()
        where = f"n={n}: after the first half rank {rank}"
        assert rank in finished, (
            f"{where} has in part {rank} {_tell(has[rank, rank])}, and the sum of all "
            f"in {_name(finished)}; it should have the sum of part {rank}"
        )
        assert finished == [rank], (
            f"{where} has the sum of all in {_name(finished)}; it should have that of "
            f"part {rank} and of nothing else"
        )


def _pairs(n):
    return [(rank, part) for rank in range(n) for part in range(n)]


def _tell(counts):
    """Say which ranks' values are in a sum, and how often."""
    told = [f"rank {r} × {c}" for r, c in enumerate(counts.tolist()) if c]
    return " + ".join(told) or "nothing"


def _name(parts):
    return f"part {' and '.join(map(str, parts))}" if parts else "no part"


# 2. Count the bytes


def bytes_sent(bytes_sent):
    """What each rank sends, for plans that no chapter shows."""
    plans = {
        "every rank sends everything to all others": _to_all,
        "along a line, then from its end to all": _along_a_line,
        "each part at its owner, in two steps": _through_owners,
        "through one root, which gives it back in parts": _in_parts_from_root,
    }
    for told, plan in plans.items():
        for n, size in ((1, 1000), (2, 1_000_000), (3, 1000), (6, 48_000_000)):
            found, wanted = bytes_sent(plan, n, size), [0.0] * n
            for message in (message for step in plan(n) for message in step):
                wanted[message.sender] += size / message.parts
            assert isinstance(found, list | tuple) and len(found) == n, (
                f"{told}, n={n}: it returns {found!r:.60}, not a list of {n} numbers"
            )
            for rank in range(n):
                assert math.isclose(found[rank], wanted[rank], rel_tol=0.01), (
                    f"{told}, n={n}, size={size:,}: rank {rank} sends "
                    f"{wanted[rank]:,.0f} bytes, and it says {found[rank]:,.0f}"
                )
    return "it counts for each rank what it sends, whatever the plan."


def _to_all(n):
    yield [Message(a, b) for a, b in _pairs(n) if a != b]


def _along_a_line(n):
    for rank in range(n - 1):
        yield [Message(rank, rank + 1)]
    yield [Message(n - 1, rank, adds=False) for rank in range(n - 1)]


def _through_owners(n):
    others = [(rank, owner) for rank, owner in _pairs(n) if rank != owner]
    return [
        [Message(rank, owner, owner, n) for rank, owner in others],
        [Message(owner, rank, owner, n, adds=False) for rank, owner in others],
    ]


def _in_parts_from_root(n):
    yield [Message(rank, 0) for rank in range(1, n)]
    yield [Message(0, rank, rank, n, adds=False) for rank in range(1, n)]
    for step in range(n - 1):
        yield [
            Message(rank, (rank + 1) % n, (rank - step) % n, n, adds=False)
            for rank in range(n)
        ]


# 3. Your own crossover


def crossover(crossover):
    """The last crossing of two broken lines, between the sizes."""
    sizes = [1000, 2000, 10_000, 100_000, 1_000_000]
    slow, fast = [2, 3, 4, 10, 50], [1, 2, 3, 9, 40]
    late = [3, 4, 5, 9, 40]  # crosses slow once, at an even distance
    cases = {
        "the second one is quicker everywhere": (slow, fast, 1000),
        "the second one is slower everywhere": (fast, slow, None),
        "they cross once": (slow, late, 55_000),
        "they cross once, near a size": ([4, 5, 6, 7, 8], [5, 6, 6.1, 6.1, 3], 19_000),
        "they cross three times": ([4, 5, 6, 7, 8], [5, 4, 9, 6, 7], 77_500),
        "the second one is slower at the largest size": (late, slow, None),
        "it is slower at the largest size only": (
            [2, 3, 4, 5, 6],
            [1, 2, 3, 4, 7],
            None,
        ),
        "they cross before the second size": (slow, [5, 2, 3, 9, 40], 1750),
    }
    for told, (first, second, wanted) in cases.items():
        found = crossover(sizes, first, second)
        given = f"{told}: sizes={sizes}, first={first}, second={second}"
        if wanted is None:
            assert found is None, f"{given}: it returns {found!r:.60}, not None"
            continue
        assert isinstance(found, int | float), (
            f"{given}: it returns {found!r:.60}, and should return {wanted:,}"
        )
        assert math.isclose(found, wanted, rel_tol=0.01), (
            f"{given}: it returns {found:,.0f}, and from {wanted:,} on the second one "
            "is quicker"
        )
    return "it finds the last crossing, and says where there is none."


# 4. Half the bytes


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
