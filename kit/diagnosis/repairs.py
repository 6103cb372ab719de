"""The repairs that a diagnosis can try from outside, and when it does.

One table, `REPAIRS`: add a row with a condition, a switch and what to say.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from kit.diagnosis.modules import Training, wrapped_forwards
from kit.diagnosis.profiling import Profile
from kit.diagnosis.switches import Switch
from kit.diagnosis.wrapping import Work, wrapped

#: An update, or arithmetic, is worth a trial where it takes this share of a step.
_WORTH_A_TRIAL = 0.10
#: Denormal numbers cost time where there are more than this share.
_MANY_DENORMALS = 0.001
#: Other programs that use more cores compete with several threads.
_BUSY = 0.3


class OtherThreads(Switch):
    """Computes with another number of threads in every thread of the run."""

    def __init__(self, work: Work, training: Training) -> None:
        super().__init__(work)
        self.number = self.own = 0

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


class _OfModules(Switch):
    """Changes what the outermost modules do; `training` tells which these are."""

    def __init__(self, work: Work, training: Training) -> None:
        super().__init__(work)
        self.training = training


class Bfloat16(_OfModules):
    """Computes the outermost modules in bfloat16; what they return is as usual."""

    changes_numbers = True

    def __init__(self, work: Work, training: Training) -> None:
        super().__init__(work, training)
        self._stack = contextlib.ExitStack()
        self._calls = 0

    def prime(self) -> None:
        """Wrap the forward of each outermost module, for both sides of the trial."""
        roots = self.training.find_roots()
        if not roots:
            self.obstacle = "no module was found whose parameters are updated"
        self._stack.enter_context(wrapped_forwards(roots, self._forward))

    def turn(self, on: bool) -> None:
        """Compute in bfloat16, or as usual."""
        if on and not self._calls:
            self.obstacle = "the outermost module is not called as a whole"
        super().turn(on)

    def end(self) -> None:
        """Give the modules their own forward back."""
        self._stack.close()

    def _forward(self, own: Callable[..., Any], *given: Any, **named: Any) -> Any:
        import torch
        from torch.utils._pytree import tree_map

        self._calls += 1
        if not self.is_on:
            return own(*given, **named)
        device = torch.accelerator.current_accelerator(check_available=True)
        kind = device.type if device else "cpu"
        try:
            with torch.autocast(kind, dtype=torch.bfloat16):
                made = own(*given, **named)
        except Exception as error:
            self.obstacle = f"{type(error).__name__}: {error}".splitlines()[0]
            self.is_on = False
            return own(*given, **named)

        def widen(leaf: Any) -> Any:
            is_narrow = isinstance(leaf, torch.Tensor) and leaf.dtype == torch.bfloat16
            return leaf.float() if is_narrow else leaf

        return tree_map(widen, made)


class NoAutocast(Switch):
    """Enters the loop's own autocast contexts disabled."""

    changes_numbers = True

    def __init__(self, work: Work, training: Training) -> None:
        super().__init__(work)
        #: Whether the loop uses such a context.
        self.was_entered = False

    def install(self, work: Work) -> AbstractContextManager[None]:
        """Wrap what enters an autocast context."""
        import torch

        def enter(real: Callable[..., Any], context: Any) -> Any:
            before = context._enabled
            self.was_entered = self.was_entered or before
            context._enabled = before and not self.is_on
            try:
                return real(context)
            finally:
                context._enabled = before

        return wrapped(work, (torch.autocast, "__enter__", enter))


class FusedUpdate(_OfModules):
    """Updates all parameters in one operation, fused where there is such a one."""

    _FUSED = ("Adam", "AdamW", "SGD", "Adagrad")

    def __init__(self, work: Work, training: Training) -> None:
        super().__init__(work, training)
        self._before: list[tuple[Any, dict[str, Any]]] = []

    def prime(self) -> None:
        """Say why nothing can be fused, if so."""
        if not any(self._name(optimizer) for optimizer in self.training.optimizers):
            self.obstacle = "its optimizers are fused already, or cannot be"

    def _name(self, optimizer: Any) -> str:
        """Return what can be set: "fused", "foreach", or nothing."""
        import torch

        groups = optimizer.param_groups
        parameters = [p for group in groups for p in group["params"]]
        has_odd = any(
            not parameter.is_floating_point()
            or parameter.is_sparse
            or (parameter.grad is not None and parameter.grad.is_sparse)
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
        return "foreach" if "foreach" in optimizer.defaults else ""

    def turn(self, on: bool) -> None:
        """Set what is fused, and put back what was set."""
        super().turn(on)
        if not on:
            for group, before in self._before:
                group.update(before)
            self._before = []
        for optimizer in self.training.optimizers:
            name = self._name(optimizer) if on else ""
            for group in optimizer.param_groups if name else ():
                self._before.append((group, {"fused": group.get("fused")}))
                self._before.append((group, {"foreach": group.get("foreach")}))
                group["foreach"] = name == "foreach"
                group["fused"] = name == "fused"
            self._move_steps(optimizer, on and name == "fused")

    def _move_steps(self, optimizer: Any, on: bool) -> None:
        """Keep the numbers of steps where a fused update reads them."""
        import torch

        for parameter, state in optimizer.state.items():
            step = state.get("step") if isinstance(state, dict) else None
            if isinstance(step, torch.Tensor):
                state["step"] = step.to(parameter.device if on else "cpu")


class NoAnomalyDetection(Switch):
    """Leaves anomaly detection out, wherever it was switched on."""

    def __init__(self, work: Work, training: Training) -> None:
        super().__init__(work)
        self._before: tuple[bool, bool] | None = None

    def install(self, work: Work) -> AbstractContextManager[None]:
        """Wrap what switches it on."""
        import torch

        self._set = torch.set_anomaly_enabled

        def set_enabled(
            real: Callable[..., Any], mode: bool, check_nan: bool = True
        ) -> None:
            real(mode and not self.is_on, check_nan)

        return wrapped(work, (torch, "set_anomaly_enabled", set_enabled))

    def turn(self, on: bool) -> None:
        """Switch it off, or back to what it was."""
        import torch

        super().turn(on)
        if on:
            checks = torch.is_anomaly_check_nan_enabled()
            self._before = torch.is_anomaly_enabled(), checks
            self._set(False, checks)
        elif self._before is not None:
            self._set(*self._before)


class NoDeterminism(Switch):
    """Lets PyTorch choose any algorithms, not only deterministic ones."""

    def __init__(self, work: Work, training: Training) -> None:
        super().__init__(work)
        self._before: tuple[bool, bool] | None = None

    def install(self, work: Work) -> AbstractContextManager[None]:
        """Wrap what asks for deterministic ones."""
        import torch

        self._set = torch.use_deterministic_algorithms

        def use(
            real: Callable[..., Any], mode: bool, *, warn_only: bool = False
        ) -> None:
            real(mode and not self.is_on, warn_only=warn_only)

        return wrapped(work, (torch, "use_deterministic_algorithms", use))

    def turn(self, on: bool) -> None:
        """Choose freely, or as before."""
        import torch

        super().turn(on)
        if on:
            warns = torch.is_deterministic_algorithms_warn_only_enabled()
            self._before = torch.are_deterministic_algorithms_enabled(), warns
            self._set(False)
        elif self._before is not None:
            self._set(self._before[0], warn_only=self._before[1])


class FlushedDenormals(Switch):
    """Flushes denormal numbers to zero, on the one thread that computes."""

    changes_numbers = True

    def __init__(self, work: Work, training: Training) -> None:
        super().__init__(work)

    def prime(self) -> None:
        """Say why it cannot be tried, if so."""
        import torch

        if torch.get_num_threads() > 1:
            self.obstacle = (
                "each thread has such a setting of its own: try it with one thread, "
                "torch.set_num_threads(1)"
            )

    def turn(self, on: bool) -> None:
        """Flush them, or not."""
        import torch

        super().turn(on)
        torch.set_flush_denormal(on)


class ChannelsLast(_OfModules):
    """Keeps the weights of convolutions with their channels last."""

    def __init__(self, work: Work, training: Training) -> None:
        super().__init__(work, training)
        self._before: list[tuple[Any, Any]] = []

    def turn(self, on: bool) -> None:
        """Convert the weights, or copy them back into their own memory."""
        import torch

        super().turn(on)
        if not on:
            for parameter, own in self._before:
                own.copy_(parameter.data)
                parameter.data = own
            self._before = []
            return
        for parameter in list_convolutions(self.training):
            own = parameter.data
            self._before.append((parameter, own))
            parameter.data = own.contiguous(memory_format=torch.channels_last)


def list_convolutions(training: Training) -> list[Any]:
    """Return the weights of two-dimensional convolutions, none with channels last."""
    import torch
    from torch import nn

    kinds = (nn.Conv2d, nn.ConvTranspose2d)
    modules = [x for root in training.find_roots() for x in root.modules()]
    weights = [module.weight for module in modules if isinstance(module, kinds)]
    last = torch.channels_last
    if all(weight.is_contiguous(memory_format=last) for weight in weights):
        return []
    return weights


class NoIdleGradients(_OfModules):
    """Computes no gradients that no optimizer uses."""

    def __init__(self, work: Work, training: Training) -> None:
        super().__init__(work, training)
        self._frozen: list[Any] = []

    def turn(self, on: bool) -> None:
        """Freeze those parameters, or thaw them."""
        super().turn(on)
        if on:
            self._frozen = self.training.list_idle()
        for parameter in self._frozen:
            parameter.requires_grad_(not on)


class Compiled(_OfModules):
    """Calls compiled versions of the outermost modules."""

    dropped = 3

    def __init__(self, work: Work, training: Training) -> None:
        super().__init__(work, training)
        self._stack = contextlib.ExitStack()
        self._made: dict[int, Any] = {}

    def prime(self) -> None:
        """Wrap the forward of each outermost module, for both sides of the trial."""
        roots = self.training.find_roots()
        if not roots:
            self.obstacle = "no module was found whose parameters are updated"
        self._stack.enter_context(wrapped_forwards(roots, self._forward))

    def end(self) -> None:
        """Give the modules their own forward back."""
        self._stack.close()

    def _forward(self, own: Callable[..., Any], *given: Any, **named: Any) -> Any:
        import torch

        if not self.is_on:
            return own(*given, **named)
        if id(own) not in self._made:
            self._made[id(own)] = torch.compile(own)
        try:
            return self._made[id(own)](*given, **named)
        except Exception as error:
            self.obstacle = f"{type(error).__name__}: {error}".splitlines()[0]
            self.is_on = False
            return own(*given, **named)


# When each is tried


@dataclass(frozen=True)
class Facts:
    """What is known of a run when repairs are chosen."""

    profile: Profile
    training: Training
    switches: dict[str, Switch]
    others_cores: float

    @property
    def competes(self) -> bool:
        """Whether others use the cores: workers, threads, other programs."""
        waits = self.profile.mean("waiting") > 0.03
        return self.profile.children > 0 or waits or self.others_cores > _BUSY


@dataclass(frozen=True)
class Repair:
    """A repair: when it is tried, what tries it, and what is said about it.

    `is_due` returns whether a profile speaks for it, `obstacle` why it cannot be tried
    although it does. `verdict` is what follows where it saves most; "" for none. The
    rows are in the order in which they are tried.
    """

    label: str
    code: str
    is_due: Callable[[Facts], bool]
    make: Callable[[Work, Training], Switch]
    verdict: str = ""
    obstacle: Callable[[Facts], str] = lambda facts: ""
    effect: str = ""


def _computes_in_bfloat16() -> str:
    """Say why this machine does not gain by bfloat16, "" where it may."""
    import torch

    if torch.cuda.is_available():
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return ""
        return "this GPU has no instructions for bfloat16"
    if torch.accelerator.is_available() or torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return ""
    return "this processor has no instructions for bfloat16"


def _count_denormals(training: Training) -> float:
    """Return the share of denormal numbers in parameters and gradients."""
    import torch

    few = whole = 0
    for parameter in training.list_parameters():
        for tensor in (parameter.detach(), parameter.grad):
            if tensor is None or tensor.is_sparse or not tensor.is_floating_point():
                continue
            tiny = torch.finfo(tensor.dtype).tiny
            few += int(((tensor != 0) & (tensor.abs() < tiny)).sum())
            whole += tensor.numel()
    return few / max(whole, 1)


REPAIRS = {
    "anomaly": Repair(
        "no anomaly detection",
        "torch.autograd.set_detect_anomaly(False)",
        lambda facts: "anomaly" in facts.training.settings,
        NoAnomalyDetection,
        verdict="settings",
    ),
    "autocast": Repair(
        "no autocast",
        "with torch.autocast(device, enabled=False): ...",
        lambda facts: bool(getattr(facts.switches["autocast"], "was_entered", False)),
        NoAutocast,
        verdict="settings",
        effect="It changes the result: it computes with more digits.",
    ),
    "denormals": Repair(
        "denormal numbers flushed to zero",
        "torch.set_flush_denormal(True)",
        lambda facts: _count_denormals(facts.training) > _MANY_DENORMALS,
        FlushedDenormals,
        verdict="settings",
        effect="It changes the result: numbers below 1e-38 become zero.",
    ),
    "deterministic": Repair(
        "any algorithms, not only deterministic ones",
        "torch.use_deterministic_algorithms(False)",
        lambda facts: "deterministic" in facts.training.settings,
        NoDeterminism,
        verdict="settings",
        effect="Results then differ from run to run by rounding.",
    ),
    "freeze": Repair(
        "no gradients that no optimizer uses",
        "backbone.requires_grad_(False)",
        lambda facts: facts.training.count_idle_gradients() > 0,
        NoIdleGradients,
        verdict="settings",
    ),
    "threads": Repair(
        "another number of threads",
        "torch.set_num_threads(2)",
        lambda facts: (
            facts.profile.threads != facts.profile.cores
            or (facts.competes and facts.profile.threads > 1)
        ),
        OtherThreads,
        verdict="threads",
    ),
    "fused": Repair(
        "a fused update",
        "torch.optim.AdamW(model.parameters(), fused=True)",
        lambda facts: facts.profile.shares.get("optimizer", 0.0) > _WORTH_A_TRIAL,
        FusedUpdate,
        effect="It changes results by rounding only.",
    ),
    "bfloat16": Repair(
        "bfloat16",
        "with torch.autocast(device, dtype=torch.bfloat16): ...",
        lambda facts: (
            facts.profile.mean("compute") > _WORTH_A_TRIAL
            and not facts.switches["autocast"].was_entered
        ),  # type: ignore[attr-defined]
        Bfloat16,
        obstacle=lambda facts: _computes_in_bfloat16(),
        effect="It changes the result: it computes with fewer digits.",
    ),
    "channels_last": Repair(
        "channels last",
        "model = model.to(memory_format=torch.channels_last)",
        lambda facts: (
            facts.profile.mean("compute") > _WORTH_A_TRIAL
            and bool(list_convolutions(facts.training))
        ),
        ChannelsLast,
        effect="It changes results by rounding only.",
    ),
    "compile": Repair(
        "a compiled model",
        "model = torch.compile(model)",
        lambda facts: False,  # only on request: it may take minutes
        Compiled,
        effect="It changes results by rounding only.",
    ),
}


def make_switches(work: Work, training: Training) -> dict[str, Switch]:
    """Return the switch of each repair."""
    return {name: repair.make(work, training) for name, repair in REPAIRS.items()}


def find_due(facts: Facts, *, try_compile: bool = False) -> dict[str, str]:
    """Return the repairs that a run speaks for, with what hinders each, or ""."""
    due = {}
    for name, repair in REPAIRS.items():
        asked = name == "compile" and try_compile
        if asked or repair.is_due(facts):
            due[name] = repair.obstacle(facts)
    return due
