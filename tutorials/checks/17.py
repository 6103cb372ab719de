"""Checks of chapter 17's exercises: saves that die, batches drawn again, waits."""

import contextlib
import random
import tempfile
from pathlib import Path

import torch

from kit.teaching import expect

# 1. What a kill cannot spoil


class _Death(Exception):
    """What ends a save in the middle."""


def keeper(kind):
    """The newest whole checkpoint is found, whenever a save dies."""
    with tempfile.TemporaryDirectory() as folder:
        keeper = kind(Path(folder))
        _check_newest(keeper, None, "in an empty folder")
        _die(keeper, 5)
        _check_newest(keeper, None, "after the first save died")
        for step in (5, 9, 10):
            keeper.save(step, _write(step))
            _check_newest(keeper, step, f"after step {step} was saved")
        _die(keeper, 11)
        _check_newest(keeper, 10, "after a save of step 11 died")
        keeper = kind(Path(folder))
        _check_newest(keeper, 10, "after a restart")

        def watch(path):
            _write(100)(path)
            _check_newest(keeper, 10, "while step 100 is being saved")

        keeper.save(100, watch)
        _check_newest(keeper, 100, "after step 100 was saved")
    return "whenever a save dies, the newest whole checkpoint is found."


def _write(step, dies=False):
    """Return a function that writes a checkpoint of two files, or only one of them."""

    def write(path):
        path = Path(path)
        path.mkdir()
        (path / "net").write_text(f"net {step}")
        if dies:
            raise _Death
        (path / "optimizer").write_text(f"optimizer {step}")

    return write


def _die(keeper, step):
    """Let a save die in the middle."""
    with contextlib.suppress(_Death):
        keeper.save(step, _write(step, dies=True))


def _check_newest(keeper, step, when):
    newest = keeper.newest()
    found = newest and {path.name: path.read_text() for path in Path(newest).iterdir()}
    right = step and {"net": f"net {step}", "optimizer": f"optimizer {step}"}
    assert found == right, f"{when} newest() has {found}; {right} is right."


# 2. To the exact batch


def batch(batch):
    """However many ranks there are, each step has its own batch."""
    whole = [_join_ranks(batch, step, 1) for step in range(12)]
    expect(
        lambda step, ranks: _join_ranks(batch, step, ranks),
        [((step, ranks), whole[step]) for step in range(12) for ranks in (2, 4)],
        hint="This is the batch of all ranks together, in this step and with so many "
        "ranks. With one rank it is the second one.",
    )
    for epoch in (0, 1):
        order = [n for step in range(6) for n in whole[6 * epoch + step]]
        assert sorted(order) == [*range(48)], (
            f"in epoch {epoch}, of 48 samples in steps of 8, not every sample comes "
            "once. Is the order drawn once for an epoch, whatever was drawn before?"
        )
    assert whole[:6] != whole[6:], "epochs 0 and 1 have the same batches."
    assert whole[0] != [*range(8)], "the samples are in no mixed order."
    return "every step finds its batch, with any number of ranks."


def _join_ranks(batch, step, ranks):
    """Return a step's batch of 8 out of 48 samples, of all ranks together."""
    together = []
    for rank in range(ranks):
        random.seed(rank + 7 * step)
        torch.manual_seed(rank + 7 * step)
        mine = [int(number) for number in batch(step, rank, ranks, 48, 8)]
        assert len(mine) == 8 // ranks, (
            f"rank {rank} of {ranks} gets {len(mine)} samples of a batch of 8."
        )
        together += mine
    return sorted(together)


# 3. Which timeout?


def timeout(shortest_timeout):
    """The smallest whole number that nobody in a healthy run waits for."""
    expect(
        shortest_timeout,
        [
            (([[0.0, 0.4], [10.0, 10.2]],), 1),
            (([[0.0, 0.1], [1.0, 3.5], [4.0, 4.1]],), 3),
            (([[0.0, 2.0], [5.0, 5.0]],), 3),
            (([[7.5, 0.0, 0.1], [9.0, 9.1, 9.0]],), 8),
        ],
        hint="In each step, who waits longest for the last rank?",
    )
    return "no rank of a healthy run gives up, and a hang ends as soon as it may."
