"""Checks of chapter 17's exercises: saves that die, batches drawn again, waits."""

import contextlib
import random
import tempfile
from pathlib import Path

import torch


class _Death(Exception):
    """What ends a save in the middle."""


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


def _expect(keeper, step, when):
    """Insist that the newest checkpoint is that of a step, and whole."""
    newest = keeper.newest()
    if step is None:
        assert newest is None, (
            f"{when}: newest() returns {newest}, and nothing is whole"
        )
        return
    assert newest is not None, (
        f"{when}: newest() returns None, and step {step} is whole"
    )
    found = {path.name: path.read_text() for path in Path(newest).iterdir()}
    wanted = {"net": f"net {step}", "optimizer": f"optimizer {step}"}
    assert found == wanted, (
        f"{when}: newest() has {found}, and step {step} is the newest"
    )


def _die(keeper, step):
    """Let a save die in the middle."""
    with contextlib.suppress(_Death):
        keeper.save(step, _write(step, dies=True))


def keeper(kind):
    """The newest whole checkpoint is found, whenever a save dies."""
    with tempfile.TemporaryDirectory() as folder:
        keeper = kind(Path(folder))
        _expect(keeper, None, "in an empty folder")
        _die(keeper, 5)
        _expect(keeper, None, "after the first save died")
        for step in (5, 9, 10):
            keeper.save(step, _write(step))
            _expect(keeper, step, f"after step {step} was saved")
        seen = []

        def watch(path):
            seen.append(keeper.newest())
            _write(12)(path)
            _expect(keeper, 10, "while step 12 was being saved")

        _die(keeper, 11)
        _expect(keeper, 10, "after a save of step 11 died")
        _expect(kind(Path(folder)), 10, "after a restart")
        kind(Path(folder)).save(12, watch)
        _expect(keeper, 12, "after step 12 was saved")
        _die(keeper, 100)
        keeper.save(100, _write(100))
        _expect(keeper, 100, "after step 100 was saved, at the second attempt")
    return "whenever a save dies, the newest whole checkpoint is found."


def _all_ranks(batch, step, ranks, samples, size):
    """Return a step's batch, of all ranks together."""
    parts = []
    for rank in range(ranks):
        random.seed(rank + 7 * step)
        torch.manual_seed(rank + 7 * step)
        parts.append(list(batch(step, rank, ranks, samples, size)))
        assert len(parts[-1]) == size // ranks, (
            f"rank {rank} of {ranks} gets {len(parts[-1])} samples of a batch of {size}"
        )
    return sorted(int(number) for part in parts for number in part)


def batch(answer):
    """However many ranks there are, each step has its own batch."""
    samples, size, orders = 48, 8, []
    for epoch in range(2):
        steps = range(epoch * 6, epoch * 6 + 6)
        alone = [_all_ranks(answer, step, 1, samples, size) for step in steps]
        everything = sorted(number for some in alone for number in some)
        assert everything == list(range(samples)), (
            f"in epoch {epoch} not every sample comes once: is the order drawn once "
            "for an epoch, whatever was drawn before, and cut by steps?"
        )
        for ranks in (2, 4):
            for step, whole in zip(steps, alone, strict=True):
                found = _all_ranks(answer, step, ranks, samples, size)
                assert found == whole, (
                    f"step {step} has the samples {whole} with one rank, and {found} "
                    f"with {ranks}: do all ranks share one order?"
                )
        orders.append(alone)
    assert orders[0] != orders[1], "the second epoch has the batches of the first"
    assert orders[0][0] != list(range(size)), "the samples are in no mixed order"
    return "every step finds its batch, with any number of ranks."


def timeout(shortest_timeout):
    """The smallest whole number that nobody in a healthy run waits for."""
    cases = [
        ([[0.0, 0.4], [10.0, 10.2]], 1, "steps that lie far apart are no waits"),
        ([[0.0, 0.1], [1.0, 3.5], [4.0, 4.1]], 3, "one long wait decides"),
        ([[0.0, 2.0], [5.0, 5.0]], 2 + 1, "it must be longer than the wait"),
        ([[7.5, 0.0, 0.1], [9.0, 9.1, 9.0]], 8, "any rank may be the last"),
    ]
    for arrivals, wanted, why in cases:
        found = shortest_timeout(arrivals)
        assert found == wanted, (
            f"for {arrivals} it returns {found}, and {wanted} is right: {why}"
        )
    return "no rank of a healthy run gives up, and a hang ends as soon as it may."
