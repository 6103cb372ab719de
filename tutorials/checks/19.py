"""Checks of chapter 19's exercises: equal losses, and a third of the work counted."""

import runpy
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

#: Loop A has eight steps in an epoch, so these are more than three epochs.
_STEPS = 26
#: Of the other loops every step is alike.
_FEW_STEPS = 3


class _Counting(TorchDispatchMode):
    """Counts operations, and the bytes of the memory that they take for results."""

    def __init__(self):
        super().__init__()
        self.operations = self.bytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        given = {_place(tensor) for tensor in _find_tensors((args, kwargs))}
        made = {
            _place(tensor): tensor.untyped_storage() for tensor in _find_tensors(out)
        }
        self.operations += 1
        self.bytes += sum(made[place].nbytes() for place in made.keys() - given)
        return out


def _find_tensors(tree):
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _place(tensor):
    return tensor.untyped_storage().data_ptr()


def _import_three_loops():
    path = Path(__file__).resolve().parents[1] / "three_loops.py"
    return SimpleNamespace(**runpy.run_path(str(path)))


def _run(loop, most, **given):
    """Return what a loop yields in its first steps, and what was counted meanwhile."""
    torch.manual_seed(0)
    with _Counting() as counting:
        steps = islice(loop(**given), most)
        return [(n, found["loss"].item()) for n, found in steps], counting


def _compare(wanted, found):
    """Assert that two loops yield the same losses and items."""
    assert len(found) == len(wanted), (
        f"it ends after {len(found)} steps, and should go on"
    )
    both = zip(wanted, found, strict=True)
    for step, ((items, loss), (my_items, my_loss)) in enumerate(both, 1):
        assert my_items == items, f"step {step} yields {my_items} items, not {items}"
        assert abs(my_loss - loss) <= 1e-4 * max(1, abs(loss)), (
            f"the loss of step {step} is {my_loss:.6g}, and should be {loss:.6g}"
        )


def _judge(cost, my_cost, what):
    """Return what to say of a loop that costs at most a third."""
    assert 3 * my_cost <= cost, (
        f"its steps cost {my_cost:,} {what}. Those of the slow loop cost {cost:,}, and "
        "a third of that is wanted"
    )
    return f"the same losses, with {my_cost:,} {what} in place of {cost:,}."


def lines(loop):
    """Loop A: the same losses, with a third of the lines read."""
    loops = _import_three_loops()

    class Lines(loops.Lines):
        """Lines that count how often one is read."""

        reads = 0

        def read(self, number):
            self.reads += 1
            return super().read(number)

    slow, mine = Lines(), Lines()
    wanted, _ = _run(loops.learn_lines, _STEPS, lines=slow)
    found, _ = _run(loop, _STEPS, lines=mine)
    _compare(wanted, found)
    return _judge(slow.reads, mine.reads, "lines read")


def pairs(loop):
    """Loop B: the same losses, with a third of the operations."""
    wanted, slow = _run(_import_three_loops().learn_pairs, _FEW_STEPS)
    found, mine = _run(loop, _FEW_STEPS)
    _compare(wanted, found)
    return _judge(slow.operations, mine.operations, "operations")


def places(loop):
    """Loop C: the same losses, with a third of the bytes allocated."""
    wanted, slow = _run(_import_three_loops().learn_places, _FEW_STEPS)
    found, mine = _run(loop, _FEW_STEPS)
    _compare(wanted, found)
    return _judge(slow.bytes, mine.bytes, "bytes allocated")
