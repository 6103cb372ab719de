"""What an experiment shares with its surroundings: state that must not leak.

PyTorch keeps grad mode, autocast, thread count and backend flags for the thread, not
for the generator. A suspended generator would leave its own to whoever runs next.
"""

from __future__ import annotations

import dataclasses
import operator
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

#: Flags below `torch` that change what a step computes or which kernel it takes. The
#: general precision comes before those that inherit it.
_FLAGS = tuple(
    f"backends.{name}"
    for name in (
        "fp32_precision",
        "cudnn.enabled",
        "cudnn.benchmark",
        "cudnn.deterministic",
        "cudnn.conv.fp32_precision",
        "cudnn.rnn.fp32_precision",
        "cuda.matmul.fp32_precision",
        "cuda.matmul.allow_fp16_reduced_precision_reduction",
        "cuda.matmul.allow_bf16_reduced_precision_reduction",
        "mkldnn.enabled",
        "mkldnn.deterministic",
        "mkldnn.matmul.fp32_precision",
        "mkldnn.conv.fp32_precision",
        "mkldnn.rnn.fp32_precision",
        "opt_einsum.enabled",
    )
)
#: Pairs of public getter and setter below `torch`.
_SWITCHES = (
    ("get_num_threads", "set_num_threads"),
    ("get_default_dtype", "set_default_dtype"),
    ("is_autocast_cache_enabled", "set_autocast_cache_enabled"),
    ("get_deterministic_debug_mode", "set_deterministic_debug_mode"),
    *(
        (f"backends.cuda.{kernel}_sdp_enabled", f"backends.cuda.enable_{kernel}_sdp")
        for kernel in ("flash", "mem_efficient", "math", "cudnn")
    ),
)
_AUTOCAST_DEVICES = ("cpu", "cuda", "xpu", "mps")
#: Inference mode is set by entering it. Leaving would bring back the mode of another
#: variant, so what was entered is kept instead.
_ENTERED: list[object] = []


@dataclass
class State:
    """The calling thread's PyTorch settings and all random generators."""

    switches: tuple[object, ...]
    matmul_precision: str | None
    flags: dict[str, object]
    function_modes: list[object]
    device_context: object
    inference: bool
    grad: bool
    autocast: dict[str, tuple[bool, object]]
    autocast_depth: int
    random_states: dict[str, Any]


def capture() -> State:
    """Read the state of the calling thread."""
    import torch

    flags = {}
    for name in _FLAGS:
        try:
            flags[name] = operator.attrgetter(name)(torch)
        except (AttributeError, RuntimeError):  # not in this build of PyTorch
            continue
    depth = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return State(
        switches=tuple(_below_torch(getter)() for getter, _ in _SWITCHES),
        matmul_precision=_matmul_precision(),
        flags=flags,
        function_modes=_function_modes(),
        device_context=getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None),
        inference=torch.is_inference_mode_enabled(),
        grad=torch.is_grad_enabled(),
        autocast={
            device: (
                torch.is_autocast_enabled(device),
                torch.get_autocast_dtype(device),
            )
            for device in _AUTOCAST_DEVICES
        },
        autocast_depth=depth,
        random_states=_random_states(),
    )


def restore(state: State) -> None:
    """Set the calling thread to a state; what already is so is not touched."""
    import torch

    for (getter, setter), value in zip(_SWITCHES, state.switches, strict=True):
        if _below_torch(getter)() != value:
            _below_torch(setter)(value)
    precision = state.matmul_precision
    if precision is not None and precision != _matmul_precision():
        torch.set_float32_matmul_precision(precision)
    if _function_modes() != state.function_modes:
        while torch._C._len_torch_function_stack():
            torch._C._pop_torch_function_stack()
        for mode in state.function_modes:
            torch._C._push_on_torch_function_stack(mode)
    torch._GLOBAL_DEVICE_CONTEXT.device_context = state.device_context
    for name, value in state.flags.items():
        if operator.attrgetter(name)(torch) != value:
            room, _, flag = name.rpartition(".")
            setattr(operator.attrgetter(room)(torch), flag, value)
    if torch.is_inference_mode_enabled() != state.inference:
        mode = torch.inference_mode(state.inference)
        mode.__enter__()
        _ENTERED.append(mode)
    torch.set_grad_enabled(state.grad)
    for device, (enabled, dtype) in state.autocast.items():
        torch.set_autocast_enabled(device, enabled)
        torch.set_autocast_dtype(device, dtype)
    # Weights that another variant has cast must not serve this one.
    torch.clear_autocast_cache()
    depth = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    for _ in range(depth, state.autocast_depth):
        torch.autocast_increment_nesting()
    for _ in range(state.autocast_depth, depth):
        torch.autocast_decrement_nesting()
    for name, value in state.random_states.items():
        _RANDOM[name][1](value)


def take_over(state: State) -> None:
    """Set a new thread to the state of another; random generators belong to all."""
    import torch

    restore(dataclasses.replace(state, random_states={}))
    # A new thread reports the count of the one that made it, and uses another.
    torch.set_num_threads(torch.get_num_threads())


def _below_torch(path: str) -> Any:
    return operator.attrgetter(path)(sys.modules["torch"])


def _matmul_precision() -> str | None:
    """Return the older setting; None where only the newer one can tell."""
    try:
        return str(_below_torch("get_float32_matmul_precision")())
    except RuntimeError:
        return None


def _function_modes() -> list[object]:
    """Return the modes that are open, as `with torch.device(…)` and its like are."""
    core = _below_torch("_C")
    count = core._len_torch_function_stack()
    return [core._get_function_stack_at(index) for index in range(count)]


def seed_everything(seed: int) -> None:
    """Seed Python's, NumPy's and PyTorch's generators alike."""
    import numpy
    import torch

    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)


def _torch(path: str) -> Callable[..., Any]:
    def call(*arguments: object) -> Any:
        return _below_torch(path)(*arguments)

    return call


def _numpy(name: str) -> Callable[..., Any]:
    def call(*arguments: object) -> Any:
        return getattr(sys.modules["numpy"].random, name)(*arguments)

    return call


_RANDOM: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "python": (random.getstate, random.setstate),
    "numpy": (_numpy("get_state"), _numpy("set_state")),
    "cpu": (_torch("get_rng_state"), _torch("set_rng_state")),
    "cuda": (_torch("cuda.get_rng_state_all"), _torch("cuda.set_rng_state_all")),
    "xpu": (_torch("xpu.get_rng_state_all"), _torch("xpu.set_rng_state_all")),
    "mps": (_torch("mps.get_rng_state"), _torch("mps.set_rng_state")),
}


def _random_states() -> dict[str, Any]:
    import torch

    names = ["python", "cpu"]
    names += ["numpy"] if "numpy" in sys.modules else []
    names += ["cuda"] if torch.cuda.is_initialized() else []
    names += ["xpu"] if torch.xpu.is_initialized() else []
    names += ["mps"] if torch.backends.mps.is_available() else []
    return {name: _RANDOM[name][0]() for name in names}
