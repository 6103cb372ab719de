"""The reader's optimizers and outermost modules, as a run shows them."""

from __future__ import annotations

import contextlib
import gc
import sys
import types
from collections.abc import Callable, Generator, Iterator
from typing import Any
from weakref import WeakValueDictionary

from kit.diagnosis.wrapping import Work, wrapped


class Training:
    """The optimizers that a run steps, and the modules whose parameters they update."""

    def __init__(self) -> None:
        # They are not kept alive: some loops make new ones in each step.
        self._optimizers: WeakValueDictionary[int, Any] = WeakValueDictionary()
        self._modules: list[Any] | None = None
        self._compiled = count_compilations()
        #: Whether the loop has entered autocast, and whether a gradient is sparse.
        self.uses_autocast = False
        self.has_sparse = False
        #: Is called before an update, while gradients are there.
        self.look: Callable[[], object] | None = None

    @property
    def optimizers(self) -> list[Any]:
        """Those that have stepped, and are still there."""
        return list(self._optimizers.values())

    @contextlib.contextmanager
    def install(self, work: Work) -> Generator[None, None, None]:
        """Note the optimizers that step, and whether autocast is entered."""
        import torch
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        def note(optimizer: Any, *_: Any) -> None:
            self._optimizers[id(optimizer)] = optimizer
            if self.look is not None:
                gradients = [parameter.grad for parameter in self.list_parameters()]
                sparse = [x for x in gradients if x is not None and x.is_sparse]
                self.has_sparse = self.has_sparse or bool(sparse)
                self.look()

        def enter(real: Callable[..., Any], context: Any) -> Any:
            self.uses_autocast = self.uses_autocast or context._enabled
            return real(context)

        autocast = wrapped((torch.autocast, "__enter__", enter))
        with register_optimizer_step_pre_hook(note), autocast:
            yield

    @property
    def has_compiled(self) -> bool:
        """Whether this run has compiled something, or uses a compiled module."""
        return count_compilations() != self._compiled or any(
            hasattr(module, "_orig_mod") or module._compiled_call_impl is not None
            for root in self.find_roots()
            for module in root.modules()
        )

    def list_parameters(self) -> Iterator[Any]:
        """Yield what the optimizers update."""
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                yield from group["params"]

    def find_roots(self) -> list[Any]:
        """Return the modules with updated parameters that belong to no other module."""
        updated = {id(parameter) for parameter in self.list_parameters()}
        modules = self._find_modules()
        inner = {id(child) for module in modules for child in module.children()}
        return [
            module
            for module in modules
            if id(module) not in inner
            and any(id(p) in updated for p in module.parameters())
        ]

    def _find_modules(self) -> list[Any]:
        """Return all modules of the process: a run names its own nowhere."""
        from torch import nn

        if self._modules is None:
            self._modules = [
                each
                for each in gc.get_objects()
                # By its type: to ask a lazy object for its class may load a library.
                # Without `_modules` its __init__ has failed.
                if issubclass(type(each), nn.Module) and "_modules" in vars(each)
            ]
        return self._modules

    def find_state(self, parameter: Any) -> dict[str, Any]:
        """Return what an optimizer keeps for a parameter."""
        for optimizer in self.optimizers:
            if parameter in optimizer.state:
                kept = optimizer.state[parameter]
                return kept if isinstance(kept, dict) else {}
        return {}


def count_compilations() -> int:
    """Return how many graphs Dynamo has compiled in this process."""
    utils = sys.modules.get("torch._dynamo.utils")
    return int(utils.counters["stats"]["unique_graphs"]) if utils else 0


@contextlib.contextmanager
def wrapped_forwards(
    modules: list[Any], instead: Callable[..., Any]
) -> Generator[None, None, None]:
    """Let calls of some modules go through a function.

    It gets the module, its own forward, and the two sorts of arguments. Classes are
    wrapped, not modules, so that what is copied or saved meanwhile is as ever.
    """
    chosen = {id(module) for module in modules}

    def call(real: Any, module: Any, *given: Any, **named: Any) -> Any:
        if id(module) not in chosen:
            return real(module, *given, **named)
        return instead(module, types.MethodType(real, module), given, named)

    kinds = dict.fromkeys(type(module) for module in modules)
    with wrapped(*((kind, "forward", call) for kind in kinds)):
        yield
