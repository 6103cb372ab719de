"""The settings that an experiment may change: read, compared, put back.

PyTorch, NumPy and Python keep grad mode, autocast, thread count, hooks, modes and flags
for the thread or the process: what one start changes would be there in the next.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import gc
import operator
import sys
import types
from collections.abc import Callable, Generator
from typing import Any

#: How functions of `torch` read and set something.
_FUNCTIONS = {
    "threads": ("get_num_threads", "set_num_threads"),
    "default dtype": ("get_default_dtype", "set_default_dtype"),
    "deterministic": ("get_deterministic_debug_mode", "set_deterministic_debug_mode"),
    "precision": ("get_float32_matmul_precision", "set_float32_matmul_precision"),
    "grad": ("is_grad_enabled", "set_grad_enabled"),
    "autocast cache": ("is_autocast_cache_enabled", "set_autocast_cache_enabled"),
    "always warn": ("is_warn_always_enabled", "set_warn_always"),
    "backward threads": (
        "_C._is_multithreading_enabled",
        "_C._set_multithreading_enabled",
    ),
    "view replay": ("_C._is_view_replay_enabled", "_C._set_view_replay_enabled"),
    "encoder fast path": (
        "backends.mha.get_fastpath_enabled",
        "backends.mha.set_fastpath_enabled",
    ),
}
for _name in ("flash", "mem_efficient", "math", "cudnn"):
    _pair = f"backends.cuda.{_name}_sdp_enabled", f"backends.cuda.enable_{_name}_sdp"
    _FUNCTIONS[f"{_name} attention"] = _pair
#: Flags of modules of torch that change what a step computes or which kernel it takes.
#: The general precision comes before those that inherit it.
_FLAGS = (
    *("backends.fp32_precision", "backends.cudnn.enabled"),
    *("backends.cudnn.benchmark", "backends.cudnn.deterministic"),
    *("backends.cudnn.conv.fp32_precision", "backends.cudnn.rnn.fp32_precision"),
    "backends.cuda.matmul.fp32_precision",
    "backends.cuda.matmul.allow_fp16_reduced_precision_reduction",
    "backends.cuda.matmul.allow_bf16_reduced_precision_reduction",
    *("backends.mkldnn.enabled", "backends.mkldnn.deterministic"),
    *("backends.mkldnn.matmul.fp32_precision", "backends.mkldnn.conv.fp32_precision"),
    *("backends.mkldnn.rnn.fp32_precision", "backends.opt_einsum.enabled"),
    "utils.deterministic.fill_uninitialized_memory",
)
#: Where PyTorch keeps the hooks that act on every module of the process.
_MODULE_HOOKS = (
    *("_global_forward_pre_hooks", "_global_forward_hooks"),
    *("_global_forward_hooks_with_kwargs", "_global_forward_hooks_always_called"),
    *("_global_backward_pre_hooks", "_global_backward_hooks"),
    "_global_module_registration_hooks",
    "_global_parameter_registration_hooks",
    "_global_buffer_registration_hooks",
)
_AUTOCAST_DEVICES = ("cpu", "cuda", "xpu", "mps")

#: The smallest positive float: zero where denormal numbers are flushed.
_SMALLEST = 5e-324

#: Each setting's value by its name.
Settings = dict[str, object]
_Pairs = dict[str, tuple[Callable[[], Any], Callable[[Any], object]]]


def capture() -> Settings:
    """Read the settings of the calling thread and of the process."""
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


def take_over(settings: Settings) -> None:
    """Set a new thread to the settings of another."""
    import torch

    restore(settings)
    # A new thread reports the count of the one that made it, and uses another.
    torch.set_num_threads(torch.get_num_threads())


@functools.cache
def _list_settings() -> _Pairs:
    """Return how each setting is read and set."""
    import numpy
    import torch

    find, call = operator.attrgetter, functools.partial
    found: _Pairs = {}
    for name, functions in _FUNCTIONS.items():
        with contextlib.suppress(AttributeError):  # this PyTorch does not have it
            found[name] = find(*functions)(torch)
    for path in _FLAGS:
        module, _, flag = path.rpartition(".")
        with contextlib.suppress(AttributeError):
            owner = find(module)(torch)
            found[path] = call(getattr, owner, flag), call(setattr, owner, flag)
    is_on, set_on = torch.is_autocast_enabled, torch.set_autocast_enabled
    dtype, set_dtype = torch.get_autocast_dtype, torch.set_autocast_dtype
    for device in _AUTOCAST_DEVICES:
        found[f"autocast {device}"] = call(is_on, device), call(set_on, device)
        found[f"{device} dtype"] = call(dtype, device), call(set_dtype, device)
    found["autocast depth"] = _read_depth, _set_depth
    found["default device"] = torch.get_default_device, _set_default_device
    # Inference mode ends with the `with` that it belongs to.
    found["inference"] = torch.is_inference_mode_enabled, lambda _: None
    found["anomaly detection"] = _read_anomaly, lambda x: torch.set_anomaly_enabled(*x)
    found["flushing"] = _flushes_denormals, torch.set_flush_denormal
    checks = torch.sparse.check_sparse_tensor_invariants
    found["sparse checks"] = (
        checks.is_enabled,
        lambda on: checks.enable() if on else checks.disable(),
    )
    found["saved tensors hooks"] = _read_saved_hooks, _pop_saved_hooks
    for name in _MODULE_HOOKS:
        with contextlib.suppress(AttributeError):
            hooks = getattr(torch.nn.modules.module, name)
            found[name] = call(dict, hooks), call(_replace_items, hooks)
    found["dispatch modes"] = torch._C._len_torch_dispatch_stack, _pop_dispatch_modes
    found["function modes"] = torch._C._len_torch_function_stack, _pop_function_modes
    found["NumPy errors"] = numpy.geterr, lambda kinds: numpy.seterr(**kinds)
    found["collection"] = gc.isenabled, lambda on: gc.enable() if on else gc.disable()
    found["collection thresholds"] = gc.get_threshold, lambda x: gc.set_threshold(*x)
    found["thread switches"] = sys.getswitchinterval, sys.setswitchinterval
    found["profile"] = lambda: (sys.getprofile(),), lambda x: sys.setprofile(*x)
    return {name: pair for name, pair in found.items() if _can_be_read(pair[0])}


def _read(getter: Callable[[], Any]) -> Any:
    """Return a setting; None where this build of PyTorch has none, or cannot tell."""
    try:
        return getter()
    except (AttributeError, RuntimeError):
        return None


def _can_be_read(getter: Callable[[], Any]) -> bool:
    try:
        getter()
    except (AttributeError, RuntimeError):
        return False
    return True


def _set_default_device(device: Any) -> None:
    import torch

    # A default that is set, even to the usual one, makes every call slower.
    torch.set_default_device(None if device.type == "cpu" else device)


def _read_depth() -> int:
    import torch

    torch.autocast_increment_nesting()
    return int(torch.autocast_decrement_nesting())


def _set_depth(depth: int) -> None:
    import torch

    while torch.autocast_increment_nesting() <= depth:
        pass
    while torch.autocast_decrement_nesting() > depth:
        pass


def _read_anomaly() -> tuple[bool, bool]:
    import torch

    return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()


def _flushes_denormals() -> bool:
    """Return whether this thread takes denormal numbers for zero: there is no getter.

    Python's own arithmetic obeys the thread, too, and no mode of PyTorch sees it.
    """
    return _SMALLEST * 1.0 == 0.0


def _replace_items(there: dict[Any, Any], wanted: dict[Any, Any]) -> None:
    there.clear()
    there.update(wanted)


def _read_saved_hooks() -> Any:
    """Return the hooks on saved tensors that count now; () where there are none."""
    import torch

    return torch._C._autograd._top_saved_tensors_default_hooks(False) or ()


def _pop_saved_hooks(wanted: Any) -> None:
    """Take off hooks that were left on, down to the wanted ones."""
    import torch

    while _read_saved_hooks() not in (wanted, ()):
        torch._C._autograd._pop_saved_tensors_default_hooks()


def _pop_dispatch_modes(wanted: int) -> None:
    import torch

    while torch._C._len_torch_dispatch_stack() > wanted:
        torch._C._pop_torch_dispatch_stack(None)


def _pop_function_modes(wanted: int) -> None:
    import torch

    while torch._C._len_torch_function_stack() > wanted:
        torch._C._pop_torch_function_stack()


# What no getter tells: whether a paused generator stands inside of a `with` block


def is_inside_with(generator: Any) -> bool:
    """Return whether a paused generator holds a `with` block open.

    Its own, or one of a generator that it delegates to by `yield from`. A context on an
    `ExitStack` is not seen.

    >>> def read(path):
    ...     with open(path) as file:
    ...         yield from file
    >>> lines = read(__file__)
    >>> next(lines) and is_inside_with(lines)
    True
    """
    while isinstance(generator, Generator):
        frame = getattr(generator, "gi_frame", None)
        if frame is None:
            return False
        if _is_position_inside_with(frame.f_code, frame.f_lasti):
            return True
        generator = generator.gi_yieldfrom
    return False


@functools.lru_cache(maxsize=1000)
def _is_position_inside_with(code: types.CodeType, position: int) -> bool:
    """Return whether an exception raised here would leave a `with` block.

    The table of exceptions names the innermost handler only; an outer one covers the
    place where that one begins.
    """
    table = dis.Bytecode(code).exception_entries
    instructions = list(dis.get_instructions(code))
    numbers = {each.offset: number for number, each in enumerate(instructions)}
    visited = set()
    while position not in visited:
        visited.add(position)
        for entry in table:
            if entry.start <= position < entry.end:
                first = numbers[entry.target]
                handler = instructions[first : first + 3]
                if any(each.opname == "WITH_EXCEPT_START" for each in handler):
                    return True
                position = entry.target
                break
    return False
