"""Checks of chapter 11's exercises; two of them run on the chapter's ranks."""

import functools
import math
from collections import Counter
from itertools import islice

import torch
import torch.distributed as dist
from torch.nn import functional as F

from kit.ranks import RankError
from kit.teaching import expect

# 1. Batches that grow


def grown(grown):
    """Each image once, equal steps, parts of equal size, all totals right."""

    def look_at(images, ranks, step):
        used = []
        sizes = []
        totals = []
        for rank in range(ranks):
            order = torch.arange(100, 100 + images)
            steps = grown(order, 2, rank, ranks)
            for mine, total in islice(steps, step, step + 1):
                used += mine.tolist()
                sizes.append(len(mine))
                totals.append(total)
        return sorted(used), sorted(sizes), totals

    expect(
        look_at,
        [
            ((8, 2, 0), ([100, 101, 102, 103], [2, 2], [4, 4])),
            ((8, 2, 1), ([104, 105, 106, 107], [2, 2], [4, 4])),
            ((8, 2, 2), ([], [], [])),
            ((11, 2, 2), ([108, 109, 110], [1, 2], [3, 3])),
            ((13, 3, 2), ([112], [0, 0, 1], [1, 1, 1])),
            ((13, 3, 3), ([], [], [])),
        ],
        hint="With so many images from 100 on, batch_size=2 and so many ranks, these "
        "are in this step (the first one is 0) the images that all ranks use, how many "
        "each has, and what each says that all have.",
    )
    return "each rank has its full batch, and each image is used once."


# 2. Which learning rate?


def best_rates(best_rates):
    """All pairs and seeds once; the best median; never a rate that diverged."""
    calls = Counter()

    def choose(*accuracies):
        rates = [0.1, 0.2, 0.4]

        def run(size, rate, seed):
            calls[size, rate, seed] += 1
            return accuracies[rates.index(rate)][seed]

        return best_rates(run, rates, [1, 2])

    nan = math.nan
    cases = [
        (((0.84, 0.85, 0.86), (0.83, 0.99, 0.10), (nan, nan, nan)), {1: 0.1, 2: 0.1}),
        (((nan, 0.98, 0.97), (0.86, 0.20, 0.88), (0.8, 0.81, 0.82)), {1: 0.2, 2: 0.2}),
        (((nan, 0.5, 0.5), (0.5, nan, 0.5), (0.5, 0.5, nan)), {1: None, 2: None}),
    ]
    expect(
        choose,
        cases,
        hint="These are the accuracies with the rates 0.1, 0.2 and 0.4, for three "
        "seeds: the best median counts, and a rate that diverged once is out.",
    )
    assert len(calls) == 18 and {*calls.values()} == {len(cases)}, (
        f"for sizes [1, 2] and three rates it runs {len(calls)} different trainings, "
        f"and one of them {max(calls.values()) / len(cases):g} times; 18 are right, "
        "each once."
    )
    return "the best median counts, and what diverges is out."


# 3. A better all-reduce

#: The shapes of LeNet's parameters.
_LENET = [(20, 1, 3, 3), (20,), (50, 20, 5, 5), (50,)]
_LENET += [(128, 800), (128,), (10, 128), (10,)]


class _Watched:
    """`torch.distributed`, with a count of the bytes sent to a rank to be added up."""

    def __init__(self):
        self.names = set()
        self.sent = Counter()

    def __getattr__(self, name):
        self.names.add(name)
        return getattr(dist, name)

    def reduce(self, tensor, dst=0, *args, **options):
        self.sent[dst] += tensor.nbytes
        return dist.reduce(tensor, dst, *args, **options)

    def gather(self, tensor, gather_list=None, dst=0, **options):
        self.sent[dst] += tensor.nbytes
        return dist.gather(tensor, gather_list, dst, **options)


def spread(spread, ranks):
    """The sums, on all ranks, in place, and no rank that adds up most of them."""

    @functools.wraps(spread)
    def add_up():
        torch.manual_seed(dist.get_rank())
        tensors = [torch.randn(shape) for shape in _LENET]
        right = [tensor.clone() for tensor in tensors]
        watched = _Watched()
        spread(tensors, watched)
        for tensor in right:
            dist.all_reduce(tensor)
        pairs = zip(tensors, right, strict=True)
        off = max((found - total).abs().max().item() for found, total in pairs)
        return off, watched.names, watched.sent

    for rank, (off, names, sent) in enumerate(_run(ranks, add_up)):
        assert off < 1e-4, (
            f"with LeNet's gradients, a number on rank {rank} is {off:.2g} away from "
            "the sum of what the ranks brought."
        )
        assert "all_reduce" not in names, "do it without dist.all_reduce."
        share = max(sent.values(), default=0) / (4 * sum(map(math.prod, _LENET)))
        assert share <= 0.6, (
            f"of LeNet's gradients a rank is sent {share:.0%} to add them up; up to "
            "60% are right. Where are most of LeNet's parameters?"
        )
    return "the sums are right, and the ranks share the adding."


# 4. Evaluate on all ranks


def accuracy_of_all(accuracy_of_all, ranks):
    """The accuracy of one rank, on all; every image once, fairly shared."""

    @functools.wraps(accuracy_of_all)
    def evaluate(count):
        labels = torch.arange(count)
        # The wrong outputs come last, so that the mean of the parts is wrong.
        is_wrong = labels > count // 2
        outputs = F.one_hot((labels + is_wrong) % 10, 10)
        seen = []

        def predict(images):
            seen.extend(images.flatten().int().tolist())
            return outputs[images.flatten().long()].float()

        images = torch.arange(count).float().reshape(-1, 1, 1, 1)
        return accuracy_of_all(predict, images, labels, dist), seen

    def look_at(count):
        found, seen = zip(*_run(ranks, evaluate, count), strict=True)
        together = sorted(number for numbers in seen for number in numbers)
        return together, sorted(map(len, seen)), found

    expect(
        look_at,
        [
            ((6,), ([0, 1, 2, 3, 4, 5], [3, 3], [4 / 6, 4 / 6])),
            ((5,), ([0, 1, 2, 3, 4], [2, 3], [3 / 5, 3 / 5])),
            ((1,), ([0], [0, 1], [1.0, 1.0])),
        ],
        hint="With so many images on two ranks, these are the images that all look at, "
        "how many each looks at, and the accuracy on each.",
    )
    return "each image is looked at once, and all ranks know the result."


def _run(ranks, function, *arguments):
    """Call it on all ranks; say in a sentence what a rank has raised."""
    try:
        return ranks.run(function, *arguments)
    except RankError as error:
        raise AssertionError(str(error).splitlines()[0]) from error
