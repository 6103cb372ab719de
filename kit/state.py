"""The settings that an experiment may change, and the models that it closes over.

PyTorch keeps grad mode, autocast, thread count and backend flags for the thread, and a
model of the reader's exists once: what one start changes would be there in the next.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import operator
import random
import sys
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any

#: Flags below `torch.backends` that change what a step computes or which kernel it
#: takes. The general precision comes before those that inherit it.
_FLAGS = (
    *("fp32_precision", "cudnn.enabled", "cudnn.benchmark", "cudnn.deterministic"),
    *("cudnn.conv.fp32_precision", "cudnn.rnn.fp32_precision"),
    "cuda.matmul.fp32_precision",
    "cuda.matmul.allow_fp16_reduced_precision_reduction",
    "cuda.matmul.allow_bf16_reduced_precision_reduction",
    *("mkldnn.enabled", "mkldnn.deterministic", "mkldnn.matmul.fp32_precision"),
    *("mkldnn.conv.fp32_precision", "mkldnn.rnn.fp32_precision", "opt_einsum.enabled"),
)
_KERNELS = ("flash", "mem_efficient", "math", "cudnn")
_AUTOCAST_DEVICES = ("cpu", "cuda", "xpu", "mps")

#: Each setting's value by its name.
Settings = dict[str, object]
Random = dict[str, Any]


@functools.cache
def _list_settings() -> dict[str, tuple[Callable[[], Any], Callable[[Any], object]]]:
    """Return how each setting is read and set."""
    import torch

    def flag(path: str) -> tuple[Callable[[], Any], Callable[[Any], object]]:
        room, _, name = f"backends.{path}".rpartition(".")
        owner = operator.attrgetter(room)(torch)
        return lambda: getattr(owner, name), lambda value: setattr(owner, name, value)

    found = {
        "threads": (torch.get_num_threads, torch.set_num_threads),
        "default dtype": (torch.get_default_dtype, torch.set_default_dtype),
        "default device": (torch.get_default_device, _set_default_device),
        "deterministic": (
            torch.get_deterministic_debug_mode,
            torch.set_deterministic_debug_mode,
        ),
        "matmul precision": (
            torch.get_float32_matmul_precision,
            torch.set_float32_matmul_precision,
        ),
        **{path: flag(path) for path in _FLAGS},
        **{
            f"{kernel} attention": (
                getattr(torch.backends.cuda, f"{kernel}_sdp_enabled"),
                getattr(torch.backends.cuda, f"enable_{kernel}_sdp"),
            )
            for kernel in _KERNELS
        },
        "inference": (torch.is_inference_mode_enabled, _cannot_be_set),
        "grad": (torch.is_grad_enabled, torch.set_grad_enabled),
        "autocast": (_read_autocast, _set_autocast),
        "autocast cache": (
            torch.is_autocast_cache_enabled,
            torch.set_autocast_cache_enabled,
        ),
        "autocast depth": (_read_depth, _set_depth),
        "garbage collection": (gc.isenabled, _set_garbage_collection),
    }
    return {name: pair for name, pair in found.items() if _read(pair[0]) is not None}


def _read(getter: Callable[[], Any]) -> Any:
    """Return a setting; None where this build of PyTorch has none, or cannot tell."""
    try:
        return getter()
    except (AttributeError, RuntimeError):
        return None


def capture() -> Settings:
    """Read the settings of the calling thread."""
    return {name: _read(getter) for name, (getter, _) in _list_settings().items()}


def restore(settings: Settings) -> None:
    """Set the calling thread's settings; what already is so is not touched."""
    import torch

    for name, (getter, setter) in _list_settings().items():
        value = settings[name]
        if value is not None and _read(getter) != value:
            setter(value)
    # Weights that one start has cast must not serve the next.
    torch.clear_autocast_cache()


@contextlib.contextmanager
def kept() -> Generator[None, None, None]:
    """Leave the settings and all random generators as they are found."""
    settings, generators = capture(), capture_random()
    try:
        yield
    finally:
        restore(settings)
        restore_random(generators)


def take_over(settings: Settings) -> None:
    """Set a new thread to the settings of another."""
    import torch

    restore(settings)
    # A new thread reports the count of the one that made it, and uses another.
    torch.set_num_threads(torch.get_num_threads())


def _set_default_device(device: Any) -> None:
    import torch

    # A default that is set, even to the usual one, makes every call slower.
    torch.set_default_device(None if device.type == "cpu" else device)


def _read_autocast() -> tuple[tuple[bool, object], ...]:
    import torch

    return tuple(
        (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
        for device in _AUTOCAST_DEVICES
    )


def _set_autocast(values: Iterable[tuple[bool, Any]]) -> None:
    import torch

    for device, (enabled, dtype) in zip(_AUTOCAST_DEVICES, values, strict=True):
        torch.set_autocast_enabled(device, enabled)
        torch.set_autocast_dtype(device, dtype)


def _read_depth() -> int:
    import torch

    torch.autocast_increment_nesting()
    return int(torch.autocast_decrement_nesting())


def _set_depth(depth: int) -> None:
    import torch

    for _ in range(_read_depth(), depth):
        torch.autocast_increment_nesting()
    for _ in range(depth, _read_depth()):
        torch.autocast_decrement_nesting()


def _cannot_be_set(value: object) -> None:
    """Do nothing: this one ends with the `with` that it belongs to."""


def _set_garbage_collection(enabled: bool) -> None:
    (gc.enable if enabled else gc.disable)()


# Random numbers


def seed_everything(seed: int) -> None:
    """Seed Python's, NumPy's and PyTorch's generators alike."""
    import numpy
    import torch

    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)


def capture_random() -> Random:
    """Read the states of all random generators."""
    return {name: read() for name, (read, _) in _list_generators().items()}


def restore_random(states: Random) -> None:
    """Set random generators to states that were read."""
    for name, (_, set_to) in _list_generators().items():
        if name in states:
            set_to(states[name])


def _list_generators() -> dict[str, tuple[Callable[[], Any], Callable[[Any], object]]]:
    import torch

    found: dict[str, tuple[Any, Any]] = {
        "python": (random.getstate, random.setstate),
        "cpu": (torch.get_rng_state, torch.set_rng_state),
    }
    if "numpy" in sys.modules:
        numpy = sys.modules["numpy"].random
        found["numpy"] = numpy.get_state, numpy.set_state
    for name in ("cuda", "xpu"):
        module = getattr(torch, name)
        if module.is_initialized():
            found[name] = module.get_rng_state_all, module.set_rng_state_all
    if torch.backends.mps.is_available():
        found["mps"] = torch.mps.get_rng_state, torch.mps.set_rng_state
    return found


# Models, optimizers and the like


class Shared:
    """What an experiment closes over and has state; it exists once.

    `put_back` makes it again what it was when this was made: values, gradients, what
    is trained and in which mode. `names` are the reader's.
    """

    def __init__(self, objects: Iterable[tuple[str, object]]) -> None:
        self._kept = [kept for name, value in objects if (kept := _keep(name, value))]
        self.names = [kept.name for kept in self._kept if kept.has_state]

    def put_back(self) -> bool:
        """Put everything back; return whether something had been changed.

        Raises ValueError where more was changed than values.
        """
        changed = [kept.put_back() for kept in self._kept]
        return any(changed)


def _keep(name: str, value: Any) -> _Kept | None:
    """Make what remembers an object; None for one without state."""
    import torch

    if isinstance(value, type):
        return None
    if isinstance(value, torch.utils.data.DataLoader):
        return _Loader(name, value)
    if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
        return _Kept(name, value)
    if isinstance(value, torch.Tensor) and value.requires_grad:
        return _Kept(name, value)
    return None


class _Kept:
    """One object with `state_dict`, or one tensor that is trained, as it was found."""

    def __init__(self, name: str, owner: Any) -> None:
        import torch

        self.name, self._owner = name, owner
        self._is_tensor = isinstance(owner, torch.Tensor)
        self._layout = _describe_layout(owner)
        self._state = copy.deepcopy(self._read_state())
        self._flags = copy.deepcopy(_read_flags(owner))
        self.has_state = _has_state(self._state)

    def _read_state(self) -> Any:
        return self._owner.detach() if self._is_tensor else self._owner.state_dict()

    def put_back(self) -> bool:
        """Put it back; return whether it had been changed."""
        import torch

        if _describe_layout(self._owner) != self._layout:
            raise ValueError(
                f"changed the layout of {self.name}, which it found and did not make: "
                "keys, dtype, memory format, hooks, submodules or parameter groups.\n"
                f"Build {self.name} inside the experiment, before its first `yield`."
            )
        same_flags = _equal(_read_flags(self._owner), self._flags)
        same = _equal(self._read_state(), self._state)
        if not same and self._is_tensor:
            with torch.no_grad():
                self._owner.copy_(self._state)
        elif not same:
            self._owner.load_state_dict(copy.deepcopy(self._state))
        if not same_flags:
            _set_flags(self._owner, self._flags)
        return not (same and same_flags)


class _Loader(_Kept):
    """A DataLoader: workers that persist end with the start that made them."""

    has_state = False

    def __init__(self, name: str, loader: Any) -> None:
        self.name, self._loader = name, loader
        self._had_workers = vars(loader).get("_iterator") is not None

    def put_back(self) -> bool:
        if not self._had_workers:
            vars(self._loader).update(_iterator=None)
        return False


def _list_tensors(owner: Any) -> list[Any]:
    """Return the tensors of an object that carry flags of their own."""
    import torch

    if isinstance(owner, torch.nn.Module):
        return [*owner.parameters(), *owner.buffers()]
    return [owner] if isinstance(owner, torch.Tensor) else []


def _describe_layout(owner: Any) -> list[object]:
    """Return what must not change: it could not be put back in place."""
    import torch

    found: list[object] = [
        (id(t), t.dtype, t.device, t.shape, t.stride()) for t in _list_tensors(owner)
    ]
    if isinstance(owner, torch.nn.Module):
        for name, module in owner.named_modules():
            hooks = module._forward_hooks, module._forward_pre_hooks
            found.append((name, id(module), *map(list, hooks)))
            found.append([*module._backward_hooks, *module._buffers])
    elif isinstance(owner, torch.optim.Optimizer):
        found += [list(map(id, group["params"])) for group in owner.param_groups]
    return found


def _read_flags(owner: Any) -> tuple[list[bool], list[tuple[bool, Any]]]:
    """Return which modules are in training mode, and each tensor's own flags."""
    import torch

    is_module = isinstance(owner, torch.nn.Module)
    training = [module.training for module in owner.modules()] if is_module else []
    tensors = _list_tensors(owner)
    return training, [(t.requires_grad, t.grad if t.is_leaf else None) for t in tensors]


def _set_flags(owner: Any, flags: tuple[list[bool], list[tuple[bool, Any]]]) -> None:
    training, tensors = flags
    for module, mode in zip(owner.modules() if training else [], training, strict=True):
        module.training = mode
    for tensor, (wanted, grad) in zip(_list_tensors(owner), tensors, strict=True):
        tensor.grad = None if grad is None else grad.clone()
        tensor.requires_grad_(wanted)


def _has_state(state: Any) -> bool:
    """Return whether there is anything in a state but empty containers."""
    if isinstance(state, Mapping):
        return any(map(_has_state, state.values()))
    if isinstance(state, (list, tuple)):
        return any(map(_has_state, state))
    return True


def _equal(a: Any, b: Any) -> bool:
    """Return whether two states are the same, tensors by their values."""
    import torch

    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.dtype == b.dtype and bool(torch.equal(a, b))
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(_equal, a, b))
    try:
        return bool(a == b)
    except (TypeError, ValueError, RuntimeError):  # arrays, and what cannot be told
        return False
