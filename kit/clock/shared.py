"""What an experiment closes over, modules and optimizers, and puts back each time."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from typing import Any

from kit.clock.experiment import Experiment
from kit.clock.origin import referred_objects


class SharedObjects:
    """Modules, optimizers and the like that an experiment closes over.

    They exist once, so two variants cannot be alive over them at the same time.
    `restore` puts them back to how they were found, bit for bit: parameters, buffers,
    gradients, hooks, submodules, optimizer state.
    """

    def __init__(self, experiment: Experiment, knobs: Mapping[str, object]) -> None:
        import torch

        self.names: list[str] = []
        self._restorers: list[Callable[[], None]] = []
        for name, value in referred_objects(experiment.own, knobs):
            if isinstance(value, torch.utils.data.DataLoader):
                # Workers that persist end with the run that started them.
                if vars(value).get("_iterator") is None:
                    forget = functools.partial(vars(value).update, _iterator=None)
                    self._restorers.append(forget)
                continue
            if isinstance(value, torch.nn.Module):
                self._restorers.append(_keep_module(value))
            elif isinstance(value, torch.optim.Optimizer):
                self._restorers.append(_keep_optimizer(value))
            elif (
                type(value).__module__.split(".")[0] == "torch"
                and hasattr(value, "load_state_dict")
                and hasattr(value, "state_dict")
            ):
                kept = copy.deepcopy(value.state_dict())
                self._restorers.append(functools.partial(_load, value, kept))
            elif isinstance(value, torch.Tensor) and value.requires_grad:
                self._restorers.append(_keep_tensors([value]))
            else:
                continue
            self.names.append(name)

    def restore(self) -> None:
        """Put everything back to how it was found."""
        for restorer in self._restorers:
            restorer()

    close = restore


def _load(owner: Any, kept: Mapping[str, object]) -> None:
    owner.load_state_dict(copy.deepcopy(kept))


def _keep_module(root: Any) -> Callable[[], None]:
    attributes = [
        (module, {key: _shallow(value) for key, value in vars(module).items()})
        for module in root.modules()
    ]
    restore_tensors = _keep_tensors([*root.parameters(), *root.buffers()])

    def put_back() -> None:
        for module, kept in attributes:
            for key in [key for key in vars(module) if key not in kept]:
                del module.__dict__[key]
            for key, value in kept.items():
                now = module.__dict__.get(key)
                if isinstance(value, dict) and isinstance(now, dict):
                    now.clear()  # handles of hooks refer to this very dict
                    now.update(value)
                else:
                    module.__dict__[key] = _shallow(value)
        restore_tensors()

    return put_back


def _shallow(value: object) -> object:
    return copy.copy(value) if isinstance(value, (dict, list, set)) else value


def _keep_tensors(tensors: list[Any]) -> Callable[[], None]:
    kept = [(t, *_clone(t)) for t in tensors]

    def put_back() -> None:
        for tensor, data, gradient, requires_grad in kept:
            tensor.data = data.clone()  # also undoes a change of dtype or layout
            tensor.grad = None if gradient is None else gradient.clone()
            tensor.requires_grad_(requires_grad)

    return put_back


def _clone(tensor: Any) -> tuple[Any, Any, bool]:
    gradient = tensor.grad if tensor.is_leaf else None
    return (
        tensor.detach().clone(),
        None if gradient is None else gradient.detach().clone(),
        tensor.requires_grad,
    )


def _keep_optimizer(optimizer: Any) -> Callable[[], None]:
    state = {p: _copy_state(s) for p, s in optimizer.state.items()}
    groups = [
        {k: list(v) if k == "params" else copy.deepcopy(v) for k, v in group.items()}
        for group in optimizer.param_groups
    ]

    def put_back() -> None:
        optimizer.state.clear()
        for parameter, kept in state.items():
            optimizer.state[parameter] = _copy_state(kept)
        del optimizer.param_groups[len(groups) :]
        for group, kept in zip(optimizer.param_groups, groups, strict=True):
            group.clear()
            for key, value in kept.items():
                group[key] = list(value) if key == "params" else copy.deepcopy(value)

    return put_back


def _copy_state(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: _copy_state(value) for key, value in state.items()}
    return state.clone() if hasattr(state, "clone") else copy.deepcopy(state)
