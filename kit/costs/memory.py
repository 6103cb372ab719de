"""What a training step keeps, in bytes, and what it costs to keep less."""

from __future__ import annotations

import contextlib
import copy
import logging
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module


class StepMemory(NamedTuple):
    """What a training step keeps, in bytes, by kind.

    The parameters and the optimizer's state are there all the time. Activations pile up
    in the forward pass; the backward pass frees them and makes gradients.

    >>> StepMemory(parameters=40, gradients=40, optimizer=80, activations=100).total
    260
    """

    parameters: int
    gradients: int
    optimizer: int
    activations: int

    @property
    def total(self) -> int:
        """All of it: what there is at once where old gradients outlive a forward pass.

        That is so where `zero_grad` comes after it.
        """
        return sum(self)

    @property
    def peak(self) -> int:
        """The least that there is at once, if gradients are dropped after the update.

        At the end of the forward pass there are all activations and no gradient, at
        the end of the backward pass the other way round.

        >>> StepMemory(parameters=40, gradients=40, optimizer=80, activations=100).peak
        220
        """
        return self.parameters + self.optimizer + max(self.gradients, self.activations)


def predict_step_memory(
    model: Module,
    *inputs: Any,
    state_tensors: float = 2,
    state_bytes: float | None = None,
) -> StepMemory:
    """Predict what a training step of a model keeps, without allocating any of it.

    A copy of the model with PyTorch's fake tensors, which have shapes and no numbers,
    runs forward on `inputs`, and autograd tells which tensors it saves; those that
    share memory count once, and parameters are no activations. The model, its buffers
    and the random state stay as they are, and an autocast around the call counts.
    `state_tensors` is how many tensors the optimizer keeps for each parameter: 2 for
    Adam, 1 for SGD with momentum, 0 without; `state_bytes` are their bytes per number,
    by default the parameter's own. Parameters are counted with the buffers.

    Not counted: what the loss saves (give a model that returns it), and what one
    operation needs while it runs. An LSTM is counted as PyTorch itself computes it:
    oneDNN and cuDNN keep more, in a form of their own.

    Raises ValueError for what is no model, for numbers below 0, and where the forward
    pass fails, as it does if it needs numbers: `.item()`, `if x > 0`, `x[mask]`.
    https://docs.pytorch.org/docs/stable/torch.compiler_fake_tensor.html

    >>> from torch import nn, zeros
    >>> net = nn.Sequential(nn.Linear(100, 50), nn.ReLU(), nn.Linear(50, 10))
    >>> predict_step_memory(net, zeros(8, 100), state_tensors=0)
    StepMemory(parameters=22240, gradients=22240, optimizer=0, activations=4800)
    """
    _check(model, state_tensors, state_bytes)
    own = [*model.parameters(), *model.buffers()]
    learned = [p for p in model.parameters() if p.requires_grad]
    state = sum(
        p.nbytes if state_bytes is None else p.numel() * state_bytes for p in learned
    )
    return StepMemory(
        parameters=sum(tensor.nbytes for tensor in own),
        gradients=sum(p.nbytes for p in learned),
        optimizer=round(state_tensors * state),
        activations=_count_saved(model, inputs),
    )


def _check(model: Any, state_tensors: float, state_bytes: float | None) -> None:
    from torch.nn import Module

    if not isinstance(model, Module):
        raise ValueError(
            f"predict_step_memory(): {type(model).__name__} is no nn.Module.\n"
            "Give the model first, and then what its forward pass takes."
        )
    given = {"state_tensors": state_tensors, "state_bytes": state_bytes or 0}
    for name, value in given.items():
        if not 0 <= value < math.inf:
            raise ValueError(
                f"predict_step_memory(): {name}={value} is not 0 or more.\n"
                "It counts what the optimizer keeps: state_tensors=2 is Adam's."
            )


def _count_saved(model: Module, inputs: tuple[Any, ...]) -> int:
    """Return the bytes that autograd saves in a forward pass, on fake tensors."""
    import torch
    from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode

    saved = {}

    def note(tensor: Tensor) -> None:
        # Held, so that no later tensor comes to lie at its place.
        saved[tensor.untyped_storage()._cdata] = tensor.untyped_storage()

    hooks = torch.autograd.graph.saved_tensors_hooks(note, _never_unpack)
    # What a forward pass takes from elsewhere, a mask in a closure, may be real.
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    # What oneDNN keeps of an LSTM has a size that only it knows: fake, it is empty.
    kept = dict.fromkeys(("deterministic", "allow_tf32", "fp32_precision"))
    plain = torch.backends.mkldnn.flags(enabled=False, **kept)
    try:
        with torch.inference_mode(False), torch.enable_grad():
            with FakeCopyMode(fake):
                ghost, given = copy.deepcopy((model, inputs))
            with fake, hooks, plain, _silence(FakeTensorMode.__module__):
                output = ghost(*given)
    except (RuntimeError, TypeError, ValueError, AttributeError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"predict_step_memory(): {type(model).__name__} failed on tensors without "
            f"numbers: {reason[:160]}\n"
            "Where its forward pass needs numbers, no prediction is possible. Measure\n"
            "instead: kit.measure(…).peak_memory_bytes"
        ) from error
    del output  # until here the graph was alive
    for tensor in [*ghost.parameters(), *ghost.buffers()]:
        saved.pop(tensor.untyped_storage()._cdata, None)
    return sum(storage.nbytes() for storage in saved.values())


@contextlib.contextmanager
def _silence(name: str) -> Iterator[None]:
    """Keep a logger quiet: it writes pages about what becomes an error anyway."""
    logger = logging.getLogger(name)
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def _never_unpack(_: Any) -> Tensor:
    raise RuntimeError("this graph was only counted")  # it has no backward pass


class Checkpointing(NamedTuple):
    """What activation checkpointing keeps at its peak, and what it costs in time."""

    segments: int
    activations: float
    time_ratio: float


def predict_checkpointing(
    layers: int,
    segments: int | None = None,
    *,
    layer_bytes: float,
    boundary_bytes: float,
    backward_ratio: float = 2.0,
) -> Checkpointing:
    """Predict memory and time of a stack of equal layers, checkpointed in segments.

    `layer_bytes` are the activations that a layer saves, `boundary_bytes` its input's.
    Of each of s segments only the input is kept; the backward pass runs a segment's n/s
    layers forward again and keeps what they save until it is through. At the peak that
    makes s · boundary + ⌈n/s⌉ · layer, least at s = √(n · layer / boundary), which is
    what `segments` is by default: memory grows with √n. The price is one more forward
    pass; a backward pass takes `backward_ratio` times as long as one. `segments=0`
    checkpoints nothing.

    Sources: T. Chen, B. Xu, C. Zhang, C. Guestrin, "Training Deep Nets with Sublinear
    Memory Cost" (2016), https://arxiv.org/abs/1604.06174; before them, with as little
    as log n, A. Griewank and A. Walther, "Algorithm 799: revolve" (2000),
    https://doi.org/10.1145/347837.347846.

    Raises ValueError for fewer than 1 layer, more segments than layers, or bytes and
    ratios that are not above 0.

    >>> predict_checkpointing(16, layer_bytes=4.0, boundary_bytes=1.0)
    Checkpointing(segments=8, activations=16.0, time_ratio=1.3333333333333333)
    >>> predict_checkpointing(16, 0, layer_bytes=4.0, boundary_bytes=1.0).activations
    64.0
    """
    amounts = {"layer_bytes": layer_bytes, "boundary_bytes": boundary_bytes}
    for name, value in (amounts | {"backward_ratio": backward_ratio}).items():
        if not 0 < value < math.inf:
            raise ValueError(f"predict_checkpointing(): {name}={value} is not above 0")
    if layers < 1 or not 0 <= (segments or 0) <= layers:
        raise ValueError(
            f"predict_checkpointing(): layers={layers} and segments={segments}: "
            "there are 1 layer or more, and at most as many segments"
        )

    def weigh(count: int) -> float:
        return count * boundary_bytes + math.ceil(layers / count) * layer_bytes

    if segments is None:
        segments = min(range(1, layers + 1), key=weigh)  # the first of equals
    if segments == 0:
        return Checkpointing(0, layers * layer_bytes, 1.0)
    time_ratio = (2 + backward_ratio) / (1 + backward_ratio)
    return Checkpointing(segments, weigh(segments), time_ratio)
