"""Switches that apply a repair to a run, and take it back.

Settings are held at another value, modules are called in another way, parameters are
kept in another format. The table `kit.diagnosis.repairs` says when each is tried.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from typing import Any

from kit.diagnosis.modules import Training, wrapped_forwards
from kit.diagnosis.switches import Switch
from kit.diagnosis.tracing import list_lines
from kit.diagnosis.wrapping import Work, wrapped
from kit.measuring.settings import read_random, restore_random

#: Outputs that differ by more show that a loop needs the digits that it has.
_MOST_DIFFERENCE = 0.02


class Repair(Switch):
    """A switch that changes a run for the better, it is hoped.

    `training` tells the run's optimizers and modules. `place` is the line that set what
    is changed, "" where that is not known.
    """

    place = ""

    def __init__(self, work: Work, training: Training) -> None:
        super().__init__(work)
        self.training = training

    def check(self) -> str:
        """Return why it cannot be tried in this run, "" where it can."""
        return ""

    def prime(self) -> None:
        """Say why it cannot be tried, if so."""
        self.obstacle = self.check()

    def refuse_compiled(self) -> str:
        """Return why it is not tried in a compiled loop, "" in others."""
        compiled = "the compiler would compile anew"
        return compiled if self.training.has_compiled else ""


# Settings


class OtherThreads(Repair):
    """Computes with another number of threads in every thread of the run."""

    number = own = 0

    def check(self) -> str:
        """Return why it cannot be tried, if so."""
        return self.refuse_compiled()

    @contextlib.contextmanager
    def install(self, work: Work) -> Generator[None, None, None]:
        """Let the loop set a number of its own only while nothing is changed."""
        import torch

        process = os.getpid()
        real = torch.set_num_threads

        def set_number(_: Callable[[int], None], asked: int) -> None:
            # A worker is a process of its own: it has the one thread that it asks for.
            if os.getpid() == process:
                self.own = asked
                self.place = self.place or _find_caller()
            real(self.number if self.is_on and os.getpid() == process else asked)

        def greet() -> None:
            # A new thread reports the count of the one that made it, and uses another.
            if self.is_on:
                real(self.number)

        self.set_number = real
        work.greeters.append(greet)
        with wrapped(work, (torch, "set_num_threads", set_number)):
            yield

    def turn(self, on: bool) -> None:
        """Compute with the other number, or with the loop's own again."""
        import torch

        if on and not self.is_on:
            self.own = torch.get_num_threads()
        super().turn(on)
        self.set_number(self.number if on else self.own)


class OtherSetting(Repair):
    """Holds a setting at another value, whatever the loop sets.

    A subclass says which function sets it, and reads and writes its value.
    """

    #: The value that it is held at.
    wanted: Any = False

    def __init__(self, work: Work, training: Training) -> None:
        super().__init__(work, training)
        self._own: Any = None
        self._was_slow = False

    def find_setter(self) -> tuple[Any, str]:
        """Return the owner and the name of the function that sets it."""
        raise NotImplementedError

    def read(self) -> Any:
        """Return its value."""
        raise NotImplementedError

    def write(self, value: Any) -> None:
        """Set it, by the function that is not wrapped."""
        self.set(value)

    def is_slow(self, value: Any) -> bool:
        """Return whether a value may cost time."""
        return bool(value != self.wanted)

    @property
    def was_slow(self) -> bool:
        """Whether it has, or the loop has set, a value that may cost time."""
        return self._was_slow or self.is_slow(self.read())

    def install(self, work: Work) -> AbstractContextManager[None]:
        """Wrap what sets it."""
        owner, name = self.find_setter()
        self.set = getattr(owner, name)

        def hold(real: Callable[..., Any], *given: Any, **named: Any) -> Any:
            result = real(*given, **named)
            if not self._was_slow and self.is_slow(self.read()):
                self._was_slow, self.place = True, _find_caller()
            if self.is_on:
                self.write(self.wanted)
            return result

        return wrapped(work, (owner, name, hold))

    def begin_block(self) -> None:
        """Hold it, also where something has set it that is not wrapped."""
        if self.is_on:
            self.write(self.wanted)

    def turn(self, on: bool) -> None:
        """Hold it at the wanted value, or set it back to what it was."""
        if on and not self.is_on:
            self._own = self.read()
        super().turn(on)
        self.write(self.wanted if on else self._own)


class NoAnomalyDetection(OtherSetting):
    """Leaves anomaly detection out."""

    wanted = False, True

    def find_setter(self) -> tuple[Any, str]:
        """Return what `set_detect_anomaly` and `detect_anomaly` call."""
        import torch

        return torch, "set_anomaly_enabled"

    def read(self) -> Any:
        """Return whether it is on, and whether it looks for NaN."""
        import torch

        return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()

    def write(self, value: Any) -> None:
        """Set both."""
        self.set(*value)

    def is_slow(self, value: Any) -> bool:
        """Return whether it is on."""
        return bool(value[0])


class NoDeterminism(OtherSetting):
    """Lets PyTorch choose any algorithms, not only deterministic ones."""

    wanted = False, False

    def check(self) -> str:
        """Return why it cannot be tried, if so."""
        return self.refuse_compiled()

    def find_setter(self) -> tuple[Any, str]:
        """Return what `use_deterministic_algorithms` and the debug mode call."""
        import torch

        return torch._C, "_set_deterministic_algorithms"

    def read(self) -> Any:
        """Return whether they are asked for, and whether others are only warned of."""
        import torch

        warns = torch.is_deterministic_algorithms_warn_only_enabled()
        return torch.are_deterministic_algorithms_enabled(), warns

    def write(self, value: Any) -> None:
        """Set both."""
        self.set(value[0], warn_only=value[1])

    def is_slow(self, value: Any) -> bool:
        """Return whether they are asked for."""
        return bool(value[0])


class NoFilledMemory(OtherSetting):
    """Leaves memory unfilled that deterministic algorithms fill first."""

    def find_setter(self) -> tuple[Any, str]:
        """Return what `torch.utils.deterministic` calls."""
        import torch

        return torch._C, "_set_deterministic_fill_uninitialized_memory"

    def read(self) -> Any:
        """Return whether it is filled."""
        import torch

        return torch._C._get_deterministic_fill_uninitialized_memory()


class NoValidation(OtherSetting):
    """Lets distributions take their arguments unchecked."""

    def __init__(self, work: Work, training: Training) -> None:
        super().__init__(work, training)
        self.is_used = False

    def find_setter(self) -> tuple[Any, str]:
        """Return what sets whether they are checked."""
        from torch.distributions import Distribution

        return Distribution, "set_default_validate_args"

    def read(self) -> Any:
        """Return whether they are checked."""
        from torch.distributions import Distribution

        return Distribution._validate_args

    @contextlib.contextmanager
    def install(self, work: Work) -> Generator[None, None, None]:
        """Note, too, whether there are any."""
        from torch.distributions import Distribution

        def note(real: Callable[..., None], *given: Any, **named: Any) -> None:
            self.is_used = self.is_used or work.has_begun
            real(*given, **named)

        with super().install(work), wrapped(work, (Distribution, "__init__", note)):
            yield


class WithOneDnn(OtherSetting):
    """Computes with the library oneDNN, which was switched off."""

    wanted = True

    def find_setter(self) -> tuple[Any, str]:
        """Return what `torch.backends.mkldnn.flags` calls.

        `torch.backends.mkldnn.enabled = False` calls it by another way.
        """
        import torch

        return torch._C, "_set_mkldnn_enabled"

    def read(self) -> Any:
        """Return whether it is used."""
        import torch

        return torch._C._get_mkldnn_enabled()


class WithFlashAttention(OtherSetting):
    """Computes attention in one operation, which was switched off."""

    wanted = True

    def find_setter(self) -> tuple[Any, str]:
        """Return what `torch.nn.attention.sdpa_kernel` calls."""
        import torch

        return torch._C, "_set_sdp_use_flash"

    def read(self) -> Any:
        """Return whether it may be used."""
        import torch

        return torch._C._get_flash_sdp_enabled()


class WithTensorFloat32(OtherSetting):
    """Multiplies float32 matrices of a GPU with fewer digits."""

    wanted = "high"

    def find_setter(self) -> tuple[Any, str]:
        """Return what sets the precision."""
        import torch

        return torch, "set_float32_matmul_precision"

    def read(self) -> Any:
        """Return the precision, "" where it was set in the other way there is."""
        import torch

        with contextlib.suppress(RuntimeError):
            return torch.get_float32_matmul_precision()
        return ""

    def is_slow(self, value: Any) -> bool:
        """Return whether all digits are asked for."""
        return bool(value == "highest")


class NoTraceFunction(OtherSetting):
    """Lets Python run without the function that a debugger or a tracer has set."""

    wanted = None

    def find_setter(self) -> tuple[Any, str]:
        """Return what sets it, for one thread."""
        return sys, "settrace"

    def read(self) -> Any:
        """Return it, None where there is none."""
        return sys.gettrace()


class FlushedDenormals(Repair):
    """Flushes denormal numbers to zero, where one thread computes."""

    def __init__(self, work: Work, training: Training) -> None:
        super().__init__(work, training)
        self._kept: list[tuple[Any, Any]] = []

    def turn(self, on: bool) -> None:
        """Flush them, or not; then what was flushed is as it was before."""
        import torch

        super().turn(on)
        torch.set_flush_denormal(on)
        if on:
            state = self.training.list_state()
            self._kept = [(tensor, tensor.detach().clone()) for tensor in state]
            return
        with torch.no_grad():
            for tensor, own in self._kept:
                tensor.copy_(own)
        self._kept = []


class NoAutocast(Repair):
    """Enters the loop's own autocast contexts disabled."""

    #: Whether the loop uses such a context.
    was_entered = False

    def install(self, work: Work) -> AbstractContextManager[None]:
        """Wrap what enters an autocast context."""
        import torch

        def enter(real: Callable[..., Any], context: Any) -> Any:
            before = context._enabled
            if before and not self.was_entered:
                self.was_entered, self.place = True, _find_caller()
            context._enabled = before and not self.is_on
            try:
                return real(context)
            finally:
                context._enabled = before

        return wrapped(work, (torch.autocast, "__enter__", enter))


# What is updated, and how


class FusedUpdate(Repair):
    """Updates all parameters in one operation, fused where there is such a one."""

    _FUSED = ("Adam", "AdamW", "SGD", "Adagrad")

    def __init__(self, work: Work, training: Training) -> None:
        super().__init__(work, training)
        self._before: list[tuple[dict[str, Any], dict[str, Any]]] = []

    def check(self) -> str:
        """Return why nothing can be fused, if so."""
        if any(self._find_name(each) for each in self.training.optimizers):
            return ""
        return "its optimizers are fused already, or cannot be"

    def _find_name(self, optimizer: Any) -> str:
        """Return what can be set: "fused", "foreach", or nothing."""
        import torch

        groups = optimizer.param_groups
        parameters = [p for group in groups for p in group["params"]]
        has_odd = self.training.has_sparse or any(
            not parameter.is_floating_point() or parameter.is_sparse
            for parameter in parameters
        )
        is_set = any(g.get("fused") or g.get("foreach") for g in groups)
        bound = any(g.get("capturable") or g.get("differentiable") for g in groups)
        if has_odd or is_set or bound:
            return ""
        own = type(optimizer)
        is_known = own.__name__ in self._FUSED
        if is_known and own is getattr(torch.optim, own.__name__):
            return "fused"
        # On a GPU the default is foreach already.
        is_slow = all(parameter.device.type == "cpu" for parameter in parameters)
        return "foreach" if is_slow and "foreach" in optimizer.defaults else ""

    def write_code(self) -> str:
        """Return the line that does the same: the optimizer's own, and what is set."""
        for optimizer in self.training.optimizers:
            if name := self._find_name(optimizer):
                kind = type(optimizer)
                is_torch = kind.__module__.startswith("torch.optim.")
                where = "torch.optim." if is_torch else ""
                return f"{where}{kind.__name__}(…, {name}=True)"
        return ""

    def turn(self, on: bool) -> None:
        """Set what is fused, or put back what was set."""
        super().turn(on)
        if not on:
            for group, before in self._before:
                for name in ("fused", "foreach"):
                    group.pop(name, None)
                group.update(before)
                self._move_steps(group, on=False)
            self._before = []
            return
        for optimizer in self.training.optimizers:
            name = self._find_name(optimizer)
            for group in optimizer.param_groups if name else ():
                own = {x: group[x] for x in ("fused", "foreach") if x in group}
                self._before.append((group, own))
                group["foreach"] = name == "foreach"
                group["fused"] = name == "fused"
                if name == "fused":
                    self._move_steps(group, on=True)

    def _move_steps(self, group: dict[str, Any], *, on: bool) -> None:
        """Keep the numbers of steps where a fused update reads them."""
        import torch

        for parameter in group["params"]:
            state = self.training.find_state(parameter)
            step = state.get("step")
            if isinstance(step, torch.Tensor):
                state["step"] = step.to(parameter.device if on else "cpu")


class NoIdleGradients(Repair):
    """Computes no gradients that no optimizer uses."""

    def __init__(self, work: Work, training: Training) -> None:
        super().__init__(work, training)
        self._frozen: list[Any] = []

    def check(self) -> str:
        """Return why they cannot be frozen, if so."""
        return _refuse_other_processes()

    def turn(self, on: bool) -> None:
        """Freeze those parameters, or thaw them."""
        super().turn(on)
        if on:
            self._frozen = self.training.list_idle()
        for parameter in self._frozen:
            parameter.requires_grad_(not on)


class ChannelsLast(Repair):
    """Keeps the weights of convolutions with their channels last."""

    def __init__(self, work: Work, training: Training) -> None:
        super().__init__(work, training)
        self._before: list[tuple[Any, Any]] = []

    def check(self) -> str:
        """Return why it cannot be tried, if so."""
        return self.refuse_compiled()

    def turn(self, on: bool) -> None:
        """Convert weights and their optimizers' state, or copy them back."""
        import torch

        super().turn(on)
        if not on:
            for tensor, own in reversed(self._before):
                own.copy_(tensor.data)
                tensor.data = own
                if tensor.grad is not None:
                    tensor.grad = tensor.grad.contiguous()
            self._before = []
            return
        last = torch.channels_last
        for weight in self.training.list_convolutions():
            for tensor in (weight, *self.training.list_state_of(weight)):
                if tensor.shape != weight.shape:
                    continue
                own = tensor.data
                self._before.append((tensor, own))
                tensor.data = own.contiguous(memory_format=last)
                # A fused update takes all of them to lie alike.
                if tensor.grad is not None:
                    tensor.grad = tensor.grad.contiguous(memory_format=last)


# Modules that are called in another way


class _OtherForward(Repair):
    """Calls the outermost modules in another way, from a trial's first step on."""

    def __init__(self, work: Work, training: Training) -> None:
        super().__init__(work, training)
        self._stack = contextlib.ExitStack()
        self._was_called = False

    def check(self) -> str:
        """Return why the modules cannot be called in another way, if so."""
        if not self.training.find_roots():
            return "no module was found whose parameters are updated"
        return self.refuse_compiled()

    def prime(self) -> None:
        """Wrap the forward of each outermost module, for both sides of the trial."""
        super().prime()
        if not self.obstacle:
            roots = self.training.find_roots()
            wrappers = wrapped_forwards(self.work, roots, self._forward)
            self._stack.enter_context(wrappers)

    def turn(self, on: bool) -> None:
        """Call them in the other way, or as usual."""
        if on and not self._was_called:
            self.obstacle = "the loop does not call its outermost module as a whole"
        super().turn(on)

    def end(self) -> None:
        """Give the modules their own forward back."""
        self._stack.close()

    def call(self, module: Any, own: Callable[..., Any], given: Any, named: Any) -> Any:
        """Call a module in the other way."""
        raise NotImplementedError

    def give_up(self) -> None:
        """Let modules be called as usual again, in the midst of a step."""

    def _forward(
        self, module: Any, own: Callable[..., Any], given: Any, named: Any
    ) -> Any:
        self._was_called = True
        if not self.is_on or self.obstacle:
            return own(*given, **named)
        try:
            return self.call(module, own, given, named)
        except Exception as error:
            failed = f"the model fails with it ({type(error).__name__})"
            self.obstacle = self.obstacle or failed
            self.give_up()
            return own(*given, **named)


class Compiled(_OtherForward):
    """Calls compiled versions of the outermost modules."""

    dropped = 3
    patience = math.inf  # its first steps compile

    def __init__(self, work: Work, training: Training) -> None:
        super().__init__(work, training)
        self._made: dict[int, Any] = {}

    def call(self, module: Any, own: Callable[..., Any], given: Any, named: Any) -> Any:
        """Call what was compiled, or compile it."""
        import torch

        if id(module) not in self._made:
            self._made[id(module)] = torch.compile(own)
        return self._made[id(module)](*given, **named)


class _OtherFormat(_OtherForward):
    """Computes in another format; what modules return is in the usual one.

    `difference` is how far the outputs of the first call are from the usual ones: the
    norm of the difference over their norm.
    """

    difference: float | None = None

    def call(self, module: Any, own: Callable[..., Any], given: Any, named: Any) -> Any:
        """Call a module in the other format; compare its outputs once."""
        if self.difference is None:
            self.difference = self._compare(module, own, given, named)
            if self.difference > _MOST_DIFFERENCE:
                self.obstacle = (
                    f"its outputs would differ by {self.difference:.0%}: "
                    "the loop needs the digits that it has"
                )
                raise ArithmeticError(self.obstacle)
        return self.call_otherwise(module, own, given, named)

    def call_otherwise(
        self, module: Any, own: Callable[..., Any], given: Any, named: Any
    ) -> Any:
        """Call a module in the other format."""
        raise NotImplementedError

    def call_usually(
        self, module: Any, own: Callable[..., Any], given: Any, named: Any
    ) -> Any:
        """Call it as usual, for its outputs only."""
        with _leaving_as_it_was(module):
            return own(*given, **named)

    def _compare(
        self, module: Any, own: Callable[..., Any], given: Any, named: Any
    ) -> float:
        """Return how far the outputs in the other format are from the usual ones."""
        import torch

        usual = list_numbers(self.call_usually(module, own, given, named))
        with _leaving_as_it_was(module):
            other = list_numbers(self.call_otherwise(module, own, given, named))
        if not usual:
            self.obstacle = "the outputs of its outermost module are no tensors"
            raise TypeError(self.obstacle)
        squares = whole = 0.0
        for one, another in zip(usual, other, strict=True):
            one, another = one.detach(), another.detach()
            finite = one.isfinite()
            if not torch.equal(finite, another.isfinite()):
                return math.inf
            squares += float((another - one)[finite].float().square().sum())
            whole += float(one[finite].float().square().sum())
        return math.sqrt(squares / max(whole, 1e-30))


@contextlib.contextmanager
def _leaving_as_it_was(module: Any) -> Generator[None, None, None]:
    """Call a module for its outputs only: random numbers and buffers stay.

    Gradients are not switched off: some modules compute some in `forward`.
    """
    random = read_random()
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
    try:
        yield
    finally:
        restore_random(random)
        for buffer, kept in buffers:
            buffer.data.copy_(kept)


class Bfloat16(_OtherFormat):
    """Computes the outermost modules in bfloat16."""

    def call_otherwise(
        self, module: Any, own: Callable[..., Any], given: Any, named: Any
    ) -> Any:
        """Call a module under autocast."""
        import torch

        kind = next(module.parameters()).device.type
        with torch.autocast(kind, dtype=torch.bfloat16):
            made = own(*given, **named)
        return convert(made, torch.bfloat16, torch.float32)


class SinglePrecision(_OtherFormat):
    """Keeps and computes in float32 what is float64."""

    def __init__(self, work: Work, training: Training) -> None:
        super().__init__(work, training)
        self._before: list[tuple[Any, Any]] = []
        self._states: list[tuple[Any, dict[Any, Any]]] = []
        self._gradients: list[tuple[Any, Any]] = []

    def check(self) -> str:
        """Return why parameters cannot be converted, if so."""
        for parameter in self.training.list_parameters():
            if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
                return "hooks on parameters expect gradients in float64"
            kept = self.training.find_state(parameter).values()
            if any(isinstance(each, (list, dict)) for each in kept):
                return "its optimizer keeps lists of tensors"
        return super().check() or _refuse_other_processes()

    def turn(self, on: bool) -> None:
        """Convert all that is float64, or put it back as it was."""
        super().turn(on)
        if on and not self.obstacle:
            self._gradients = [(x, x.grad) for x in self.training.list_tensors()]
            self._convert()
            self._convert_states()
        elif not on:
            self._put_back()
            for tensor, gradient in self._gradients:
                tensor.grad = gradient
            self._gradients = []

    def give_up(self) -> None:
        """Put back what was converted; gradients are those of this step."""
        self._put_back()
        self._gradients = []

    def call_otherwise(
        self, module: Any, own: Callable[..., Any], given: Any, named: Any
    ) -> Any:
        """Call a module with inputs in float32."""
        import torch

        narrow = convert((given, named), torch.float64, torch.float32)
        made = own(*narrow[0], **narrow[1])
        return convert(made, torch.float32, torch.float64)

    def call_usually(
        self, module: Any, own: Callable[..., Any], given: Any, named: Any
    ) -> Any:
        """Call a module with what it has had before."""
        self._put_back_modules()
        try:
            return super().call_usually(module, own, given, named)
        finally:
            self._convert()

    def _convert(self) -> None:
        import torch

        for tensor in self.training.list_tensors():
            if tensor.dtype == torch.float64:
                self._before.append((tensor, tensor.data))
                _replace_data(tensor, tensor.data.float())

    def _convert_states(self) -> None:
        """Let optimizers work on copies of what they keep."""
        import torch

        for optimizer in self.training.optimizers:
            kept = dict(optimizer.state)
            self._states.append((optimizer, kept))
            for parameter, state in kept.items():
                copied = {
                    name: each.clone() if isinstance(each, torch.Tensor) else each
                    for name, each in state.items()
                }
                optimizer.state[parameter] = convert(
                    copied, torch.float64, torch.float32
                )

    def _put_back(self) -> None:
        self._put_back_modules()
        for optimizer, kept in self._states:
            optimizer.state.clear()
            optimizer.state.update(kept)
        self._states = []

    def _put_back_modules(self) -> None:
        for tensor, own in reversed(self._before):
            _replace_data(tensor, own)
        self._before = []


def _replace_data(tensor: Any, data: Any) -> None:
    """Give a tensor other data, and convert its gradient to their type."""
    gradient, tensor.grad = tensor.grad, None
    tensor.data = data
    tensor.grad = None if gradient is None else gradient.to(data.dtype)


def _refuse_other_processes() -> str:
    """Return why a change of the parameters cannot be tried, "" where it can."""
    import torch

    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return "other processes expect gradients as they are"
    return ""


def convert(tree: Any, source: Any, target: Any) -> Any:
    """Return the same with each tensor of one type converted to another."""
    import torch
    from torch.utils._pytree import tree_map

    def convert_leaf(leaf: Any) -> Any:
        is_source = isinstance(leaf, torch.Tensor) and leaf.dtype == source
        return leaf.to(target) if is_source else leaf

    return tree_map(convert_leaf, tree)


def list_numbers(tree: Any) -> list[Any]:
    """Return the tensors of floating-point numbers in a tree."""
    import torch
    from torch.utils._pytree import tree_leaves

    tensors = [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
    return [tensor for tensor in tensors if tensor.is_floating_point()]


def _find_caller() -> str:
    """Return the innermost line that is the reader's or a framework's."""
    return next(reversed(list_lines(sys._getframe(2))), "")
