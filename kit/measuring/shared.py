"""What an experiment closes over and has state: models, optimizers, random generators.

Each exists once, so what one run changes would be there in the next. All are put back.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple


class Shared:
    """What an experiment closes over and has state; it exists once.

    `put_back` makes it again what it was when this was made: values, gradients, what
    is trained and in which mode. Random generators are seeded with each start. `names`
    are the reader's.
    """

    def __init__(self, objects: Iterable[tuple[str, object]]) -> None:
        from torch import Tensor
        from torch.utils.data import DataLoader

        self._kept: list[_Kept] = []
        self._generators: list[_RandomGenerator] = []
        self._loaders: list[Any] = []
        objects = list(objects)
        inside = {id(part) for _, value in objects for part in _list_inner(value)}
        for name, value in objects:
            if id(value) in inside:  # it is kept with the module that it is of
                continue
            if isinstance(value, DataLoader):
                self._loaders += [value] if vars(value).get("_iterator") is None else []
                name, value = f"{name}.generator", value.generator
            both = hasattr(value, "state_dict") and hasattr(value, "load_state_dict")
            is_trained = isinstance(value, Tensor) and value.requires_grad
            if _RandomGenerator.can_keep(value):
                if all(value is not each.owner for each in self._generators):
                    self._generators.append(_RandomGenerator(name, value))
            elif is_trained or (both and not isinstance(value, type)):
                self._kept.append(_Kept(name, value))
        self.names = [each.name for each in self._kept if each.has_state]
        self.names += [each.name for each in self._generators]

    def put_back(self) -> bool:
        """Put everything back; return whether something had been changed.

        Raises ValueError where more was changed than values.
        """
        for loader in self._loaders:  # its workers end with the start that made them
            vars(loader)["_iterator"] = None
        has_changed, errors = False, []
        for each in (*self._kept, *self._generators):
            try:
                has_changed = each.put_back() or has_changed
            except ValueError as error:  # the others are put back first
                errors.append(error)
        if errors:
            raise errors[0]
        return has_changed

    def seed(self, seed: int) -> None:
        """Seed the reader's own random generators."""
        for generator in self._generators:
            generator.seed(seed)


class _RandomGenerator:
    """A random generator of the reader's: PyTorch's, NumPy's or Python's."""

    def __init__(self, name: str, owner: Any) -> None:
        self.name, self.owner = name, owner
        self._found = self._expected = self._read()

    @staticmethod
    def can_keep(value: object) -> bool:
        """Return whether this is a random generator, and not one that all share."""
        import numpy
        import torch

        kinds = (torch.Generator, numpy.random.Generator, random.Random)
        return isinstance(value, kinds) and value is not torch.default_generator

    def put_back(self) -> bool:
        """Set it as it was found; return whether numbers were drawn from it."""
        has_drawn = not _equal(self._read(), self._expected)
        self._set(self._found)
        self._expected = self._found
        return has_drawn

    def seed(self, seed: int) -> None:
        """Seed it as each start is seeded."""
        import torch

        if isinstance(self.owner, torch.Generator):
            self.owner.manual_seed(seed)
        elif isinstance(self.owner, random.Random):
            self.owner.seed(seed)
        else:
            bits = self.owner.bit_generator
            bits.state = type(bits)(seed).state
        self._expected = self._read()

    def _read(self) -> Any:
        import torch

        if isinstance(self.owner, torch.Generator):
            return self.owner.get_state()
        if isinstance(self.owner, random.Random):
            return self.owner.getstate()
        return copy.deepcopy(self.owner.bit_generator.state)

    def _set(self, state: Any) -> None:
        import torch

        if isinstance(self.owner, torch.Generator):
            self.owner.set_state(state)
        elif isinstance(self.owner, random.Random):
            self.owner.setstate(state)
        else:
            self.owner.bit_generator.state = state


class _Kept:
    """One object with `state_dict`, or one tensor that is trained, as it was found."""

    def __init__(self, name: str, owner: Any) -> None:
        self.name, self._owner = name, owner
        try:
            self._layout, state = _read_state(owner)
            self._found = _copy(state)
        except (RuntimeError, ValueError, NotImplementedError, TypeError) as error:
            first_line = f"{error}".partition("\n")[0]
            raise ValueError(
                f"closes over {name}, and its state cannot be copied: {first_line}\n"
                f"Build {name} inside the experiment, before its first `yield`."
            ) from error
        self.has_state = not hasattr(owner, "state_dict") or bool(state.values)

    def put_back(self) -> bool:
        """Put it back; return whether it had been changed."""
        import torch

        owner = self._owner
        layout, state = _read_state(owner)
        if layout != self._layout:
            raise ValueError(
                f"changed the layout of {self.name}, which it found and did not make: "
                "keys, dtype, device, memory format, hooks, submodules or parameter "
                f"groups.\nBuild {self.name} inside the experiment, before its first "
                "`yield`."
            )
        if _equal(state, self._found):
            return False
        found = _copy(self._found)
        if hasattr(owner, "load_state_dict"):
            owner.load_state_dict(found.values)
        else:
            with torch.no_grad():
                owner.copy_(found.values)
        modules, tensors = _list_parts(owner)
        for module, mode in zip(modules, found.modes, strict=True):
            module.training = mode
        for tensor, (is_trained, grad) in zip(tensors, found.flags, strict=True):
            tensor.grad = None if grad is None else grad.to(tensor.device)
            tensor.requires_grad_(is_trained)
        return True


class _State(NamedTuple):
    """What can be put back: values, training modes, each tensor's own flags."""

    values: Any
    modes: list[bool]
    flags: list[Any]


def _list_parts(owner: Any) -> tuple[list[Any], list[Any]]:
    """Return an object's modules, and its tensors that carry flags of their own."""
    import torch

    if isinstance(owner, torch.nn.Module):
        return [*owner.modules()], [*owner.parameters(), *owner.buffers()]
    return [], [owner] if isinstance(owner, torch.Tensor) else []


def _list_inner(owner: Any) -> list[Any]:
    """Return the modules and tensors inside of a module."""
    modules, tensors = _list_parts(owner)
    return [part for part in (*modules, *tensors) if part is not owner]


def _read_state(owner: Any) -> tuple[list[object], _State]:
    """Return what must not change, and what can be put back."""
    import torch

    modules, tensors = _list_parts(owner)
    layout: list[object] = []
    for t in tensors:
        layout += [id(t), t.dtype, t.device, t.shape, t.layout]
        layout += [t.stride()] if t.layout == torch.strided else []
    for m in modules:
        hooks = m._forward_hooks, m._forward_pre_hooks, m._backward_hooks
        layout += [id(m), [*m._buffers], *map(list, hooks)]
    for group in getattr(owner, "param_groups", ()):  # of an optimizer
        layout += map(id, group["params"])
    values = owner.state_dict() if hasattr(owner, "state_dict") else owner.detach()
    flags = [(t.requires_grad, t.grad if t.is_leaf else None) for t in tensors]
    return layout, _State(values, [m.training for m in modules], flags)


def _copy(value: Any) -> Any:
    """Return a copy of a state, tensors without their graphs, and in main memory.

    A second copy of a model and its optimizer may not fit on its device.
    """
    import torch

    if isinstance(value, torch.Tensor):
        alone = value.detach()
        return alone.clone() if alone.is_meta else alone.to("cpu", copy=True)
    if isinstance(value, _State):
        return _State(*map(_copy, value))
    if isinstance(value, Mapping):
        copied = copy.copy(value)  # of its own type, with what it carries beside
        for key, each in value.items():
            copied[key] = _copy(each)
        return copied
    if type(value) in (list, tuple):
        return type(value)(map(_copy, value))
    return copy.deepcopy(value)


def _equal(a: Any, b: Any) -> bool:
    """Return whether a state is the same as a copy of it, tensors by their values."""
    import torch

    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return _hold_the_same(a.detach(), b)
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(_equal, a, b))
    try:
        return bool(a == b)
    except (TypeError, ValueError, RuntimeError):  # arrays, and what cannot be told
        return False


def _hold_the_same(a: Any, b: Any) -> bool:
    """Return whether two tensors hold the same values; not-a-number is itself, too."""
    import torch

    if a.dtype != b.dtype or a.shape != b.shape or a.layout != b.layout:
        return False
    if a.is_meta:
        return True
    if a.layout == torch.sparse_coo:
        one, other = a.coalesce(), b.coalesce()
        return _hold_the_same(one.indices(), other.indices()) and _hold_the_same(
            one.values(), other.values()
        )
    if a.layout != torch.strided:
        return _hold_the_same(a.to_sparse(), b.to_sparse())
    here = a.to(b.device)
    if torch.equal(here, b):
        return True
    is_float = a.is_floating_point() or a.is_complex()
    return is_float and torch.allclose(here, b, rtol=0, atol=0, equal_nan=True)
