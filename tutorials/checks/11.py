"""Checks of chapter 11's exercises, with ranks that are threads and are watched."""

import collections
import math
import queue
import statistics
import threading

import torch
import torch.distributed as dist

_SECONDS = 5
#: The shapes of LeNet's parameters, and what an all-reduce through rank 0 moves there.
_LENET = [(20, 1, 3, 3), (20,), (50, 20, 5, 5), (50,)]
_LENET += [(128, 800), (128,), (10, 128), (10,)]
_MOST_OF_ROOT = 0.6


# The exercises


def grown(grown):
    """Each image once, equal steps, each rank's batch full, all sizes told rightly."""
    for images, ranks in ((32, 2), (37, 1), (33, 4), (37, 4), (3, 4), (13, 3)):
        order, size = torch.randperm(images), 4
        steps = [_steps_of(grown, order, size, rank, ranks) for rank in range(ranks)]
        who = f"{images} images, batch_size=4, world_size={ranks}"
        counts = [len(mine) for mine in steps]
        assert len(set(counts)) == 1, (
            f"{who}: the ranks make {counts} steps, so some wait for others for ever"
        )
        wanted = order.split(size * ranks)
        assert counts[0] == len(wanted), (
            f"{who}: it makes {counts[0]} steps, and one rank with batches "
            f"{ranks} times as large makes {len(wanted)}"
        )
        for step, batch in enumerate(wanted):
            parts = [mine[step][0] for mine in steps]
            _check_step(f"{who}, step {step + 1}", parts, batch)
            for rank, mine in enumerate(steps):
                assert mine[step][1] == len(batch), (
                    f"{who}, step {step + 1}: together they have {len(batch)} images, "
                    f"and rank {rank} says {mine[step][1]}"
                )
    return "each rank has its full batch, and each image is used once."


def best_rates(best_rates):
    """All pairs and seeds once; the best median; never a rate that diverged."""
    nan = math.nan
    told = {
        (1, 0.1): (0.80, 0.81, 0.82),
        (1, 0.2): (0.84, 0.85, 0.86),
        (1, 0.4): (0.83, 0.99, 0.10),
        (1, 0.8): (nan, nan, nan),
        (2, 0.1): (nan, 0.98, 0.97),
        (2, 0.2): (0.80, 0.81, 0.82),
        (2, 0.4): (0.86, 0.20, 0.88),
        (2, 0.8): (0.90, nan, 0.91),
        (4, 0.1): (nan, 0.5, 0.5),
        (4, 0.2): (0.5, nan, 0.5),
        (4, 0.4): (0.5, 0.5, nan),
        (4, 0.8): (nan, nan, nan),
    }
    calls = collections.Counter()

    def run(size, rate, seed):
        assert (size, rate) in told, f"run was called with size={size}, rate={rate}"
        assert seed in (0, 1, 2), f"run was called with seed={seed}; they are 0, 1, 2"
        calls[size, rate, seed] += 1
        return told[size, rate][seed]

    rates, sizes = [0.1, 0.2, 0.4, 0.8], [1, 2, 4]
    found = best_rates(run, rates, sizes)
    again = [call for call, count in calls.items() if count > 1]
    assert not again, f"(size, rate, seed) {again[0]} was run more than once"
    assert isinstance(found, dict) and sorted(found) == sizes, (
        f"it returns {found!r}, not a dictionary with the keys {sizes}"
    )
    for size in sizes:
        tried = {rate: told[size, rate] for rate in rates}
        medians = {
            rate: statistics.median(values)
            for rate, values in tried.items()
            if not any(map(math.isnan, values))
        }
        wanted = max(medians, key=medians.get) if medians else None
        assert found[size] == wanted, (
            f"on {size} ranks the seeds gave {tried}; the best rate is {wanted}, "
            f"and it says {found[size]}"
        )
    missed = len(told) * 3 - len(calls)
    assert not missed, f"{missed} of {len(told) * 3} trainings were never run"
    return "the best median counts, and what diverges is out."


def spread(spread):
    """The sums, on all ranks, in place, with no rank in the way of the others."""
    for ranks, shapes in ((1, [(3,)]), (2, [(5, 3), ()]), (3, [(2,), (7, 2), (1,)])):
        _check_sums(spread, ranks, shapes)
    moved = _check_sums(spread, 4, _LENET)
    size = 4 * sum(math.prod(shape) for shape in _LENET)
    root = 2 * 3 * size
    share = max(moved) / root
    assert share <= _MOST_OF_ROOT, (
        f"with four ranks and LeNet's gradients, rank {moved.index(max(moved))} moves "
        f"{share:.2f} of what rank 0 moves in allreduce(), and the others "
        f"{min(moved) / root:.2f} or more: cut the large tensors, too"
    )
    return f"the busiest rank moves {share:.2f} of what rank 0 did."


def accuracy_of_all(accuracy_of_all):
    """The accuracy of one rank, on all; every image once, fairly shared."""
    for images, ranks in ((12, 4), (13, 4), (3, 4), (11, 2), (5, 1)):
        # The wrong answers all come last, so that the mean of the parts is wrong.
        labels = torch.arange(images) % 10
        right = torch.arange(images) < images // 2 + 1
        seen = [[] for _ in range(ranks)]

        def look(me, labels=labels, right=right, seen=seen):
            def predict(batch):
                which = batch.flatten().long()
                seen[me.get_rank()] += which.tolist()
                answers = torch.where(right, labels, (labels + 1) % 10)[which]
                return torch.nn.functional.one_hot(answers, 10).float()

            numbers = torch.arange(len(labels)).float().reshape(-1, 1, 1, 1)
            return accuracy_of_all(predict, numbers, labels.clone(), me)

        found, _ = _run(ranks, look)
        who = f"{images} images on {ranks} ranks"
        looks = collections.Counter(image for mine in seen for image in mine)
        lost = sorted(set(range(images)) - set(looks))
        assert not lost, f"{who}: nobody looks at {lost}"
        twice = sorted(image for image, count in looks.items() if count > 1)
        assert not twice, f"{who}: these are looked at more than once: {twice}"
        shares = [len(mine) for mine in seen]
        assert max(shares) - min(shares) <= 1, f"{who}: they look at {shares} images"
        wanted = right.sum().item() / images
        for rank, value in enumerate(found):
            assert isinstance(value, (int, float)), (
                f"{who}: rank {rank} returns {value!r}, not a plain number"
            )
            assert abs(value - wanted) < 1e-6, (
                f"{who}: rank {rank} returns {value:.4f}, and {wanted:.4f} is right"
            )
    return "each image is looked at once, and all ranks know the result."


# What they look at


def _steps_of(grown, order, size, rank, ranks):
    steps = list(grown(order.clone(), size, rank, ranks))
    for step in steps:
        assert isinstance(step, tuple) and len(step) == 2, (
            f"each step yields two things, the indices and a number, not {step!r}"
        )
        assert torch.is_tensor(step[0]), f"{step[0]!r} is no tensor of indices"
    return steps


def _check_step(who, parts, batch):
    """All parts are the batch; each one is full, or as full as that of the others."""
    together = torch.cat(parts).tolist()
    assert sorted(together) == sorted(batch.tolist()), (
        f"{who}: all ranks together use {sorted(together)}, and one rank with the "
        f"large batch uses {sorted(batch.tolist())}"
    )
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1, (
        f"{who}: the ranks have {sizes} images; share them as evenly as possible"
    )


def _check_sums(spread, ranks, shapes):
    """Return how many bytes each rank has moved."""
    brought = [[torch.randn(shape) for shape in shapes] for _ in range(ranks)]
    wanted = [sum(tensors) for tensors in zip(*brought, strict=True)]

    def add_up(me):
        mine = [tensor.clone() for tensor in brought[me.get_rank()]]
        spread(mine, me)
        return mine

    found, meeting = _run(ranks, add_up, forbidden="all_reduce")
    for rank, tensors in enumerate(found):
        for tensor, total in zip(tensors, wanted, strict=True):
            assert torch.allclose(tensor, total, atol=1e-5), (
                f"on rank {rank} of {ranks}, a tensor {tuple(total.shape)} is not the "
                f"sum of what the ranks brought: off by {(tensor - total).abs().max()}"
            )
    return meeting.moved


# Ranks that are threads


class _Meeting:
    """Where the made-up ranks exchange; `moved` are each one's bytes, in and out."""

    def __init__(self, size, forbidden=""):
        self.size, self.forbidden = size, forbidden
        self.barrier = threading.Barrier(size, timeout=_SECONDS)
        self.brought = [None] * size
        self.moved = [0] * size
        self.mail = collections.defaultdict(queue.Queue)


class _Done:
    """What an asynchronous call returns."""

    def __init__(self, finish=lambda: None):
        self._finish = finish

    def wait(self):
        """Finish what is left to do."""
        self._finish()


class _Dist:
    """What one rank sees of torch.distributed."""

    ReduceOp = dist.ReduceOp

    def __init__(self, meeting, rank):
        self._meeting, self._rank = meeting, rank

    def __getattr__(self, name):
        known = ", ".join(name for name in vars(_Dist) if not name.startswith("_"))
        raise AssertionError(f"the check's dist has no {name}; it has {known}")

    def get_rank(self, group=None):
        return self._rank

    def get_world_size(self, group=None):
        return self._meeting.size

    def all_reduce(self, tensor, op=None, group=None, async_op=False):
        self._check_sum(op)
        tensor.copy_(sum(self._meet("all_reduce", tensor.detach().clone())))
        return self._move(4 * (1 - 1 / self._meeting.size) * tensor.nbytes)

    def reduce(self, tensor, dst=0, op=None, group=None, async_op=False):
        self._check_sum(op)
        parts = self._meet(f"reduce(dst={dst})", tensor.detach().clone())
        if self._rank == dst:
            tensor.copy_(sum(parts))
        return self._move_through(dst, tensor.nbytes)

    def broadcast(self, tensor, src=0, group=None, async_op=False):
        parts = self._meet(f"broadcast(src={src})", tensor.detach().clone())
        tensor.copy_(parts[src])
        return self._move_through(src, tensor.nbytes)

    def gather(self, tensor, gather_list=None, dst=0, group=None, async_op=False):
        parts = self._meet(f"gather(dst={dst})", tensor.detach().clone())
        if self._rank == dst:
            self._fill(gather_list, parts)
        return self._move_through(dst, tensor.nbytes)

    def scatter(self, tensor, scatter_list=None, src=0, group=None, async_op=False):
        mine = [part.detach().clone() for part in scatter_list or []]
        tensor.copy_(self._meet(f"scatter(src={src})", mine)[src][self._rank])
        return self._move_through(src, tensor.nbytes)

    def all_gather(self, tensor_list, tensor, group=None, async_op=False):
        self._fill(tensor_list, self._meet("all_gather", tensor.detach().clone()))
        return self._move(2 * (self._meeting.size - 1) * tensor.nbytes)

    def reduce_scatter(self, output, input_list, op=None, group=None, async_op=False):
        self._check_sum(op)
        mine = [part.detach().clone() for part in input_list]
        everyone = self._meet("reduce_scatter", mine)
        output.copy_(sum(parts[self._rank] for parts in everyone))
        return self._move(2 * (self._meeting.size - 1) * output.nbytes)

    def all_to_all(self, output_list, input_list, group=None, async_op=False):
        mine = [part.detach().clone() for part in input_list]
        everyone = self._meet("all_to_all", mine)
        self._fill(output_list, [parts[self._rank] for parts in everyone])
        others = [p.nbytes for r, p in enumerate(input_list) if r != self._rank]
        came = [p.nbytes for r, p in enumerate(output_list) if r != self._rank]
        return self._move(sum(others) + sum(came))

    def send(self, tensor, dst, group=None, tag=0):
        self._meeting.mail[self._rank, dst, tag].put(tensor.detach().clone())
        return self._move(tensor.nbytes)

    def recv(self, tensor, src, group=None, tag=0):
        try:
            came = self._meeting.mail[src, self._rank, tag].get(timeout=_SECONDS)
        except queue.Empty:
            raise AssertionError(
                f"rank {self._rank} waits for rank {src}, which sends nothing"
            ) from None
        tensor.copy_(came)
        return self._move(tensor.nbytes)

    isend = send

    def irecv(self, tensor, src, group=None, tag=0):
        return _Done(lambda: self.recv(tensor, src, group, tag))

    def barrier(self, group=None):
        self._meet("barrier", None)

    def _meet(self, name, mine):
        """Bring something; return what each rank brought, in order."""
        meeting = self._meeting
        if meeting.forbidden and name.startswith(meeting.forbidden):
            raise AssertionError(f"do it without dist.{meeting.forbidden}")
        meeting.brought[self._rank] = (name, mine)
        try:
            meeting.barrier.wait()
            everyone = list(meeting.brought)
            meeting.barrier.wait()  # before anyone brings the next
        except threading.BrokenBarrierError:
            raise _Alone(f"rank {self._rank} waits in {name} for the others") from None
        names = {said for said, _ in everyone}
        assert len(names) == 1, f"the ranks meet in different calls: {sorted(names)}"
        return [brought for _, brought in everyone]

    def _move(self, count):
        self._meeting.moved[self._rank] += count
        return _Done()

    def _move_through(self, root, count):
        """Count what goes between one rank and each of the others."""
        others = self._meeting.size - 1
        return self._move(count * others if self._rank == root else count)

    def _fill(self, tensors, parts):
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.copy_(part)

    def _check_sum(self, op):
        assert op in (None, dist.ReduceOp.SUM), "the check's dist only adds up"


class _Alone(AssertionError):
    """A rank waits for others, which have ended or do something else."""


def _run(size, function, forbidden=""):
    """Call a function on each rank with its own dist; return results and meeting."""
    meeting = _Meeting(size, forbidden)
    results, errors = [None] * size, []

    def work(rank):
        try:
            results[rank] = function(_Dist(meeting, rank))
        except BaseException as error:
            errors.append(error)
            meeting.barrier.abort()

    threads = [
        threading.Thread(target=work, args=(r,), daemon=True) for r in range(size)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(3 * _SECONDS)
    # The culprit's error, not that of those who waited for it.
    errors.sort(key=lambda error: isinstance(error, _Alone))
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads), (
        "it does not come to an end"
    )
    return results, meeting
