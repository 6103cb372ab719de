"""Switches that apply a repair to a run, and take it back.

The table `kit.diagnosis.repairs` says when each is tried.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from kit.diagnosis.modules import Training, wrapped_forwards
from kit.diagnosis.switches import Switch
from kit.diagnosis.wrapping import Work, wrapped
from kit.measuring.settings import list_settings


class Repair(Switch):
    """A switch that changes a run for the better, it is hoped.

    `training` knows the run's optimizers and modules.
    """

    def __init__(self, training: Training) -> None:
        super().__init__()
        self.training = training

    def check(self) -> str:
        """Return why it cannot be tried in this run, "" where it can."""
        return ""

    def prime(self) -> None:
        """Say why it cannot be tried, if so."""
        self.obstacle = self.check()

    def refuse_compiled(self) -> str:
        """Return why it is not tried in a compiled loop, "" in others."""
        compiled = "the compiler would recompile"
        return compiled if self.training.has_compiled else ""


class OtherThreads(Repair):
    """Computes with another number of threads."""

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        self.number = 1
        self._own = 1

    def check(self) -> str:
        """Return why it cannot be tried, if so."""
        return self.refuse_compiled()

    def install(self, work: Work) -> AbstractContextManager[None]:
        """Let the loop set a number of its own only while nothing is changed."""
        import torch

        here = os.getpid(), threading.get_ident()
        self._set = torch.set_num_threads

        def set_number(real: Callable[[int], None], number: int) -> None:
            # A worker, or a thread that pins memory, has the one that it asks for.
            if (os.getpid(), threading.get_ident()) != here:
                real(number)
                return
            self._own = number
            real(self.number if self.is_on else number)

        return wrapped((torch, "set_num_threads", set_number))

    def turn(self, on: bool) -> None:
        """Compute with the other number, or with the loop's own again."""
        import torch

        if on and not self.is_on:
            self._own = torch.get_num_threads()
        super().turn(on)
        self._set(self.number if on else self._own)


class OtherSetting(Repair):
    """Holds a setting of `kit.measuring.settings` at another value."""

    def __init__(
        self,
        training: Training,
        name: str,
        may_cost: Callable[[Any], bool],
        wanted: Any,
    ) -> None:
        super().__init__(training)
        self._name = name
        self._may_cost = may_cost
        self._wanted = wanted
        self._own: Any = None

    @property
    def is_slow(self) -> bool:
        """Whether it has a value that may cost time."""
        try:
            return self._may_cost(self._find().read())
        except RuntimeError:  # another setting contradicts it
            return False

    def check(self) -> str:
        """Return why it cannot be tried, if so."""
        return self.refuse_compiled()

    def turn(self, on: bool) -> None:
        """Hold it at the wanted value, or set it back to what it was."""
        if on and not self.is_on:
            self._own = self._find().read()
        super().turn(on)
        self._find().set(self._wanted if on else self._own)

    def end_block(self) -> None:
        """Note whether the loop has set it again."""
        if self.is_on and self._find().read() != self._wanted:
            self.obstacle = "the loop sets it again in each step"

    def _find(self) -> Any:
        return next(each for each in list_settings() if each.name == self._name)


class FusedUpdate(Repair):
    """Updates all parameters in one operation, fused where there is such a one."""

    _FUSED = ("Adam", "AdamW", "SGD", "Adagrad")

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        self._before: list[tuple[dict[str, Any], dict[str, Any]]] = []

    def check(self) -> str:
        """Return why nothing can be fused, if so."""
        if any(self._find_name(each) for each in self.training.optimizers):
            return ""
        return "its optimizers are already fused, or cannot be"

    def _find_name(self, optimizer: Any) -> str:
        """Return what can be set: "fused", "foreach", or nothing."""
        import torch

        groups = optimizer.param_groups
        parameters = [p for group in groups for p in group["params"]]
        is_plain = all(p.is_floating_point() and not p.is_sparse for p in parameters)
        if self.training.has_sparse or not is_plain:
            return ""
        for group in groups:
            for name in ("fused", "foreach", "capturable", "differentiable"):
                if group.get(name):
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


class OtherForward(Repair):
    """Calls the outermost modules in another way, from a trial's first step on."""

    def __init__(self, training: Training) -> None:
        super().__init__(training)
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
            self._stack.enter_context(wrapped_forwards(roots, self._forward))

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

    def _forward(
        self, module: Any, own: Callable[..., Any], given: Any, named: Any
    ) -> Any:
        self._was_called = True
        if not self.is_on or self.obstacle:
            return own(*given, **named)
        try:
            return self.call(module, own, given, named)
        except Exception as error:
            self.obstacle = f"the model fails with it ({type(error).__name__})"
            return own(*given, **named)


class Compiled(OtherForward):
    """Calls compiled versions of the outermost modules."""

    dropped = 3

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        self._made: dict[int, Any] = {}

    def call(self, module: Any, own: Callable[..., Any], given: Any, named: Any) -> Any:
        """Call what was compiled, or compile it."""
        import torch

        if id(module) not in self._made:
            self._made[id(module)] = torch.compile(own)
        return self._made[id(module)](*given, **named)


class Bfloat16(OtherForward):
    """Computes the outermost modules in bfloat16; what they return is in float32."""

    def call(self, module: Any, own: Callable[..., Any], given: Any, named: Any) -> Any:
        """Call a module under autocast."""
        import torch
        from torch.utils._pytree import tree_map

        def widen(leaf: Any) -> Any:
            is_narrow = getattr(leaf, "dtype", None) == torch.bfloat16
            return leaf.float() if is_narrow else leaf

        kind = next(module.parameters()).device.type
        with torch.autocast(kind, dtype=torch.bfloat16):
            made = own(*given, **named)
        return tree_map(widen, made)
