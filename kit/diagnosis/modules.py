"""The reader's optimizers, outermost modules and hooks, as a run shows them."""

from __future__ import annotations

import contextlib
import gc
import sys
import types
import weakref
from collections.abc import Callable, Generator, Iterator
from typing import Any

from kit import clock
from kit.diagnosis.wrapping import Work, wrapped

_HOOKS = (
    "_forward_pre_hooks",
    "_forward_hooks",
    "_backward_pre_hooks",
    "_backward_hooks",
)


#: A gradient of so many numbers costs more than a step of the rows that are touched,
#: where these are less than this share.
_LARGE_TABLE = 1_000_000
_FEW_ROWS = 0.1


class Training:
    """The optimizers that a run steps, and the modules whose parameters they update."""

    def __init__(self) -> None:
        # They are not kept alive: some loops make new ones in each step.
        self._optimizers: weakref.WeakValueDictionary[int, Any]
        self._optimizers = weakref.WeakValueDictionary()
        self._modules: list[Any] | None = None
        self._is_looking = False
        self._compiled = count_compilations()
        #: Whether a gradient is sparse, and parameters that have got gradients; asked
        #: for by `look`.
        self.has_sparse = False
        #: Says of a large embedding that its gradient has rows that no step touches.
        self.dense_embedding = ""
        self._with_gradients: dict[int, Any] = {}
        self._updated: set[int] = set()

    def _note_embeddings(self, root: Any) -> None:
        """Note a large embedding of which a step touches few rows."""
        from torch.nn import Embedding

        for name, module in root.named_modules():
            if not isinstance(module, Embedding) or module.weight.grad is None:
                continue
            grad, rows = module.weight.grad, module.num_embeddings
            if grad.is_sparse or grad.numel() < _LARGE_TABLE:
                continue
            touched = int(grad.any(dim=1).sum())
            if touched < _FEW_ROWS * rows:
                self.dense_embedding = (
                    f"A step touches {touched:,} of the {rows:,} rows of the embedding "
                    f"{name!r}, and its gradient and its update have all of them."
                )

    @property
    def optimizers(self) -> list[Any]:
        """Those that have stepped, and are still there."""
        return list(self._optimizers.values())

    @contextlib.contextmanager
    def install(self, work: Work) -> Generator[None, None, None]:
        """Note the optimizers that step."""
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        def note(optimizer: Any, *_: Any) -> None:
            if work.is_here():
                self._optimizers[id(optimizer)] = optimizer
                if self._is_looking:
                    self._note_gradients()

        with register_optimizer_step_pre_hook(note):
            yield

    @contextlib.contextmanager
    def looking(self) -> Generator[None, None, None]:
        """Look at the gradients in a step: after it, they may be gone."""
        self._is_looking = True
        try:
            yield
        finally:
            self._is_looking = False

    def _note_gradients(self) -> None:
        from torch.optim import Optimizer

        # Also by those that step seldom, or are made in each step.
        everywhere = [x for x in gc.get_objects() if issubclass(type(x), Optimizer)]
        for optimizer in everywhere:
            for group in optimizer.param_groups:
                self._updated |= {id(parameter) for parameter in group["params"]}
        for root in self.find_roots():
            for parameter in root.parameters():
                if parameter.grad is not None and parameter.requires_grad:
                    self._with_gradients[id(parameter)] = parameter
            self._note_embeddings(root)
        for parameter in self.list_parameters():
            if parameter.grad is not None and parameter.grad.is_sparse:
                self.has_sparse = True

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

    def find_modules(self) -> list[Any]:
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

    def find_roots(self) -> list[Any]:
        """Return the modules with updated parameters that belong to no other module."""
        updated = {id(parameter) for parameter in self.list_parameters()}
        modules = self.find_modules()
        inner = {id(child) for module in modules for child in module.children()}
        return [
            module
            for module in modules
            if id(module) not in inner
            and any(id(p) in updated for p in module.parameters())
        ]

    def list_idle(self) -> list[Any]:
        """Return the parameters that have got gradients, and belong to no optimizer."""
        found = self._with_gradients
        return [each for key, each in found.items() if key not in self._updated]

    def list_convolutions(self) -> list[Any]:
        """Return weights of two-dimensional convolutions, none with channels last."""
        import torch
        from torch import nn

        kinds = (nn.Conv2d, nn.ConvTranspose2d)
        # A parametrized one has no weight of its own.
        weights = {
            id(module): module._parameters["weight"]
            for root in self.find_roots()
            for module in root.modules()
            if isinstance(module, kinds)
            and module._parameters.get("weight") is not None
        }
        found = [*{id(weight): weight for weight in weights.values()}.values()]
        last = torch.channels_last
        if all(weight.is_contiguous(memory_format=last) for weight in found):
            return []
        return found

    def find_state(self, parameter: Any) -> dict[str, Any]:
        """Return what an optimizer keeps for a parameter."""
        for optimizer in self.optimizers:
            if parameter in optimizer.state:
                kept = optimizer.state[parameter]
                return kept if isinstance(kept, dict) else {}
        return {}

    def list_state_of(self, parameter: Any) -> list[Any]:
        """Return the tensors that optimizers keep for a parameter."""
        import torch

        kept = self.find_state(parameter).values()
        return [each for each in kept if isinstance(each, torch.Tensor)]

    def list_tensors(self) -> list[Any]:
        """Return updated parameters, and all parameters and buffers of the modules."""
        own = {id(parameter): parameter for parameter in self.list_parameters()}
        for root in self.find_roots():
            own |= {id(each): each for each in (*root.parameters(), *root.buffers())}
        return [*own.values()]

    def list_state(self) -> list[Any]:
        """Return these, and what optimizers keep for them."""
        own = self.list_tensors()
        return [*own, *(kept for each in own for kept in self.list_state_of(each))]


def count_compilations() -> int:
    """Return how many graphs Dynamo has compiled in this process."""
    utils = sys.modules.get("torch._dynamo.utils")
    return int(utils.counters["stats"]["unique_graphs"]) if utils else 0


@contextlib.contextmanager
def wrapped_forwards(
    work: Work, modules: list[Any], instead: Callable[..., Any]
) -> Generator[None, None, None]:
    """Let a run's calls of some modules go through a function.

    It gets the module, its own forward, and the two sorts of arguments. Classes are
    wrapped, not modules, so that what is copied or saved meanwhile is as ever.
    """
    chosen = {id(module) for module in modules}

    def call(real: Any, module: Any, *given: Any, **named: Any) -> Any:
        if id(module) not in chosen:
            return real(module, *given, **named)
        return instead(module, types.MethodType(real, module), given, named)

    kinds = dict.fromkeys(type(module) for module in modules)
    with wrapped(work, *((kind, "forward", call) for kind in kinds)):
        yield


class TimedHooks:
    """Times the hooks of modules while it is entered: `count` of them, in `seconds`.

    PyTorch's own are left out: weights are normalized by such hooks.
    """

    def __init__(self, modules: list[Any]) -> None:
        self.seconds = 0.0
        self._is_inside = False
        self._own = [
            (hooks, key, hook)
            for module in modules
            for name in _HOOKS
            for hooks in [vars(module).get(name) or {}]
            for key, hook in hooks.items()
            if not _belongs_to_torch(hook)
        ]
        self.count = len(self._own)

    def __enter__(self) -> TimedHooks:
        for hooks, key, hook in self._own:
            hooks[key] = self._time(hook)
        return self

    def __exit__(self, *_: object) -> None:
        for hooks, key, hook in self._own:
            if key in hooks:  # else it was removed meanwhile
                hooks[key] = hook

    def _time(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            if self._is_inside:
                return hook(*given, **named)
            self._is_inside = True
            begun = clock.CLOCK.wall()
            try:
                return hook(*given, **named)
            finally:
                self.seconds += clock.CLOCK.wall() - begun
                self._is_inside = False

        return call


def _belongs_to_torch(hook: Any) -> bool:
    written = getattr(hook, "__module__", "") or type(hook).__module__
    return str(written).partition(".")[0] == "torch"
