"""What memory a batch will need, reckoned with tensors that have no data."""

from __future__ import annotations

import contextlib
import functools
import warnings
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from kit import state
from kit.costs import Line, fit_line
from kit.experiment import Experiment, referred_objects
from kit.state import Shared
from kit.tuning.batch.probe import Overdue, guard

#: An optimizer makes its state at the end of the first step.
_STEPS = 2
_MOST_SECONDS = 20.0
#: Where so few samples take less than the update of the weights, more are tried.
_FACTORS = 1, 32, 1024


def forecast_memory(
    experiment: Experiment, knobs: Mapping[str, object], knob: str, size: int
) -> Line | None:
    """Reckon a line of bytes over batch size, from two steps at `size` and half of it.

    Runs the experiment on PyTorch's fake tensors: nothing is computed, and next to
    nothing allocated. None where it does not work that way: a model that exists already
    has data, and a value that is read has none.
    """
    if Shared(referred_objects(experiment.own, knobs)).names:
        return None
    for factor in _FACTORS:
        half = max(1, factor * size // 2)
        sizes = half, max(factor * size, half + 1)
        # What fake tensors load at their first use leaves them as they cannot be moved,
        # so `net.to(device)` fails once in a process.
        few = _track(experiment, {**knobs, knob: half})
        few = few or _track(experiment, {**knobs, knob: half})
        many = _track(experiment, {**knobs, knob: sizes[1]}) if few else None
        if few is None or many is None:
            return None
        if 0 < few < many:
            return fit_line(sizes, [few, many])
    return None


def _track(experiment: Experiment, knobs: Mapping[str, object]) -> int | None:
    """Return the peak of tensors' bytes over two steps, None where it does not work."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    generator, counted = None, _counter()
    try:
        with (
            state.kept(),
            warnings.catch_warnings(action="ignore"),
            guard(_MOST_SECONDS),
            FakeTensorMode(),
            _aliases(),
            counted,
        ):
            generator, steps = experiment.start(knobs), 0
            while steps < _STEPS:
                steps += next(generator) is not None
    # Whatever the reader's code cannot do without data may raise anything at all.
    except (Exception, Overdue):
        return None
    finally:
        if generator is not None:
            with contextlib.suppress(Exception):
                generator.close()
    return max(counted.peak.values(), default=None)


def _aliases() -> Any:
    """Return a mode in which a parameter that is moved to where it is gets an alias.

    Modules swap fake parameters for what `to` and the like return, and cannot swap one
    for itself: `net.to(device)` would end every forecast.
    """
    import torch
    from torch.overrides import TorchFunctionMode

    class Aliases(TorchFunctionMode):
        def __torch_function__(
            self,
            function: Callable[..., Any],
            types: Any,
            args: Any = (),
            kwargs: Any = None,
        ) -> Any:
            result = function(*args, **(kwargs or {}))
            moved = isinstance(result, torch.nn.Parameter) and args
            if moved and result is args[0] and not torch.is_grad_enabled():
                return result.detach()
            return result

    return Aliases()


def _counter() -> Any:
    """Return a mode that counts bytes of living tensors by device, and their peak.

    `torch.distributed._tools.mem_tracker` counts the same and names each tensor's use.
    It refuses models whose layers are called twice in a step, and takes three times as
    long.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Counter(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.now: dict[str, int] = {}
            self.peak: dict[str, int] = {}
            self._known: set[int] = set()

        def __torch_dispatch__(
            self,
            function: Callable[..., Any],
            types: Any,
            args: Any = (),
            kwargs: Any = None,
        ) -> Any:
            result = function(*args, **(kwargs or {}))
            for tensor in tree_leaves(result):
                if isinstance(tensor, torch.Tensor):
                    self._add(tensor)
            return result

        def _add(self, tensor: torch.Tensor) -> None:
            storage, device = tensor.untyped_storage(), str(tensor.device)
            key, size = storage._cdata, storage.nbytes()
            if key in self._known:
                return
            self._known.add(key)
            self.now[device] = self.now.get(device, 0) + size
            self.peak[device] = max(self.peak.get(device, 0), self.now[device])
            weakref.finalize(storage, functools.partial(self._drop, key, size, device))

        def _drop(self, key: int, size: int, device: str) -> None:
            self._known.discard(key)
            self.now[device] -= size

    return Counter()
