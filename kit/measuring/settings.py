"""What one run must not leave to the next: settings, random states, shared modules.

`SETTINGS` is the one table of settings; the diagnosis switches some of them, too.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import functools
import inspect
import operator
import random
import sys
import sysconfig
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple


class Setting(NamedTuple):
    """How a setting of PyTorch's is read and set."""

    name: str
    read: Callable[[], Any]
    set: Callable[[Any], object]


#: Settings that functions of `torch` read and set.
_FUNCTIONS = {
    "threads": ("get_num_threads", "set_num_threads"),
    "grad mode": ("is_grad_enabled", "set_grad_enabled"),
    "default dtype": ("get_default_dtype", "set_default_dtype"),
    "deterministic": ("get_deterministic_debug_mode", "set_deterministic_debug_mode"),
    "float32 precision": (
        "get_float32_matmul_precision",
        "set_float32_matmul_precision",
    ),
    "autocast cache": ("is_autocast_cache_enabled", "set_autocast_cache_enabled"),
}
#: Flags under `torch`; the general precision comes before those that inherit it.
_FLAGS = (
    "backends.fp32_precision",
    "backends.cudnn.enabled",
    "backends.cudnn.benchmark",
    "backends.cudnn.deterministic",
    "backends.cudnn.conv.fp32_precision",
    "backends.cudnn.rnn.fp32_precision",
    "backends.cuda.matmul.fp32_precision",
    "backends.cuda.matmul.allow_fp16_reduced_precision_reduction",
    "backends.cuda.matmul.allow_bf16_reduced_precision_reduction",
    "backends.mkldnn.enabled",
    "backends.mkldnn.deterministic",
    "backends.mkldnn.matmul.fp32_precision",
    "backends.mkldnn.conv.fp32_precision",
    "backends.mkldnn.rnn.fp32_precision",
    "backends.opt_einsum.enabled",
)
_AUTOCAST_DEVICES = ("cpu", "cuda", "xpu", "mps")
#: Longer containers are data, not what an experiment is made of.
_LONGEST = 100
#: What is below these folders is not the reader's own.
_INSTALLED = (
    sysconfig.get_path("stdlib"),
    sysconfig.get_path("purelib"),
    str(Path(__file__).parents[1]),
)


@functools.cache
def list_settings() -> list[Setting]:
    """Return the table of settings, as far as this PyTorch has them."""
    import torch

    find, bind = operator.attrgetter, functools.partial
    settings = []
    for name, (read, write) in _FUNCTIONS.items():
        settings.append(Setting(name, find(read)(torch), find(write)(torch)))
    for kind in ("flash", "mem_efficient", "math", "cudnn"):
        read = f"backends.cuda.{kind}_sdp_enabled"
        write = f"backends.cuda.enable_{kind}_sdp"
        settings.append(
            Setting(f"{kind} attention", find(read)(torch), find(write)(torch))
        )
    for path in _FLAGS:
        module, _, flag = path.rpartition(".")
        owner = find(module)(torch)
        read_flag, set_flag = bind(getattr, owner, flag), bind(setattr, owner, flag)
        settings.append(Setting(path, read_flag, set_flag))
    for device in _AUTOCAST_DEVICES:
        settings.append(
            Setting(
                f"autocast on {device}",
                bind(torch.is_autocast_enabled, device),
                bind(torch.set_autocast_enabled, device),
            )
        )
        settings.append(
            Setting(
                f"autocast's dtype on {device}",
                bind(torch.get_autocast_dtype, device),
                bind(torch.set_autocast_dtype, device),
            )
        )
    settings.append(
        Setting("default device", torch.get_default_device, _set_default_device)
    )
    settings.append(Setting("anomaly mode", _read_anomaly, _set_anomaly))
    return settings


def _read(setting: Setting) -> Any:
    """Return a setting's value; None where it cannot be read.

    This build of PyTorch lacks it, or another setting contradicts it.
    """
    try:
        return setting.read()
    except (AttributeError, RuntimeError):
        return None


def _set_default_device(device: Any) -> None:
    import torch

    # A default that is set, even to the usual one, makes every call slower.
    torch.set_default_device(None if device.type == "cpu" else device)


def _read_anomaly() -> tuple[bool, bool]:
    import torch

    return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()


def _set_anomaly(modes: tuple[bool, bool]) -> None:
    import torch

    torch.set_anomaly_enabled(*modes)


def read_settings() -> dict[str, Any]:
    """Return each setting's value by its name."""
    return {setting.name: _read(setting) for setting in list_settings()}


def restore_settings(values: Mapping[str, Any]) -> None:
    """Set all settings to these values; what already is so is not touched."""
    import torch

    for setting in list_settings():
        value = values[setting.name]
        if value is not None and _read(setting) != value:
            setting.set(value)
    # Weights that one run has cast must not serve the next.
    torch.clear_autocast_cache()


# Random states


def seed_everything(seed: int) -> None:
    """Seed Python's, NumPy's and PyTorch's generators alike."""
    import numpy
    import torch

    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)


def read_random() -> dict[str, Any]:
    """Return the states of all random generators."""
    return {name: read() for name, (read, _) in _list_generators().items()}


def restore_random(states: Mapping[str, Any]) -> None:
    """Set random generators to states that were read."""
    for name, (_, set_to) in _list_generators().items():
        if name in states:
            set_to(states[name])


def _list_generators() -> dict[str, tuple[Callable[[], Any], Callable[[Any], object]]]:
    import numpy
    import torch

    from kit import clock

    found: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
        "python": (random.getstate, random.setstate),
        "numpy": (numpy.random.get_state, numpy.random.set_state),
        "cpu": (torch.get_rng_state, torch.set_rng_state),
    }
    if clock.find_initialised():
        device = torch.get_device_module()
        if hasattr(device, "get_rng_state_all"):
            pair = device.get_rng_state_all, device.set_rng_state_all
        else:
            pair = device.get_rng_state, device.set_rng_state
        found["accelerator"] = pair
    return found


# Modules and optimizers


class Shared:
    """The modules and optimizers that an experiment closes over; each exists once.

    `put_back` loads the state that they had when this was made. Gradients, hooks,
    training mode and `requires_grad` are left alone.
    """

    def __init__(self, function: object, knobs: Mapping[str, object]) -> None:
        self.owners = find_shared(function, knobs)
        #: The ids of their tensors: what has one in common must not take turns.
        self.tensors = {id(each) for owner in self.owners for each in _list_own(owner)}
        self._states = [copy.deepcopy(owner.state_dict()) for owner in self.owners]

    def put_back(self) -> None:
        """Load the states again."""
        for owner, state in zip(self.owners, self._states, strict=True):
            try:
                owner.load_state_dict(copy.deepcopy(state))
            except RuntimeError as error:
                kind = type(owner).__name__
                error.add_note(
                    f"The state of a {kind} that the experiment closes over cannot be "
                    "restored: build it inside, before the first `yield`."
                )
                raise


def _list_own(owner: Any) -> list[Any]:
    """Return the tensors of a module, or those that an optimizer changes."""
    if hasattr(owner, "buffers"):
        return [*owner.parameters(), *owner.buffers()]
    optimizer = getattr(owner, "optimizer", owner)  # a scheduler has one
    return [each for group in optimizer.param_groups for each in group["params"]]


def find_shared(function: object, knobs: Mapping[str, object]) -> list[Any]:
    """Return the modules, optimizers and schedulers that a function closes over.

    Knobs count, and so do the reader's own functions, classes and objects that it uses.
    """
    from torch.nn import Module
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    found = []
    visited = set()
    ahead = [*knobs.values(), function]
    while ahead:
        value = ahead.pop()
        if id(value) in visited:
            continue
        visited.add(id(value))
        if isinstance(value, (Module, Optimizer, LRScheduler)):
            found.append(value)
        else:
            ahead += _list_parts(value)
    return found


def _list_parts(value: Any) -> list[Any]:
    """Return what a value is made of, as far as it is the reader's own."""
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if inspect.ismethod(value):
        return [value.__self__, value.__func__]
    if inspect.isfunction(value):
        inner = inspect.unwrap(value)
        is_own = inspect.isfunction(inner) and _is_readers(inner)
        return [*_list_names(inner)] if is_own else []
    if isinstance(value, (list, tuple)) and len(value) <= _LONGEST:
        return [*value]
    if isinstance(value, dict) and len(value) <= _LONGEST:
        return [*value.values()]
    if inspect.isclass(value):
        methods = filter(inspect.isfunction, vars(value).values())
        return [*methods] if _is_readers(value) else []
    if isinstance(value, (types.SimpleNamespace, argparse.Namespace)):
        return [*vars(value).values()]
    if hasattr(value, "__dict__") and _is_readers(type(value)):
        return [type(value), *vars(value).values()]
    return []


def _is_readers(thing: Any) -> bool:
    """Return whether a function or a class is of no installed package."""
    name = thing.__module__
    file = getattr(sys.modules.get(name), "__file__", None)
    return name == "__main__" or bool(file and not file.startswith(_INSTALLED))


def _list_names(function: types.FunctionType) -> Iterator[Any]:
    """Yield what a function's closure, defaults and global names stand for."""
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # an empty cell: not assigned yet
            yield cell.cell_contents
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    for name in _list_global_names(function.__code__):
        if name in function.__globals__:
            yield function.__globals__[name]


def _list_global_names(code: types.CodeType) -> Iterator[str]:
    """Yield the names that a function looks up, and functions nested in it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _list_global_names(constant)
