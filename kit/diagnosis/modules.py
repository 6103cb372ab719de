"""The reader's optimizers and outermost modules, as a run shows them."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Generator, Iterator
from typing import Any

from kit.diagnosis.wrapping import Work


class Training:
    """The optimizers that a run steps, and the modules whose parameters they update."""

    def __init__(self) -> None:
        self.optimizers: list[Any] = []
        #: Settings that were on in a backward pass, by name.
        self.settings: set[str] = set()
        self._roots: list[Any] | None = None

    @contextlib.contextmanager
    def install(self, work: Work) -> Generator[None, None, None]:
        """Note the optimizers that step, and the settings that hold meanwhile."""
        import torch
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        known = set()

        def note(optimizer: Any, *_: Any) -> None:
            if not work.is_here():
                return
            if id(optimizer) not in known:
                known.add(id(optimizer))
                self.optimizers.append(optimizer)
            if torch.is_anomaly_enabled():
                self.settings.add("anomaly")
            if torch.are_deterministic_algorithms_enabled():
                self.settings.add("deterministic")

        with register_optimizer_step_pre_hook(note):
            yield

    def list_parameters(self) -> Iterator[Any]:
        """Yield what the optimizers update."""
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                yield from group["params"]

    def find_roots(self) -> list[Any]:
        """Return the modules that hold these parameters and belong to no other module.

        Looks through all objects of the process, once: a run names them nowhere.
        """
        from torch import nn

        if self._roots is None:
            updated = {id(parameter) for parameter in self.list_parameters()}
            modules = [x for x in gc.get_objects() if isinstance(x, nn.Module)]
            inner = {id(child) for module in modules for child in module.children()}
            self._roots = [
                module
                for module in modules
                if id(module) not in inner
                and any(id(p) in updated for p in module.parameters())
            ]
        return self._roots

    def count_idle_gradients(self) -> int:
        """Return how many parameters get gradients that no optimizer uses."""
        return len(self.list_idle())

    def list_idle(self) -> list[Any]:
        """Return the parameters that get gradients, and belong to no optimizer."""
        updated = {id(parameter) for parameter in self.list_parameters()}
        return [
            parameter
            for module in self.find_roots()
            for parameter in module.parameters()
            if parameter.requires_grad and id(parameter) not in updated
        ]


@contextlib.contextmanager
def wrapped_forwards(
    modules: list[Any], instead: Callable[..., Any]
) -> Generator[None, None, None]:
    """Let calls of these modules go through a function, which gets the own forward."""
    own = [vars(module).get("forward") for module in modules]
    try:
        for module in modules:
            forward = module.forward

            def call(*given: Any, _own: Any = forward, **named: Any) -> Any:
                return instead(_own, *given, **named)

            module.forward = call
        yield
    finally:
        for module, forward in zip(modules, own, strict=True):
            if forward is None:
                del module.forward
            else:
                module.forward = forward
